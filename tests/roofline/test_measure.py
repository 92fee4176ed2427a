"""Turns, ceilings, telemetry and the machine on fakes: what must be dropped is dropped, what must stop stops."""

import os
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from fake_clock import FakeClock, case_of
from stand_in import properties_of

from roofline.host import machine, telemetry
from roofline.host.device_errors import CallError
from roofline.operations.matmul import Matmul
from roofline.protocol.stop_rule import StopRule
from roofline.theory import chips
from roofline.worker import ceilings
from roofline.worker.alone import Alone
from roofline.worker.clocks import Call
from roofline.worker.rounds import Rounds, take_turns

QUIET = StopRule(max_seconds=1e9, warmup_s=0.0)


def turns_of(calls, seconds=1e9, clock=None, seed=0):
    """Turns without a warm-up, for so long at most."""
    return take_turns(case_of(calls), clock or FakeClock(), StopRule(max_seconds=seconds, warmup_s=0.0), seed=seed)


def test_time_cap_stops_it_and_the_fewest_rounds_may_take_three_times_as_long():
    noise = np.random.default_rng(0).lognormal(sigma=0.1, size=200)
    for seconds, rounds in ((50, 50), (20, 30), (5, 15)):
        times = iter(noise / noise.mean())
        turns = turns_of({"a": lambda times=times: next(times)}, seconds)
        assert turns.stopped_by == "time"
        assert len(turns.rounds) == pytest.approx(rounds, abs=2)
    assert turns_of({"a": lambda: 100.0}, 5).times_s == {"a": {0: 100.0}}  # one always


def test_a_rank_warms_up_as_often_as_rank_0_and_measures_as_long():
    """Whatever its own clock says."""
    clock, shared = FakeClock(), iter([True, True, False, "", "", "rounds"])
    clock.ranks = Alone()
    clock.ranks.broadcast = lambda value: next(shared)
    turns = take_turns(case_of({"a": lambda: 100.0}), clock, StopRule(max_seconds=1e-9, warmup_s=0.2), seed=0)
    assert (clock.calls, len(turns.rounds), turns.stopped_by) == (3 + 2, 2, "rounds")


def test_warm_up_lasts_its_time_and_leaves_no_sample():
    clock = FakeClock()
    turns = take_turns(case_of({"a": lambda: 0.01}), clock, StopRule(max_seconds=1e9, warmup_s=0.2), seed=0)
    assert clock.calls - len(turns.times_s["a"]) in (20, 21)


def noted(fails_at=None):
    """A call that takes a second longer each time, and notes it."""
    seconds = []

    def run():
        seconds.append(len(seconds) + 1.0)
        return seconds[-1]

    def notes():
        if seconds[-1] == fails_at:
            raise RuntimeError("the link is dead")
        return {"noted_s": seconds[-1]}

    return Call(run, notes=notes)


def test_notes_are_those_of_the_sample():
    turns = turns_of({"a": noted(), "b": lambda: 1.0}, 100)
    assert turns.times_s["a"]
    assert {round_.index: round_.values["a"]["noted_s"] for round_ in turns.rounds} == turns.times_s["a"]
    assert not any("b" in round_.values for round_ in turns.rounds)


def raises_at(count):
    left = iter([1.0] * count)
    return lambda: next(left)


@pytest.mark.parametrize(("bad", "whole"), [(noted(fails_at=5), 3), (raises_at(12), 11)], ids=["notes", "call"])
def test_who_raises_is_named_and_the_others_go_on_without_it(bad, whole):
    """The warm-up took one."""
    rounds = Rounds(case_of({"good": lambda: 1.0, "bad": bad}), FakeClock(), QUIET, seed=0)
    with pytest.raises(CallError) as error:
        rounds.run_pass()
    assert error.value.name == "bad"
    assert type(error.value.__cause__) in (StopIteration, RuntimeError)
    assert len(rounds.rounds) == len(rounds.times_s["good"]) == whole
    rounds.drop("bad")
    rounds.run_pass()
    assert rounds.times_s.keys() == {"good"}
    assert len(rounds.times_s["good"]) >= 30
    assert not any(round_.values for round_ in rounds.rounds)


