"""The records of a run, and its frame: a row for each case, by the analysis that its operation names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roofline.analysis import decision, layers, overlap, throughput
from roofline.analysis.fields import FIELDS
from roofline.analysis.throughput import once
from roofline.store.run import Run

if TYPE_CHECKING:
    from pandas import DataFrame

RECORD_OF = {"throughput": throughput.record, "overlap": overlap.record}
"""Analysis -> `record(run, shape, contender)`."""
DTYPES = {frozenset({int}): "Int64", frozenset({bool}): "boolean"}
"""Types of all values of a field -> dtype that knows missing values; of others it is float64 or object."""


@once
def records_of(run: Run) -> list[dict]:
    """A flat dict of scalars for every case, in the order of the run."""
    return [record_of(run, shape.id, name) for shape, name in run.cases()]


def record_of(run: Run, shape_id: str | None, contender: str) -> dict | None:
    """The record of one case, by the ceilings known so far; None if it was not measured."""
    if run.void or contender not in run.measured(shape_id):
        return None
    shape = run.shape_of(shape_id, contender)
    record = RECORD_OF[shape.analysis](run, shape, contender)
    record |= {"case": f"{shape_id}-{contender}", "shape": shape_id, "analysis": shape.analysis}
    record |= decision.fields(run, shape, contender)
    record |= layers.fields(shape, contender)
    if shape.apart:
        record["notes"] = "; ".join(filter(None, ["measured apart", record["notes"]]))
    return record


def as_frame(records: list[dict]) -> DataFrame:
    """`records` with a column for every field of `fields.toml`; what a record has not is missing there."""
    import pandas

    data = {}
    for name, field in FIELDS.items():
        values = [record.get(name) for record in records]
        types = frozenset(type(value) for value in values if value is not None)
        usual = "float64" if field.unit else "object"
        data[name] = pandas.Series(values, dtype=DTYPES.get(types, usual))
    return pandas.DataFrame(data)


@once
def frame(run: Run) -> DataFrame:
    """A row for every case of `run`. Its `attrs` have what a figure needs beside: `title`, `footer`, and
    {dtype: (FLOP/s, bytes/s)} of the measured `roofs` and of the `datasheet`."""
    table = as_frame(records_of(run))
    source = run.metadata["machine"]["source"]
    roofs, datasheet = {}, {}
    for dtype in table["dtype"].unique():
        if roof := throughput.roof_of(run, dtype):
            roofs[dtype] = roof
        if roof := throughput.datasheet_roof(run, dtype):
            datasheet[dtype] = roof
    table.attrs = {
        "title": f"{run.metadata['title']}, {source.upper()} run",
        "footer": run.metadata["footer"],
        "roofs": roofs,
        "datasheet": datasheet,
    }
    return table


class AnalysedRun(Run):
    """A run as `roofline.load` returns it: with the frame of its cases."""

    def frame(self) -> DataFrame:
        """A frame that is the caller's own."""
        return frame(self).copy()
