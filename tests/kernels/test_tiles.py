"""The tile tables: every shape finds an entry, every entry says what is known about it."""

import json
from dataclasses import replace
from functools import cache

import pytest
import torch

from kernels import tiles
from kernels.tiles import FOLDER, Config, arch_of, architectures, choose, table
from kernels.tune import candidates
from kernels.waves import GpuSpec
from roofline.theory.chips import find

H200 = GpuSpec.of_chip(find("H200"))
HALF = (torch.float16, torch.bfloat16)
# Which kernel must find a tile for which dtypes, per table.
COVERED = {
    ("tiled", "sm90"): (*HALF, torch.float32),
    ("tiled", "generic"): (*HALF, torch.float32),
    ("tiled", "interpreter"): (torch.float16, torch.float32),
    ("persistent", "sm90"): HALF,
    ("warpgroup", "sm90"): HALF,
    ("persistent", "interpreter"): (torch.float16, torch.float32),
}
FIELDS = {"kernel", "dtypes", "m_max", "block_m", "block_n", "block_k", "num_warps", "num_stages", "group_m"}
FIELDS |= {"mma", "measured"}
MEASURED_FIELDS = {"chip", "date", "shape", "triton"}
TO_TUNE = [("decode", 64, 256)]
"""Tiles that no rule takes: they stand in the table for `kernels.tune`."""


@cache
def unmeasured(arch):
    """The table without what was measured: what the model chooses from."""
    whole = table(arch)
    return replace(whole, entries=tuple(entry for entry in whole.entries if not entry.measured))


@pytest.mark.parametrize(("kernel", "arch"), COVERED)
def test_no_shape_falls_through(kernel, arch):
    edges = {0, 1, 2**31}
    edges |= {entry.m_max + step for entry in table(arch).entries if entry.m_max for step in (-1, 0, 1)}
    for dtype in COVERED[kernel, arch]:
        for m in edges:
            assert isinstance(choose(kernel, arch, m, 2**31, 16384, dtype), Config)


@pytest.mark.parametrize("arch", architectures())
def test_every_entry_can_be_reached_and_says_what_is_known(arch, monkeypatch):
    document = json.loads((FOLDER / f"{arch}.json").read_text())
    for row, entry in zip(document["entries"], table(arch).entries, strict=True):
        assert row.keys() >= FIELDS
        assert entry.measured is None or entry.measured.keys() >= MEASURED_FIELDS
        assert (entry.mma is None) == (table(arch).target is None)
        m, n, k = entry.m_max or 10**6, entry.n or 10**6, entry.k or 4096
        machine = None if not entry.measured else replace(H200, sms=entry.measured.get("sms", H200.sms))
        dtype = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}[entry.dtypes[0]]
        if entry.kernel in table(arch).modelled and not entry.measured:
            tile = (entry.config.block_m, entry.config.block_n)
            shapes = [(2**i, n, k) for i in range(14) for n in (6656, 6784, 53248) for k in (6656, 53248)]
            monkeypatch.setattr(tiles, "table", unmeasured)
            configs = [choose(entry.kernel, arch, *shape, dtype, H200) for shape in shapes]
            monkeypatch.undo()
            assert tile in {(config.block_m, config.block_n) for config in configs}, "the model never takes it"
        elif (entry.kernel, entry.config.block_m, entry.config.block_n) not in TO_TUNE:
            assert choose(entry.kernel, arch, m, n, k, dtype, machine) == entry.config, (
                "an entry before this one hides it"
            )


@pytest.mark.parametrize(("kernel", "block_m", "block_n"), TO_TUNE)
def test_an_entry_for_tuning_is_a_candidate(kernel, block_m, block_n):
    configs = candidates(kernel, (block_m, 6656, 16384), "bf16", "sm90", H200)
    assert (block_m, block_n) in {(config.block_m, config.block_n) for config in configs}


@pytest.fixture
def planted(tables):
    """`planted(row)`: the table has it in place of all that was measured."""
    path = tables / "sm90.json"
    document = json.loads(path.read_text())

    def plant(row):
        path.write_text(json.dumps(document | {"entries": [document["entries"][0] | row, *document["entries"]]}))
        tiles.table.cache_clear()

    return plant


