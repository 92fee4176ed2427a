"""Writes report.md, report.html, timeline.json and the plots of a run folder, from its journal."""

from pathlib import Path

from roofline.analysis.records import records_of
from roofline.report import forecasts, html, sections, tables, theme
from roofline.report.analyses import frame
from roofline.report.findings import findings
from roofline.report.layout import Section
from roofline.report.overlap import trace
from roofline.store.conditions import conditions
from roofline.store.journal import load
from roofline.store.run import Run

KERNELS = (
    "Kernels of cuBLAS are read from their names, which nobody documents; it counts by columns, so that the first size "
    "of its tile lies along N. The journal has the whole names."
)


def write(folder: Path) -> list[Path]:
    """Return (Re)draw `folder`'s reports, plots (.svg, .png) and timeline.json; returns their paths. Raises ValueError
    if there is no run."""
    import matplotlib

    folder = Path(folder)
    run = load(folder)
    records = records_of(run)
    sections_drawn = _sections(run, records)
    about, report = (run.metadata["title"], run.metadata["footer"]), folder / "report.md"
    report.write_text(_markdown(*about, sections_drawn), encoding="utf-8")
    written, pictures = [report], {}
    for section in sections_drawn:
        for figure in section.figures:
            with matplotlib.rc_context({"text.parse_math": False}):  # a `$` of the run's is no formula
                written += theme.save(figure.draw(run, rows := frame(section.drawn)), folder, figure.name)
            pictures[figure.name] = (folder / f"{figure.name}.svg").read_text(encoding="utf-8")
            written += [trace.write(run, rows, folder)] if figure.name == "timeline" else []
    page = folder / "report.html"
    page.write_text(html.page(*about, sections_drawn, pictures), encoding="utf-8")
    return [*written, page]


def _sections(run: Run, records: list[dict]) -> list[Section]:
    all_sections = [Section("Findings", lines=findings(run, records)), *sections.sections(run, records)]
    if any(record["kernel_name"] for record in records):
        all_sections.append(Section(about=KERNELS))
    all_sections += forecasts.sections(run, records)
    ceilings = sections.ceilings(run)
    all_sections.append(Section("Ceilings", "" if ceilings else "None was measured.", lines=ceilings))
    conditions_told = [f"{name}: {value}" for name, value in conditions(run.metadata).items()]
    last = {"Not measured": sections.missing(run), "Conditions": conditions_told, "Notes": run.notes}
    all_sections += [Section(title, lines=lines) for title, lines in last.items() if lines]
    shown = ([figure for figure in section.figures if figure.is_drawn(run, section.drawn)] for section in all_sections)
    return [section._replace(figures=value) for section, value in zip(all_sections, shown, strict=True)]


def _markdown(title: str, footer: str, sections_drawn: list[Section]) -> str:
    parts = [f"# {tables.escaped(title)}", tables.escaped(footer)]
    for section in sections_drawn:
        parts += [f"## {section.title}"] if section.title else []
        parts += [section.about] if section.about else []
        parts += [f"![{figure.name.replace('_', ' ')}]({figure.name}.png)" for figure in section.figures]
        parts += [tables.markdown(section.rows, section.columns)] if section.rows else []
        parts += ["\n".join(f"- {tables.escaped(line)}" for line in section.lines)] if section.lines else []
    return "\n\n".join(parts) + "\n"
