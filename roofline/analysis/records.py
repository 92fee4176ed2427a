"""A case's record, by the analysis that judges it."""

from roofline.analysis.base import Analysis
from roofline.analysis.gradients import GRADIENTS
from roofline.analysis.overlap.analysis import OVERLAP
from roofline.analysis.throughput.analysis import THROUGHPUT
from roofline.analysis.throughput.metrics import shape_of
from roofline.store.run import Run, Shape

NUMBERS = {frozenset({int}): "Int64", frozenset({bool}): "boolean"}
"""Types of all values that a column has -> its dtype, which knows missing values; of others it is float64 or object."""

ANALYSES = {one.name: one for one in (THROUGHPUT, GRADIENTS, OVERLAP)}


def analysis_of(run: Run, record: dict) -> Analysis:
    """What judges the shape of a record."""
    return ANALYSES[run.shapes[shape_of(record)].analysis]


def derive(run: Run, shape: Shape, contender: str) -> dict:
    """One flat record, scalars only, of `contender` on `shape`: what goes into extra_info, tables and plots."""
    return ANALYSES[shape.analysis].metrics(run, shape, contender)


def frame(records: list[dict]):
    """`records` as a DataFrame, with every declared column of the analyses; what a record has not is missing there."""
    import pandas

    columns = {column.name: column for analysis in ANALYSES.values() for column in analysis.columns if column.doc}
    data = {}
    for name, column in columns.items():
        values = [record.get(name) for record in records]
        dtype = NUMBERS.get(frozenset(type(value) for value in values if value is not None))
        data[name] = pandas.Series(values, dtype=dtype or ("float64" if column.unit else "object"))
    return pandas.DataFrame(data)
