"""Typical times and intervals: known answers."""

import math

import pytest

from roofline.store.stats import (
    beyond,
    geometric_mean,
    lag1_correlation,
    middle,
    ratio_of,
    student,
    student_quantile,
    time_of,
    values_by,
)


def rounds(values) -> dict[int, float]:
    return dict(enumerate(values))


@pytest.mark.parametrize(("freedom", "quantile"), [(1, 12.706), (2, 4.303), (7, 2.365), (120, 1.980)])
def test_students_quantiles_are_those_of_the_tables(freedom, quantile):
    assert student_quantile(freedom) == pytest.approx(quantile, abs=6e-4)
    assert beyond(quantile, freedom) == pytest.approx(0.05, rel=1e-3)


def test_students_interval_by_hand():
    ratio = student(1.0, [math.exp(x) for x in (-0.01, 0.0, 0.01)])
    assert math.log(ratio.high) == pytest.approx(4.303 * 0.01 / math.sqrt(3), rel=1e-3)
    assert ratio.low * ratio.high == pytest.approx(1)
    plain = student(0.0, [-1.0, 0.0, 1.0], log=False)
    assert (plain.low, plain.high) == pytest.approx((-2.484, 2.484), abs=1e-3)


@pytest.mark.parametrize("processes", [1, 2])
def test_fewer_than_three_rounds_say_a_value_alone(processes):
    groups = {index: (index % processes, 0) for index in range(3)}
    assert math.isnan(student(2.0, [2.0]).low)
    few = time_of(rounds([2.0, 2.1]), groups)
    assert few.value == pytest.approx(2.05, rel=1e-3)
    assert [*map(math.isnan, few[1:])] == [True, True]
    assert math.isnan(ratio_of(rounds([2.0] * 3), rounds([1.0] * 2), groups).low)
    assert values_by({0: [0, 1]}, float, rounds([2.0, 2.1])) == {}
    assert not math.isnan(time_of(rounds([2.0, 2.1, 2.2]), groups).low)


def test_pairing_cancels_a_shared_drift_and_leaves_out_what_lacks_a_partner():
    drift = {i: 1 + i / 50 for i in range(100)}
    ratio = ratio_of({i: 2 * d for i, d in drift.items()}, drift)
    assert (ratio.low, ratio.value, ratio.high) == pytest.approx((2, 2, 2))
    assert ratio_of({0: 4.0, 1: 100.0}, {0: 2.0, 2: 1.0}).value == pytest.approx(2)
    assert ratio_of({0: 1.0}, {1: 1.0}) is ratio_of({}, {1: 1.0}) is None
    groups = {0: (0, 1), 1: (1, 2), 2: (2, 3)}  # a process that lacks one series
    assert ratio_of({0: 2.0, 1: 2.2, 2: 9.0}, {0: 1.0, 1: 1.1}, groups).value == pytest.approx(2)


def test_one_sample_in_four_may_be_as_far_off_as_it_likes():
    assert middle([1.0, 2.0, 3.0, 1e9]) == 2.5
    assert middle([-1e9, 0.0, 1.0, 2.0, 3.0, 6.0, 7.0, 1e9]) == 3  # the mean of the middle half, and no median
    assert middle([5.0, 1e9, 1.0]) == 5
    assert time_of(rounds([1.0, 1.0, 1.0, 50.0] * 10)).value == 1


def test_a_drift_within_the_single_process_is_in_its_interval():
    """Its rounds are taken in runs of neighbours."""
    interval = time_of(rounds(1 + i / 100 for i in range(100)))
    assert (interval.low, interval.high) == pytest.approx((1.249, 1.773), abs=1e-3)


def test_lag1_correlation_of_known_series():
    assert lag1_correlation([1, -1] * 50) == pytest.approx(-0.99)
    assert lag1_correlation([5.0] * 10) == lag1_correlation([1.0]) == 0
    assert lag1_correlation(list(range(100))) > 0.95


def test_geometric_mean():
    assert geometric_mean([1, 4]) == pytest.approx(2)
    assert math.isnan(geometric_mean([]))
