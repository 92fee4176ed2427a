"""How far runs of one machine agree: what `compare` says of every pair of them, where FASTER and SLOWER are false.

    .venv/bin/python tests/roofline/agreement.py PREFIX RUN RUN...

prints a table of docs/how.md, of the cases whose id begins with PREFIX, or with one of several between commas. A
change is planted by making NEW slower by so much in all cases. It is seen in a case where the verdict of that is
SLOWER, and together where that of the mean over all cases is.
"""

import math
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, combinations
from pathlib import Path
from statistics import fmean, median, variance
from typing import NamedTuple

from roofline.analysis.changes import (
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
from roofline.analysis.records import records_of
from roofline.store.journal import load

PLANTED = (0.10, 0.05)
VERDICTS = (FASTER, SLOWER, SAME, UNCLEAR)
LEFT = ("runs", "all cases together")
COLUMNS = ["runs", f"within {100 * MARGIN:g} %", "1 in the change's interval", *VERDICTS, "all cases together"]
COLUMNS += ["width of a ratio's interval", *(f"{100 * share:g} % seen: in a case, together" for share in PLANTED)]


class Values(NamedTuple):
    """A run has values, a kind of verdict and a spread for each case, and the relative widths of its intervals."""

    name: str
    values: dict
    judged_by: dict
    spreads: dict
    widths: list[float]


def read_values(folder: Path, prefix: str) -> Values:
    """Return the values of the cases in `folder` whose id begins with a part of `prefix`, which commas divide."""
    run = load(folder)
    records = [r for r in records_of(run) if r["case"].startswith(tuple(prefix.split(","))) and r["ratio_to_vendor"]]
    records = [r for r in records if r["contender"] != r["vendor"]]
    judged_by = {r["case"]: SPEED if r.get("hidden_fraction") is None else HIDDEN for r in records}
    of_case = {r["case"]: values_of(run, r, judged_by[r["case"]]) for r in records}
    widths = [(r["ratio_high"] - r["ratio_low"]) / r["ratio_to_vendor"] for r in records]
    return Values(Path(folder).name, of_case, judged_by, {k: spread_of([v]) for k, v in of_case.items()}, widths)


def write_table(runs: Sequence[Values]) -> str:
    """Return Markdown: a row for each pair of `runs`, one for all pairs, and how far a ratio varies from run to run."""
    pairs = [*combinations(runs, 2)]
    rows = [row(f"{base.name}, {new.name}", [(base, new)]) for base, new in pairs]
    rows.append(row(f"all {len(pairs)} pairs", pairs))
    each = [[run.spreads[case] for run in runs if case in run.spreads] for case in runs[0].spreads]
    total = fmean(variance(spread.value for spread in of_case) for of_case in each if len(of_case) > 1)
    within = fmean(spread.variance for of_case in each for spread in of_case)
    parts = [percent(math.sqrt(max(0.0, part))) for part in (total, within, total - within)]
    sides = [":--" if name in LEFT else "--:" for name in COLUMNS]
    table = "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in (COLUMNS, sides, *rows))
    return (
        f"{table}\n\nA ratio's standard deviation from run to run is {parts[0]}: {parts[1]} by what varies within a "
        f"run, {parts[2]} beyond."
    )


def row(name: str, pairs: Sequence[tuple[Values, Values]]) -> list:
    """Return the cells of `COLUMNS` for `pairs`."""
    changes_of_pair, means = zip(*(changes(*pair) for pair in pairs), strict=True)
    all_changes = [*chain(*changes_of_pair)]
    of_cases = Counter(verdict for of_pair in changes_of_pair for verdict in verdicts(of_pair))
    of_means = Counter(verdict for mean in means for verdict in verdicts([mean]))
    near = sum(abs(case_change.value) <= math.log1p(MARGIN) for case_change in all_changes)
    alone_and_together = changes_of_pair, [[mean] for mean in means]
    seen = [[fmean(seen_share(of_pair, share) for of_pair in each) for each in alone_and_together] for share in PLANTED]
    return [
        name,
        f"{near} of {len(all_changes)}",
        f"{fmean(holds_no_change(case_change) for case_change in all_changes):.2f}",
        *(of_cases[verdict] for verdict in VERDICTS),
        ", ".join(f"{of_means[verdict]} {verdict}" for verdict in VERDICTS if of_means[verdict]),
        percent(median(width for pair in pairs for run in pair for width in run.widths)),
        *(f"{in_a_case:.2f}, {in_the_mean:.2f}" for in_a_case, in_the_mean in seen),
    ]


def changes(base: Values, new: Values) -> tuple[list[Change], Change]:
    """Return the change of each case that both have, and that of the mean over them."""
    cases = [case for case in base.spreads if case in new.spreads]
    of = HIDDEN if all(base.judged_by[case] == HIDDEN for case in cases) else SPEED
    of_case = [change([base.spreads[case]], [new.spreads[case]], of=base.judged_by[case]) for case in cases]
    return of_case, together([[[base.values[case]], [new.values[case]]] for case in cases], of=of)


def holds_no_change(case_change: Change) -> bool:
    """Return whether the interval of `case_change` holds the value of no change."""
    return case_change.interval.low <= (case_change.of == SPEED) <= case_change.interval.high


def seen_share(case_changes: Sequence[Change], planted: float) -> float:
    """Return which share of the changes is SLOWER once NEW takes longer by the share `planted` in all of them."""
    slower = [replace(case_change, value=case_change.value - math.log1p(planted)) for case_change in case_changes]
    return verdicts(slower).count(SLOWER) / len(case_changes)


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit("usage: agreement.py PREFIX RUN RUN...: the folders of two runs or more")
    print(write_table([read_values(folder, sys.argv[1]) for folder in sorted(map(Path, sys.argv[2:]))]))
