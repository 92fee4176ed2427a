"""The records of a run, and its frame: a row for each case, by the analysis that its operation names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roofline.analysis import decision, layers, overlap, throughput
from roofline.analysis.fields import FIELDS
from roofline.store.run import Run

if TYPE_CHECKING:
    from pandas import DataFrame

RECORD_OF = {"throughput": throughput.record, "overlap": overlap.record}
"""Analysis -> `record(run, shape, contender)`."""
DTYPES = {frozenset({int}): "Int64", frozenset({bool}): "boolean"}
"""Types of all values of a field -> dtype that knows missing values; of others it is float64 or object."""


def records_of(run: Run) -> list[dict]:
    """Return a flat dict of scalars for every case, in the order of the run. They are derived once, when the run is
    closed."""
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
    about = {"shape": shape_id, "analysis": shape.analysis} | decision.fields(run, shape, contender)
    return about | RECORD_OF[shape.analysis](run, shape, contender) | layers.fields(shape, contender)


def as_frame(records: list[dict]) -> DataFrame:
    """Return `records` with a column for every field of `fields.toml`; what a record has not is missing there."""
    import pandas

    data = {}
    for name, field in FIELDS.items():
        values = [record.get(name) for record in records]
        dtype = DTYPES.get(frozenset(type(value) for value in values if value is not None))
        data[name] = pandas.Series(values, dtype=dtype or ("float64" if field.unit else "object"))
    return pandas.DataFrame(data)


def frame(run: Run) -> DataFrame:
    """Return a row for every case of `run`. Its `attrs` have what a figure needs beside: `title`, `footer`, and
    {dtype: (FLOP/s, bytes/s)} of the measured `roofs` and of the `datasheet`."""
    table = as_frame(records_of(run))
    dtypes, source = table["dtype"].unique(), run.metadata["machine"]["source"]
    table.attrs = {
        "title": f"{run.metadata['title']}, {source.upper()} run",
        "footer": run.metadata["footer"],
        "roofs": {dtype: roof for dtype in dtypes if (roof := throughput.roof_of(run, dtype))},
        "datasheet": {dtype: roof for dtype in dtypes if (roof := throughput.datasheet_roof(run, dtype))},
    }
    return table


class AnalysedRun(Run):
    """A run as `roofline.load` returns it: with the frame of its cases."""

    def frame(self) -> DataFrame:
        return frame(self)
