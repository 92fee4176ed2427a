"""Which candidates a kernel lists, why others are left out, and that a choice is written and read back whole."""

import json
import os
from dataclasses import replace

import pytest
import torch

from kernels import configs
from kernels.configs import FOLDER, Config, architectures, choose, read
from kernels.configs.table_writer import as_text, entry, save, save_pick
from kernels.registry import KERNELS
from kernels.tuning import Problem, candidates, staged_bytes, token
from roofline.theory.chips import find
from roofline.theory.waves import GpuSpec

H200 = GpuSpec.of_chip(find("H200"))
SHAPE = (2048, 6656, 16384)
SHAPES = [SHAPE, (8192, 53248, 16384), (16, 6656, 16384), (256, 16384, 53248), (1, 16384, 6656), (4096, 16384, 6656)]
MEASURED = {"chip": "NVIDIA H200", "sms": 132, "date": "2026-11-21", "shape": "made up", "triton": "3.7.1"}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kernel", ["persistent", "tiled", "warpgroup"])
def test_candidates_are_few_different_and_begin_with_the_models_choice(tables, kernel, shape):
    found = candidates(kernel, *shape, "bf16", H200)
    assert 3 <= len(found.configs) <= KERNELS[kernel].space.most
    if KERNELS[kernel].modelled == "sm90":
        assert found.configs[0] == choose(kernel, "sm90", *shape, torch.bfloat16, H200)
    problem = Problem(*shape, 2, H200)
    assert len({problem.schedule(config) for config in found.configs}) == len(found.configs)
    assert all(problem.cost(config).seconds <= 1.3 * problem.cost(found.configs[0]).seconds
               for config in found.configs)  # fmt: skip
    assert all(KERNELS[kernel].space.shared_bytes(config, 2) <= 232_448 for config in found.configs)
    assert all(reason.startswith("shared memory: ") for reason in found.pruned.values())


def test_every_kind_of_thing_is_tried_where_the_model_is_unsure(tables):
    found = candidates("persistent", *SHAPE, "bf16", H200).configs
    first = found[0]
    assert {(c.block_m, c.block_n) for c in found} >= {(256, 128), (128, 256), (128, 128)}
    assert replace(first, tail=0) in found  # the model says that sharing the last wave saves a fifth
    assert replace(first, flatten=not first.flatten) in found
    assert replace(first, num_stages=3, subtile=1) in found
    assert {c.raster for c in found} == {"m", "n"}
    alone = candidates("persistent", 4096, 16384, 6656, "bf16", H200).configs
    assert not alone[0].tail
    assert replace(alone[0], tail=132) in alone


def test_orders_that_are_the_same_are_tried_once(tables):
    problem = Problem(256, 16384, 53248, 2, H200)
    base = Config(128, 256, 64, 8, 4)
    assert problem.schedule(replace(base, group_m=4)) == problem.schedule(replace(base, group_m=16))
    assert problem.schedule(replace(base, raster="n")) != problem.schedule(base)
    one_row = Problem(64, 16384, 53248, 2, H200)
    assert one_row.schedule(replace(base, raster="n", group_m=4)) == one_row.schedule(base)


def test_a_second_tuning_goes_on_from_what_the_first_one_chose(tables):
    now = Config(128, 128, 64, 8, 6, 8, subtile=2, tail=100)
    found = candidates("persistent", *SHAPE, "bf16", H200, now=now).configs
    assert found[0] == candidates("persistent", *SHAPE, "bf16", H200).configs[0]
    assert now in found


def test_shared_memory_is_counted_to_the_byte():
    """As compiled for sm_90a by Triton 3.7.1: 128x256x64 with 4 and 3 stages, 128x128x64, 64x128x128."""
    assert staged_bytes(Config(128, 256, 64, 8, 4, subtile=2), 2) == 229_408
    assert staged_bytes(Config(128, 256, 64, 8, 3), 2) == 213_016
    assert staged_bytes(Config(128, 128, 64, 8, 6), 2) == 229_424
    assert staged_bytes(Config(64, 128, 128, 4, 4, subtile=2), 2) == 204_832


