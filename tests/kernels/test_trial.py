"""Which configurations a trial tries, how it decides, and that its entries are read back whole."""

import json
from types import SimpleNamespace

import pytest
import torch

from kernels import persistent, trial
from kernels.registry import CONTENDERS
from kernels.tiles import Config, choose, table
from kernels.trial import EXPERIMENTS, candidates, fastest
from kernels.waves import GpuSpec
from roofline.operations.matmul import Matmul
from roofline.theory.chips import find

H100 = GpuSpec.of_chip(find("H100 SXM"))
NOW, QUICK, SLOW = (Config(128, 128, 64, 8, stages) for stages in (3, 4, 5))


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_candidates_are_few_different_fit_and_begin_with_what_is_taken(tables, name):
    experiment = EXPERIMENTS[name]
    case = Matmul("xxl", "up", 8, experiment.tokens[1], "bf16")
    configs = candidates(experiment, case, H100)
    now, *others = configs
    assert now == choose(experiment.kernel, "sm90", case.m, case.n, case.k, torch.bfloat16, H100)
    assert 3 <= len(configs) <= 1 + trial.MOST
    assert all(c.num_stages * (c.block_m + c.block_n) * c.block_k * 2 <= 232_448 for c in others)
    assert [configs[config] for config in others] == sorted(configs[config] for config in others)
    run = CONTENDERS[experiment.kernel].load()
    varied = {field for field in vars(now) if len({getattr(config, field) for config in configs}) > 1}
    tiles_apart = {"block_m", "block_n", "block_k", "num_warps", "num_stages", "subtile"}
    changed = {field for change in experiment.changes or (*run.changes, run.grid) for field in change}
    assert varied <= tiles_apart | changed | {"group_m", "raster", "gang_m", "gang_n", "shared_waves"}
    assert varied & changed


def rounds(seconds: dict[Config | None, float], quick_first_s: float | None = None) -> trial.Times:
    """Each round takes a little longer than the one before; QUICK is lucky in the first half where that is said. One
    sample is missing."""
    times = {config: {i: time_s * (1 + i / 1000) for i in range(10)} for config, time_s in seconds.items()}
    if quick_first_s:
        times[QUICK] |= dict.fromkeys(range(5), quick_first_s)
    del times[SLOW][3]
    return times


@pytest.mark.parametrize("quick_first_s", [None, 0.5])
def test_the_earlier_rounds_say_which_is_the_fastest_and_the_later_by_how_much(quick_first_s):
    times = rounds({None: 1.0, NOW: 1.0, QUICK: 0.9, SLOW: 1.3}, quick_first_s)
    assert fastest(times, NOW) == (QUICK, pytest.approx(1 / 0.9))
    assert fastest(rounds({None: 0.5, NOW: 1.0, QUICK: 1.1, SLOW: 1.3}), NOW) == (NOW, 1.0)


@pytest.fixture
def gpu(monkeypatch, tables):
    """As if the CPU were an H100, where `quick` takes half the time, and all run but those that are wrong or spill."""
    about = SimpleNamespace(wrong=[], spills=[], quick=[], measured=[])

    class Run(type(persistent.matmul)):
        def __call__(self, x, w, out, config):
            about.last = config
            return out.copy_(x @ w.T).mul_(2 if config in about.wrong else 1)

    def cublas(x, w, out):
        about.last = None
        return torch.mm(x, w.T, out=out)

    class Clock:
        now = trial.time.monotonic

        def turn(self, calls):
            times = []
            for call in calls:
                call()
                about.measured.append(about.last)
                times.append(0.5 if about.last in about.quick else 1.0)
            return times

    def inspect_all(jobs):
        return [
            SimpleNamespace(job=job, mma="wgmma", problems=lambda job=job: ["spills"] * (job.config in about.spills))
            for job in jobs
        ]

    def operands(case, options):
        return [(torch.randn(case.m, case.k).bfloat16(), torch.randn(case.n, case.k).bfloat16(),
                 torch.empty(case.m, case.n).bfloat16())] * 2  # fmt: skip

    monkeypatch.setattr(trial, "inspect_all", inspect_all)
    monkeypatch.setattr(trial, "operands", operands)
    monkeypatch.setattr(trial, "CudaClock", Clock)
    monkeypatch.setattr(trial, "Instruments", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "H100")
    monkeypatch.setattr(trial.tiles, "machine_of", lambda device: H100)
    monkeypatch.setattr(persistent, "matmul", Run(**vars(persistent.matmul)))
    monkeypatch.setitem(CONTENDERS, "cublas", SimpleNamespace(load=lambda: cublas))
    return about


SHAPES = ("matmul-64x48-shape-tp1-m128-bf16", "matmul-128x48-shape-tp1-m128-bf16")


def test_the_fastest_that_is_sound_and_right_is_an_entry_that_tables_take(gpu, tables, tmp_path, capsys):
    case = Matmul("128x48", "shape", 1, 128, "bf16")
    now, first, second, third, *_ = candidates(EXPERIMENTS["persistent"], case, H100)
    gpu.spills, gpu.wrong, gpu.quick = [first], [second], [third]
    out = tmp_path / "out"
    assert trial.main(["persistent", "--shapes", SHAPES[1], "--out", str(out), "--minutes", "0.01"]) == 0
    message = capsys.readouterr().out
    assert f"left out: {first}: spills" in message
    assert f"left out: {second}: persistent: relative error 1.0" in message
    assert f"{case.id} {third}: 500000.0 us, 0.0 TFLOP/s, 2.000 [2.000, 2.000] of cublas, FASTER" in message
    assert f"{case.id} {now}: 1000000.0 us, 0.0 TFLOP/s, 1.000 [1.000, 1.000] of cublas, alike" in message
    assert {*gpu.measured} == {None, *candidates(EXPERIMENTS["persistent"], case, H100)} - {first, second}
    assert all(
        {*gpu.measured} == {*gpu.measured[start:][: len({*gpu.measured})]} for start in (0, len({*gpu.measured}))
    )
    (row,) = json.loads((out / "persistent.json").read_text())
    assert (row["measured"]["ratio"], row["measured"]["over"], row["measured"]["sms"]) == (2.0, str(now), 132)
    document = json.loads((tables / "sm90.json").read_text())
    (tables / "sm90.json").write_text(json.dumps(document | {"entries": [row, *document["entries"]]}))
    table.cache_clear(), choose.cache_clear()
    assert choose("persistent", "sm90", case.m, case.n, case.k, torch.bfloat16, H100) == third


def test_it_ends_in_time_and_what_was_not_begun_is_named(gpu, tmp_path, capsys):
    arguments = ["persistent", "--shapes", *SHAPES, "--out", str(tmp_path / "out"), "--minutes", "1e-9"]
    assert trial.main(arguments) == 0
    message = capsys.readouterr().out
    assert all(f"{shape}: not begun" in message for shape in SHAPES)
    assert not gpu.measured
    assert not [*(tmp_path / "out").iterdir()]


def test_dry_it_times_nothing_and_says_what_it_would_try(gpu, capsys, tmp_path):
    assert trial.main(["raster", "--dry", "--shapes", *SHAPES, "--out", str(tmp_path / "out")]) == 0
    assert "to time" in capsys.readouterr().out
    assert not gpu.measured
    assert not (tmp_path / "out").exists()


def test_no_gpu_is_one_line_with_the_way_out(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="2"):
        trial.main([])
    assert "torch finds no GPU here: run this on a Hopper, or with --dry" in capsys.readouterr().err
