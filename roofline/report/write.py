"""Writes report.md, report.html and the figures of a run folder, from its journal."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from roofline.analysis.records import frame
from roofline.analysis.throughput import ceilings_of
from roofline.operations.format import rate_text, time_text
from roofline.report import compare, html, overlap, plots, tables, throughput
from roofline.report.findings import findings
from roofline.report.plots import theme
from roofline.report.sections import Section
from roofline.store.conditions import conditions
from roofline.store.journal import load
from roofline.store.run import Run
from roofline.store.stats import grouped

if TYPE_CHECKING:
    from pandas import DataFrame

ANALYSES = {"overlap": overlap, "throughput": throughput}
"""Analysis -> how its rows are shown: `brief(run, rows)`, `summary(rows)`, `CASES` and `FIGURES`, of which the first
stands beside the brief table."""

MOST_FINDINGS = 3
"""On a terminal."""

FIGURES = *(name for module in ANALYSES.values() for name in module.FIGURES), *throughput.STEP_FIGURES


def write(folder: Path, run: Run | None = None) -> list[Path]:
    """(Re)draw the report and the figures (.svg, .png) of `run`, or of that in `folder`, into the folder. Returns their
    paths. Raises ValueError where there is no run."""
    import matplotlib

    folder = Path(folder)
    run = run or load(folder)
    cases, written, pictures = frame(run), [], {}
    for name in FIGURES:
        with matplotlib.rc_context({"text.parse_math": False, "text.usetex": False}):  # a `$` is no formula
            figure = plots.OF_RUN[name](run) if name in plots.OF_RUN else plots.FIGURES[name](cases)
            if figure is not None:
                written += theme.save(figure, folder, name)
                pictures[name] = (folder / f"{name}.svg").read_text(encoding="utf-8")
    whole = sections(run, cases, pictures)
    texts = {
        "report.md": markdown(run, whole),
        "report.html": html.page(run.metadata["title"], run.metadata["footer"], whole, pictures),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [*(folder / name for name in texts), *written]


def sections(run: Run, cases: DataFrame, pictures: Collection[str]) -> list[Section]:
    """Return the whole report. Of the figures it names those that are in `pictures`."""
    whole = Section("Findings", lines=tuple(findings(run, cases))), *body(run, cases), *_end(run, cases)
    drawn = [section._replace(figures=tuple(name for name in section.figures if name in pictures)) for section in whole]
    return [section.explained() for section in drawn]


def body(run: Run, cases: DataFrame) -> list[Section]:
    """Return what is brief of each analysis, what they come to, all cases, and the further tables that have rows."""
    rows_of = {name: rows for name in ANALYSES if len(rows := cases[cases["analysis"] == name])}
    brief = {name: ANALYSES[name].brief(run, rows) for name, rows in rows_of.items()}
    summary = [line for name, rows in rows_of.items() for line in ANALYSES[name].summary(rows)]
    sections = [*brief.values(), Section("In all", lines=tuple(summary)), *against(run)]
    for name, rows in rows_of.items():
        table, figures, long = tables.texts(rows, ANALYSES[name].CASES), ANALYSES[name].FIGURES, len(brief[name].table)
        is_long = bool(long) and not run.metadata.get("options", {}).get("users")  # who ask for each of theirs
        sections.append(Section(f"All cases: {name}", "", figures[1:], table, long=is_long))
    further = (
        overlap.splits(cases),
        throughput.layers(cases),
        throughput.steps(cases),
        throughput.memory(run, cases),
        throughput.steady(cases),
        throughput.clocks(cases),
        throughput.counted(cases),
    )
    if cases["verdict"].notna().any():
        sections.insert(len(brief), throughput.decided(run, cases))
    return sections + [section for section in further if len(section.table)]


def against(run: Run) -> list[Section]:
    """Return the section of what changed from the other checkout, where its shares took turns."""
    if not run.base:
        return []
    try:
        comparison = compare.compare([run.base], [run])
    except ValueError as error:
        return [Section("Against the other checkout", lines=(str(error),))]
    title = f"Against commit {run.metadata['against']['commit']}"
    return [Section(title, compare.PAIRED, (), compare.table(comparison.cases), tuple(compare.summary(comparison)))]


def _end(run: Run, cases: DataFrame) -> list[Section]:
    measured = tuple(ceilings(run))
    lines_of = {
        "Not measured": missing(run),
        "Conditions": [f"{name}: {value}" for name, value in conditions(run.metadata).items()],
        "Notes": run.notes,
    }
    return [
        Section("Ceilings", "" if measured else "None was measured.", lines=measured),
        *(Section(title, lines=tuple(lines)) for title, lines in lines_of.items() if lines),
    ]


def missing(run: Run) -> list[str]:
    """Return a line per reason for which cases failed or have no number, with the cases."""
    reasons = grouped(((missing.outcome, missing.reason), missing.case) for missing in run.missing).items()
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


def terminal(run: Run) -> list[str]:
    """Return the worst findings, the brief tables, the summary, the ceilings and what was not measured."""
    cases = frame(run)
    worst = findings(run, cases)
    more = [f"and {len(worst) - MOST_FINDINGS} more in the report"] if len(worst) > MOST_FINDINGS else []
    lines = ["Findings", *worst[:MOST_FINDINGS], *more, ""]
    for section in body(run, cases):
        shown = section.table is not None and len(section.table) and not section.long
        section = section.explained() if shown else section
        if part := [*(tables.terminal(section.table) if shown else []), *section.lines]:
            lines += [section.title, *part, ""]
    return [*lines, *ceilings(run), *run.notes, *missing(run)]


def markdown(run: Run, sections: Sequence[Section]) -> str:
    parts = [f"# {tables.escaped(run.metadata['title'])}", tables.escaped(run.metadata["footer"])]
    for section in sections:
        parts += [f"## {tables.escaped(section.title)}"]
        parts += [section.about] if section.about else []
        parts += [f"![{name.replace('_', ' ')}]({name}.png)" for name in section.figures]
        parts += [tables.markdown(section.table)] if section.table is not None and len(section.table) else []
        parts += ["\n".join(f"- {tables.escaped(line)}" for line in section.lines)] if section.lines else []
    return "\n\n".join(parts) + "\n"