def test_what_does_not_fit_is_named_once_with_its_reason(tables):
    found = candidates("persistent", *SHAPE, "bf16", H200)
    whole = Config(256, 128, 64, 8, 4)
    assert found.pruned[whole] == "shared memory: 262176 bytes, limit 232448; take fewer stages"
    assert all((c.group_m, c.raster, c.flatten, c.tail) == (8, "m", False, 0) for c in found.pruned)


def test_what_cannot_be_tuned_is_refused_with_the_way_out(tables):
    known = "decode, persistent, warpgroup, tiled"
    with pytest.raises(ValueError, match=f"'inductor' is not tuned, there are {known}; give its `Kernel`"):
        candidates("inductor", *SHAPE, "bf16", H200)
    with pytest.raises(ValueError, match=r"no persistent configuration for m=2048 in fp32 on sm90.*sm90.json"):
        candidates("persistent", *SHAPE, "fp32", H200)


def test_a_token_is_a_word():
    found = {token(config) for shape in SHAPES for config in candidates("persistent", *shape, "bf16", H200).configs}
    assert all(word.replace("_", "").isalnum() for word in found)
    config = Config(128, 256, 64, 8, 4)
    others = [replace(config, **{name: value}) for name, value in (
        ("block_m", 64), ("block_n", 64), ("block_k", 32), ("num_warps", 4), ("num_stages", 3), ("group_m", 4),
        ("subtile", 2), ("flatten", True), ("raster", "n"), ("tail", 7), ("split", 2))]  # fmt: skip
    assert len({token(config), *map(token, others)}) == 12


COMPILED = """
import json
from kernels.configs import Config
from kernels.tuning import token, unsound

spills = Config(128, 256, 64, 4, 3, flatten=True)
fails = Config(128, 256, 64, 8, 3, subtile=3)
sound = Config(64, 128, 128, 4, 3)
found = unsound("persistent", "sm90", [("bf16", config) for config in (spills, fails, sound)])
print(json.dumps({token(config): reason for (_, config), reason in found.items()}))
"""


def test_what_spills_or_does_not_compile_is_left_out_with_its_reason(printed_elsewhere):
    found = printed_elsewhere(COMPILED)
    assert found.keys() == {"128x256x64_w4_s3_g8_flat", "128x256x64_w8_s3_g8_sub3"}
    assert found["128x256x64_w4_s3_g8_flat"].startswith("spills: ")
    assert found["128x256x64_w8_s3_g8_sub3"].startswith("does not compile: ")


def test_tables_are_written_as_they_are_checked_in():
    for arch in architectures():
        path = FOLDER / f"{arch}.json"
        assert as_text(json.loads(path.read_text())) == path.read_text()


def test_what_is_saved_overrides_the_model_for_exactly_that_shape(tables):
    mine = Config(128, 128, 64, 8, 4, 4, flatten=True, raster="n", tail=40)
    before = candidates("persistent", *SHAPE, "bf16", H200).configs
    save(tables / "sm90.json", "persistent", (*SHAPE, "bf16"), mine, MEASURED)
    m, n, k = SHAPE
    assert choose("persistent", "sm90", m, n, k, torch.bfloat16, H200) == mine
    assert choose("persistent", "sm90", m, n, k, torch.bfloat16, replace(H200, sms=114)) != mine
    for other in ((m + 1, n, k), (m - 1, n, k), (m, n + 8, k), (m, n, k + 8)):
        assert choose("persistent", "sm90", *other, torch.bfloat16, H200) != mine
    assert choose("persistent", "sm90", m, n, k, torch.float16, H200) != mine
    assert choose("tiled", "sm90", m, n, k, torch.bfloat16, H200) != mine
    assert candidates("persistent", *SHAPE, "bf16", H200).configs == before  # the model's own, whatever was measured


