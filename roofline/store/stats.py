"""Statistics of timed samples: typical times, what is formed of them, and intervals that hold in another process.

Samples of one run are not independent: neighbouring rounds are alike, passes differ by what else the machine did, and
processes by where their memory came to lie. So each process says one value, and an interval is Student's over the
processes: few clusters with estimates of their own need no more (Ibragimov and Mueller 2010). Within a single process
its passes take their place, or runs of its rounds.

All times of a shape are told beside one anchor, its baseline: the anchor's typical time, times the typical ratio to it
within rounds. What all met alike in a round cancels, and times and ratios agree. Typical is the mean of the middle half
of the logarithms: one sample in four may be as far off as it likes.
`tests/roofline/test_trust.py` states and tests what the intervals cover.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from operator import mul, truediv
from statistics import fmean, median, stdev
from typing import Any, NamedTuple

CONFIDENCE = 0.95
BLOCKS = 8
"""The rounds of a process that is alone, and had fewer passes, are cut into so many runs."""
MOST_FREEDOM = 200
"""Beyond so many degrees of freedom Student's distribution is taken to be that of so many."""
DECADE = 10
"""An interval whose high end is more than so many times its low end says nothing."""
LEAST_ROUNDS = 3
"""Fewer say a typical value, and nothing of how far it may be off: no interval, verdict or finding rests on them."""

Series = Mapping[int, float]
"""{round: value above 0}."""
Groups = Mapping[int, tuple[int, int]]
"""{round: (process, pass)}."""
Units = Mapping[int, list[int]]
"""{number of a process or a block: its rounds}."""


class Interval(NamedTuple):
    """A value with its interval at `CONFIDENCE`, in the unit of the samples. Ends that nobody knows are NaN."""

    value: float
    low: float
    high: float


def is_known(low: float, high: float) -> bool:
    """An interval of what is above 0 is known if it spans no more than a decade. NaN and infinity say
    nothing."""
    return low > 0 and high <= DECADE * low and math.isfinite(high)


def estimate(
    of: Callable[..., float],
    *series: Series,
    groups: Groups | None = None,
    anchor: Series | None = None,
    log: bool = True,
) -> Interval | None:
    """`of(typical value of each series)`; None where no process has all of them. Its ends are unknown where a series
    has fewer than `LEAST_ROUNDS` beside the anchor.

    Without `groups` all rounds are of one pass. Without an `anchor` the first series is it; so is a single one that
    shares no round with one, as where samples were dropped. `log`: what `of` returns is above 0, and its logarithm is
    what spreads evenly.
    """
    anchor = anchor or series[0]
    if len(series) == 1 and anchor.keys().isdisjoint(series[0]):
        anchor = series[0]
    groups = groups or dict.fromkeys(anchor, (0, 0))
    typical = _typical(anchor, series, processes(groups))
    if not typical:
        return None
    means = map(fmean, zip(*typical.values(), strict=True))
    value = of(*map(math.exp, means))
    if len(typical) == 1:
        typical = _typical(anchor, series, blocks(groups))
    values = []
    if _are_enough(anchor, series):
        for logs in typical.values():
            values.append(of(*map(math.exp, logs)))
    return student(value, values, log=log)


def _are_enough(anchor: Series, series: tuple[Series, ...]) -> bool:
    return all(len(anchor.keys() & values.keys()) >= LEAST_ROUNDS for values in series)


def processes(groups: Groups) -> Units:
    """{process: its rounds}."""
    return grouped((process, index) for index, (process, _) in groups.items())


def units(groups: Groups) -> Units:
    """{process: its rounds}, or of a single one {block: its rounds}: what varies from one to the next is
    independent."""
    of_process = processes(groups)
    return of_process if len(of_process) > 1 else blocks(groups)


def values_by(
    units: Units, of: Callable[..., float], *series: Series, anchor: Series | None = None
) -> dict[int, float]:
    """{unit: `of(typical value of each series)`}, of each unit of rounds that has all of them; {} where a series has
    fewer than `LEAST_ROUNDS` beside the anchor."""
    anchor = anchor or series[0]
    if not _are_enough(anchor, series):
        return {}
    values = {}
    for unit, logs in _typical(anchor, series, units).items():
        values[unit] = of(*map(math.exp, logs))
    return values


