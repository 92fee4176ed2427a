"""Steady state: who gets it, and blocks that alternate, last their time, and count energy and clock in their part."""

from types import SimpleNamespace

import pytest
from fake_clock import FakeClock

from roofline.analysis.records import records_of
from roofline.host import telemetry
from roofline.worker import clocks, steady
from roofline.worker.clocks import Call
from roofline.worker.prepared import Entrant, PreparedCase


class FakeTelemetry:
    """A card that clocks at 1500 MHz and draws 700 W, `less` from the second second on."""

    def __init__(self, clock, less=0):
        self._clock, self._less = clock, less

    def start(self):
        pass

    read = start

    def energy(self):
        seconds = self._clock.seconds
        return seconds, 700 * seconds - self._less * max(0, seconds - 1)

    def summary(self):
        return {"sm_clock_mhz": 1500, "throttle_reasons": "power cap", "throttled": True}


def blocks_of(energy=True, less=0, count=1, counted_s=steady.COUNTED_S, **times_s):
    """The blocks of contenders whose calls take so long, and the clock that they took them by."""
    clock = FakeClock()
    card = FakeTelemetry(clock, less)
    card.energy = card.energy if energy else lambda: None
    calls = {name: (lambda time_s=time_s: time_s) for name, time_s in times_s.items()}
    blocks = []
    for block in steady.blocks([*calls], seed=3, count=count):
        name = block["contender"]
        blocks.append(block | steady.run_block(calls[name], times_s[name], clock, card, counted_s))
    return blocks, clock


SHORT = {"baseline": 0.0019, "slow": 0.010}
LONG = {"slow": 0.004, "baseline": 0.003, "fast": 0.002, "faster": None}


@pytest.mark.parametrize(
    ("medians_s", "device", "m", "asked", "who"),
    [
        (LONG, "cuda", 1024, {}, ["fast", "baseline"]),
        (LONG, "cuda", 512, {}, []),
        (LONG, "cuda", 1024, {"op": "attention", "steady": 2}, ["fast", "baseline", "slow"]),
        (LONG, "cpu", 1, {"steady": 2}, ["fast", "baseline", "slow"]),
        (LONG, "cuda", 8192, {"analysis": "overlap", "steady": 2}, []),
        (SHORT, "cuda", 8192, {"steady": 2}, []),
    ],
)
def test_who_gets_a_steady_state(medians_s, device, m, asked, who):
    case = SimpleNamespace(op=asked.get("op", "matmul"), m=m)
    prepared = PreparedCase(case, "baseline", analysis=asked.get("analysis", "throughput"))
    prepared.entrants = {name: Entrant(name, None) for name in medians_s} | {"probe": Entrant("probe", None, "probe")}
    options = SimpleNamespace(device=device, steady=asked.get("steady"))
    timed = {name: time_s for name, time_s in medians_s.items() if time_s}
    assert steady.chosen(prepared, timed, options) == who


def test_each_contender_gets_its_blocks_in_orders_that_are_the_one_before_reversed():
    """A block counts 1.5 seconds after 0.4 s that it drops."""
    blocks, clock = blocks_of(count=4, quick=0.004, slow=0.010)
    orders = [[b["contender"] for b in blocks if b["block"] == index] for index in range(4)]
    assert sorted(orders[0]) == ["quick", "slow"]
    assert orders[1:] == [orders[0][::-1], orders[0], orders[0][::-1]]
    assert [b["position"] for b in blocks] == [0, 1] * 4
    for block in blocks:
        assert 1.5 <= block["calls"] * block["time_s"] < 1.8
        assert block["energy_j"] == pytest.approx(700 * block["calls"] * block["time_s"])
        assert block["sm_clock_mhz"] == 1500
    counted = sum(b["calls"] * b["time_s"] for b in blocks)
    assert 0.4 * len(blocks) <= clock.seconds - counted < 0.7 * len(blocks)
    assert all(0.25 <= calls * call() < 0.27 for call, calls in clock.bursts)


