"""What a report says of a run, section by section: for the terminal, and for report.md."""

from typing import NamedTuple

from roofline.analysis import tuning
from roofline.analysis.base import Column, Figure, grouped
from roofline.analysis.records import ANALYSES, analysis_of
from roofline.report import tables
from roofline.report.format import rate_text
from roofline.store.run import Run


class Section(NamedTuple):
    """Any of these may be empty: a heading, what must be known to read it, figures, a table, and lines below it."""

    title: str = ""
    about: str = ""
    figures: tuple[Figure, ...] = ()
    rows: list = ()
    columns: tuple[Column, ...] = ()
    lines: list[str] = ()


def sections(run: Run, records: list[dict]) -> list[Section]:
    """Of each analysis its figures and its table; what they come to; then the further tables that have rows."""
    plain = [record for record in records if not tuning.is_tuning(record["op"])]
    of = {analysis: [r for r in plain if analysis_of(run, r) is analysis] for analysis in ANALYSES.values()}
    found = []
    for analysis, own in of.items():
        if own:
            found.append(Section(figures=analysis.figures, rows=own, columns=analysis.columns))
    if tuned := tuning.verdicts(run):
        found.append(Section("Tuned", tuning.TUNED, rows=tuned, columns=tuning.COLUMNS))
    found.append(Section(lines=[line for analysis, own in reversed(of.items()) for line in analysis.summary(own)]))
    more = dict.fromkeys(table for analysis in ANALYSES.values() for table in analysis.tables)
    for table in (tuning.CANDIDATES, *more):
        if own := table.rows(records):
            found.append(Section(table.title, table.about, rows=own, columns=table.columns, lines=table.lines(own)))
    return found


def missing(run: Run) -> list[str]:
    """A line per reason for which cases failed or have no number, with the cases."""
    reasons = grouped(((entry["outcome"], entry["reason"]), entry["case"]) for entry in run.missing).items()
    return [f"{outcome.replace('_', ' ')}: {tables.named(cases)}: {reason}" for (outcome, reason), cases in reasons]


def ceilings(run: Run) -> list[str]:
    """A line per ceiling: the best measured, its drift from start to end, and the datasheet's figure."""
    datasheet = run.metadata["machine"]["datasheet"] or {}
    lines = []
    for (kind, dtype), own in grouped(((c["ceiling"], c["dtype"]), c) for c in run.ceilings).items():
        best, drift = max(own, key=lambda c: c["value"]), ""
        ends = {c["when"]: c["value"] for c in own}
        if {"start", "end"} <= ends.keys():
            drift = f", {100 * (ends['end'] / ends['start'] - 1):+.1f} % from start to end"
        if kind == "matmul":
            value, sheet = f"{rate_text(best['value'] / 1e12)} TFLOP/s {dtype}", datasheet.get("flops", {}).get(dtype)
            sheet = sheet and f"{rate_text(sheet / 1e12)} TFLOP/s"
        else:
            value, sheet = f"{best['value'] / 1e9:.3g} GB/s", datasheet.get("memory_bandwidth_bytes_per_s")
            sheet = sheet and f"{sheet / 1e9:.4g} GB/s"
        lines.append(f"{kind}: {value} measured ({best['probe']}{drift}); datasheet: {sheet or 'none'}")
    return lines
