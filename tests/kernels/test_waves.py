"""The model of waves: known answers by hand, what it may never do, and what it picks for the suite's shapes."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.tiles import Config, modelled
from kernels.waves import GROUPS, GpuSpec, cost
from roofline.theory.chips import find

H200 = GpuSpec.of_chip(find("H200"))
BLOCKS = [(128, 256), (256, 128), (128, 128), (64, 256), (64, 128)]


def tile(block_m: int, block_n: int, **more) -> Config:
    return Config(block_m, block_n, 64, 8, 4, **more)


def test_a_wave_takes_as_long_as_its_products():
    """A tile of 100 x 100 with K = 1000 is 2e7 FLOP, and takes an SM of 1e12 FLOP/s 20 us; 100 outputs 2 us more."""
    estimate = cost(1000, 1000, 1000, 2, tile(100, 100), GpuSpec(100, 1e14, 1e12, 10**8))
    assert (estimate.tiles, estimate.full_waves) == (100, 1)
    assert estimate.mma_s == pytest.approx(20e-6)
    assert estimate.seconds == pytest.approx(max(20e-6, estimate.l2_s, estimate.memory_s) + 2e-6)


# 100 tiles in 10 rows of 40 columns, in groups of 5, run as 5 rows and 20 columns of tiles at a time; in groups of 4
# along N, 4 columns at a time reach 10 rows, and the wave is of 10 x 10. The cache holds x, 2 MB, or nothing: x is then
# read in the first of 4 waves alone.
@pytest.mark.parametrize(
    ("order", "cache_bytes", "tiles_read"),
    [
        (dict(group_m=5), 0, 5 + 20),
        (dict(group_m=5), 4 * 10**6, 5 / 4 + 20),
        (dict(group_m=4, raster="n"), 0, 10 + 10),
    ],
)
def test_bytes_of_a_wave_by_hand(order, cache_bytes, tiles_read):
    estimate = cost(1000, 4000, 1000, 2, tile(100, 100, **order), GpuSpec(100, 1e14, 1e12, cache_bytes))
    assert estimate.full_waves == 4
    assert estimate.memory_s == pytest.approx(tiles_read * 100 * 1000 * 2 / 1e12)
    assert estimate.l2_s == pytest.approx(100 * 200 * 1000 * 2 / (1e14 * 8e12 / 1.3e9 / (4096 * 132)))


@pytest.mark.parametrize(("n", "waves"), [(256 * 132, 1), (256 * 132 + 1, 2)])
def test_one_tile_more_than_a_wave_costs_a_wave(n, waves):
    estimate = cost(128, n, 16384, 2, tile(128, 256), GpuSpec(132, 1e15, 1e18, 0))
    assert estimate.seconds == pytest.approx(waves * max(estimate.mma_s, estimate.l2_s), rel=0.03)


SIZES = st.integers(1, 4000).map(lambda i: 8 * i)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(m=SIZES, n=SIZES, k=SIZES)
def test_no_tiling_beats_the_chip_more_of_it_is_never_slower_and_the_best_is_the_best(m, n, k):
    twice = replace(H200, memory_bytes_per_s=2 * H200.memory_bytes_per_s)
    tiles = [tile(*block, group_m=group, raster=raster) for block in BLOCKS for group in GROUPS for raster in "mn"]
    times = {config: cost(m, n, k, 2, config, H200).seconds for config in tiles}
    assert min(times.values()) >= 2 * m * n * k / H200.flops * (1 - 1e-9)
    for config in tiles[::5]:
        assert cost(m, n, k, 2, config, twice).seconds <= times[config] < cost(m, n, 2 * k, 2, config, H200).seconds
    assert times[modelled(["raster"], [tile(*block) for block in BLOCKS], m, n, k, 2, H200)] == min(times.values())
