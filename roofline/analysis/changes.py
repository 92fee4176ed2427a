"""The change of a case from the runs of one side to those of another, and whether it can be told from none.

A run says the mean over its processes (of a single one: over its blocks) of the logarithm of the speed, and how far it
varies. What moves a whole run shows in no run alone: `BETWEEN_RUNS` is added, with the weight of `KNOWN` degrees of
freedom. Where a side has several runs, their own spread is pooled with that, and taken alone where it is larger. The
interval is Student's at 95 %, by Welch's and Satterthwaite's degrees of freedom. With a margin of 3 %:

    FASTER    no change is refuted, and NEW was faster by more than the margin
    SLOWER    no change is refuted, and NEW was slower by more than the margin
    SAME      the whole interval lies within the margin
    UNCLEAR   anything else

FASTER and SLOWER hold for all cases at once: the two-sided tests of no change are corrected by Holm (1979), so that of
20 comparisons of equal machines one calls any case changed. Intervals are those of each case alone.
`tests/roofline/test_compare.py` measures coverage, false verdicts and power on made-up runs whose spread is known;
docs/how.md has how far runs of one machine agree.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import fmean, stdev, variance

from roofline.analysis.overlap import unsplit_times_s
from roofline.store.run import Run
from roofline.store.stats import Interval, beyond, blocks, by_process, student_quantile
from roofline.theory.simulator import hidden_fraction

FASTER, SLOWER, SAME, UNCLEAR = "FASTER", "SLOWER", "SAME", "UNCLEAR"
SPEED, HIDDEN = "speed", "hidden"
"""What a case is judged by."""
MARGIN = 0.03
LEVEL = 0.05
"""The chance that any of the equal cases of a comparison is called changed."""
BETWEEN_RUNS = 0.013
"""Standard deviation from run to run of the logarithm of a speed, beyond what varies within a run: so much covers
made-up runs of up to 1.4 %. It is more than an H100 needed: between its two committed runs of matmuls, minutes apart, a
ratio moved by 0.08 % in the median of 120 cases, and by 0.27 % or less in nine of ten. docs/how.md has more."""
KNOWN = 16
"""Degrees of freedom that it counts for: of 8, 16 and 24, that with which made-up runs kept coverage and power best."""


@dataclass(frozen=True)
class Spread:
    """What one run says of a case: the logarithm of its speed, the variance of that, its degrees of freedom."""

    value: float
    variance: float
    freedom: int


@dataclass(frozen=True)
class Change:
    """The logarithm of NEW's speed over BASE's, or what NEW hides more, as `of` says; the standard error of that, and
    its degrees of freedom."""

    value: float
    error: float
    freedom: int
    of: str = SPEED

    @property
    def interval(self) -> Interval:
        """Of the speed, or of what is hidden more, at 95 %."""
        half = student_quantile(self.freedom) * self.error
        values = (self.value + step for step in (0, -half, half))
        return Interval(*(map(math.exp, values) if self.of == SPEED else values))

    @property
    def resolution(self) -> float:
        """Return the least change that its interval tells from none: of the speed, or of what is hidden."""
        half = student_quantile(self.freedom) * self.error
        return math.expm1(half) if self.of == SPEED else half

    @property
    def chance(self) -> float:
        """Return the chance that equal machines differ as far: the two-sided test of no change."""
        return beyond(self.value / self.error, self.freedom) if self.error else float(not self.value)

    @property
    def within_margin(self) -> bool:
        """Return whether the whole interval lies within `MARGIN`."""
        return abs(self.value) + student_quantile(self.freedom) * self.error <= math.log1p(MARGIN)


def values_of(run: Run, record: dict, of: str = SPEED) -> dict[int, float]:
    """Return {process: logarithm of the speed, or the hidden fraction} of the case of `record`; of a single process
    {block: ...}; {} without ratio."""
    shape = run.shapes[record["shape"]]
    times_s, groups = shape.times_s(record["contender"]), shape.groups
    if of == SPEED and record["ratio_to_baseline"] is None:
        return {}
    if len({process for process, _ in groups.values()}) == 1:  # its blocks take the place of processes
        groups = {index: (block, 0) for index, block in blocks(tuple(groups.items())).items()}
    if of == HIDDEN:
        return by_process(hidden_fraction, *unsplit_times_s(shape), times_s, groups=groups, anchor=shape.anchor)
    speeds = by_process(
        lambda time_s, baseline_s: baseline_s / time_s, times_s, shape.anchor, groups=groups, anchor=shape.anchor
    )
    return {process: math.log(speed) for process, speed in speeds.items()}


def spread_of(each: Sequence[dict[int, float]]) -> Spread | None:
    """Of the mean over some cases, by the `values_of` each; None where fewer than two processes have all of them."""
    means = [
        fmean(values_of_run[process] for values_of_run in each)
        for process in each[0]
        if all(process in values_of_run for values_of_run in each)
    ]
    return Spread(fmean(means), variance(means) / len(means), len(means) - 1) if len(means) > 1 else None


def together(cases: Sequence[Sequence[Sequence[dict[int, float]]]], of: str = SPEED) -> Change | None:
    """Return the change of the mean over `cases`: of each, for BASE and for NEW, the `values_of` every run."""
    spreads = [[spread_of(each) for each in zip(*side, strict=True)] for side in zip(*cases, strict=True)]
    return None if None in chain(*spreads) else change(*spreads, of=of)


def change_of_pairs(cases: Sequence[Sequence[Sequence[dict[int, float]]]], of: str = SPEED) -> Change | None:
    """Return what `together` does, for one run a side whose processes took turns: what moves a whole run cancels in
    each pair. None where fewer than two pairs have all cases."""
    sides = [[of_run for (of_run,) in side] for side in zip(*cases, strict=True)]
    each = (sorted(set.intersection(*map(set, side))) for side in sides)
    # Numbers differ where a share of one side ended, and was begun again.
    changes = [fmean(new[b] - base[a] for base, new in zip(*sides, strict=True)) for a, b in zip(*each, strict=False)]
    if len(changes) < 2:
        return None
    return Change(fmean(changes), stdev(changes) / math.sqrt(len(changes)), len(changes) - 1, of)


def change(base: Sequence[Spread], new: Sequence[Spread], of: str = SPEED) -> Change:
    """NEW over BASE, by what the runs of each say of one case."""
    runs = [*base, *new]
    within = fmean(run.variance for run in runs)
    of_one = within + BETWEEN_RUNS**2
    noise = sum((run.variance / len(runs)) ** 2 / run.freedom for run in runs)
    degrees = min(KNOWN, of_one**2 / noise) if noise else KNOWN
    means = [fmean(run.value for run in side) for side in (base, new)]
    spread = sum((run.value - mean) ** 2 for side, mean in zip((base, new), means, strict=True) for run in side)
    degrees_of_runs = len(runs) - 2
    pooled = max((degrees * of_one + spread) / (degrees + degrees_of_runs), spread / max(1, degrees_of_runs))
    error = math.sqrt(pooled * (1 / len(base) + 1 / len(new)))
    return Change(means[1] - means[0], error, int(degrees + degrees_of_runs), of)


def verdicts(changes: Sequence[Change]) -> list[str]:
    """FASTER, SLOWER, SAME or UNCLEAR of each of all the cases that are tested at once."""
    refuted = holm([change_.chance for change_ in changes])
    return [
        (FASTER if change_.value > 0 else SLOWER) if sure and abs(change_.value) > math.log1p(MARGIN)
        else SAME if change_.within_margin else UNCLEAR
        for change_, sure in zip(changes, refuted, strict=True)
    ]  # fmt: skip


def holm(chances: Sequence[float]) -> list[bool]:
    """Return which tests are refuted, so that the chance that any falsely is stays within `LEVEL` (Holm 1979)."""
    refuted = [False] * len(chances)
    for rank, index in enumerate(sorted(range(len(chances)), key=chances.__getitem__)):
        if chances[index] > LEVEL / (len(chances) - rank):
            break
        refuted[index] = True
    return refuted