def test_what_was_measured_comes_before_the_model_on_as_many_sms(planted):
    measured = dict.fromkeys(MEASURED_FIELDS, "made up")
    tile = {"kernel": "persistent", "block_m": 64, "block_n": 128, "m_min": 1024, "m_max": 2048, "n": 6656, "k": 16384}
    planted(tile | {"measured": measured})
    for shape, taken in {(2048, 6656, 16384): 1, (2049, 6656, 16384): 0, (1023, 6656, 16384): 0,
                         (2048, 6664, 16384): 0, (2048, 6656, 16376): 0}.items():  # fmt: skip
        config = choose("persistent", "sm90", *shape, torch.bfloat16, H200)
        assert ((config.block_m, config.block_n) == (64, 128)) == taken
    for kernel, m in (("persistent", 2048), ("decode", 16)):  # by the model of waves, or by the order of entries
        planted(tile | {"kernel": kernel, "m_min": m, "measured": measured | {"sms": 114}})
        for sms in (114, 132):
            config = choose(kernel, "sm90", m, 6656, 16384, torch.bfloat16, replace(H200, sms=sms))
            assert ((config.block_m, config.block_n) == (64, 128)) == (sms == 114)


def test_a_configuration_reads_as_one_short_line():
    assert str(Config(16, 128, 128, 4, 6, 1, split=5)) == "16x128x128 warps4 stages6 group1 split5"
    assert str(Config(64, 64, 32, 4, 2, raster="n")) == "64x64x32 warps4 stages2 group8 raster-n"


def test_what_is_not_there_is_refused_with_the_way_out():
    with pytest.raises(ValueError, match=r"persistent.*m=8.*fp32 on sm90.*configs/sm90.json"):
        choose("persistent", "sm90", 8, 8, 8, torch.float32)


@pytest.mark.parametrize(
    ("chip", "shared_bytes", "tiles"),
    [
        ("A100 SXM", 166_912, ("32x128x64 warps4 stages4", "128x128x64 warps8 stages4", "128x256x64 warps8 stages3")),
        ("RTX 4090", 101_376, ("32x128x64 warps4 stages4", "128x128x64 warps8 stages3", "128x256x32 warps8 stages4")),
        ("B200", 232_448, ("32x128x64 warps4 stages4", "128x128x64 warps8 stages4", "128x256x64 warps8 stages4")),
    ],
)
def test_where_nothing_was_measured_waves_and_shared_memory_of_the_chip_decide(chip, shared_bytes, tiles):
    machine = replace(GpuSpec.of_chip(find(chip)), shared_bytes=shared_bytes)
    configs = [choose("tiled", "generic", m, 6656, 16384, torch.bfloat16, machine) for m in (1, 256, 8192)]
    assert tuple(str(config).rpartition(" group")[0] for config in configs) == tiles
    assert {config.raster for config in configs} == {"m"}  # the kernel has no other
    of_fp32 = choose("tiled", "generic", 8192, 6656, 16384, torch.float32, machine)
    assert (of_fp32.block_k, of_fp32.num_stages) == (32, 2)


def test_the_table_of_a_device(monkeypatch):
    assert arch_of(torch.device("cpu")) == "interpreter"
    for version, arch in (((9, 0), "sm90"), ((8, 6), "generic"), ((10, 0), "generic")):
        monkeypatch.setattr(tiles, "capability", lambda device, version=version: version)
        assert arch_of(torch.device("cuda", 0)) == arch


def test_the_model_gives_a_candidate_its_group_and_raster(monkeypatch):
    monkeypatch.setattr(tiles, "table", unmeasured)

    def text(kernel, m, n):
        return str(choose(kernel, "sm90", m, n, 16384, torch.bfloat16, H200))

    assert text("persistent", 2048, 6656) == "128x256x64 warps8 stages4 group16 subtile2 flatten"
    assert text("persistent", 8192, 6784).startswith("256x128x64 ")  # 53 times 128
    assert text("persistent", 8192, 6656) == "128x256x64 warps8 stages4 group8 subtile2 flatten raster-n"
    assert text("warpgroup", 2048, 6656) == "128x256x64 warps8 stages4 group16 subtile4"  # which has no `flatten`
