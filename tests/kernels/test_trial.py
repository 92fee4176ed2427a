"""Which configurations a trial tries and inspects, how it decides, and that its entries are read back whole."""

import itertools
import json
import os
from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch
import triton

from kernels import persistent, tiles, warpgroup
from kernels.experiments import trial, trial_launches
from kernels.experiments.trial import EXPERIMENTS, candidates, fastest
from kernels.experiments.trial_launches import Inspected
from kernels.inspect import Finding, Job
from kernels.persistent import Config
from kernels.registry import CONTENDERS
from kernels.tiles import choose
from kernels.waves import GpuSpec
from roofline.operations.matmul import LAYERS, OPERATION, Matmul
from roofline.theory.chips import find
from roofline.worker.clocks import Clock

H100 = GpuSpec.of_chip(find("H100 SXM"))
H200 = GpuSpec.of_chip(find("H200"))
OVER_K = [name for name, experiment in EXPERIMENTS.items() if experiment.shapes]


def candidate(kernel, config):
    return Job(kernel, config, "bf16", 90, 232_448, None)


NOW, QUICK, SLOW = (candidate("persistent", Config(128, 128, 64, 8, stages)) for stages in (3, 4, 5))


@pytest.fixture(params=[(3, 7), (3, 8), (3, 9)], ids="{0[0]}.{0[1]}".format)
def release(monkeypatch, request, read_anew):
    """The release of Triton that the checked-in tables are read for, with what was measured: nothing is compiled."""
    monkeypatch.setattr(tiles, "triton_release", lambda: request.param)
    read_anew()
    return request.param


@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if name not in OVER_K])
def test_candidates_of_each_shape_are_few_fit_and_begin_with_what_is_taken(release, name):
    experiment = EXPERIMENTS[name]
    if release < experiment.triton:
        pytest.skip(f"{name} needs Triton {experiment.triton}")
    changed = {field for change in experiment.changes for field in change}
    tried_of = defaultdict(set)
    for m, layer, tp in itertools.product(experiment.tokens, LAYERS, (1, 8)):
        case = Matmul("xxl", layer, tp, m, "bf16")
        tried = candidates(experiment, case, H200)
        assert len(tried) <= len(experiment.kernels) + experiment.most
        for kernel in experiment.kernels:
            configs = [job.config for job in tried if job.kernel == kernel]
            assert configs[0] == choose(kernel, "sm90", case.m, case.n, case.k, torch.bfloat16, H200)
            assert all(config.ring_bytes(2) <= 232_448 for config in configs)
            assert not any(c.is_untimed for c in configs) or changed & {"block_n", "cluster", "zigzag", "prefetch"}
            tried_of[kernel].update(configs)
    for configs in tried_of.values():
        assert any(len({getattr(config, field) for config in configs}) > 1 for field in changed)


@pytest.mark.parametrize(("early_s", "late_s", "chosen"), [(0.9, 0.9, QUICK), (0.5, 0.9, QUICK), (1.1, 0.9, NOW)])
def test_the_earlier_rounds_say_which_is_the_fastest_and_the_later_by_how_much(early_s, late_s, chosen):
    """Each round takes a little longer than the one before, and one sample is missing."""
    seconds = {"cublas": (0.5, 0.5), NOW: (1.0, 1.0), QUICK: (early_s, late_s), SLOW: (1.3, 1.3)}
    times = {config: {i: of[i >= 5] * (1 + i / 1000) for i in range(10)} for config, of in seconds.items()}
    del times[SLOW][9]
    assert fastest(times, NOW) == (chosen, pytest.approx(1 / late_s if chosen == QUICK else 1.0))


@pytest.fixture
def gpu(monkeypatch, tables):
    """As if the CPU were an H100, where `quick` takes half the time, and all run but those that are wrong or spill."""
    about = SimpleNamespace(
        wrong=[], dies=[], spills=[], quick=[], measured=[], clocks=[], alone=[], inspected=[], seconds=0.0
    )

    def ran(job, x):
        about.last, about.k, about.x = job, x.shape[1], x.data_ptr()

    class Run(type(persistent.matmul)):
        def __call__(self, x, w, out, config):
            ran(candidate("persistent", config), x)
            if about.last in about.dies:
                raise RuntimeError("out of luck")
            return out.copy_(x @ w.T).mul_(2 if about.last in about.wrong else 1)

    def cublas(x, w, out):
        ran("cublas", x)
        return torch.mm(x, w.T, out=out)

    def seconds_of_last():
        return 0.5 if about.last in about.quick else 1.0

    class FixedClock(Clock):
        def __init__(self):
            self.read = set()
            about.clocks.append(self)

        def turn(self, calls):
            about.measured, times = [], []
            for call in calls:
                call()
                about.measured.append(about.last)
                times.append(about.seconds_of_last())
                self.read.add(about.x)
            return times

        def burst(self, call, calls):
            """A slice of calls, which take a quarter of what they take by turns."""
            call()
            about.alone.append(about.last)
            about.seconds += calls * about.seconds_of_last() / 4
            self.look_while_busy()
            return calls * about.seconds_of_last() / 4

    def inspect_launches(todo, chip):
        cubin = SimpleNamespace(instruction="wgmma")
        about.inspected += [job for job, _ in todo]
        return [Finding(job, cubin, ["spills"] * (job in about.spills)) for job, _ in todo]

    def operands(case, options):
        x, w, out = (torch.randn(shape).bfloat16() for shape in ((case.m, case.k), (case.n, case.k), (case.m, case.n)))
        return [(x, w, out), (x.clone(), w, out)]

    about.seconds_of_last = seconds_of_last
    monkeypatch.setattr(trial, "inspect_launches", inspect_launches)
    monkeypatch.setattr(trial, "operands", operands)
    monkeypatch.setattr(trial, "CudaClock", FixedClock)
    monkeypatch.setattr(trial, "Instruments", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "H100")
    monkeypatch.setattr(trial.tiles, "machine_of", lambda device: H100)
    monkeypatch.setattr(persistent, "matmul", Run(**vars(persistent.matmul)))
    monkeypatch.setitem(CONTENDERS, "cublas", SimpleNamespace(load=lambda: cublas, kind="vendor"))
    return about


SHAPES = ("matmul-64x48-shape-tp1-m128-bf16", "matmul-128x48-shape-tp1-m128-bf16")
CASE = Matmul("128x48", "shape", 1, 128, "bf16")
"""The second of them."""


@pytest.fixture
def tried():
    """What a trial of `persistent` tries for CASE, what is taken at present first."""
    return list(candidates(EXPERIMENTS["persistent"], CASE, H100))


@pytest.fixture
def run(tmp_path):
    """`run(name, *words)`: a trial whose entries go to the folder `out`, and which ends well."""

    def run_trial(name, *words):
        assert trial.main([name, f"--out={tmp_path / 'out'}", *words]) == 0

    return run_trial


SHORT = "--shapes", SHAPES[1], "--minutes=0.01"


def test_the_fastest_that_is_sound_and_right_is_an_entry_that_tables_take(gpu, on_top, tried, run, tmp_path, capsys):
    now, first, second, third, fourth, *_ = tried
    gpu.spills, gpu.wrong, gpu.quick, gpu.dies = [first], [second], [third], [fourth]
    run("persistent", *SHORT)
    message = capsys.readouterr().out
    assert f"left out: {first}: spills" in message
    assert f"left out: {second}: persistent: relative error 1.0" in message
    assert f"left out: {fourth}: RuntimeError: out of luck" in message
    assert f"{CASE.id} cold {third}: 500000.0 us, 0.0 TFLOP/s, 2.000 [2.000, 2.000] of cublas" in message
    assert {*gpu.measured} == {"cublas", *tried} - {first, second, fourth}
    (row,) = json.loads((tmp_path / "out" / "persistent.json").read_text())
    assert row["measured"].items() >= {"ratio": 2.0, "over": str(now), "sms": 132}.items()
    on_top(row)
    assert choose("persistent", "sm90", CASE.m, CASE.n, CASE.k, torch.bfloat16, H100) == third.config


def test_what_was_inspected_at_home_is_not_inspected_again_unless_the_source_is_another(
    gpu, tried, run, tmp_path, capsys
):
    path, first = tmp_path / "inspected.json", tried[1]
    there = "persistent", *SHORT, f"--inspected={path}"
    gpu.spills = [first]
    run(*there, "--dry")
    assert gpu.inspected == tried
    gpu.spills, gpu.inspected = [], []
    run(*there)
    assert not gpu.inspected
    assert f"left out: {first}: spills" in capsys.readouterr().out
    assert {*gpu.measured} == {"cublas", *tried} - {first}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"triton": "3.0.0"}))
    run(*there)
    assert "is of another Triton or of other source files: all is inspected here" in capsys.readouterr().out
    assert gpu.inspected == tried


@pytest.mark.parametrize("problems", [(["spills"], []), ([], ["spills"])])
def test_a_problem_on_one_shape_leaves_a_candidate_out_of_all(monkeypatch, capsys, problems):
    cubin = SimpleNamespace(instruction="wgmma")
    monkeypatch.setattr(trial, "inspect_launches", lambda todo, chip: [Finding(NOW, cubin, each) for each in problems])
    plans = {m: {NOW: 1.0} for m in (128, 256)}
    assert trial.sound_among(plans, None, Inspected(None), anew=True) == {}
    assert f"left out: {NOW}: spills" in capsys.readouterr().out


