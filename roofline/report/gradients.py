"""How gradients that are summed over ranks are shown: the best bucket, and the times by the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roofline.analysis.gradients import best
from roofline.plots.buckets import verdict
from roofline.report.sections import Section
from roofline.report.tables import texts
from roofline.store.run import Run

if TYPE_CHECKING:
    from pandas import DataFrame

GRADIENTS = "bucket_bytes", "collectives", "t_gemm_s", "t_comm_s", "hidden_fraction", "model_s"
CASES = ("shape", "contender", "time_s", "ratio_to_baseline", *GRADIENTS, "notes")
FIGURES = ("buckets",)


def brief(run: Run, frame: DataFrame) -> Section:
    """Return the section of the best bucket of each shape."""
    return Section(
        "Which bucket?",
        "The arm that is fastest of those that send buckets of gradients while the backward pass goes on. Its gain is "
        "over `flat`, one all-reduce behind the backward pass.",
        FIGURES[:1],
        texts(best(frame), CASES),
    )


def summary(frame: DataFrame) -> list[str]:
    """Return a line per shape: its best bucket, and what the model says of it."""
    return [f"{row.shape}: {verdict(row)}" for row in best(frame).itertuples()]
