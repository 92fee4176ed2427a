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


def sections(run: Run, frame: DataFrame) -> list[Section]:
    """Return how far the forecast of the run's chip was off, and how many of its intervals held; [] without one."""
    chip = (run.metadata["machine"]["datasheet"] or {}).get("name")
    for path in FOLDER.glob("*.json"):
        forecast = json.loads(path.read_text(encoding="utf-8"))
        if forecast["chip"] == chip and (lines := _score(forecast, frame)):
            about = f"Of results/forecasts/{path.name}, sealed before any run of the chip:"
            return [Section("Forecast", about, lines=tuple(lines))]
    return []


def _score(forecast: dict, frame: DataFrame) -> list[str]:
    import pandas

    cases = pandas.DataFrame(forecast["cases"]).merge(frame[["case", *FIELDS]], on="case", suffixes=("_foreseen", ""))
    if cases.empty:
        return []
    errors = (cases["time_s_foreseen"] / cases["time_s"] - 1).abs()
    lines = [f"time_s: off by {error_text(errors.median())} in the median of {len(errors)} cases"]
    for name in (name for name in FIELDS if f"{name}_low" in cases):
        known = cases.dropna(subset=[name, f"{name}_low"])
        held = known[name].between(known[f"{name}_low"], known[f"{name}_high"]).sum()
        share = f"{held} of {len(known)} within the interval of {100 * forecast['interval']:.0f} %"
        lines += [f"{name}: {share}"] if len(known) else []
    return lines