def test_an_entry_stands_on_top_and_replaces_its_own_kind_alone(tables):
    path = tables / "sm90.json"
    before = json.loads(path.read_text())["entries"]
    config = Config(128, 128, 64, 8, 5)
    for measured, expected in ((MEASURED, 1), (MEASURED | {"date": "later"}, 1), (MEASURED | {"sms": 114}, 2)):
        row = save(path, "persistent", (*SHAPE, "bf16"), config, measured)
        rows = json.loads(path.read_text())["entries"]
        assert rows[0] == row
        assert rows[0]["measured"] == measured
        assert rows[0]["mma"] == "wgmma.m64n128k16"
        assert rows[expected:] == before
    save(path, "persistent", (*SHAPE, "fp16"), config, MEASURED)
    assert len(json.loads(path.read_text())["entries"]) == len(before) + 3
    assert read(path).entries[0].measured == MEASURED
    assert path.read_text().count("\n") == len(before) + 3 + 6  # one line each


def test_a_pick_is_written_read_back_and_replaced(tables):
    path = tables / "sm90.json"
    entries = json.loads(path.read_text())["entries"]
    m, n, k = SHAPE
    assert configs.table("sm90").picked(m, n, k, "bf16", H200) is None
    save_pick(path, "warpgroup", (*SHAPE, "bf16"), MEASURED)
    assert configs.table("sm90").picked(m, n, k, "bf16", H200) == "warpgroup"  # at once, in this process
    save_pick(path, "decode", (64, n, k, "bf16"), MEASURED)
    save_pick(path, "tiled", (*SHAPE, "bf16"), MEASURED | {"sms": 114})
    row = save_pick(path, "persistent", (*SHAPE, "bf16"), MEASURED | {"date": "later"})
    document = json.loads(path.read_text())
    assert [(pick["kernel"], pick["m"]) for pick in document["picks"]] == [
        ("persistent", m), ("tiled", m), ("decode", 64),
    ]  # fmt: skip
    assert document["picks"][0] == row
    assert document["entries"] == entries
    assert as_text(document) == path.read_text()
    assert path.read_text().count("\n") == len(entries) + 3 + 6 + 2  # one line each


def test_the_table_is_whole_at_any_moment_and_as_it_was_where_a_save_fails(tables, monkeypatch):
    path, mine = tables / "sm90.json", ("persistent", (*SHAPE, "bf16"), Config(128, 128, 64, 8, 5), MEASURED)
    before, seen = path.read_text(), []

    def full(file):
        seen.append(path.read_text())
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        save(path, *mine)
    assert path.read_text() == before
    assert sorted(file.name for file in tables.iterdir()) == [f"{arch}.json" for arch in architectures()]
    (tables / "before").hardlink_to(path)  # of what is replaced, and never written into
    monkeypatch.setattr(os, "fsync", lambda file: seen.append(path.read_text()))
    save(path, *mine)
    assert seen == [before, (tables / "before").read_text()] == [before, before] != [path.read_text()] * 2


def test_a_tile_that_is_in_no_entry_is_refused_with_the_way_out(tables):
    before = (tables / "sm90.json").read_text()
    with pytest.raises(ValueError, match=r"no persistent tile of 32x32 in bf16 in sm90.json; add an entry"):
        save(tables / "sm90.json", "persistent", (*SHAPE, "bf16"), Config(32, 32, 64, 4, 2), MEASURED)
    assert (tables / "sm90.json").read_text() == before


def test_a_row_says_what_differs_from_the_defaults(tables):
    row = entry(read(tables / "sm90.json"), "tiled", (64, 8, 16, "bf16"), Config(64, 128, 64, 4, 5), MEASURED)
    assert row == {
        "kernel": "tiled", "dtypes": ["bf16"], "m_min": 64, "m_max": 64, "n": 8, "k": 16, "n_max": None,
        "block_m": 64, "block_n": 128, "block_k": 64, "num_warps": 4, "num_stages": 5, "group_m": 8,
        "mma": "wgmma.m64n128k16", "measured": MEASURED,
    }  # fmt: skip