def test_orders_change_from_round_to_round_and_repeat_with_the_seed():
    entrants = {name: lambda: 1.0 for name in "abc"}
    first, again, other = ([round_.order for round_ in turns_of(entrants, seed=seed).rounds] for seed in (1, 1, 2))
    assert first == again != other
    assert {"".join(sorted(order)) for order in first} == {"abc"}
    assert len({tuple(order) for order in first}) == 6


def test_passes_share_the_time_and_only_the_last_may_stop_early():
    prepared = case_of({"a": lambda: 1.0, "b": lambda: 1.0})
    rounds = Rounds(prepared, FakeClock(), StopRule(max_seconds=80, warmup_s=0), seed=0, passes=4)
    seen = []
    for _ in range(4):
        assert not rounds.stopped_by
        rounds.run_pass()
        seen.append(len(rounds.rounds))
    assert seen == [10, 20, 30, 31]  # of two seconds each; all that is known is looked at from the last pass on
    assert rounds.stopped_by == "width"
    assert sorted(rounds.times_s["a"]) == list(range(31))


def test_what_the_clock_read_is_with_the_sample_it_took():
    clock = FakeClock()
    clock.readings = [{"slot": 0.0}, {"slot": 1.0}]
    for round_ in turns_of({"a": lambda: 1.0, "b": lambda: 2.0}, clock=clock).rounds:
        assert [round_.values[name]["slot"] for name in round_.order] == [0.0, 1.0]


def test_late_samples_are_dropped():
    readings, heard = iter([1.0, *[None, 1.0] * 200]), []

    call = Call(lambda: next(readings), listen=heard.append)
    turns = turns_of({"a": call})
    assert sorted(turns.times_s["a"]) == list(range(1, 30, 2))
    assert heard == [1.0] * 15  # neither these nor the warm-up


CASE = Matmul("100,300", "up", 1, 300, "bf16")


def best_of(probes, **about):
    return ceilings.measure(probes, FakeClock(), when="start", seed=0, rule=QUIET, **about)


def test_the_fastest_probe_sets_the_ceiling_and_the_first_of_a_cpus_nearly_as_fast_readers_stands_beside_cases():
    times = {"far": 1.2, "near": 1.05, "fast": 1.0}
    probes = [ceilings.Probe("read", name, 100, partial(float, time_s)) for name, time_s in times.items()]
    for dtype, share in (("fp32", 1.0), ("bf16", 0.5)):
        probes += [ceilings.Probe("matmul", name, 1e3, partial(float, share * times[name]), dtype) for name in times]
    best, reasons = best_of(probes)
    assert not reasons
    names = "dtype", "probe", "beside", "value"
    assert [tuple(map(ceiling.get, names)) for ceiling in best] == [
        (None, "fast", "near", pytest.approx(100)),
        ("fp32", "fast", "fast", pytest.approx(1e3)),
        ("bf16", "fast", "fast", pytest.approx(2e3)),
    ]
    (on_gpu, *_), _ = best_of(probes, device="cuda")
    assert on_gpu["beside"] == "fast"
    assert ceilings.probe_for(Matmul("100,300", "up", 1, 1, "bf16"), probes, best, None).config == "near"
    assert ceilings.probe_for(CASE, probes, best, None).call() == 0.5  # of its dtype


def lines_of_day(dtype, flops, bytes_per_s):
    return [
        {"ceiling": "matmul", "dtype": dtype, "probe": "known", "beside": "known", "value": flops},
        {"ceiling": "read", "dtype": None, "probe": "known", "beside": "known", "value": bytes_per_s},
    ]


def neighbour_of(case, best, sheet) -> str:
    """Which ceiling's probe is timed beside the case."""
    probes = [ceilings.Probe(kind, "known", 1, float, of) for kind, of in (("matmul", case.dtype), ("read", None))]
    return ceilings.probe_for(case, probes, best, sheet).facts["ceiling"]


