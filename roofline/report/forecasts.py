"""Scores a run against the forecast of its chip in results/forecasts: what was said before any run of it.

The name of a forecast's file ends in a hash of its text, so that nobody can improve it afterwards.
"""

import json
from pathlib import Path
from statistics import median

from roofline.report.format import error_text
from roofline.report.layout import Section
from roofline.store.run import Run

FOLDER = Path(__file__).parents[2] / "results" / "forecasts"
FIELDS = "time_s", "ratio_to_vendor", "hidden_fraction"
"""What a forecast has an interval of, `_low` to `_high`."""


def of_chip(run: Run) -> tuple[str, dict] | None:
    """Return (file, forecast) of the run's chip."""
    chip = (run.metadata["machine"]["datasheet"] or {}).get("name")
    forecasts = ((path.name, json.loads(path.read_text(encoding="utf-8"))) for path in FOLDER.glob("*.json"))
    return next((forecast for forecast in forecasts if forecast[1]["chip"] == chip), None)


def held(forecast: dict, records: list[dict]) -> dict[str, tuple[int, int]]:
    """Return {field: (how many of the `records` lie within their intervals, of how many)}."""
    measured, counts = {record["case"]: record for record in records}, {}
    for name in FIELDS:
        pairs = [(row, measured.get(row["case"], {}).get(name)) for row in forecast["cases"] if name in row]
        inside = [row[f"{name}_low"] <= value <= row[f"{name}_high"] for row, value in pairs if value is not None]
        counts |= {name: (sum(inside), len(inside))} if inside else {}
    return counts


def sections(run: Run, records: list[dict]) -> list[Section]:
    """Of the report: how far the forecast of the run's chip was off, and the shares within its intervals."""
    name, forecast = of_chip(run) or ("", {"cases": []})
    measured = {record["case"]: record["time_s"] for record in records}
    errors = [abs(row["time_s"] / measured[row["case"]] - 1) for row in forecast["cases"] if row["case"] in measured]
    if not errors:
        return []
    lines = [f"time_s: off by {error_text(median(errors))} in the median of {len(errors)} cases"]
    lines += [f"{field}: {inside} of {count} within the interval of {100 * forecast['interval']:.0f} %"
              for field, (inside, count) in held(forecast, records).items()]  # fmt: skip
    return [Section("Forecast", f"Of results/forecasts/{name}, sealed before any run of the chip:", lines=lines)]
