"""What a benchmark run says on the terminal: a line per case as it goes, the table at its end."""

from pathlib import Path

from roofline.report import tables
from roofline.report.records import derive_all


def live_line(case: str, record: dict) -> str:
    """One case, as soon as it is measured, by the ceilings known so far."""
    return (
        f"{case:<48} {tables.time_text(record['time_s']):>8}  {tables.rate_text(record['tflops']):>6} TFLOP/s  "
        f"{tables.percent_text(record['of_roof']):>5} of roof  {tables.ratio_text(record)}"
    )


def closing_lines(run, folder: Path, report_error: str | None) -> list[str]:
    """The table, the summary, the ceilings, what was not measured, and where everything lies."""
    records = derive_all(run)
    lines = [*tables.terminal(records), ""] if records else []
    lines += [*tables.summary(records), *tables.ceilings(run), *run.head["notes"]]
    lines += [f"not measured: {entry['case']}: {entry['reason']}" for entry in run.not_measured]
    if report_error:
        lines.append(f"{report_error}; try again with: python3 -m roofline report {folder}")
    shown = folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder
    return [*lines, f"saved in {shown}: {', '.join(sorted(path.name for path in folder.iterdir()))}"]
