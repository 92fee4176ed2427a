"""Writes report.md, prediction.json and the plots of a run folder, from its journal."""

from pathlib import Path

from roofline.analysis.overlap import figures
from roofline.analysis.prediction import figure, score, text
from roofline.analysis.throughput import memory_roofline
from roofline.profile import table
from roofline.report import tables
from roofline.store.journal import load
from roofline.tuning import verdict

STEADY = (
    "Each kernel alone for a second, in alternating blocks whose first half second is not counted; the rows above are "
    "single calls that take turns. The ratio's range is the least and the greatest of its blocks."
)

KERNELS = (
    "Kernels of cuBLAS are read from their names, which nobody documents; it counts by columns, so that the first size "
    "of its tile lies along N. The journal has the whole names."
)
TUNED = (
    "Candidates and the configuration that was taken before, the incumbent, took turns. The earlier half of the rounds "
    "says which candidate is best, the later half how much faster it is than the incumbent; it is taken where all of "
    "that interval is above 1. What was not timed is counted by reason."
)
CANDIDATES = "All that was timed, over all rounds. The best ratio of many flatters; those of the table above do not."


def write(folder: Path) -> list[Path]:
    """(Re)draw `folder`'s report.md, prediction.json and plots (.svg, .png); returns their paths. Raises ValueError if
    there is no run."""
    folder = Path(folder)
    run = load(folder)
    records = run.records()
    predicted = score.predict_run(run, [record for record in records if not verdict.is_tuning(record["op"])])
    report = folder / "report.md"
    report.write_text(_markdown(run, records, predicted), encoding="utf-8")
    plain = tables.plain_matmuls(records)
    return [
        report,
        text.write(run, predicted, folder),
        *memory_roofline.memory_roofline(run, plain, folder),
        *figures.draw(run, records, folder),
        *figure.draw(run, predicted.scored, folder),
    ]


def _markdown(run, records: list[dict], predicted: score.Found) -> str:
    parts = [f"# {run.metadata['title']}", run.metadata["footer"]]
    if run.end is None or run.unfinished:
        why = f" ({run.end['cut_short']})" if run.end and run.end.get("cut_short") else ""
        parts.append(f"**This run was cut off{why}: what follows is what it had measured by then.**")
    parts += run.notes
    for own, columns in tables.by_kind(records):
        names = figures.names(run) if columns is tables.GATHER_COLUMNS else ["memory_roofline"]
        parts += [f"![{name.replace('_', ' ')}]({name}.svg)" for name in names]
        parts.append(tables.markdown(own, columns))
    timed = [record for record in records if verdict.is_tuning(record["op"])]
    if found := verdict.verdicts(run):
        parts += [f"## Tuned\n\n{TUNED}", tables.markdown(found, verdict.COLUMNS)]
        parts += [f"### Candidates\n\n{CANDIDATES}", tables.markdown(timed, tables.CANDIDATE_COLUMNS)]
    if lines := tables.summary(records):
        parts.append(_list(lines))
    if held := tables.steady(records):
        parts += [f"## Steady state\n\n{STEADY}", tables.markdown(held, tables.STEADY_COLUMNS)]
        parts += [_list(lines)] if (lines := tables.energy(held)) else []
    if counted := table.of(records):
        parts += [f"## Counted\n\n{table.EXPLAINED}", tables.markdown(counted, table.COLUMNS)]
        parts.append(_list([*table.checks(counted), *table.sources(counted)]))
    if any(record["kernel_name"] for record in records):
        parts.append(KERNELS)
    if len(timed) < len(records):
        parts += text.section(predicted)
    parts += ["## Ceilings", _list(tables.ceilings(run)) or "None was measured."]
    if run.missing:
        parts += ["## Not measured", _list(tables.missing(run))]
    return "\n\n".join(parts) + "\n"


def _list(lines: list[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)
