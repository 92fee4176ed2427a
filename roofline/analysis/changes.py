"""The change of a case from the runs of one side to those of another, with its standard error.

A run says the mean over its processes (of a single one: over its blocks) of the logarithm of the speed, and how far it
varies. What moves a whole run shows in no run alone: `BETWEEN_RUNS` is added, with the weight of `KNOWN` degrees of
freedom. Where a side has several runs, their own spread is pooled with that, and taken alone where it is larger.
Degrees of freedom are Welch's and Satterthwaite's. `tests/roofline/test_compare.py` measures coverage, false verdicts
and power on made-up runs whose spread is known; docs/how.md has how far runs of one machine agree.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import fmean, pvariance
from typing import Any

from roofline.analysis.overlap import unsplit_times_s
from roofline.analysis.verdicts import HIDDEN, SPEED, Change
from roofline.store.run import Run
from roofline.store.stats import units, values_by
from roofline.theory.simulator import hidden_fraction

BETWEEN_RUNS = 0.013
"""Standard deviation from run to run of the logarithm of a speed, beyond what varies within a run: so much covers
made-up runs of up to 1.4 %. On an H100 it was 1.1 % from one visit to the next, and 0.3 % between two runs of a visit
(docs/how.md)."""
KNOWN = 16
"""Degrees of freedom that it counts for: of 8, 16 and 24, that with which made-up runs kept coverage and power best."""

Values = dict[int, float]
"""{process: logarithm of the speed, or the hidden fraction} of a case in a run; of a single process {block: ...}."""
Sides = Sequence[Sequence[Values]]
"""The values of a case in each run of BASE, and in each of NEW."""


def values_of(run: Run, record: dict, of: str = SPEED) -> Values:
    """The values of a record's case in a run; {} where it has no ratio, or fewer than two processes have one."""
    contender = record["contender"]
    shape = run.rows[record["shape"], contender]
    anchor = shape.anchor or {}
    function: Callable[..., float] = _log_speed
    series = [anchor]
    if of == HIDDEN:
        function = hidden_fraction
        series = [*unsplit_times_s(shape)]
    values = values_by(units(shape.groups), function, *series, shape.times_s(contender), anchor=anchor)
    return values if len(values) > 1 else {}


def _log_speed(baseline_s: float, time_s: float) -> float:
    return math.log(baseline_s / time_s)


def mean_of_run(cases: Sequence[Values]) -> Change | None:
    """The mean over some cases of one run, of each against its baseline; None where fewer than two processes have all
    of them."""
    of_all = set.intersection(*map(set, cases))
    means = [fmean(of_case[process] for of_case in cases) for process in of_all]
    return Change.of_logarithms(means) if len(means) > 1 else None


def change_of_runs(cases: Sequence[Sides], of: str = SPEED) -> Change | None:
    """The change of the mean over `cases`; None where a run does not say how far it varies."""
    sides: list[Any] = []
    for side in zip(*cases, strict=True):
        means = list(map(mean_of_run, zip(*side, strict=True)))
        if None in means:
            return None
        sides.append(means)
    base, new = sides
    return change(base, new, of)


def change(base: Sequence[Change], new: Sequence[Change], of: str = SPEED) -> Change:
    """NEW over BASE, by what the runs of each say of one case against its baseline."""
    runs = [*base, *new]
    of_a_run = fmean(run.error**2 for run in runs) + BETWEEN_RUNS**2
    noise = sum((run.error**2 / len(runs)) ** 2 / run.freedom for run in runs)
    degrees = min(KNOWN, of_a_run**2 / noise) if noise else KNOWN
    means = []
    spread = 0.0
    for side in (base, new):
        values = [run.value for run in side]
        means.append(fmean(values))
        spread += len(values) * pvariance(values)
    degrees_of_runs = len(runs) - 2
    pooled = (degrees * of_a_run + spread) / (degrees + degrees_of_runs)
    pooled = max(pooled, spread / max(1, degrees_of_runs))
    error = math.sqrt(pooled * (1 / len(base) + 1 / len(new)))
    return Change(means[1] - means[0], error, int(degrees + degrees_of_runs), of)