@pytest.mark.parametrize(
    ("chip", "dtype", "m", "kind"),
    [
        ("H100 SXM", "bf16", 256, "read"),  # intensity 243 and 251, ridge 295
        ("H100 SXM", "bf16", 512, "matmul"),
        ("H200", "bf16", 256, "matmul"),  # ridge 206
        ("H200", "fp8", 256, "matmul"),  # ridge 412
    ],
)
def test_the_datasheet_chooses_the_neighbour_whatever_the_day(chip, dtype, m, kind):
    sheet = asdict(chips.find(chip))
    best = lines_of_day(dtype, 0.3 * sheet["flops"][dtype], 0.93 * sheet["memory_bandwidth_bytes_per_s"])
    assert [neighbour_of(Matmul("xxl", layer, 8, m, dtype), best, sheet) for layer in ("up", "down")] == [kind, kind]


def test_without_a_datasheet_the_first_ceilings_choose_the_neighbour():
    intensity = CASE.work.device_intensity
    low, high = (lines_of_day("bf16", ridge * 1e11, 1e11) for ridge in (0.9 * intensity, 1.1 * intensity))
    for lines, kind in ((low, "matmul"), (low + high, "matmul"), (high, "read"), (high + low, "read")):
        assert neighbour_of(CASE, lines, None) == kind


def crash():
    raise RuntimeError("no such instruction")


def test_a_probe_that_cannot_run_sets_no_ceiling_and_says_why():
    probes = [
        ceilings.Probe("read", "slow", 1, lambda: None),
        ceilings.Probe("matmul", "lazy", 10**9, lambda: 1e-9, "bf16", lambda: "the output holds NaN"),
        ceilings.Probe("matmul", "unable", 10**9, crash, "bf16", crash),
        ceilings.Probe("matmul", "crashes", 10**9, crash, "bf16"),
        ceilings.Probe("matmul", "right", 8, lambda: 4.0, "bf16"),
    ]
    best, reasons = best_of(probes)
    assert [(ceiling["probe"], ceiling["value"]) for ceiling in best] == [("right", pytest.approx(2))]
    assert [reason.split(" (")[0] for reason in reasons] == [
        "read slow: each of its samples was late; is the host overloaded?",
        "matmul bf16 lazy: the output holds NaN",
        "matmul bf16 unable: RuntimeError: no such instruction",
        "matmul bf16 crashes: RuntimeError: no such instruction",
    ]


@pytest.mark.parametrize(("rank", "others_share"), [(None, 0.2), ("2", None)])
def test_what_others_took_of_a_cpu(monkeypatch, rank, others_share):
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    if rank:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", rank)
    stats = iter([(10, 100, 1000, 50), (20, 160, 1200, 70)])  # stolen, busy, all, this process's jiffies
    monkeypatch.setattr(telemetry.CpuTelemetry, "_stat", staticmethod(lambda: next(stats)))
    cpu = telemetry.CpuTelemetry()
    cpu.start()
    summary = cpu.summary()
    assert (summary["stolen_share"], summary["others_share"]) == (0.05, others_share)
    assert summary["load_average"] >= 0


def test_throttling_is_reported_with_its_reason_where_the_clock_is_below_its_highest(fake_nvml, monkeypatch):
    monkeypatch.setattr(telemetry.GpuTelemetry, "INTERVAL_S", 0)
    gpu = telemetry.GpuTelemetry()
    for clock_mhz in (1755, 1755, 1980, 1965):
        fake_nvml.nvmlDeviceGetClockInfo = lambda handle, kind, mhz=clock_mhz: mhz
        gpu.read()
    about = {"sm_clock_mhz": 1860, "power_w": None, "temperature_c": None, "other_processes": 2}
    assert gpu.summary() == about | {"throttled": True, "throttle_reasons": "power cap"}
    gpu.start()
    gpu.read()
    assert gpu.summary()["throttled"] is False
    fake_nvml.nvmlDeviceGetMaxClockInfo = fake_nvml.refuse  # the reason alone is known
    gpu = telemetry.GpuTelemetry()
    gpu.read()
    assert gpu.summary()["throttled"]
    fake_nvml.nvmlInit = fake_nvml.refuse
    gpu = telemetry.GpuTelemetry()
    gpu.read()
    assert (gpu.summary(), gpu.lacking.partition(": ")[2]) == ({"throttled": None}, "NVMLError: Not Supported.")


