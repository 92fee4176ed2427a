"""Steady state: blocks alternate, last their time, drop their first part, and count energy and clock in the rest."""

import pytest
from fake_clock import FakeClock
from made_up_run import LINES, save

from roofline.measure import clocks, steady, telemetry
from roofline.report.write import write
from roofline.store import journal


class FakeTelemetry:
    """A card that draws 700 W and clocks at 1500 MHz."""

    def __init__(self, clock):
        self._clock = clock

    def start(self):
        pass

    def energy_j(self):
        return 700 * self._clock.seconds

    def summary(self):
        return {"sm_clock_mhz": 1500, "throttle_reasons": "power cap", "throttled": True}


def blocks_of(energy=True, **times_s):
    """The blocks of contenders whose calls take so long, and the clock that they took them by."""
    clock = FakeClock()
    card = FakeTelemetry(clock)
    card.energy_j = card.energy_j if energy else lambda: None
    calls = {name: (lambda time_s=time_s: time_s) for name, time_s in times_s.items()}
    return list(steady.blocks(calls, times_s, clock, card, seed=3, failed=None)), clock


@pytest.mark.parametrize("times_s", [{"quick": 0.0019, "slow": 0.010}, {"short": 0.0019}])
def test_shape_whose_quickest_contender_is_short_has_no_steady_state(times_s):
    assert blocks_of(**times_s)[0] == []


def test_each_contender_gets_its_blocks_in_changing_order():
    blocks, _ = blocks_of(quick=0.004, slow=0.010)
    orders = [[b["contender"] for b in blocks if b["block"] == index] for index in range(4)]
    assert all(sorted(order) == ["quick", "slow"] for order in orders)
    assert len({tuple(order) for order in orders}) == 2
    assert [b["position"] for b in blocks] == [0, 1] * 4


def test_a_block_counts_a_second_after_half_a_second_that_it_drops():
    blocks, clock = blocks_of(quick=0.004, slow=0.010)
    for block in blocks:
        assert 1.0 <= block["calls"] * block["time_s"] < 1.3
        assert block["energy_j"] == pytest.approx(700 * block["calls"] * block["time_s"])
        assert block["sm_clock_mhz"] == 1500
    assert [b["time_s"] for b in blocks if b["contender"] == "slow"] == pytest.approx([0.010] * 4)
    counted = sum(b["calls"] * b["time_s"] for b in blocks)
    assert 0.5 * len(blocks) <= clock.seconds - counted < 0.8 * len(blocks)
    assert all(0.25 <= calls * call() < 0.27 for call, calls in clock.bursts)


def test_card_that_counts_no_energy():
    assert {block["energy_j"] for block in blocks_of(energy=False, a=0.01)[0]} == {None}
    assert telemetry.CpuTelemetry().energy_j() is None


def test_nvml_energy_in_joules(fake_nvml):
    fake_nvml.nvmlDeviceGetTotalEnergyConsumption = lambda handle: 12_500
    assert telemetry.GpuTelemetry().energy_j() == 12.5


def test_burst_of_the_cpu_clock_is_the_time_of_all_calls(fake_time):
    time = fake_time(clocks)
    assert clocks.CpuClock().burst(lambda: time.sleep(0.005), 4) == pytest.approx(0.02, abs=1e-5)


def test_burst_of_the_cuda_clock_is_the_time_of_the_device(fake_cuda):
    _, kernel = fake_cuda(launch_s=1e-6)
    read = []
    clock = clocks.CudaClock(preroll_s=100e-6)
    clock.while_busy = lambda: read.append(1)
    assert clock.burst(kernel, 10) == pytest.approx(10 * 50e-6)
    assert read == [1]


def block(contender, index, time_s, energy_j=100.0):
    return {
        "kind": "steady", "shape": "matmul-1024x1024-up-tp1-m8192-bf16", "contender": contender, "block": index,
        "position": 0, "calls": 100, "time_s": time_s, "energy_j": energy_j, "sm_clock_mhz": 1400 + index,
        "throttle_reasons": "power cap", "throttled": True,
    }  # fmt: skip


def test_derived_fields_by_hand(tmp_path):
    blocks = [block("cublas", i, 40e-6) for i in range(3)] + [block("tiled", i, (50 + i) * 1e-6) for i in range(3)]
    folder = save(tmp_path / "run", [*LINES[:-2], *blocks])
    records = {r["case"]: r for r in journal.load(folder).records()}
    tiled = records["matmul-1024x1024-up-tp1-m8192-bf16-tiled"]
    assert tiled["steady_time_s"] == 51e-6
    assert tiled["steady_tflops"] == pytest.approx(2 * 8192 * 1024**2 / 51e-6 / 1e12)
    assert tiled["steady_ratio_to_vendor"] == pytest.approx(40 / 51)
    assert tiled["steady_of_single"] == pytest.approx(25 / 51)
    assert tiled["steady_energy_j"] == 1.0
    assert tiled["steady_power_w"] == pytest.approx(1 / 51e-6)
    assert tiled["steady_flop_per_joule"] == 2 * 8192 * 1024**2
    assert tiled["steady_sm_clock_mhz"] == 1401
    assert not any(key.startswith("steady") for key in records["matmul-1024x1024-up-tp1-m16-bf16-tiled"])
    write(folder)
    report = (folder / "report.md").read_text()
    assert "## Steady state" in report
    assert "| matmul-1024x1024-up-tp1-m8192-bf16 | tiled | 51 us | 337 | 49 % | 0.784 [0.769, 0.800] | 1401 |" in report


def test_option_measures_blocks_from_end_to_end(three_shapes):
    outcome = three_shapes("--ffn-steady", env={"SLOWER": "4"})
    assert outcome.code == 0
    blocks = outcome.kept.steady
    assert {(b["contender"], b["block"]) for b in blocks} == {(c, i) for c in ("torch", "numpy") for i in range(4)}
    record = outcome.rows["numpy"]["extra_info"]
    assert record["steady_ratio_to_vendor"] == pytest.approx(2, rel=0.1)
    assert record["steady_energy_j"] is None
    assert "steady state:" in outcome.text
    assert "## Steady state" in outcome.report


def test_contender_that_dies_in_its_steady_state_fails_and_keeps_its_row(three_shapes):
    outcome = three_shapes("--ffn-steady", "-k", "m64", env={"SLOWER": "4"}, fault="block-numpy 64 crash")
    assert outcome.code == 1
    (entry,) = outcome.saved["not_measured"]
    assert entry["case"].endswith("m64-fp32-numpy-steady")
    assert entry["outcome"] == "failed"
    assert entry["reason"].startswith("RuntimeError: no such instruction")
    assert outcome.rows.keys() == {"torch", "numpy"}
    blocks = outcome.kept.steady
    assert [block["block"] for block in blocks if block["contender"] == "torch"] == [0, 1, 2, 3]


def test_interruption_in_a_steady_state_keeps_the_rounds_and_can_be_gone_on_with(three_shapes):
    outcome = three_shapes("--ffn-steady", "-k", "m64", env={"SLOWER": "4"}, fault="block-numpy 64 SIGTERM")
    assert outcome.code == 2
    run = outcome.kept
    assert run.unfinished
    assert len(list(run.cases())) == 2
    again = outcome.go_on(env={"SLOWER": "4"})
    assert again.code == 0
    assert len(again.kept.steady) == 8


def test_without_timing_the_option_is_refused(run_project):
    outcome = run_project("--ffn-steady")
    assert outcome.code == 2
    assert "--ffn-steady measures: it needs --benchmark-only" in outcome.text
