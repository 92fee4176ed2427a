"""The model of waves: known answers by hand, what it may never do, and what it picks for the suite's shapes."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.tiles import modelled
from kernels.warpgroup import Config
from kernels.waves import APART_SHARE, APART_SHARE_OF_CLUSTERS, FIXUP_S, GROUPS, GpuSpec, cost, shared_s
from roofline.theory.chips import find

H200 = GpuSpec.of_chip(find("H200"))
BLOCKS = [(128, 256), (256, 128), (128, 128), (64, 256), (64, 128)]


def tile(block_m: int, block_n: int, **more) -> Config:
    return Config(block_m, block_n, 64, 8, 4, **more)


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


def test_a_cluster_loads_w_once_for_two_tiles_and_its_requests_meet():
    """In a wave 128x256 asks L2 for 256 rows a tile where it asked for 384. Of a shared wave as many rows are counted,
    which come faster."""
    one, two = (tile(128, 256, gang_m=2, shared_waves=1, cluster=cluster) for cluster in (1, 2))
    apart, together = (cost(512, 53248, 16384, 2, config, H200) for config in (one, two))
    assert together.l2_s / apart.l2_s == pytest.approx(256 / 384)
    assert together.memory_s == apart.memory_s
    (apart_s, _), (together_s, _) = (shared_s(512, 53248, 16384, 2, config, H200) for config in (one, two))
    assert apart_s * APART_SHARE == pytest.approx(together_s * APART_SHARE_OF_CLUSTERS)


# 130 tiles of 1000 x 1000 on 100 SMs, K = 1000: a wave takes 2 ms of products, and what is left of one 0.3 of that.
@pytest.mark.parametrize(
    ("shared_waves", "full_waves", "gang_m", "waves"),
    [(0, 1, 1, 2), (1, 1, 1, 1.3), (2, 0, 1, 1.3), (1, 1, 3, 156 / 99)],  # 52 gangs of three on 33
)
def test_a_shared_last_wave_takes_as_long_as_what_is_in_it(shared_waves, full_waves, gang_m, waves):
    gpu = GpuSpec(100, 1e14, 1e15, 10**12)
    estimate = cost(10_000, 13_000, 1000, 2, tile(1000, 1000, shared_waves=shared_waves, gang_m=gang_m), gpu)
    assert estimate.full_waves == full_waves
    assert estimate.seconds == pytest.approx(waves * 2e-3 + FIXUP_S * bool(shared_waves), rel=1e-3)


def test_gangs_that_are_apart_read_more_slowly_and_all_read_what_no_cache_holds():
    """Of K = 1000 on 100 SMs, tiles of 100 x 100: alone each program reads 200 rows, in a gang of 4 x 1 a quarter of
    the columns."""
    gpu = GpuSpec(100, 1e14, 1e12, 10**6)
    l2_bytes_per_s = APART_SHARE * 1e14 * 8e12 / 1.3e9 / (4096 * 132)
    for gang_m, rows, columns in ((1, 10_000, 10_000), (4, 10_000, 2_500)):
        l2_s, memory_s = shared_s(100, 9000, 1000, 2, tile(100, 100, gang_m=gang_m), gpu)
        assert l2_s == pytest.approx((rows + columns) * 2000 / l2_bytes_per_s)
        assert memory_s == pytest.approx((100 + columns) * 2000 / 1e12)  # the 100 rows of x are held


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
