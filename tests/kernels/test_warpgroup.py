"""What the Gluon kernel refuses. `kernels.machine` runs it as compiled, and mistakes in its source: test_planted.py. On
a Hopper GPU, test_matmul.py runs it."""

from dataclasses import replace

import pytest
import torch

from kernels import tiles, warpgroup, warpgroup_config
from kernels.contract import interpreted
from kernels.machine.compile import compile_for
from kernels.registry import CONTENDERS
from kernels.tiles import DTYPES, table
from kernels.warpgroup import Config

X = torch.zeros((16, 16), dtype=torch.float16)
CONFIG = Config(128, 64, 32, num_warps=8, num_stages=3, raster="n")
ODD = {"block_n": 208, "block_k": 64}


@pytest.mark.skipif(not interpreted(), reason="Triton compiles here")
def test_an_interpreting_process_neither_runs_nor_compiles_it():
    assert "TRITON_INTERPRET is set" in CONTENDERS["warpgroup"].why_not(X, X)
    with pytest.raises(ValueError, match=r"no interpreter; use kernels\.persistent"):
        CONTENDERS["warpgroup"].load()(X, X, X.clone())
    with pytest.raises(RuntimeError, match="TRITON_INTERPRET is set, so there is no compiler"):
        compile_for(90, warpgroup.prepare(X, X, X, CONFIG))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_warps": 4}, "num_warps=4, warpgroup multiplies with 2 warpgroups of 4"),
        ({"block_m": 64}, "block_m=64, 2 consumers of 64-row wgmma need a multiple of 128"),
        ({"subtile": 8}, "subtile=8, warpgroup stores in 1, 2 or 4 parts"),
        ({"shared_waves": 1}, "subtile=1, of a shared tile it stores at most 16 columns at a time"),
        ({"block_n": 96}, "128x96x32 .* has 128x208x64 and 128x104x64, not shared, in no cluster, nor of fp8"),
        (ODD | {"shared_waves": 1}, "128x208x64 .* shared1 raster-n, .* not shared, in no cluster, nor of fp8"),
        ({"gang_m": 2, "gang_n": 2}, "gang 2x2: this device has fewer SMs"),
        ({"cluster": 2}, "cluster2 .* in gangs of 1, a cluster is 2 tiles of a gang along M"),
        ({"cluster": 4, "gang_m": 4}, "cluster4 .* in gangs of 4, a cluster is 2 .*"),
        (ODD | {"cluster": 2, "gang_m": 2}, "128x208x64 .* cluster2 .* not shared, in no cluster, nor of fp8"),
    ],
)
def test_configurations_for_other_kernels_are_refused(change, message):
    with pytest.raises(ValueError, match=f"{message}; change the configuration"):
        warpgroup.prepare(X, X, X, replace(CONFIG, **change))


def test_a_tile_without_roles_is_refused():
    with pytest.raises(ValueError, match="no tile of two consumers"):
        warpgroup.prepare(X, X, X, tiles.Config(128, 256, 64, 8, 4))


@pytest.mark.parametrize(
    ("change", "here", "message"),
    [
        (ODD, (3, 8), r"128x208x64 .* needs Triton 3\.9 or later, this is 3\.8; change the"),
        ({"cluster": 2, "gang_m": 2}, (3, 7), r"cluster2 .* needs Triton 3\.8 or later, this is 3\.7"),
    ],
)
def test_what_needs_a_later_triton_says_so(change, here, message, monkeypatch):
    monkeypatch.setattr(warpgroup_config, "triton_release", lambda: here)
    with pytest.raises(ValueError, match=message):
        warpgroup.prepare(X, X, X, replace(CONFIG, **change))


def test_what_is_inspected_of_a_shared_tile_is_shared_also_in_a_cluster(monkeypatch):
    release = 3, 8
    monkeypatch.setattr(warpgroup_config, "triton_release", lambda: release)
    seen = set()
    for name in ("warpgroup", "warpgroup_blockwise"):
        kernel = CONTENDERS[name].load()
        for entry in table("sm90").of(name):
            if entry.config.triton <= release:  # the table is of the release that is here
                for config in (entry.config, *kernel.variants(entry.config)):
                    is_shared = config.shared_waves > 0
                    assert kernel.example(config, DTYPES[entry.dtypes[0]]).args["SHARED"] == is_shared, config
                    seen.add((name, config.cluster, is_shared))
    ways = ("warpgroup", 1), ("warpgroup", 2), ("warpgroup_blockwise", 1)
    assert seen == {(*way, is_shared) for way in ways for is_shared in (False, True)}
