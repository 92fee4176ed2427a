"""The command `roofline compare`: what a comparison says, for a terminal or a pull request."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from roofline.analysis.comparison import CaseChange, Comparison, compare, named_runs
from roofline.analysis.records import frame
from roofline.analysis.verdicts import ALPHA, FASTER, MARGIN, SAME, SLOWER, SPEED, UNDECIDED, Change
from roofline.report import tables
from roofline.report.format import error_text, growth_text, hidden_text, interval_text, time_text
from roofline.report.plots import speedup, theme
from roofline.store.journal import load
from roofline.store.run import Run

if TYPE_CHECKING:
    from pandas import DataFrame


def add_command(commands) -> None:
    """Add `compare` to the subparsers of the `roofline` command."""
    command = commands.add_parser("compare", help="what became faster or slower from one run to another")
    command.usage = "roofline compare BASE NEW [options], or BASE... --new NEW..."
    command.add_argument("runs", metavar="RUN", nargs="+", type=Path, help="run folders: BASE and NEW, or all of BASE")
    command.add_argument("--new", metavar="NEW", nargs="+", type=Path, help="run folders, where a side has several")
    command.add_argument(
        "--allow",
        action="append",
        default=[],
        choices=("chip", "driver", "method"),
        help="compare although this differs; may be repeated",
    )
    command.add_argument("--strict", action="store_true", help="exit 1 also where a case is undecided or missing")
    command.add_argument("--markdown", action="store_true", help="for a pull request")
    command.add_argument("--figure", metavar="FOLDER", type=Path, help="draw the speedups of two runs by M into it")
    command.set_defaults(run=run)


def run(options) -> int:
    """Print the comparison, and return the exit code. Raises ValueError where the runs cannot be compared."""
    base, new = _sides(options.runs, options.new)
    comparison = compare(base, new, allow=options.allow)
    if options.figure:
        print(draw(base, new, options.figure))
    print(markdown(comparison) if options.markdown else terminal(comparison))
    return comparison.exit_code(strict=options.strict)


def draw(base: list[Run], new: list[Run], folder: Path) -> Path:
    """Draw the figure speedup of a run of BASE and one of NEW into `folder`. Returns the picture's path. Raises
    ValueError where a side has several runs, or there is nothing to draw."""
    figure = None
    if len(base) == len(new) == 1:
        figure = speedup(frame(base[0]), frame(new[0]))
    if not figure:
        raise ValueError("--figure draws one run a side, which have matmuls of several M; leave it out")
    folder.mkdir(parents=True, exist_ok=True)
    return theme.save(figure, folder, "speedup")[1]


def _sides(base: list[Path], new: list[Path] | None) -> tuple[list[Run], list[Run]]:
    """The runs of BASE and of NEW."""
    if not new:
        if len(base) != 2:
            raise ValueError(
                f"of {len(base)} runs, which are NEW? Say roofline compare BASE NEW, or BASE... --new NEW..."
            )
        base, new = base[:1], base[1:]
    for folders in (base, new):
        for folder in folders:
            if folders.count(folder) > 1:
                raise ValueError(f"{folder} is given twice on one side: it would count as two runs")
    return list(map(load, base)), list(map(load, new))


def change_text(change: Change) -> str:
    """`speed 1.031 [1.024, 1.040] x`, or `hidden +0.02 [-0.01, +0.05]`."""
    if change.of == SPEED:
        return f"speed {interval_text(*change.interval())} x"
    return f"hidden {hidden_text(*change.interval(), '+.2f')}"


def table(cases: Sequence[CaseChange]) -> DataFrame:
    rows = []
    for case in cases:
        row = {
            "case": case.case,
            "base": time_text(case.base_time_s),
            "new": time_text(case.new_time_s),
            "speed, new / base; hidden, new - base [95 %]": change_text(case.change),
            "verdict": case.verdict,
            "least change seen": error_text(case.change.resolution),
            "notes": case.notes,
        }
        rows.append(row)
    return tables.written(rows)


def summary(comparison: Comparison) -> list[str]:
    """The counts of verdicts, and the evidence behind them, in lines."""
    lines = []
    for mean in comparison.means:
        lines.append(f"{mean.verdict} {mean.case}, {change_text(mean.change)}")
    counts = ", ".join(f"{comparison.count(verdict)} {verdict}" for verdict in (SLOWER, FASTER, SAME, UNDECIDED))
    tests = len(comparison.cases)
    lines.append(
        f"{counts} of {tests} cases, relative to the baseline in each run, margin {100 * MARGIN:g} %, runs: "
        f"{len(comparison.base)} BASE, {len(comparison.new)} NEW"
    )
    least = [row.change.resolution for row in comparison.cases]
    lines.append(
        f"a change below {error_text(median(least))} would not be seen in a single case, in the median over cases; at "
        f"worst below {error_text(max(least))}"
    )
    error = f"{100 * ALPHA:g} % that any is false"
    lines.append(f"SLOWER, FASTER: corrected for {tests} tests (Holm, {error}); intervals are not")
    if comparison.baseline_speed:
        lines.append(f"the baseline's own speed moved by {growth_text(comparison.baseline_speed - 1)} between the runs")
    for name, (of_base, of_new) in comparison.differences.items():
        lines.append(f"{name}: BASE has {of_base}, NEW has {of_new}")
    return lines + tables.by_reason(comparison.missing)


def terminal(comparison: Comparison) -> str:
    return "\n".join([*summary(comparison), "", *tables.terminal(table(comparison.cases))])


def markdown(comparison: Comparison) -> str:
    """The text for a pull request: the counts first, what changed in the open, the rest folded away."""
    lines = [f"- {tables.escaped(line)}" for line in summary(comparison)]
    parts = ["\n".join(lines)]
    changed = [case for case in comparison.cases if case.verdict in (SLOWER, FASTER)]
    if changed:
        parts.append(tables.markdown(table(changed)))
    every = tables.markdown(table(comparison.cases))
    parts.append(f"<details><summary>all {len(comparison.cases)} cases</summary>\n\n{every}\n\n</details>")
    footers = []
    runs = named_runs("BASE", comparison.base) | named_runs("NEW", comparison.new)
    for name, run in runs.items():
        footers.append(f"{name}: {tables.escaped(run.metadata['footer'])}")
    parts.append("  \n".join(footers))
    return "\n\n".join(parts)
