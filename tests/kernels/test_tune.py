"""Which configurations a tuning tries, how it decides, and that its choice is written and read back whole."""

import json
from types import SimpleNamespace

import pytest
import torch

from kernels import persistent, tune
from kernels.registry import CONTENDERS
from kernels.tiles import FOLDER, Config, architectures, choose
from kernels.tune import as_text, candidates, save, turns, winner
from kernels.waves import GpuSpec
from roofline.theory.chips import find

H200 = GpuSpec.of_chip(find("H200"))
SHAPE = (2048, 6656, 16384)
SHAPES = [SHAPE, (16, 6656, 16384), (256, 16384, 53248), (1, 16384, 6656)]
MEASURED = {"chip": "NVIDIA H200", "sms": 132, "date": "2026-11-21", "shape": "made up", "triton": "3.7.1"}
NOW, QUICK, SLOW = (Config(128, 128, 64, 8, stages) for stages in (3, 4, 5))
MMA = "wgmma.m64n128k16"


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kernel", ["decode", "persistent", "tiled", "warpgroup"])
def test_candidates_are_few_different_fit_and_begin_with_what_is_taken(tables, kernel, shape):
    if kernel == "decode" and shape[0] > 64:
        with pytest.raises(ValueError, match=r"no decode configuration for m=.*sm90.json"):
            candidates(kernel, shape, "bf16", "sm90", H200)
        return
    configs = candidates(kernel, shape, "bf16", "sm90", H200)
    assert configs[0] == choose(kernel, "sm90", *shape, torch.bfloat16, H200)
    assert 3 <= len(configs) == len(set(configs)) <= 1 + tune.MOST
    assert all(c.num_stages * (c.block_m + c.block_n) * c.block_k * 2 <= 232_448 for c in configs[1:])
    grid = CONTENDERS[kernel].load().grid
    assert all(getattr(config, name) in values for config in configs[1:] for name, values in grid.items()
               if name != "group_m")  # fmt: skip


def test_what_the_model_is_unsure_of_is_tried(tables):
    configs = candidates("persistent", SHAPE, "bf16", "sm90", H200)
    assert {(c.block_m, c.block_n) for c in configs} >= {(256, 128), (128, 256)}
    for name in ("num_stages", "group_m", "raster", "flatten"):
        assert len({getattr(config, name) for config in configs}) > 1, name
    assert {c.split for c in candidates("decode", (16, 6656, 16384), "bf16", "sm90", H200)} > {0, 1, 2, 3}


def clock_of(seconds: dict):
    """A clock on which calls take `seconds`, each a little longer than the one before."""
    calls = []

    def clock(call) -> float:
        calls.append(call)
        return seconds[call] * (1 + 1e-4 * len(calls))

    return clock, calls


@pytest.mark.parametrize(("quick_s", "chosen"), [(0.9, QUICK), (0.995, NOW), (1.1, NOW)])
def test_what_is_faster_by_more_than_the_margin_is_taken(quick_s, chosen):
    calls = {config: config for config in (NOW, QUICK, SLOW)}
    clock, order = clock_of({NOW: 1.0, QUICK: quick_s, SLOW: 1.3})
    times = turns(calls, clock)
    rounds = [order[start : start + 3] for start in range(0, len(order), 3)]
    assert len(rounds) == tune.ROUNDS
    assert all(set(configs) == set(calls) for configs in rounds)
    assert len({tuple(configs) for configs in rounds}) > 1
    best, ratio = winner(times, NOW)
    assert best == chosen
    assert ratio == (pytest.approx(1 / quick_s, rel=1e-2) if chosen == QUICK else 1.0)


def test_who_was_lucky_in_the_earlier_rounds_alone_is_not_taken():
    half = tune.ROUNDS // 2
    assert winner({NOW: [1.0] * tune.ROUNDS, QUICK: [0.5] * half + [1.0] * half}, NOW) == (NOW, 1.0)


