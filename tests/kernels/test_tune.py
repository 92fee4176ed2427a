"""Which configurations a tuning tries, how it decides, and that its choice is written and read back whole."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from kernels import persistent, tiled, tune
from kernels.inspect import jobs
from kernels.registry import CONTENDERS
from kernels.tiles import FOLDER, Config, architectures, choose
from kernels.tune import as_text, candidates, fastest, save
from kernels.waves import GROUPS, GpuSpec
from roofline.theory.chips import find

H200 = GpuSpec.of_chip(find("H200"))
SHAPE = (2048, 6656, 16384)
MEASURED = {"chip": "NVIDIA H200", "sms": 132, "date": "2026-11-21", "shape": "made up", "triton": "3.7.1"}
NOW, QUICK, SLOW = (Config(128, 128, 64, 8, stages) for stages in (3, 4, 5))
MMA = "wgmma.m64n128k16"


@pytest.mark.parametrize(("kernel", "m"), [("decode", 16), ("persistent", 2048), ("tiled", 2048), ("warpgroup", 256)])
def test_candidates_are_few_different_fit_and_begin_with_what_is_taken(tables, kernel, m):
    shape = (m, *SHAPE[1:])
    configs = candidates(kernel, shape, "bf16", "sm90", H200)
    assert configs[0] == choose(kernel, "sm90", *shape, torch.bfloat16, H200)
    assert 3 <= len(configs) == len(set(configs)) <= 1 + tune.MOST
    assert all(c.num_stages * (c.block_m + c.block_n) * c.block_k * 2 <= 232_448 for c in configs[1:])
    tuned = CONTENDERS[kernel].load()
    for name, values in tuned.grid.items():
        assert {getattr(config, name) for config in configs[1:]} <= {*values, *GROUPS, getattr(configs[0], name)}
    varied = [name for name in tuned.grid if len({getattr(config, name) for config in configs}) > 1]
    assert varied == [*tuned.grid] or tuned.changes
    assert bool(tuned.changes) == (len({(config.gang_m, config.gang_n) for config in configs}) > 2)


@pytest.mark.parametrize(
    ("quick_s", "chosen"), [(0.9, QUICK), (0.995, NOW), (lambda number: 0.5 if number < 15 else 1.0, NOW)]
)
def test_what_is_faster_by_more_than_the_margin_is_taken_and_who_was_lucky_at_first_is_not(quick_s, chosen):
    """On a clock on which each call takes a little longer than the one before."""
    order = []

    def clock(config) -> float:
        order.append(config)
        of_quick = quick_s(len(order)) if callable(quick_s) else quick_s
        return {NOW: 1.0, QUICK: of_quick, SLOW: 1.3}[config] * (1 + 1e-4 * len(order))

    best, ratio = fastest({config: config for config in (NOW, QUICK, SLOW)}, clock, NOW)
    rounds = {tuple(order[start : start + 3]) for start in range(0, len(order), 3)}
    assert {frozenset(configs) for configs in rounds} == {frozenset((NOW, QUICK, SLOW))}
    assert len(rounds) > 1
    assert (best, ratio) == (chosen, pytest.approx(1 / quick_s, rel=1e-2) if chosen == QUICK else 1.0)


@pytest.fixture
def gpu(monkeypatch, tables):
    """As if the CPU were an H200, where all configurations run but those that are `wrong` or do not compile."""
    about = SimpleNamespace(wrong=[], spills=[])

    class Run(type(persistent.matmul)):
        def __call__(self, x, w, out, config):
            return out.copy_(x @ w.T).mul_(2 if config in about.wrong else 1)

    def inspect_all(jobs):
        about.jobs = jobs
        return [
            SimpleNamespace(job=job, mma=MMA, problems=lambda job=job: ["spills"] * (job.config in about.spills))
            for job in jobs
        ]

    monkeypatch.setattr(tune.tiles, "arch_of", lambda device: "sm90")
    monkeypatch.setattr(tune.tiles, "capability", lambda device: (9, 0))
    monkeypatch.setattr(tune.tiles, "machine_of", lambda device: H200)
    monkeypatch.setattr(tune, "inspect_all", inspect_all)
    monkeypatch.setattr(tune.torch.cuda, "get_device_name", lambda device: "H200")
    monkeypatch.setattr(persistent, "matmul", Run(**vars(persistent.matmul)))
    return about


def test_the_fastest_that_is_sound_and_right_becomes_the_entry_of_its_shape(gpu, tables, capsys):
    shape = (64, 48, 128)
    now, first, second, third, *_ = candidates("persistent", shape, "fp16", "sm90", H200)
    gpu.spills, gpu.wrong, times = [first], [second], {third: 0.5}
    tune.tune("persistent", shape, "fp16", torch.device("cpu"), lambda call: times.get(call.keywords["config"], 1.0))
    message = capsys.readouterr().out
    assert f"left out: {first}: spills" in message
    assert f"left out: {second}: persistent: relative error 1.0" in message
    assert choose("persistent", "sm90", *shape, torch.float16, H200) == third
    row = json.loads((tables / "sm90.json").read_text())["entries"][0]
    assert (row["mma"][:8], row["measured"]["ratio"], row["measured"]["over"]) == ("wgmma.m6", 2.0, str(now))
    gpu.wrong = [third]
    with pytest.raises(ValueError, match=r"taken at present: persistent: relative error .*; correct that first"):
        tune.tune("persistent", shape, "fp16", torch.device("cpu"), lambda call: 1.0)


@pytest.mark.parametrize(
    ("chip", "capability", "shared_bytes", "declared"),
    [
        ("A100 SXM", (8, 0), 166_912, "mma.m16n8k16"),
        ("RTX 4090", (8, 9), 101_376, "mma.m16n8k16"),
        ("B200", (10, 0), 232_448, None),
    ],
)
def test_limits_are_those_of_the_card_and_not_of_the_smallest_of_its_table(
    gpu, tables, monkeypatch, chip, capability, shared_bytes, declared
):
    monkeypatch.setattr(tune.tiles, "arch_of", lambda device: "generic")
    monkeypatch.setattr(tune.tiles, "capability", lambda device: capability)
    card, target = replace(GpuSpec.of_chip(find(chip)), shared_bytes=shared_bytes), 10 * capability[0] + capability[1]
    monkeypatch.setattr(tune.tiles, "machine_of", lambda device: card)
    monkeypatch.setattr(tiled, "matmul", type(persistent.matmul)(**vars(tiled.matmul)))
    tune.tune("tiled", (256, 512, 64), "fp16", torch.device("cpu"), lambda call: 1.0)
    assert {(job.target, job.shared_limit_bytes, job.mma) for job in gpu.jobs} == {(target, shared_bytes, declared)}
    configs = [job.config for job in gpu.jobs]
    rings = [2 * c.num_stages * (c.block_m + c.block_n) * c.block_k for c in configs]
    assert max(rings) <= shared_bytes
    assert (max(rings) > 101_376) == (shared_bytes > 101_376)
    ours = [job for job in jobs(["tiled"]) if job.target == target]
    assert [(job.shared_limit_bytes, job.mma) for job in ours] == [(shared_bytes, MMA)]


def test_an_entry_stands_on_top_in_a_line_of_its_own_and_replaces_its_own_kind_alone(tables):
    for arch in architectures():
        text = (FOLDER / f"{arch}.json").read_text()
        assert as_text(json.loads(text)) == text, "a table is not written as it is checked in"
    path = tables / "sm90.json"
    before = json.loads(path.read_text())["entries"]
    for measured, expected in ((MEASURED, 1), (MEASURED | {"date": "later"}, 1), (MEASURED | {"sms": 114}, 2)):
        save(path, "persistent", SHAPE, "bf16", Config(128, 128, 64, 8, 5), MMA, measured)
        rows = json.loads(path.read_text())["entries"]
        assert (rows[0]["measured"], rows[0]["mma"]) == (measured, MMA)
        assert rows[expected:] == before
    save(path, "persistent", SHAPE, "fp16", Config(128, 128, 64, 8, 5), MMA, MEASURED)
    assert len(json.loads(path.read_text())["entries"]) == len(before) + 3


def test_no_gpu_is_one_line_with_the_way_out(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="2"):
        tune.main(["persistent", "--shapes", "8,8,8"])
    assert "torch finds no GPU here, and a configuration is chosen by timing it; run" in capsys.readouterr().err
