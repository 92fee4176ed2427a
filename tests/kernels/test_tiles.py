"""The tile tables: every shape finds an entry, every entry says what is known about it."""

from dataclasses import replace
from itertools import product

import pytest
import torch

from kernels import tiles
from kernels.tiles import DTYPES, Config, arch_of, architectures, choose, table
from kernels.waves import GpuSpec
from roofline.theory.arms import TILE
from roofline.theory.chips import find

H200 = GpuSpec.of_chip(find("H200"))
COVERED = [
    *(("sm90", kernel) for kernel in ("tiled", "persistent", "warpgroup")),
    *(("interpreter", kernel) for kernel in ("tiled", "persistent")),
    ("generic", "tiled"),
]
MEASURED_FIELDS = {"chip", "date", "shape", "triton"}


@pytest.mark.parametrize(("arch", "kernel"), COVERED)
def test_no_shape_falls_through(arch, kernel):
    entries = [entry for entry in table(arch).entries if entry.kernel == kernel]
    edges = {0, 1, 2**31, *(entry.m_max + step for entry in entries if entry.m_max for step in (0, 1))}
    for dtype, m in product({dtype for entry in entries for dtype in entry.dtypes}, edges):
        assert isinstance(choose(kernel, arch, m, 2**31, 16384, DTYPES[dtype]), Config)


@pytest.mark.parametrize("arch", architectures())
def test_every_entry_says_what_is_known_and_what_was_measured_is_found(arch):
    for entry in table(arch).entries:
        assert (entry.mma is None) == (table(arch).target == 0)
        if entry.measured:
            assert entry.measured.keys() >= MEASURED_FIELDS
            shape, gpu = (entry.m_max, entry.n, entry.k), replace(H200, sms=entry.measured.get("sms", H200.sms))
            assert choose(entry.kernel, arch, *shape, DTYPES[entry.dtypes[0]], gpu) == entry.config


def test_what_was_measured_comes_before_the_model_on_as_many_sms(on_top):
    measured, shape = dict.fromkeys(MEASURED_FIELDS, "made up"), (2048, 6656, 16384)
    (first, *_) = on_top()
    row = first | {"kernel": "persistent", "block_m": 64, "block_n": 128, "m_min": 1024, "m_max": 2048, "n": 6656}
    row |= {"k": 16384, "measured": measured}

    def taken(row: dict, shape: tuple, gpu: GpuSpec = H200) -> bool:
        """Return whether `row` is taken, where it stands on top."""
        on_top(row)
        config = choose(row["kernel"], "sm90", *shape, torch.bfloat16, gpu)
        return (config.block_m, config.block_n) == (64, 128)

    assert taken(row, shape)
    for other in ((2049, *shape[1:]), (1023, *shape[1:]), (2048, 6664, 16384), (2048, 6656, 16376)):
        assert not taken(row, other)
    for kernel, m in (("persistent", 2048), ("decode", 16)):  # by the model of waves, or by the order of entries
        of_114 = row | {"kernel": kernel, "m_min": m, "measured": measured | {"sms": 114}}
        assert [taken(of_114, (m, *shape[1:]), replace(H200, sms=sms)) for sms in (114, 132)] == [True, False]


def test_what_is_not_there_is_refused_with_the_way_out():
    with pytest.raises(ValueError, match=r"TPU v5p: SMs.* are needed"):
        GpuSpec.of_chip(find("TPU v5p"))
    with pytest.raises(ValueError, match=r"persistent.*m=8.*fp32 on sm90.*configs/sm90.json"):
        choose("persistent", "sm90", 8, 8, 8, torch.float32)


def test_where_nothing_was_measured_waves_and_shared_memory_of_the_chip_decide():
    gpu = replace(GpuSpec.of_chip(find("RTX 4090")), shared_bytes=101_376)
    configs = [choose("tiled", "generic", m, 6656, 16384, torch.bfloat16, gpu) for m in (1, 256, 8192)]
    tiles = [str(config).rpartition(" group")[0] for config in configs]
    assert tiles == ["32x128x64 warps4 stages4", "128x128x64 warps8 stages3", "128x256x32 warps8 stages4"]
    assert {config.raster for config in configs} == {"m"}  # the kernel has no other
    of_fp32 = choose("tiled", "generic", 8192, 6656, 16384, torch.float32, gpu)
    assert (of_fp32.block_k, of_fp32.num_stages) == (32, 2)


def test_the_table_of_a_device(monkeypatch):
    assert arch_of(torch.device("cpu")) == "interpreter"
    for version, arch in (((9, 0), "sm90"), ((8, 6), "generic"), ((10, 0), "generic")):
        monkeypatch.setattr(tiles, "capability", lambda device, version=version: version)
        assert arch_of(torch.device("cuda", 0)) == arch


def test_the_model_gives_a_candidate_its_group_and_raster(tables):
    def text(kernel, m, n):
        return str(choose(kernel, "sm90", m, n, 16384, torch.bfloat16, H200))

    assert text("persistent", 2048, 6656) == "128x256x64 warps8 stages4 group16 subtile2 flatten"
    assert text("persistent", 8192, 6656) == "128x256x64 warps8 stages4 group8 subtile2 flatten raster-n"
    assert text("warpgroup", 2048, 6656) == "128x256x64 warps8 stages4 group8 subtile4 gang4x1 shared1"  # 3.15 waves
    assert text("warpgroup", 256, 6656) == "128x128x64 warps8 stages6 group4 subtile2"  # 0.79 of one, and none to share


@pytest.mark.parametrize("change", [{}, {"block_n": 256, "cluster": 2, "gang_m": 2}, {"block_n": 256, "zigzag": True}])
def test_what_no_card_has_timed_is_taken_by_a_measured_entry_alone(on_top, monkeypatch, change):
    """The model would take the odd width: 3.88 of its waves are 4, and of 128x256 it is 3.15."""
    monkeypatch.setattr(tiles, "triton_release", lambda: (3, 9))
    up, gpu = (256, 53248, 16384), GpuSpec.of_chip(find("H100 SXM"))
    (row,) = [row for row in on_top() if row["kernel"] == "warpgroup" and row["block_n"] == 208]
    for measured, is_taken in ((None, False), (dict.fromkeys(MEASURED_FIELDS, "made up"), True)):
        on_top(row | change | {"measured": measured})
        assert choose("warpgroup", "sm90", *up, torch.bfloat16, gpu).is_untimed is is_taken


def test_own_ideals_of_arms_are_of_the_kernels_tile():
    """Those of one launch are of the grid that a run notes."""
    tile = choose("persistent", "sm90", 8192, 3328, 16384, torch.bfloat16)
    assert (tile.block_m, tile.block_n) == TILE