def student(value: float, values: list[float], *, log: bool = True) -> Interval:
    """`value` with Student's interval by independent `values` of it; of fewer than two, its ends are unknown."""
    if len(values) < 2:
        return Interval(value, math.nan, math.nan)
    spread = stdev(map(math.log, values) if log else values)
    half = student_quantile(len(values) - 1) * (spread / math.sqrt(len(values)))
    if log:
        return Interval(value, value * math.exp(-half), value * math.exp(half))
    return Interval(value, value - half, value + half)


def time_of(series: Series, groups: Groups | None = None) -> Interval | None:
    """The typical time of a series with its interval; None of an empty one."""
    return estimate(float, series, groups=groups)


def ratio_of(numerator: Series, denominator: Series, groups: Groups | None = None) -> Interval | None:
    """numerator / denominator, within rounds."""
    return estimate(truediv, numerator, denominator, groups=groups)


def _typical(anchor: Series, series: tuple[Series, ...], units: Units) -> dict[int, list[float]]:
    """{unit: logarithm of the typical value of each series there}, of units that have all of them beside the
    anchor."""
    typical = {}
    for unit, rounds in sorted(units.items()):
        anchored = [index for index in rounds if index in anchor]
        if not anchored:
            continue
        of_anchor = middle([math.log(anchor[index]) for index in anchored])
        logs = []
        for values in series:
            ratios = [math.log(values[index] / anchor[index]) for index in anchored if index in values]
            if ratios:
                logs.append(of_anchor + middle(ratios))
        if len(logs) == len(series):
            typical[unit] = logs
    return typical


def middle(values: list[float]) -> float:
    """The mean of the middle half of `values`; of fewer than four, their median."""
    ranked = sorted(values)
    cut = len(values) // 4
    return fmean(ranked[cut : len(ranked) - cut]) if cut else median(ranked)


def blocks(groups: Groups) -> Units:
    """{block: its rounds} of a single process: its passes, or where they are few, runs of its rounds."""
    if len({*groups.values()}) >= BLOCKS:
        return grouped((pass_index, index) for index, (_, pass_index) in groups.items())
    return grouped((place * BLOCKS // len(groups), index) for place, index in enumerate(sorted(groups)))


@lru_cache
def student_quantile(freedom: int, confidence: float = CONFIDENCE) -> float:
    """Standard errors that Student's two-sided interval reaches to each side, with `freedom` degrees of freedom.

    >>> round(student_quantile(4), 3), round(student_quantile(1), 2)
    (2.776, 12.71)
    """
    low = 0.0
    high = 1e6
    for _ in range(100):
        middle = (low + high) / 2
        if beyond(middle, freedom) > 1 - confidence:
            low = middle
        else:
            high = middle
    return high


def beyond(t: float, freedom: int) -> float:
    """The chance that Student's t with `freedom` degrees of freedom lies farther from 0 than `t`.

    The finite series for whole degrees of freedom (Abramowitz and Stegun 26.7.3 and 26.7.4).
    """
    freedom = min(freedom, MOST_FREEDOM)
    angle = math.atan(abs(t) / math.sqrt(freedom))
    sine = math.sin(angle)
    cosine = math.cos(angle)
    odd = freedom % 2
    term = total = cosine**odd if freedom > 1 else 0.0
    for n in range(1 + odd, freedom - 2, 2):
        term *= cosine**2 * n / (n + 1)
        total += term
    within = 2 / math.pi * (angle + sine * total) if odd else sine * total
    return max(0.0, 1 - within)


def lag1_correlation(samples: Iterable[float]) -> float:
    """Correlation of each sample with the next; 0 where it is undefined (constant, or fewer than three samples)."""
    values = list(samples)
    if len(values) < 3:
        return 0.0
    mean = fmean(values)
    centred = [value - mean for value in values]
    energy = sum(map(mul, centred, centred))
    return sum(map(mul, centred, centred[1:])) / energy if energy else 0.0


def geometric_mean(values) -> float:
    """Geometric mean of positive numbers; NaN of none."""
    logs = list(map(math.log, values))
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def grouped(pairs: Iterable[tuple[Any, Any]]) -> dict[Any, list]:
    """The values of each key, in their order.

    >>> grouped([("a", 1), ("b", 2), ("a", 3)])
    {'a': [1, 3], 'b': [2]}
    """
    groups: dict[Any, list] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups
