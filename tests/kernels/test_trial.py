"""Which configurations a trial tries, how it decides, and that its entries are read back whole."""

import json
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from kernels import persistent, trial
from kernels.registry import CONTENDERS
from kernels.tiles import Config, choose, table, triton_release
from kernels.trial import EXPERIMENTS, MOST, candidate, candidates, fastest
from kernels.waves import GpuSpec
from roofline.operations.matmul import Matmul
from roofline.theory.chips import find
from roofline.worker.clocks import Clock

H100 = GpuSpec.of_chip(find("H100 SXM"))
NOW, QUICK, SLOW = (candidate("persistent", Config(128, 128, 64, 8, stages)) for stages in (3, 4, 5))


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_candidates_are_few_different_fit_and_begin_with_what_is_taken(tables, name):
    experiment = EXPERIMENTS[name]
    if experiment.kernels == ["pair"] and triton_release() < (3, 8):
        pytest.skip("pair needs Triton 3.8")
    case = Matmul("xxl", "up", 8, experiment.tokens[1], "bf16")
    tried = candidates(experiment, case, H100)
    at_present = choose(experiment.kernels[0], "sm90", case.m, case.n, case.k, torch.bfloat16, H100)
    assert next(iter(tried)) == candidate(experiment.kernels[0], at_present)
    assert len(tried) <= len(experiment.kernels) + MOST
    for kernel in experiment.kernels:
        configs = [job.config for job in tried if job.kernel == kernel]
        assert len(configs) >= 3
        assert all(c.num_stages * (c.block_m + c.block_n) * c.block_k * 2 <= 232_448 for c in configs)
        changed = {field for change in experiment.changes for field in change}
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
    about = SimpleNamespace(wrong=[], dies=[], spills=[], quick=[], measured=[])

    class Run(type(persistent.matmul)):
        def __call__(self, x, w, out, config):
            about.last = candidate("persistent", config)
            if about.last in about.dies:
                raise RuntimeError("out of luck")
            return out.copy_(x @ w.T).mul_(2 if about.last in about.wrong else 1)

    def cublas(x, w, out):
        about.last = "cublas"
        return torch.mm(x, w.T, out=out)

    class FixedClock(Clock):
        def turn(self, calls):
            about.measured = [(call(), about.last)[1] for call in calls]
            return [0.5 if job in about.quick else 1.0 for job in about.measured]

    def inspect_all(jobs):
        def problems(job):
            return ["spills"] * (job in about.spills)

        return [SimpleNamespace(job=job, mma="wgmma", problems=partial(problems, job)) for job in jobs]

    def operands(case, options):
        return [(torch.randn(case.m, case.k).bfloat16(), torch.randn(case.n, case.k).bfloat16(),
                 torch.empty(case.m, case.n).bfloat16())] * 2  # fmt: skip

    replaced = {"inspect_all": inspect_all, "operands": operands, "CudaClock": FixedClock, "Instruments": lambda: None}
    for name, stand_in in replaced.items():
        monkeypatch.setattr(trial, name, stand_in)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "H100")
    monkeypatch.setattr(trial.tiles, "machine_of", lambda device: H100)
    monkeypatch.setattr(persistent, "matmul", Run(**vars(persistent.matmul)))
    monkeypatch.setitem(CONTENDERS, "cublas", SimpleNamespace(load=lambda: cublas))
    return about


SHAPES = ("matmul-64x48-shape-tp1-m128-bf16", "matmul-128x48-shape-tp1-m128-bf16")


def test_the_fastest_that_is_sound_and_right_is_an_entry_that_tables_take(gpu, tables, tmp_path, capsys):
    case = Matmul("128x48", "shape", 1, 128, "bf16")
    now, first, second, third, fourth, *_ = candidates(EXPERIMENTS["persistent"], case, H100)
    gpu.spills, gpu.wrong, gpu.quick, gpu.dies = [first], [second], [third], [fourth]
    out = tmp_path / "out"
    assert trial.main(["persistent", "--shapes", SHAPES[1], "--out", str(out), "--minutes", "0.01"]) == 0
    message = capsys.readouterr().out
    assert f"left out: {first}: spills" in message
    assert f"left out: {second}: persistent: relative error 1.0" in message
    assert f"left out: {fourth}: RuntimeError: out of luck" in message
    assert f"{case.id} {third}: 500000.0 us, 0.0 TFLOP/s, 2.000 [2.000, 2.000] of cublas" in message
    assert f"{case.id} {now}: 1000000.0 us, 0.0 TFLOP/s, 1.000 [1.000, 1.000] of cublas" in message
    assert {*gpu.measured} == {"cublas", *candidates(EXPERIMENTS["persistent"], case, H100)} - {first, second, fourth}
    (row,) = json.loads((out / "persistent.json").read_text())
    assert row["measured"].items() >= {"ratio": 2.0, "over": str(now), "sms": 132}.items()
    document = json.loads((tables / "sm90.json").read_text())
    (tables / "sm90.json").write_text(json.dumps(document | {"entries": [row, *document["entries"]]}))
    table.cache_clear(), choose.cache_clear()
    assert choose("persistent", "sm90", case.m, case.n, case.k, torch.bfloat16, H100) == third.config


@pytest.mark.parametrize(("option", "said"), [("--minutes=1e-9", "not begun, the time is up"), ("--dry", " to time")])
def test_it_ends_in_time_and_dry_it_times_nothing(gpu, tmp_path, capsys, option, said):
    assert trial.main(["raster", option, f"--out={tmp_path / 'out'}", "--shapes", *SHAPES]) == 0
    assert capsys.readouterr().out.count(said) == len(SHAPES)
    assert not gpu.measured
    assert not [*(tmp_path / "out").glob("*")]


def test_no_gpu_is_one_line_with_the_way_out(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="2"):
        trial.main([])
    assert "torch finds no GPU here: run this on a Hopper, or with --dry" in capsys.readouterr().err
