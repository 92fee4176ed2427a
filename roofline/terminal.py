"""What a benchmark run says on the terminal: a line per case as it goes, the table at its end."""

from pathlib import Path

from roofline.report import tables
from roofline.report.journal import NOT_RUN
from roofline.report.records import derive_all


def live_line(case: str, record: dict) -> str:
    """One case, as soon as it is measured, by the ceilings known so far."""
    return (
        f"{case:<48} {tables.time_text(record['time_s']):>8}  {tables.rate_text(record['tflops']):>6} TFLOP/s  "
        f"{tables.percent_text(record['of_roof']):>5} of roof  {tables.ratio_text(record)}"
    )


def closing_lines(run, folder: Path, problems: list[str]) -> list[str]:
    """The tables, the summary, the ceilings, what was not measured, and where everything lies."""
    records = derive_all(run)
    lines = [*tables.terminal(records), ""] if records else []
    if held := tables.steady(records):
        lines += ["steady state:", *tables.terminal(held, tables.STEADY_COLUMNS), ""]
    lines += [*tables.summary(records), *tables.ceilings(run), *run.head["notes"], *tables.missing(run), *problems]
    shown = folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder
    if any(entry["outcome"] == NOT_RUN for entry in run.missing):
        lines.append(f"go on with it: python3 -m pytest --benchmark-only --ffn-resume={shown}")
    return [*lines, f"saved in {shown}: {', '.join(sorted(path.name for path in folder.iterdir()))}"]