def test_energy_is_by_the_power_between_the_readings():
    (block,), _ = blocks_of(less=200, a=1 / 32)
    seconds = block["calls"] * block["time_s"]
    assert seconds == 1.5  # of which 1.25 s lie between the readings, from 0.5 s to 1.75 s
    assert block["energy_j"] == pytest.approx((700 - 200 * 0.75 / 1.25) * seconds)
    (block,), _ = blocks_of(counted_s=1.0, a=1 / 32)
    assert block["calls"] * block["time_s"] == 1.0
    (block,), _ = blocks_of(energy=False, a=0.01)  # a card that counts none
    assert block["energy_j"] is None


def counts(nvml, watts, time):
    """Have `nvml` count the energy of a card that draws `watts`, ten times a second."""
    nvml.nvmlDeviceGetTotalEnergyConsumption = lambda handle: 1e3 * watts * (int(10 * time.seconds) / 10 + 5)


def test_energy_is_read_when_nvml_has_just_renewed_it(fake_nvml, fake_time):
    card, time = telemetry.GpuTelemetry(), fake_time(telemetry)
    counts(fake_nvml, 500, time)
    first = card.energy()
    assert first == (pytest.approx(0.1, abs=0.002), pytest.approx(500 * 5.1))
    time.sleep(0.96)  # at 1.06 s the counter still has 500 * 6.0: 6 % less than what was drawn
    last = card.energy()
    assert (last[1] - first[1]) / (last[0] - first[0]) == pytest.approx(500, rel=0.003)
    assert time.seconds == pytest.approx(1.1, abs=0.002)
    fake_nvml.nvmlDeviceGetTotalEnergyConsumption = lambda handle: 12_500  # never renewed
    assert card.energy() == (pytest.approx(1.3, abs=0.005), 12.5)


def test_burst_is_the_time_of_all_calls_by_the_host_and_by_the_device(fake_cuda, fake_time):
    time = fake_time(clocks)
    assert clocks.CpuClock().burst(Call(lambda: time.sleep(0.005)), 4) == pytest.approx(0.02, abs=1e-5)
    _, kernel = fake_cuda(launch_s=1e-6)
    read = []
    clock = clocks.CudaClock()
    with clock.while_busy(lambda: read.append(1)):
        assert clock.burst(kernel, 10) == pytest.approx(10 * 50e-6)
    assert read == [1]


def blocks_by_rows(outcome):
    """{M: {contender: alternations}} of what ran alone."""
    by_rows = {}
    for shape in outcome.kept.shapes.values():
        by_rows[shape.params["m"]] = {name: list(blocks) for name, blocks in shape.steady.items()}
    return by_rows


def test_contender_that_dies_in_its_steady_state_fails_and_keeps_its_row(three_shapes):
    outcome = three_shapes("--ffn-steady=4", "-k", "not m256", slower=4, fault="block-numpy 64 crash")
    assert outcome.code == 1
    assert blocks_by_rows(outcome)[128] == {"torch": [0, 1, 2, 3], "numpy": [0, 1, 2, 3]}
    records = {record["case"]: record for record in records_of(outcome.kept)}
    assert records["matmul-xxl/16-up-tp8-m128-fp32-numpy"]["steady_ratio_to_baseline"] == pytest.approx(2, rel=0.1)
    assert "\nSteady state\n" in outcome.text
    (entry,) = outcome.saved["not_measured"]
    assert entry["case"].endswith("m64-fp32-numpy-steady")
    assert entry["outcome"] == "failed"
    assert entry["reason"].startswith("RuntimeError: no such instruction")
    assert len(outcome.cases) == 4
    assert blocks_by_rows(outcome)[64] == {"torch": [0, 1, 2, 3], "numpy": [0]}


def test_interruption_in_a_steady_state_keeps_the_rounds_and_can_be_gone_on_with(three_shapes):
    outcome = three_shapes("--ffn-steady=4", "-k", "m64", slower=4, fault="block-numpy 64 SIGTERM")
    assert outcome.code == 2
    assert outcome.kept.unfinished
    assert len(list(outcome.kept.cases())) == 2
    again = outcome.go_on()
    assert again.code == 0
    assert blocks_by_rows(again)[64] == {"torch": [0, 1, 2, 3], "numpy": [0, 1, 2, 3]}
