"""Medians and intervals: known answers, and the stated coverage on independent and on correlated samples."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roofline.stats import block_length, geometric_mean, lag1_correlation, median_interval, paired_ratio


def autoregressive(rng, n: int, correlation: float) -> np.ndarray:
    """`n` samples about 1 with a spread of 1 %, each correlated with the next."""
    values = rng.normal(size=n + 100)
    for i in range(1, len(values)):
        values[i] = correlation * values[i - 1] + math.sqrt(1 - correlation**2) * values[i]
    return 1 + 0.01 * values[100:]


@pytest.mark.parametrize(
    ("correlation", "n", "at_least"),
    # Nominal 0.95. These 150 series give 0.97, 0.97, 0.90 and 0.88; the margin is for other versions of NumPy.
    [(0.0, 30, 0.89), (0.0, 100, 0.89), (0.5, 100, 0.85), (0.8, 300, 0.84)],
)
def test_coverage(correlation, n, at_least):
    rng = np.random.default_rng(7)
    hits = 0
    for trial in range(150):
        interval = median_interval(autoregressive(rng, n, correlation), seed=trial)
        hits += interval.low <= 1 <= interval.high
    assert hits / 150 >= at_least


@pytest.mark.parametrize(("passes", "low", "high"), [(1, 0.0, 0.75), (8, 0.86, 1.0)])
def test_what_differs_between_passes_is_in_the_interval_if_it_knows_of_them(passes, low, high):
    # These 150 series give 0.63 without, and 0.91 with eight passes.
    rng = np.random.default_rng(11)
    hits = 0
    for trial in range(150):
        series = 1 + 0.02 * rng.normal(size=(8, 1)) + 0.03 * rng.normal(size=(8, 40))
        interval = median_interval(series.ravel(), passes=passes, seed=trial)
        hits += interval.low <= 1 <= interval.high
    assert low <= hits / 150 <= high


def test_blocks_grow_with_correlation():
    rng = np.random.default_rng(3)
    lengths = [block_length(autoregressive(rng, 300, correlation)) for correlation in (0.0, 0.6, 0.95)]
    assert lengths[0] <= 3 < lengths[1] < lengths[2] <= 60


def test_lag1_correlation_of_known_series():
    assert lag1_correlation([1, -1] * 50) == pytest.approx(-0.99)
    assert lag1_correlation([5.0] * 10) == 0
    assert lag1_correlation([1.0]) == 0
    assert lag1_correlation(list(range(100))) > 0.95


@given(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=60))
def test_interval_holds_the_median_and_repeats(samples):
    interval = median_interval(samples)
    assert min(samples) <= interval.low <= interval.median <= interval.high <= max(samples)
    assert interval == median_interval(samples)
    assert interval.median == np.median(samples)


def test_few_samples_give_their_extremes():
    interval = median_interval([3.0, 1.0, 2.0])
    assert (interval.low, interval.median, interval.high) == (1, 2, 3)
    with pytest.raises(ValueError, match="no samples"):
        median_interval([])


def test_pairing_cancels_a_shared_drift():
    drift = {i: 1 + i / 50 for i in range(100)}
    ratio = paired_ratio({i: 2 * d for i, d in drift.items()}, drift)
    assert (ratio.low, ratio.median, ratio.high) == pytest.approx((2, 2, 2))


def test_rounds_that_lack_a_partner_are_left_out():
    assert paired_ratio({0: 4.0, 1: 100.0}, {0: 2.0, 2: 1.0}).median == 2
    assert paired_ratio({0: 1.0}, {1: 1.0}) is None


def test_geometric_mean():
    assert geometric_mean([1, 4]) == pytest.approx(2)
    assert math.isnan(geometric_mean([]))
