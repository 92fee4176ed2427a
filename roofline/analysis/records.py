"""The records of a run: a flat dict, scalars only, for each case, by the analysis that its operation names."""

from roofline.analysis import gradients
from roofline.analysis.overlap import metrics as overlap
from roofline.analysis.throughput import metrics as throughput
from roofline.store.run import Run

METRICS = {"throughput": throughput.metrics, "gradients": gradients.metrics, "overlap": overlap.metrics}
"""Analysis -> `metrics(run, shape, entrant)`, which makes one record."""


def records_of(run: Run) -> list[dict]:
    """Return a record of every case, as results/README.md documents them, in the order of the run. They are derived
    once, when the run is closed."""
    if run.end is not None and "records" in run.derived:
        return run.derived["records"]
    records = [{"case": f"{shape.id}-{name}"} | record_of(run, shape.id, name) for shape, name in run.cases()]
    if run.end is not None:
        run.derived["records"] = records
    return records


def record_of(run: Run, shape_id: str | None, contender: str) -> dict | None:
    """Return the record of one case, by the ceilings known so far; None if it was not measured."""
    if run.void or contender not in run.measured(shape_id):
        return None
    shape = run.shapes[shape_id]
    return METRICS[shape.analysis](run, shape, contender)
