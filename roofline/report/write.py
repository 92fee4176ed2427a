"""Writes report.md, report.html and the figures of a run folder, from its journal."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roofline.analysis.fields import fields_of, operations_of, shown
from roofline.analysis.memory_roof import ceilings_of
from roofline.analysis.records import frame
from roofline.host.device_errors import reason
from roofline.operations.base import OPERATIONS
from roofline.operations.contenders import loaded
from roofline.report import html, overlap, plots, tables, throughput
from roofline.report.findings import findings
from roofline.report.format import ends_text, rate_text, time_text
from roofline.report.plots import theme
from roofline.report.tables import Section
from roofline.store.conditions import conditions
from roofline.store.journal import load
from roofline.store.run import Run
from roofline.theory.work import peak_dtype

if TYPE_CHECKING:
    from pandas import DataFrame

ANALYSES = {"overlap": overlap, "throughput": throughput}
"""Analysis -> how its rows are shown: `brief(run, rows)`, `summary(rows)` and `FIGURES`, of which the first
stands beside the brief table."""


def write(folder: Path, run: Run | None = None) -> list[Path]:
    """(Re)draw the report and the figures (.svg, .png) of `run`, or of that in `folder`, into the folder. Returns their
    paths; report.html is not among them where `html.LACKING` says why. Raises ValueError where there is no run."""
    import matplotlib

    run = run or load(folder)
    cases = frame(run)
    drawn, pictures = [], {}
    with matplotlib.rc_context():
        for name, figure in _figures(run, cases):
            if figure is not None:
                drawn += theme.save(figure, folder, name)
                pictures[name] = (folder / f"{name}.svg").read_text(encoding="utf-8")
    text = markdown(run, cases, pictures)
    report, page = folder / "report.md", folder / "report.html"
    report.write_text(text, encoding="utf-8")
    if html.LACKING:
        page.unlink(missing_ok=True)  # that of an earlier report
        return [report, *drawn]
    page.write_text(html.page(run.metadata["title"], text, pictures), encoding="utf-8")
    return [report, page, *drawn]


def _figures(run: Run, cases: DataFrame) -> Iterator[tuple[str, Any]]:
    """(name, figure, or None where there is nothing to draw) of the suite's figures, and of those of operations."""
    for name, draw in plots.FIGURES.items():
        yield name, draw(cases)
    yield "timeline", plots.timeline(run)
    for op in operations_of(run):
        for name, place in shown(run, op).figures.items():
            if place:
                yield name, _drawn(op, name, place, run)


def _drawn(op: str, name: str, place: str, run: Run) -> Any:
    """A figure that an operation declares; where it cannot be drawn, None, and a note of the run."""
    try:
        return loaded(place)(run)
    except Exception as error:
        run.notes.append(f"The figure {name} of {op} could not be drawn: {reason(error)}.")
        return None


def body(run: Run, cases: DataFrame) -> list[Section]:
    """The sections of the tables: a brief one of each analysis, their summary, all cases, and the further tables that
    have rows."""
    brief, summary, whole = [], [], []
    for name, rows in cases.groupby("analysis"):
        analysis = ANALYSES[name]
        by_fastest = analysis.brief(run, rows)
        brief.append(by_fastest)
        summary += analysis.summary(rows)
        of_users = run.metadata.get("options", {}).get("users")  # who ask for each of theirs
        figures = [*analysis.FIGURES[1:]]
        for op in rows["op"].unique():
            figures += shown(run, op).figures
        every = tables.section(tables.TABLES[name], rows)
        whole.append(every._replace(figures=figures, long=by_fastest.has_table and not of_users))
    if cases["verdict"].notna().any():
        brief.append(throughput.decided(run, cases))
    further = [
        overlap.splits(cases),
        *_of_operations(run, cases),
        throughput.steady(cases),
        throughput.counted(cases),
    ]
    further = [section for section in further if section.has_table]
    return [*brief, Section("In all", lines=summary), *whole, *further]


