"""What a report says of a run, section by section: for the terminal, and for report.md."""

from roofline.analysis.throughput.metrics import ceilings_of
from roofline.report import tables
from roofline.report.analyses import ANALYSES, analysis_of
from roofline.report.format import rate_text, time_text
from roofline.report.layout import Section, Table
from roofline.stats import grouped
from roofline.store.run import Run


def sections(run: Run, records: list[dict]) -> list[Section]:
    """What is brief of each analysis, with its first figure; what they come to; the other figures; all cases; then the
    further tables that have rows."""
    of = {analysis: [r for r in records if analysis_of(run, r) is analysis] for analysis in reversed(ANALYSES.values())}
    of = {analysis: own for analysis, own in of.items() if own}
    brief = {analysis: _section(run, analysis.brief, own) for analysis, own in of.items()}
    found = [section._replace(figures=key.figures[:1], drawn=of[key]) for key, section in brief.items()]
    found.append(Section("In all", lines=[line for analysis, own in of.items() for line in analysis.summary(own)]))
    for analysis, own in of.items():
        title, there = f"All cases: {analysis.name}", bool(brief[analysis].rows)
        figures = {"figures": analysis.figures[1:], "drawn": own}
        found.append(Section(title, rows=own, columns=analysis.columns, long=there, **figures))
    more = dict.fromkeys(table for analysis in ANALYSES.values() for table in analysis.tables)
    return found + [one for table in more if (one := _section(run, table, records)).rows]


def _section(run: Run, table: Table, records: list[dict]) -> Section:
    rows = table.rows(run, records)
    lines = table.lines(rows) if rows else []
    return Section(table.title, table.about, rows=rows, columns=table.columns, lines=lines, long=table.long)


def missing(run: Run) -> list[str]:
    """A line per reason for which cases failed or have no number, with the cases."""
    reasons = grouped(((entry["outcome"], entry["reason"]), entry["case"]) for entry in run.missing).items()
    return [f"{outcome.replace('_', ' ')}: {tables.named(cases)}: {reason}" for (outcome, reason), cases in reasons]


def ceilings(run: Run) -> list[str]:
    """A line per ceiling: what was reached and by whom, its interval, and the datasheet's figure. One more of what an
    empty call takes."""
    datasheet = run.metadata["machine"]["datasheet"] or {}
    lines = []
    for one in ceilings_of(run):
        if one.kind == "matmul":
            unit, scale, sheet = f"TFLOP/s {one.dtype}", 1e12, datasheet.get("flops", {}).get(one.dtype)
        else:
            unit, scale, sheet = "GB/s", 1e9, datasheet.get("memory_bandwidth_bytes_per_s")
        value, *ends = (rate_text(rate / scale) for rate in (one.value, one.low, one.high))
        sheet = f"{rate_text(sheet / scale)} {unit.split()[0]}" if sheet else "none"
        lines.append(f"{one.kind}: {value} [{', '.join(ends)}] {unit} measured ({one.by}); datasheet: {sheet}")
    if lines and (empty_s := run.metadata["machine"].get("empty_call_s")) is not None:
        lines.append(f"an empty call takes {time_text(empty_s)}: that much is in every sample")
    return lines