@pytest.mark.parametrize("watts", [700, None, 0])
def test_where_power_is_in_question_the_fastest_run_alone_and_a_missing_counter_is_no_0(
    gpu, tried, run, monkeypatch, capsys, watts
):
    """Without a card NVML counts nothing. A counter that stands still is none, either."""
    telemetry = SimpleNamespace(start=lambda: None, read=lambda: None, summary=dict)
    telemetry.energy = lambda: (gpu.seconds, watts * gpu.seconds)
    if watts is not None:
        monkeypatch.setattr(trial, "GpuTelemetry", lambda: telemetry)
    monkeypatch.setitem(EXPERIMENTS, "persistent", EXPERIMENTS["persistent"]._replace(sustained_s=1.0))
    now, first, *_, second, third = tried
    gpu.quick, gpu.wrong = [third, second], [first]
    run("persistent", *SHORT)
    assert list(dict.fromkeys(gpu.alone)) == ["cublas", now, second, third]
    printed, work = capsys.readouterr().out, CASE.work.flop / 1e12
    for name, time_s in (("cublas", 0.25), (now, 0.25), (second, 0.125), (third, 0.125)):
        energy = f"{watts} W, {watts * time_s / work:.4f} J/TFLOP" if watts else "energy unmeasured: NVML counts none"
        assert f"{CASE.id} cold {name} alone: {work / time_s:.1f} TFLOP/s, {energy}" in printed


def test_over_k_the_line_of_cold_and_of_warm_calls_begins_at_the_fixed_time(gpu, run, tmp_path, monkeypatch, capsys):
    """Nothing is an entry, though one is faster than what is taken at present."""
    shapes = [f"matmul-{k}x48-shape-tp1-m128-bf16" for k in (64, 128, 512)]
    tried = {"kernels": ["persistent"], "changes": [{"num_stages": [3]}], "most": 2}
    monkeypatch.setitem(EXPERIMENTS, "fixed", EXPERIMENTS["fixed"]._replace(shapes=shapes, **tried))
    now, other = candidates(EXPERIMENTS["fixed"], OPERATION.parse(shapes[0])[0], H100)
    fixed_us = {"cublas": 9.0, now: 8.0, other: 4.0}

    def seconds_of_last():
        cold_us = 5.0 if len(gpu.clocks) <= len(shapes) else 0.0
        return (fixed_us[gpu.last] + cold_us + gpu.k / 1024 * 20) * 1e-6

    gpu.seconds_of_last = seconds_of_last
    run("fixed", "--minutes=0.2")
    assert [len(clock.read) for clock in gpu.clocks] == [2, 2, 2, 1, 1, 1]
    lines = capsys.readouterr().out.splitlines()
    along_k = "us of a call do not grow with K, and each 1024 along K take 20.00 us, by 3 sizes"
    cold = [f"{name} cold: {us + 5} {along_k}" for name, us in fixed_us.items()]
    assert lines[-6:] == [*cold, *(f"{name} warm: {us} {along_k}" for name, us in fixed_us.items())]
    assert not [*tmp_path.glob("out/*")]


@pytest.mark.parametrize(
    ("words", "message", "turns"),
    [
        (["raster", "--minutes=1e-9", "--shapes", *SHAPES], "not begun, the time is up", 2),
        (["fixed", "--dry"], " to time", 10),
    ],
)
def test_it_ends_in_time_and_dry_it_times_nothing(gpu, run, tmp_path, capsys, words, message, turns):
    run(*words)
    assert capsys.readouterr().out.count(message) == turns
    assert not gpu.measured
    assert not [*tmp_path.glob("out/*")]


def test_a_triton_that_is_too_old_is_refused_at_once_with_the_way_out(gpu, capsys, monkeypatch):
    monkeypatch.setattr(trial.tiles, "triton_release", lambda: (3, 7))
    monkeypatch.setattr(trial, "inspect_launches", None)
    with pytest.raises(SystemExit, match="2"):
        trial.main(["odd", "--dry"])
    message = capsys.readouterr().err
    assert "odd needs Triton 3.9 or later, this is " in message
    assert "`make pack TRITON=3.9.0` takes one along" in message


def inspected(folder: str) -> list:
    """Of a launch its programs, whether they share, if the cache had it; problems of it, and of a wrong one."""
    os.environ["TRITON_CACHE_DIR"] = folder
    trial_launches.stand_in(find("H100 SXM"))
    case = Matmul("xxl", "up", 8, 512, "bf16")
    config = warpgroup.Config(256, 128, 64, 8, 4, subtile=4, gang_m=2, gang_n=13, shared_waves=2)
    job = candidate("warpgroup", config)
    launch = trial_launches.launch_of(job, case)
    hits = []
    triton.knobs.compilation.listener = lambda *, cache_hit, **about: hits.append(cache_hit)
    findings = [trial_launches.inspect_launch(job, case) for _ in range(2)]
    wrong = trial_launches.inspect_launch(candidate("warpgroup", warpgroup.Config(128, 96, 64, 8, 4)), case)
    return [launch.grid[0], launch.args["SHARED"], hits[:1], findings[0].problems, wrong.problems]


@pytest.mark.slow
def test_a_launch_is_that_of_all_sms_of_the_chip(tmp_path, elsewhere):
    programs, shared, hits, problems, wrong = elsewhere(inspected, str(tmp_path))
    assert (programs, shared) == (130, True)  # five gangs of 26
    assert hits == [False]
    assert problems == []
    assert "of odd widths warpgroup has 128x208x64 and 128x104x64" in wrong[0]
    assert [*tmp_path.glob("*/warpgroup_kernel.cubin")]