def _of_operations(run: Run, cases: DataFrame) -> Iterator[Section]:
    """The sections of the tables that operations of the run declare; the words of some are a journal's."""
    fields = fields_of(run)
    for op in operations_of(run):
        for table in shown(run, op).tables:
            made = tables.section(table, cases[cases["op"] == op], fields=fields)
            yield made._replace(about=tables.escaped(table.about))


def unknown(run: Run) -> list[str]:
    """A line for each operation of `run` that is not known here."""
    lines = []
    for op in operations_of(run):
        if op not in OPERATIONS:
            lines.append(
                f"{op} is not known here, and is shown without what its code computes and draws; name its file by "
                "--operations"
            )
    return lines


def _end(run: Run) -> list[Section]:
    """Ceilings, cases without a number, and the conditions of the run."""
    measured = ceilings(run)
    sections = [Section("Ceilings", "" if measured else "None was measured.", lines=measured)]
    further = {
        "Not measured": missing(run),
        "Conditions": [f"{name}: {value}" for name, value in conditions(run.metadata).items()],
        "Notes": [*run.notes, *unknown(run)],
    }
    for title, lines in further.items():
        if lines:
            sections.append(Section(title, lines=lines))
    return sections


def missing(run: Run) -> list[str]:
    """A line per reason for which cases failed or have no number, with the cases."""
    return tables.by_reason(
        (missing.outcome.replace("_", " "), missing.reason, missing.case) for missing in run.missing
    )


def ceilings(run: Run) -> list[str]:
    """A line per ceiling: what was reached and by whom, its interval, and the datasheet's figure. One more of what an
    empty call takes."""
    datasheet = run.metadata["machine"]["datasheet"] or {}
    lines = []
    for ceiling in ceilings_of(run):
        if ceiling.kind == "matmul":
            unit, scale = f"TFLOP/s {ceiling.dtype}", 1e12
            sheet = datasheet.get("flops", {}).get(peak_dtype(ceiling.dtype))
        else:
            unit, scale, sheet = "GB/s", 1e9, datasheet.get("memory_bandwidth_bytes_per_s")
        value = rate_text(ceiling.value / scale)
        interval = ends_text(ceiling.low / scale, ceiling.high / scale, rate_text)
        sheet = f"{rate_text(sheet / scale)} {unit.split()[0]}" if sheet else "none"
        lines.append(f"{ceiling.kind}: {value} {interval} {unit} measured ({ceiling.by}); datasheet: {sheet}")
    if lines and (empty_s := run.metadata["machine"].get("empty_call_s")) is not None:
        lines.append(f"an empty call takes {time_text(empty_s)}: that much is in every sample")
    return lines


def terminal(run: Run) -> list[str]:
    """The worst findings, the brief tables, the summary, the ceilings and what was not measured."""
    cases = frame(run)
    worst = findings(run, cases)
    lines = ["Findings", *worst[: html.MOST_FINDINGS]]
    if first := throughput.first_line(run, cases):
        lines.insert(0, first)
    if len(worst) > html.MOST_FINDINGS:
        lines.append(f"and {len(worst) - html.MOST_FINDINGS} more in the report")
    lines.append("")
    for section in body(run, cases):
        shown, below = [], section.lines
        if section.has_table and not section.long:
            shown, below = tables.terminal(section.table), section.below
        if shown or below:
            lines += [section.title, *shown, *below, ""]
    return [*lines, *ceilings(run), *run.notes, *unknown(run), *missing(run)]


def markdown(run: Run, cases: DataFrame, pictures: Collection[str]) -> str:
    """The report, with those of its figures that are in `pictures`."""
    parts = [f"# {tables.escaped(run.metadata['title'])}", tables.escaped(run.metadata["footer"])]
    first = Section("Findings", throughput.first_line(run, cases), lines=findings(run, cases))
    for section in [first, *body(run, cases), *_end(run)]:
        parts.append(f"## {tables.escaped(section.title)}")
        if section.about:
            parts.append(section.about)
        for name in section.figures:
            if name in pictures:
                parts.append(f"![{name.replace('_', ' ')}]({name}.png)")
        if section.has_table:
            parts.append(tables.markdown(section.table))
        if section.below:
            parts.append("\n".join(f"- {tables.escaped(line)}" for line in section.below))
    return "\n\n".join(parts) + "\n"
