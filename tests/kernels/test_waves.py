"""The model of waves: known answers by hand, what it may never do, and what it picks for the suite's shapes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.waves import GpuSpec, Tiling, best, choices, cost
from roofline.theory.chips import find

H200 = GpuSpec.of_chip(find("H200"))
ROUND = GpuSpec(sms=100, flops=1e14, memory_bytes_per_s=1e12, cache_bytes=10**8)
BLOCKS = [(128, 256), (256, 128), (128, 128), (64, 256), (64, 128)]


def test_a_wave_takes_as_long_as_its_products():
    """A tile of 100 x 100 with K = 1000 is 2e7 FLOP, and takes an SM of 1e12 FLOP/s 20 us."""
    estimate = cost(1000, 1000, 1000, 2, Tiling(100, 100), ROUND)
    assert (estimate.tiles, estimate.full_waves, estimate.tail_s) == (100, 1, 0)
    assert estimate.mma_s == pytest.approx(20e-6)


def test_bytes_of_a_wave_by_hand():
    """100 tiles in 10 rows, in groups of 5, run as 5 rows and 20 columns of tiles at a time."""
    estimate = cost(1000, 4000, 1000, 2, Tiling(100, 100, group=5), GpuSpec(100, 1e14, 1e12, 0))
    assert estimate.full_waves == 4
    assert estimate.memory_s == pytest.approx((5 + 20) * 100 * 1000 * 2 / 1e12)
    assert estimate.l2_s == pytest.approx(100 * 200 * 1000 * 2 / (1e14 * 8e12 / 1.3e9 / (4096 * 132)))
    along_n = cost(1000, 4000, 1000, 2, Tiling(100, 100, group=4, raster="n"), GpuSpec(100, 1e14, 1e12, 0))
    assert along_n.memory_s == pytest.approx((10 + 10) * 100 * 1000 * 2 / 1e12)  # 4 columns at a time reach 10 rows


def test_an_operand_that_the_cache_holds_is_read_once():
    """x is 1000 x 1000 of 2 bytes: 2 MB of 100; its rows are read in the first of 4 waves alone."""
    held = cost(1000, 4000, 1000, 2, Tiling(100, 100, group=5), GpuSpec(100, 1e14, 1e12, 4 * 10**6))
    assert held.memory_s == pytest.approx((5 / 4 + 20) * 100 * 1000 * 2 / 1e12)


@pytest.mark.parametrize(("n", "waves"), [(256 * 132, 1), (256 * 132 + 1, 2), (256 * 264, 2)])
def test_one_tile_more_than_a_wave_costs_a_wave(n, waves):
    estimate = cost(128, n, 16384, 2, Tiling(128, 256), GpuSpec(132, 1e15, 1e15, 0))
    assert estimate.full_waves * estimate.wave_s + estimate.tail_s == pytest.approx(waves * estimate.wave_s, rel=0.03)


SIZES = st.integers(1, 4000).map(lambda i: 8 * i)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(m=SIZES, n=SIZES, k=SIZES, block=st.sampled_from(BLOCKS))
def test_no_tiling_beats_the_chip_and_more_of_it_is_never_slower(m, n, k, block):
    for tiling in choices(*block):
        estimate = cost(m, n, k, 2, tiling, H200)
        assert estimate.seconds >= 2 * m * n * k / H200.flops * (1 - 1e-9)
        faster = GpuSpec(H200.sms, H200.flops, 2 * H200.memory_bytes_per_s, H200.cache_bytes)
        assert cost(m, n, k, 2, tiling, faster).seconds <= estimate.seconds
        assert cost(m, n, 2 * k, 2, tiling, H200).seconds > estimate.seconds


@settings(max_examples=30, deadline=None, derandomize=True)
@given(m=SIZES, n=SIZES, k=SIZES)
def test_the_best_is_the_best(m, n, k):
    chosen = cost(m, n, k, 2, best(m, n, k, 2, BLOCKS, H200), H200).seconds
    least = min(cost(m, n, k, 2, t, H200).seconds for b in BLOCKS for t in choices(*b))
    assert chosen <= 1.02 * least


# Layer, tp, M -> tile of the model's choice, whole waves + tiles left, and what a wave waits for.
PICKED = {
    ("up", 1, 128): ("128x256", "1+76", "memory"),  # 1.7 GB of weights: the tile does not matter
    ("up", 1, 4096): ("128x256", "50+56", "L2"),
    ("up", 8, 256): ("128x128", "0+104", "L2"),  # 52 tiles of 128x256 would leave 80 of 132 SMs idle
    ("up", 8, 512): ("128x256", "0+104", "mma"),
    ("up", 8, 2048): ("128x256", "3+20", "L2"),
    ("down", 1, 256): ("128x256", "0+128", "mma"),  # N = 16384 fills 128 of 132 SMs by itself
    ("down", 1, 8192): ("128x256", "31+4", "L2"),  # four tiles that would take a wave of their own
    ("down", 8, 1024): ("128x256", "3+116", "L2"),
}


@pytest.mark.parametrize(("layer", "tp", "m"), PICKED)
def test_what_the_model_picks_and_why(layer, tp, m):
    n, k = (53248 // tp, 16384) if layer == "up" else (16384, 53248 // tp)
    tiling = best(m, n, k, 2, BLOCKS, H200)
    estimate = cost(m, n, k, 2, tiling, H200)
    waves = f"{estimate.full_waves}+{estimate.tiles - estimate.full_waves * H200.sms}"
    limit = {estimate.mma_s: "mma", estimate.l2_s: "L2", estimate.memory_s: "memory"}[estimate.wave_s]
    picked = (f"{tiling.block_m}x{tiling.block_n}", waves, limit)
    assert picked == PICKED[layer, tp, m]
