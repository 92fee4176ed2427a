"""How well runs of one machine agree: what `compare` says of every pair of them, where FASTER and SLOWER are false.

A change is planted by making NEW slower by so much in all cases. It is seen in a case where the verdict of that is
SLOWER, and together where that of the mean over all cases is. Halves of the runs that share none are compared too.
"""

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from statistics import fmean, median, variance

from roofline.analysis.base import Column, grouped
from roofline.report import tables
from roofline.report.compare import (
    FASTER,
    HIDDEN,
    MARGIN,
    SAME,
    SLOWER,
    SPEED,
    UNCLEAR,
    Change,
    Spread,
    change,
    spread_of,
    together,
    values_of,
    verdicts,
)
from roofline.store.conditions import NUMBERS, conditions
from roofline.store.journal import load

PLANTED = (0.10, 0.05)
VERDICTS = (FASTER, SLOWER, SAME, UNCLEAR)
MOST_WAYS = 200
"""Of more ways to choose two sides, so many are taken, by a seed."""


@dataclass(frozen=True)
class Measured:
    """What a run says of its cases."""

    name: str
    about: str
    """What it has in common with the runs that it may be compared with."""
    values: dict[str, dict[int, float]]
    """{case: `compare.values_of` it}."""
    judged_by: dict[str, str]
    spreads: dict[str, Spread]
    widths: list[float]
    """Of the 95 % intervals of the ratios, over the ratio."""


Sides = tuple[tuple[Measured, ...], tuple[Measured, ...]]


def measured(folder: Path, prefix: str = "matmul-") -> Measured:
    """Of the cases of the run in `folder` whose id begins with `prefix`, or with one of several between commas."""
    run = load(folder)
    records = [
        one
        for one in run.records()
        if one["case"].startswith(tuple(prefix.split(","))) and one["contender"] != one["vendor"]
    ]
    judged_by = {one["case"]: SPEED if one.get("hidden_fraction") is None else HIDDEN for one in records}
    by = {SPEED: "ratio", HIDDEN: HIDDEN}
    values = {one["case"]: own for one in records if (own := values_of(run, one, by[judged_by[one["case"]]]))}
    spreads = {case: spread for case, own in values.items() if (spread := spread_of([own]))}
    about = conditions(run.metadata)
    found = [record for record in records if record["case"] in spreads]
    widths = [(record["ratio_high"] - record["ratio_low"]) / record["ratio_to_vendor"] for record in found]
    named = ", ".join(f"{name} {about[name]}" for name in NUMBERS)
    return Measured(folder.name, named, values, judged_by, spreads, widths)


def agreement(runs: Sequence[Measured]) -> str:
    """Markdown: for each chip, driver and method a row for each pair of runs, for all pairs, and for halves. Raises
    ValueError where no two runs are of the same, or two have no case in common."""
    groups = grouped((run.about, run) for run in runs)
    found = [_group(about, own) for about, own in groups.items() if len(own) > 1]
    if not found:
        raise ValueError("no two runs are of the same chip, driver and method: there is no pair")
    return "\n\n".join(found)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _group(about: str, runs: list[Measured]) -> str:
    pairs, half = _sides(runs, 1), len(runs) // 2
    rows = [_row(f"{base[0].name}, {new[0].name}", [(base, new)]) for base, new in pairs]
    rows.append(_row(f"all {len(pairs)} pairs", pairs))
    if half > 1:
        ways = _sides(runs, half)
        chosen = random.Random(0).sample(ways, min(len(ways), MOST_WAYS))
        rows.append(_row(f"{half} runs a side, {len(chosen)} of {len(ways)} ways", chosen))
    each = [[run.spreads[case] for run in runs if case in run.spreads] for case in runs[0].spreads]
    apart = fmean(variance(one.value for one in own) for own in each if len(own) > 1)
    within = fmean(one.variance for own in each for one in own)
    total, own, rest = (_percent(math.sqrt(max(0.0, one))) for one in (apart, within, apart - within))
    return (
        f"{about}:\n\n{tables.markdown(rows, COLUMNS)}\n\nA ratio's standard deviation from run to run is {total}: "
        f"{own} by what varies within a run, {rest} beyond."
    )


def _sides(runs: list[Measured], count: int) -> list[Sides]:
    """Every two sides of `count` runs that share none, each once."""
    indices = set(range(len(runs)))
    ways = [(a, b) for a in combinations(indices, count) for b in combinations(sorted(indices - {*a}), count) if a < b]
    return [tuple(tuple(runs[index] for index in side) for side in way) for way in ways]


def _row(name: str, found: list[Sides]) -> dict:
    each, means = [_changes(*sides) for sides in found], [[_mean(*sides)] for sides in found]
    changes = [one for own in each for one in own]
    said, of_means = (Counter(verdict for own in them for verdict in verdicts(own)) for them in (each, means))
    return {
        "name": name,
        "near": f"{sum(abs(one.value) <= math.log1p(MARGIN) for one in changes)} of {len(changes)}",
        "held": fmean(one.is_held for one in changes),
        **{verdict: said[verdict] for verdict in VERDICTS},
        "mean": ", ".join(f"{of_means[verdict]} {verdict}" for verdict in VERDICTS if of_means[verdict]),
        "ratio": median(width for sides in found for side in sides for run in side for width in run.widths),
        "change": median(map(_width, changes)),
        "change of mean": median(_width(one) for (one,) in means),
        **{str(share): [fmean(_seen(own, share) for own in them) for them in (each, means)] for share in PLANTED},
    }


def _width(one: Change) -> float:
    """Of its interval: of a speed over the speed, of a hidden fraction plainly."""
    return one.interval.relative_width if one.of == SPEED else one.interval.high - one.interval.low


def _cases(base: tuple[Measured, ...], new: tuple[Measured, ...]) -> list[str]:
    """What all of them have."""
    common = [case for case in base[0].spreads if all(case in run.spreads for run in (*base, *new))]
    if not common:
        raise ValueError(f"{base[0].name} and {new[0].name} have no case in common")
    return common


def _changes(*sides: tuple[Measured, ...]) -> list[Change]:
    return [
        change(*([run.spreads[case] for run in side] for side in sides), of=sides[0][0].judged_by[case])
        for case in _cases(*sides)
    ]


def _mean(*sides: tuple[Measured, ...]) -> Change:
    """Of all cases together."""
    cases = _cases(*sides)
    of = HIDDEN if all(sides[0][0].judged_by[case] == HIDDEN for case in cases) else SPEED
    return together([[[run.values[case] for run in side] for side in sides] for case in cases], of=of)


def _seen(changes: list[Change], share: float) -> float:
    """Which share of `changes` is SLOWER once NEW takes longer by `share` in all of them."""
    slower = [replace(one, value=one.value - math.log1p(share)) for one in changes]
    return verdicts(slower).count(SLOWER) / len(changes)


COLUMNS = (
    Column("name", header="runs", right=False),
    Column("near", header=f"within {100 * MARGIN:g} %"),
    Column("held", header="1 in the change's interval", text="{:.2f}".format),
    *(Column(verdict, header=verdict) for verdict in VERDICTS),
    Column("mean", header="all cases together", right=False),
    Column("ratio", header="width of a ratio's interval", text=_percent),
    Column("change", header="of a change's", text=_percent),
    Column("change of mean", header="together", text=_percent),
    *(
        Column(str(share), header=f"{100 * share:g} % seen: in a case, together", text="{0[0]:.2f}, {0[1]:.2f}".format)
        for share in PLANTED
    ),
)
