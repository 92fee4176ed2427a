"""Writes report.md and the plots of a run folder, from its journal."""

from pathlib import Path

from roofline.report import plots, tables
from roofline.report.journal import load
from roofline.report.records import derive_all


def write(folder: Path) -> list[Path]:
    """(Re)draw `folder`'s report.md, memory_roofline.svg and .png; returns their paths. Raises ValueError if no run."""
    folder = Path(folder)
    run = load(folder)
    records = derive_all(run)
    report = folder / "report.md"
    report.write_text(_markdown(run, records), encoding="utf-8")
    return [report, *plots.memory_roofline(run, records, folder)]


def _markdown(run, records: list[dict]) -> str:
    parts = [f"# {run.head['title']}", run.head["footer"]]
    if run.end is None:
        parts.append("**This run was cut off: what follows is what it had measured by then.**")
    parts += [*run.head["notes"]]
    if records:
        parts += ["![memory roofline](memory_roofline.svg)", tables.markdown(records)]
    if lines := tables.summary(records):
        parts.append("\n".join(f"- {line}" for line in lines))
    parts += ["## Ceilings", "\n".join(f"- {line}" for line in tables.ceilings(run)) or "None was measured."]
    if run.not_measured:
        parts += ["## Not measured", "\n".join(f"- `{entry['case']}`: {entry['reason']}" for entry in run.not_measured)]
    return "\n\n".join(parts) + "\n"
