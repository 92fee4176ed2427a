"""What a report says of a run, section by section: for the terminal, and for report.md."""

from roofline.analysis.throughput.metrics import ceilings_of
from roofline.report import tables
from roofline.report.analyses import ANALYSES, analysis_of
from roofline.report.format import rate_text, time_text
from roofline.report.layout import Section, Table
from roofline.stats import grouped
from roofline.store.run import Run


def sections(run: Run, records: list[dict]) -> list[Section]:
    """Return what is brief of each analysis, with its first figure; what they come to; the other figures; all cases;
    then the further tables that have rows."""
    of = {analysis: [r for r in records if analysis_of(run, r) is analysis] for analysis in reversed(ANALYSES.values())}
    of = {analysis: rows for analysis, rows in of.items() if rows}
    brief = {analysis: _section(run, analysis.brief, rows) for analysis, rows in of.items()}
    all_sections = [section._replace(figures=key.figures[:1], drawn=of[key]) for key, section in brief.items()]
    all_sections.append(
        Section("In all", lines=[line for analysis, rows in of.items() for line in analysis.summary(rows)])
    )
    for analysis, rows in of.items():
        title, there = f"All cases: {analysis.name}", bool(brief[analysis].rows)
        figures = {"figures": analysis.figures[1:], "drawn": rows}
        all_sections.append(Section(title, rows=rows, columns=analysis.columns, long=there, **figures))
    more = dict.fromkeys(table for analysis in ANALYSES.values() for table in analysis.tables)
    return all_sections + [section for table in more if (section := _section(run, table, records)).rows]


def _section(run: Run, table: Table, records: list[dict]) -> Section:
    rows = table.rows(run, records)
    lines = table.lines(rows) if rows else []
    return Section(table.title, table.about, rows=rows, columns=table.columns, lines=lines, long=table.long)


def missing(run: Run) -> list[str]:
    """Return a line per reason for which cases failed or have no number, with the cases."""
    reasons = grouped(((entry["outcome"], entry["reason"]), entry["case"]) for entry in run.missing).items()
    return [f"{outcome.replace('_', ' ')}: {tables.named(cases)}: {reason}" for (outcome, reason), cases in reasons]


def ceilings(run: Run) -> list[str]:
    """Return a line per ceiling: what was reached and by whom, its interval, and the datasheet's figure. One more of
    what an empty call takes."""
    datasheet = run.metadata["machine"]["datasheet"] or {}
    lines = []
    for ceiling in ceilings_of(run):
        if ceiling.kind == "matmul":
            unit, scale, sheet = f"TFLOP/s {ceiling.dtype}", 1e12, datasheet.get("flops", {}).get(ceiling.dtype)
        else:
            unit, scale, sheet = "GB/s", 1e9, datasheet.get("memory_bandwidth_bytes_per_s")
        value, *ends = (rate_text(rate / scale) for rate in (ceiling.value, ceiling.low, ceiling.high))
        sheet = f"{rate_text(sheet / scale)} {unit.split()[0]}" if sheet else "none"
        lines.append(f"{ceiling.kind}: {value} [{', '.join(ends)}] {unit} measured ({ceiling.by}); datasheet: {sheet}")
    if lines and (empty_s := run.metadata["machine"].get("empty_call_s")) is not None:
        lines.append(f"an empty call takes {time_text(empty_s)}: that much is in every sample")
    return lines
