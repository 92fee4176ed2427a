"""Scores a run against the forecast of its chip in results/forecasts: what was said before any run of it.

The name of a forecast's file ends in a hash of its text, so that nobody can improve it afterwards.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from roofline.report.format import error_text
from roofline.report.sections import Section
from roofline.store.run import Run

if TYPE_CHECKING:
    from pandas import DataFrame

FOLDER = Path(__file__).parents[2] / "results" / "forecasts"
FIELDS = "time_s", "ratio_to_vendor", "hidden_fraction"
"""What a forecast has an interval of, `_low` to `_high`."""


def of_chip(run: Run) -> tuple[str, dict] | None:
    """Return (file, forecast) of the run's chip."""
    chip = (run.metadata["machine"]["datasheet"] or {}).get("name")
    forecasts = ((path.name, json.loads(path.read_text(encoding="utf-8"))) for path in FOLDER.glob("*.json"))
    return next((forecast for forecast in forecasts if forecast[1]["chip"] == chip), None)


def within(forecast: dict, frame: DataFrame) -> dict[str, tuple[int, int]]:
    """Return {field: (how many cases of `frame` lie within their intervals, of how many)}."""
    measured, counts = frame.set_index("case"), {}
    for name in FIELDS:
        values = measured[name].dropna()
        rows = [row for row in forecast["cases"] if name in row and row["case"] in values.index]
        inside = [row[f"{name}_low"] <= values[row["case"]] <= row[f"{name}_high"] for row in rows]
        counts |= {name: (sum(inside), len(inside))} if inside else {}
    return counts


def sections(run: Run, frame: DataFrame) -> list[Section]:
    """Return how far the forecast of the run's chip was off, and the shares within its intervals; [] without one."""
    name, forecast = of_chip(run) or ("", {"cases": []})
    predicted = frame["case"].map({row["case"]: row["time_s"] for row in forecast["cases"]})
    errors = (predicted / frame["time_s"] - 1).abs().dropna()
    if errors.empty:
        return []
    lines = [f"time_s: off by {error_text(errors.median())} in the median of {len(errors)} cases"]
    lines += [f"{field}: {inside} of {count} within the interval of {100 * forecast['interval']:.0f} %"
              for field, (inside, count) in within(forecast, frame).items()]  # fmt: skip
    return [Section("Forecast", f"Of results/forecasts/{name}, sealed before any run of the chip:", lines=tuple(lines))]