CAPPED, FREE = {"throttled": True, "throttle_reasons": "power cap"}, {"throttled": False, "throttle_reasons": ""}


@pytest.mark.parametrize(
    ("before", "now", "rounds", "both"),
    [
        # Ticks of a pass without a round.
        ({"others_share": 0.1} | FREE, {"others_share": 1.0} | CAPPED, 0, {"others_share": 0.1} | FREE),
        ({"power_w": 600.0, "temperature_c": 60}, {"power_w": None, "temperature_c": 50}, 3,
         {"power_w": 600.0, "temperature_c": 60}),
        (CAPPED, FREE, 9, CAPPED),
    ],
)  # fmt: skip
def test_passes_count_by_their_rounds_and_what_disturbed_one_of_them_stays(before, now, rounds, both):
    merged = telemetry.merged(before, 3, now, rounds)
    assert merged == {name: pytest.approx(value) if type(value) is float else value for name, value in both.items()}


@pytest.mark.parametrize(
    ("name", "value", "timed", "message"),
    [
        ("CUDA_LAUNCH_BLOCKING", "1", True, r"CUDA_LAUNCH_BLOCKING is set.*; unset it"),
        ("CUDA_LAUNCH_BLOCKING", "1", False, ""),
        *(("CUDA_DEVICE_MAX_CONNECTIONS", bad, False, rf"is set to '{bad}', and 32 is the") for bad in ("8", "many")),
        ("CUDA_DEVICE_MAX_CONNECTIONS", None, True, ""),
    ],
)
def test_variables_that_change_what_a_gpu_does_are_refused(monkeypatch, name, value, timed, message):
    monkeypatch.setattr(machine, "gpu_driver", lambda: "580.1")
    monkeypatch.setattr(machine, "unusable_gpu", lambda: None)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] == "32"  # by the root conftest
    monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name)
    assert machine.choose_device("cpu", timed=timed) == "cpu"
    if message:
        with pytest.raises(ValueError, match=message):
            machine.choose_device("auto", timed=timed)
    else:
        assert machine.choose_device("auto", timed=timed) == "cuda"


def test_fp32_is_refused_where_it_would_be_tf32(monkeypatch):
    name = "NVIDIA_TF32_OVERRIDE"
    monkeypatch.setenv(name, "0")
    machine.refuse_tf32("cuda", ("fp32",))
    monkeypatch.setenv(name, "1")
    machine.refuse_tf32("cuda", ("bf16", "fp16"))
    machine.refuse_tf32("cpu", ("fp32",))
    with pytest.raises(ValueError, match=rf"{name} is set to '1', with fp32 .* in TF32.*; unset it, or leave fp32 out"):
        machine.refuse_tf32("cuda", ("bf16", "fp32"))


def test_variables_that_change_what_a_gpu_does_are_recorded_without_homes(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties_of("H100"))
    given = {"CUDA_CACHE_PATH": f"{Path.home()}/nv", "CUBLAS_WORKSPACE_CONFIG": ":4096:8", "SECRET_CUDA_": "1"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    recorded = machine.describe("cuda")["environment"]
    assert recorded.items() >= {("CUDA_CACHE_PATH", "~/nv"), ("CUBLAS_WORKSPACE_CONFIG", ":4096:8")}
    assert "SECRET_CUDA_" not in recorded
    assert not machine.describe("cpu")["environment"].keys() & given
