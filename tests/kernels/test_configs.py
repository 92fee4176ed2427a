"""The tile tables: every shape finds an entry, every entry says what is known about it."""

import json

import pytest
import torch

from kernels.configs import FOLDER, Config, arch_of, architectures, choose, read, table

HALF = (torch.float16, torch.bfloat16)
# Which kernel must find a tile for which dtypes, per table.
COVERED = {
    ("tiled", "sm90"): (*HALF, torch.float32),
    ("tiled", "generic"): (*HALF, torch.float32),
    ("tiled", "interpreter"): (torch.float16, torch.float32),
    ("persistent", "sm90"): HALF,
    ("persistent", "interpreter"): (torch.float16, torch.float32),
}
FIELDS = {
    "kernel",
    "dtypes",
    "m_max",
    "n_max",
    "block_m",
    "block_n",
    "block_k",
    "num_warps",
    "num_stages",
    "group_m",
    "mma",
    "measured",
}
MEASURED_FIELDS = {"chip", "date", "shape", "triton"}


@pytest.mark.parametrize(("kernel", "arch"), COVERED)
def test_no_shape_falls_through(kernel, arch):
    edges = {0, 1, 2**31}
    for entry in table(arch).entries:
        edges |= {edge + step for edge in (entry.m_max, entry.n_max) if edge is not None for step in (-1, 0, 1)}
    for dtype in COVERED[kernel, arch]:
        for m in edges:
            for n in edges:
                assert isinstance(choose(kernel, arch, m, n, 16384, dtype), Config)


@pytest.mark.parametrize("arch", architectures())
def test_every_entry_can_be_reached_and_says_what_is_known(arch):
    document = json.loads((FOLDER / f"{arch}.json").read_text())
    for row, entry in zip(document["entries"], table(arch).entries, strict=True):
        assert row.keys() >= FIELDS
        assert entry.measured is None or entry.measured.keys() >= MEASURED_FIELDS
        assert (entry.mma is None) == (table(arch).target is None)
        m, n = entry.m_max or 10**6, entry.n_max or 10**6
        dtype = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}[entry.dtypes[0]]
        assert choose(entry.kernel, arch, m, n, 4096, dtype) == entry.config, "an entry before this one hides it"


@pytest.mark.parametrize(("m", "tile"), [(1, (64, 128)), (512, (128, 128)), (1024, (128, 256)), (8192, (128, 256))])
def test_tiles_grow_with_m(m, tile):
    config = choose("persistent", "sm90", m, 53248, 16384, torch.bfloat16)
    assert (config.block_m, config.block_n) == tile


def test_a_configuration_reads_as_one_short_line():
    config = choose("persistent", "sm90", 8192, 53248, 16384, torch.bfloat16)
    assert str(config) == "128x256x64 warps8 stages4 group16 subtile2 flatten"
    assert str(Config(16, 128, 128, 4, 6, 1, split=5)) == "16x128x128 warps4 stages6 group1 split5"
    assert str(Config(64, 64, 32, 4, 2, raster="n")) == "64x64x32 warps4 stages2 group8 raster-n"


def test_what_is_not_there_is_refused_with_the_way_out():
    with pytest.raises(ValueError, match=r"persistent.*m=8.*fp32 on sm90.*configs/sm90.json"):
        choose("persistent", "sm90", 8, 8, 8, torch.float32)
    with pytest.raises(ValueError, match=r"'sm10'.*generic, interpreter, sm90.*add sm10.json"):
        table("sm10")


def test_a_misspelt_field_is_refused(tmp_path):
    document = json.loads((FOLDER / "generic.json").read_text())
    document["entries"][0]["blok_m"] = 64
    (tmp_path / "typo.json").write_text(json.dumps(document))
    with pytest.raises(ValueError, match=r"typo.json.*blok_m.*block_m"):
        read(tmp_path / "typo.json")


def test_the_table_of_a_device(monkeypatch):
    from kernels import configs

    assert arch_of(torch.device("cpu")) == "interpreter"
    for found, arch in (((9, 0), "sm90"), ((8, 6), "generic"), ((10, 0), "generic")):
        monkeypatch.setattr(configs, "capability", lambda device, found=found: found)
        assert arch_of(torch.device("cuda", 0)) == arch
