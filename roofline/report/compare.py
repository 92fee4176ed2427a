"""The command `roofline compare`: what a comparison says, for a terminal or a pull request."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from roofline.analysis.changes import FASTER, LEVEL, MARGIN, SAME, SLOWER, SPEED, UNCLEAR, Change
from roofline.analysis.comparison import NEITHER, Case, Comparison, compare, named_runs
from roofline.operations.format import error_text, interval_text, time_text
from roofline.report import tables
from roofline.store import journal
from roofline.store.journal import load
from roofline.store.run import Run
from roofline.store.stats import grouped

if TYPE_CHECKING:
    from pandas import DataFrame


def add_command(commands) -> None:
    """Add `compare` to the subparsers of the `roofline` command."""
    command = commands.add_parser("compare", help="what became faster or slower from one run to another")
    command.usage = "roofline compare BASE NEW [options], or BASE... --new NEW..., or a RUN of two checkouts"
    command.add_argument("runs", metavar="RUN", nargs="+", type=Path, help="run folders: BASE and NEW, or all of BASE")
    command.add_argument("--new", metavar="NEW", nargs="+", type=Path, help="run folders, where a side has several")
    command.add_argument("--allow", action="append", default=[], choices=("chip", "driver", "method"),
                         help="compare although this differs; may be repeated")  # fmt: skip
    command.add_argument("--strict", action="store_true", help="exit 1 also where a case is unclear or missing")
    command.add_argument("--markdown", action="store_true", help="for a pull request")
    command.set_defaults(run=run)


def run(options) -> int:
    """Print the comparison, and return the exit code. Raises ValueError where the runs cannot be compared."""
    if len(options.runs) == 1 and not options.new and journal.find(options.runs[0]):
        of_both = load(options.runs[0])
        if of_both.base:
            return print_comparison([of_both.base], [of_both], options)
    sides = (options.runs, options.new) if options.new else (options.runs[:1], options.runs[1:])
    if not options.new and len(options.runs) != 2:
        problem = f"of {len(options.runs)} runs, which are NEW?" if options.runs[1:] else "there is no NEW:"
        raise ValueError(f"{problem} Say roofline compare BASE NEW, or BASE... --new NEW...")
    if twice := [folder for side in sides for folder in side if side.count(folder) > 1]:
        raise ValueError(f"{twice[0]} is given twice on one side: it would count as two runs")
    return print_comparison(*([load(folder) for folder in side] for side in sides), options)


def print_comparison(base: Sequence[Run], new: Sequence[Run], options) -> int:
    comparison = compare(base, new, allow=options.allow)
    print(markdown(comparison, base, new) if options.markdown else "\n".join(terminal(comparison)))
    return comparison.exit_code(strict=options.strict)


def change_text(change: Change) -> str:
    """Return `speed 1.031 [1.024, 1.040] x`, or `hidden +0.02 [-0.01, +0.05]`."""
    if change.of == SPEED:
        return f"speed {interval_text(*change.interval)} x"
    return "hidden {:+.2f} [{:+.2f}, {:+.2f}]".format(*change.interval)


PAIRED = (
    "Shares of both checkouts took turns; a change is the mean over neighbouring shares of the logarithm of the speed."
)
COLUMNS = {
    "case": lambda row: row.case,
    "base": lambda row: time_text(row.base_time_s),
    "new": lambda row: time_text(row.new_time_s),
    "speed, new / base; hidden, new - base [95 %]": lambda row: change_text(row.change),
    "verdict": lambda row: row.verdict,
    "least change seen": lambda row: error_text(row.change.resolution),
    "notes": lambda row: row.notes,
}


def table(cases: Sequence[Case]) -> DataFrame:
    return tables.written(cases, COLUMNS)


def summary(comparison: Comparison) -> list[str]:
    """Return what the verdicts rest on, and their counts, in lines."""
    counts = ", ".join(f"{comparison.count(verdict)} {verdict}" for verdict in (SLOWER, FASTER, SAME, UNCLEAR))
    tests = len(comparison.cases)
    least = [row.change.resolution for row in comparison.cases]
    lines = [
        *(
            f"{mean.verdict} {mean.contender} in the mean over {mean.cases} cases, {change_text(mean.change)}"
            for mean in comparison.together
        ),
        f"{counts} of {tests} cases, relative to the baseline in each run, margin {100 * MARGIN:g} %, runs: "
        f"{comparison.base_runs} BASE, {comparison.new_runs} NEW",
        f"a change below {error_text(median(least))} would not be seen in a single case, in the median over cases; at "
        f"worst below {error_text(max(least))}",
        f"SLOWER, FASTER: corrected for {tests} tests (Holm, {100 * LEVEL:g} % that any is false); intervals are not",
    ]
    if comparison.baseline_speed:
        lines.append(
            f"the baseline's own speed moved by {100 * (comparison.baseline_speed - 1):+.1f} % between the runs"
        )
    lines += [f"{name} was cut short: it may have few rounds" for name in comparison.unfinished]
    lines += [f"{name}: BASE has {a}, NEW has {b}" for name, (a, b) in comparison.differences.items()]
    missing = grouped(((m["missing_in"], m["reason"]), m["case"]) for m in comparison.missing).items()
    lacks = {where: "not compared" if where == NEITHER else f"missing in {where}" for (where, _), _ in missing}
    return [*lines, *(f"{lacks[where]}: {tables.named(cases)}: {why}" for (where, why), cases in missing)]


def slower(run: Run) -> list[str]:
    """Return a line for each case, and each contender in the mean, that is SLOWER than in the other checkout; or why
    nothing can be compared."""
    try:
        comparison = compare([run.base], [run])
    except ValueError as error:
        return [f"--ffn-against: {error}"]
    rows = [(row.case, row) for row in comparison.cases]
    rows += [(f"{row.contender} in the mean over {row.cases} cases", row) for row in comparison.together]
    return [f"SLOWER: {name}: {change_text(row.change)}" for name, row in rows if row.verdict == SLOWER]


def terminal(comparison: Comparison) -> list[str]:
    return [*summary(comparison), "", *tables.terminal(table(comparison.cases))]


def markdown(comparison: Comparison, base: Sequence[Run], new: Sequence[Run]) -> str:
    """Return the text for a pull request: the counts first, what changed in the open, the rest folded away."""
    changed = [case for case in comparison.cases if case.verdict in (SLOWER, FASTER)]
    parts = ["\n".join(f"- {tables.escaped(line)}" for line in summary(comparison))]
    if changed:
        parts.append(tables.markdown(table(changed)))
    every = tables.markdown(table(comparison.cases))
    parts.append(f"<details><summary>all {len(comparison.cases)} cases</summary>\n\n{every}\n\n</details>")
    runs = {**named_runs("BASE", base), **named_runs("NEW", new)}
    parts.append("  \n".join(f"{name}: {tables.escaped(run.metadata['footer'])}" for name, run in runs.items()))
    return "\n\n".join(parts)
