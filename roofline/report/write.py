"""Writes report.md, prediction.json and the plots of a run folder, from its journal."""

from pathlib import Path

from roofline.analysis import tuning
from roofline.analysis.prediction import figure, forecast, score, text
from roofline.analysis.records import frame
from roofline.report import sections, tables, theme
from roofline.store.journal import load

KERNELS = (
    "Kernels of cuBLAS are read from their names, which nobody documents; it counts by columns, so that the first size "
    "of its tile lies along N. The journal has the whole names."
)


def write(folder: Path) -> list[Path]:
    """(Re)draw `folder`'s report.md, prediction.json and plots (.svg, .png); returns their paths. Raises ValueError if
    there is no run."""
    folder = Path(folder)
    run = load(folder)
    records = run.records()
    found = [
        section._replace(figures=[figure for figure in section.figures if figure.is_drawn(run, section.drawn)])
        for section in sections.sections(run, records)
    ]
    predicted = score.predict_run(run, [record for record in records if not tuning.is_tuning(record["op"])])
    report = folder / "report.md"
    report.write_text(_markdown(run, records, found, predicted), encoding="utf-8")
    written = [report, text.write(run, predicted, folder)]
    for section in found:
        for one in section.figures:
            written += theme.save(one.draw(run, frame(section.drawn)), folder, one.name)
    if predicted.scored:
        written += theme.save(figure.draw(run, predicted.scored), folder, figure.NAME)
    return written


def _markdown(run, records: list[dict], found: list[sections.Section], predicted: score.Found) -> str:
    parts = [f"# {run.metadata['title']}", run.metadata["footer"]]
    if run.end is None or run.unfinished:
        why = f" ({run.end['cut_short']})" if run.end and run.end.get("cut_short") else ""
        parts.append(f"**This run was cut off{why}: what follows is what it had measured by then.**")
    parts += run.notes
    for section in found:
        parts += [f"## {section.title}", section.about] if section.title else []
        parts += [f"![{one.name.replace('_', ' ')}]({one.name}.svg)" for one in section.figures]
        parts += [tables.markdown(section.rows, section.columns)] if section.rows else []
        parts += [_list(section.lines)] if section.lines else []
    if any(record["kernel_name"] for record in records):
        parts.append(KERNELS)
    if not all(tuning.is_tuning(record["op"]) for record in records):
        parts += [*text.section(predicted), *forecast.section(run, records)]
    parts += ["## Ceilings", _list(sections.ceilings(run)) or "None was measured."]
    if run.missing:
        parts += ["## Not measured", _list(sections.missing(run))]
    return "\n\n".join(parts) + "\n"


def _list(lines: list[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)
