"""How far runs of one machine agree: what `compare` says of every pair of them, where FASTER and SLOWER are false.

    .venv/bin/python tests/roofline/agreement.py PREFIX RUN...

prints a table of docs/trust.md, of the cases whose id begins with PREFIX, or with one of several between commas. A
change is planted by making NEW slower by so much in all cases. It is seen in a case where the verdict of that is
SLOWER, and together where that of the mean over all cases is.
"""

import math
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from statistics import fmean, median, variance
from typing import NamedTuple

from roofline.analysis.records import records_of
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
    change,
    spread_of,
    together,
    values_of,
    verdicts,
)
from roofline.report.layout import Column
from roofline.store.journal import load

PLANTED = (0.10, 0.05)
VERDICTS = (FASTER, SLOWER, SAME, UNCLEAR)


class Values(NamedTuple):
    """What a run says of its cases: {case: ...}, and the widths of the intervals of ratios, over the ratio."""

    name: str
    values: dict
    judged_by: dict
    spreads: dict
    widths: list[float]


def values(folder: Path, prefix: str) -> Values:
    run = load(folder)
    records = [r for r in records_of(run) if r["case"].startswith(tuple(prefix.split(","))) and r["ratio_to_vendor"]]
    records = [r for r in records if r["contender"] != r["vendor"]]
    judged_by = {r["case"]: SPEED if r.get("hidden_fraction") is None else HIDDEN for r in records}
    by = {SPEED: "ratio", HIDDEN: HIDDEN}
    of_case = {r["case"]: values_of(run, r, by[judged_by[r["case"]]]) for r in records}
    widths = [(r["ratio_high"] - r["ratio_low"]) / r["ratio_to_vendor"] for r in records]
    return Values(Path(folder).name, of_case, judged_by, {k: spread_of([v]) for k, v in of_case.items()}, widths)


def agreement(runs: Sequence[Values]) -> str:
    """Markdown: a row for each pair of `runs`, one for all pairs, and how far a ratio varies from run to run."""
    pairs = [*combinations(runs, 2)]
    rows = [row(f"{base.name}, {new.name}", [(base, new)]) for base, new in pairs]
    rows.append(row(f"all {len(pairs)} pairs", pairs))
    each = [[run.spreads[case] for run in runs if case in run.spreads] for case in runs[0].spreads]
    total = fmean(variance(spread.value for spread in of_case) for of_case in each if len(of_case) > 1)
    within = fmean(spread.variance for of_case in each for spread in of_case)
    parts = [percent(math.sqrt(max(0.0, part))) for part in (total, within, total - within)]
    return (
        f"{tables.markdown(rows, COLUMNS)}\n\nA ratio's standard deviation from run to run is {parts[0]}: {parts[1]} "
        f"by what varies within a run, {parts[2]} beyond."
    )


def row(name: str, pairs: Sequence[tuple[Values, Values]]) -> dict:
    changes_of_pair, means = zip(*(changes(*pair) for pair in pairs), strict=True)
    all_changes = [one for of_pair in changes_of_pair for one in of_pair]
    of_cases = Counter(verdict for of_pair in changes_of_pair for verdict in verdicts(of_pair))
    of_means = Counter(verdict for mean in means for verdict in verdicts([mean]))
    seen = {
        str(share): [fmean(seen_share(own, share) for own in them) for them in (changes_of_pair, [[m] for m in means])]
        for share in PLANTED
    }
    return {
        "name": name,
        "near": f"{sum(abs(one.value) <= math.log1p(MARGIN) for one in all_changes)} of {len(all_changes)}",
        "held": fmean(is_held(one) for one in all_changes),
        **{verdict: of_cases[verdict] for verdict in VERDICTS},
        "mean": ", ".join(f"{of_means[verdict]} {verdict}" for verdict in VERDICTS if of_means[verdict]),
        "ratio": median(width for pair in pairs for run in pair for width in run.widths),
        "change": median(map(width_of, all_changes)),
        "change of mean": median(map(width_of, means)),
        **seen,
    }


def changes(base: Values, new: Values) -> tuple[list[Change], Change]:
    """The change of each case that both have, and that of the mean over them."""
    cases = [case for case in base.spreads if case in new.spreads]
    of = HIDDEN if all(base.judged_by[case] == HIDDEN for case in cases) else SPEED
    of_case = [change([base.spreads[case]], [new.spreads[case]], of=base.judged_by[case]) for case in cases]
    return of_case, together([[[base.values[case]], [new.values[case]]] for case in cases], of=of)


def is_held(one: Change) -> bool:
    """Whether its interval holds no change."""
    return one.interval.low <= (one.of == SPEED) <= one.interval.high


def width_of(one: Change) -> float:
    """Of its interval: of a speed over the speed, of a hidden fraction plainly."""
    return one.interval.relative_width if one.of == SPEED else one.interval.high - one.interval.low


def seen_share(found: Sequence[Change], share: float) -> float:
    """Which share of the changes is SLOWER once NEW takes longer by `share` in all of them."""
    slower = [replace(one, value=one.value - math.log1p(share)) for one in found]
    return verdicts(slower).count(SLOWER) / len(found)


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


COLUMNS = (
    Column("name", header="runs", right=False),
    Column("near", header=f"within {100 * MARGIN:g} %"),
    Column("held", header="1 in the change's interval", text="{:.2f}".format),
    *(Column(verdict, header=verdict) for verdict in VERDICTS),
    Column("mean", header="all cases together", right=False),
    Column("ratio", header="width of a ratio's interval", text=percent),
    Column("change", header="of a change's", text=percent),
    Column("change of mean", header="together", text=percent),
    *(
        Column(str(share), header=f"{100 * share:g} % seen: in a case, together", text="{0[0]:.2f}, {0[1]:.2f}".format)
        for share in PLANTED
    ),
)

if __name__ == "__main__":
    print(agreement([values(folder, sys.argv[1]) for folder in sorted(map(Path, sys.argv[2:]))]))
