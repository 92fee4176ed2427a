"""How tiles and steps along K are dealt to programs and their gangs, by hand."""

import pytest
import torch

from kernels import decode, hopper, warpgroup, warpgroup_config
from kernels.contract import example_operands
from kernels.registry import CONTENDERS
from kernels.stream_k import deal


def test_what_is_no_run_is_dealt_as_whole_super_tiles_and_few_steps_to_few_gangs():
    names = "gangs", "whole", "even", "more", "SHARED"
    assert deal(24, 4, 12, 2) == dict(zip(names, (12, 2, 0, 0, False), strict=True))  # two waves, nothing is left
    assert deal(2, 1, 12, 2) == dict(zip(names, (2, 0, 0, 2, False), strict=True))


WIDE, NARROW, RING = (
    decode.Config(16, 64, 256, 4, 3),
    decode.Config(16, 128, 128, 4, 3),
    decode.Config(16, 64, 64, 4, 4),
)
GANGS = warpgroup.Config(128, 64, 32, 8, 3, subtile=4, gang_m=2, shared_waves=2)
PAIRS = GANGS.changed(cluster=2, shared_waves=0)
GANGS_OF_PAIRS = GANGS.changed(cluster=2, gang_m=4, shared_waves=1)


@pytest.mark.parametrize(
    ("kernel", "config", "shape", "sms", "dealt"),
    [
        # up, tp 1: 53248 / 64 = 832 tiles. 6.3 waves, of which whole ones keep 0.90: 6 each, 40 left.
        ("decode", WIDE, (16, 53248, 16384), 132, dict(grid=132, even=6, more=40, SHARED=False)),
        # up, tp 8, of 128 rows and steps of 128: 52 tiles of 128 steps: 6656 are 50 each, and 56 left.
        ("decode", NARROW, (16, 6656, 16384), 132, dict(grid=132, even=50, more=56, SHARED=True)),
        # 1 tile of 8 steps feeds two programs by four.
        ("decode", WIDE, (16, 64, 2048), 132, dict(grid=2, even=4, more=0, SHARED=True)),
        # 104 tiles, 0.79 of one wave: enough. 102 tiles of 4 steps are 0.77: 408 steps are 3 each and 12 more.
        ("decode_ring", RING, (5, 6656, 256), 132, dict(grid=104, whole=0, even=0, more=104, SHARED=False)),
        ("decode_ring", RING, (5, 6528, 256), 132, dict(grid=132, whole=0, even=3, more=12, SHARED=True)),
        # 2 x 4 super-tiles of 256 x 64 on 6 gangs of two: all 8, of 8 steps, are shared.
        ("warpgroup", GANGS, (512, 256, 256), 12, dict(grid=12, whole=0, even=10, more=4)),
        # 3 x 4 clusters of 256 x 64, which have twice the rows, on 6 pairs of SMs: two whole waves.
        ("warpgroup", PAIRS, (600, 256, 256), 12, dict(grid=6, BLOCK_M=256, num_ctas=2, whole=2)),
        # 4 super-tiles of 512 x 64 on 3 gangs of two clusters: a whole wave, and 8 steps along K in the run.
        ("warpgroup", GANGS_OF_PAIRS, (500, 256, 256), 12, dict(grid=6, gangs=3, gang_m=2, whole=1, even=2, more=2)),
    ],
)
def test_a_launch_is_dealt_to_the_sms(kernel, config, shape, sms, dealt, monkeypatch):
    monkeypatch.setattr(hopper, "programs", lambda device: sms)
    monkeypatch.setattr(warpgroup_config, "triton_release", lambda: (3, 8))
    with torch.device("meta"):
        launch = CONTENDERS[kernel].load().prepare(*example_operands(torch.float16, *shape), config)
    about = launch.args | {"grid": launch.grid[0]}
    assert {name: about[name] for name in dealt} == dealt
    if config is GANGS_OF_PAIRS:
        assert about["sums_desc"].block_shape == [128, 16], "half of its rows for each CTA"