@pytest.fixture
def gpu(monkeypatch, tables):
    """As if the CPU were an H200, where all configurations run but those that are `wrong` or do not compile."""
    about = SimpleNamespace(wrong=[], spills=[])

    class Run(type(persistent.matmul)):
        def __call__(self, x, w, out, config):
            return out.copy_(x @ w.T).mul_(2 if config in about.wrong else 1)

    def inspect_all(jobs):
        return [
            SimpleNamespace(job=job, problems=lambda job=job: ["spills"] * (job.config in about.spills)) for job in jobs
        ]

    monkeypatch.setattr(tune.tiles, "arch_of", lambda device: "sm90")
    monkeypatch.setattr(tune.tiles, "machine_of", lambda device: H200)
    monkeypatch.setattr(tune, "inspect_all", inspect_all)
    monkeypatch.setattr(tune.torch.cuda, "get_device_name", lambda device: "H200")
    monkeypatch.setattr(persistent, "matmul", Run(**vars(persistent.matmul)))
    monkeypatch.setattr(tune.tiles, "FOLDER", tables)
    return about


def test_the_fastest_that_is_sound_and_right_becomes_the_entry_of_its_shape(gpu, tables, capsys):
    shape = (64, 48, 128)
    now, first, second, third, *_ = candidates("persistent", shape, "fp16", "sm90", H200)
    gpu.spills, gpu.wrong, times = [first], [second], {third: 0.5}
    tune.tune("persistent", shape, "fp16", torch.device("cpu"), lambda call: times.get(call.keywords["config"], 1.0))
    message = capsys.readouterr().out
    assert f"left out: {first}: spills" in message
    assert f"left out: {second}: persistent: relative error 1.0" in message
    assert f"{third}, 2.000 times as fast as {now}" in message
    assert choose("persistent", "sm90", *shape, torch.float16, H200) == third
    row = json.loads((tables / "sm90.json").read_text())["entries"][0]
    assert (row["mma"], row["measured"]["ratio"], row["measured"]["over"]) == (row["mma"], 2.0, str(now))
    gpu.wrong = [third]
    with pytest.raises(
        ValueError, match=r"which is taken at present: persistent: relative error .*; correct that first"
    ):
        tune.tune("persistent", shape, "fp16", torch.device("cpu"), lambda call: 1.0)


def test_tables_are_written_as_they_are_checked_in():
    for arch in architectures():
        path = FOLDER / f"{arch}.json"
        assert as_text(json.loads(path.read_text())) == path.read_text()


def test_an_entry_stands_on_top_and_replaces_its_own_kind_alone(tables):
    path = tables / "sm90.json"
    before = json.loads(path.read_text())["entries"]
    for measured, expected in ((MEASURED, 1), (MEASURED | {"date": "later"}, 1), (MEASURED | {"sms": 114}, 2)):
        save(path, "persistent", SHAPE, "bf16", Config(128, 128, 64, 8, 5), MMA, measured)
        rows = json.loads(path.read_text())["entries"]
        assert (rows[0]["measured"], rows[0]["mma"]) == (measured, MMA)
        assert rows[expected:] == before
    save(path, "persistent", SHAPE, "fp16", Config(128, 128, 64, 8, 5), MMA, MEASURED)
    assert len(json.loads(path.read_text())["entries"]) == len(before) + 3
    assert path.read_text().count("\n") == len(before) + 3 + 7  # one line each


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["persistent", "--shapes", "8,8,8"],
            "torch finds no GPU here, and a configuration is chosen by timing it; run",
        ),
        (["flagged", "--shapes", "8,8,8"], "invalid choice: 'flagged'"),
        (["tiled", "--shapes", "8,8"], "argument --shapes: invalid shape_of value: '8,8'"),
    ],
)
def test_bad_input_and_no_gpu_are_one_line_with_the_way_out(arguments, words, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as ended:
        tune.main(arguments)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err
