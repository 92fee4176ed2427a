"""How each analysis is shown, and the frame that follows from its columns."""

from roofline.analysis.throughput.metrics import shape_of
from roofline.report.gradients import GRADIENTS
from roofline.report.layout import Analysis
from roofline.report.overlap.analysis import OVERLAP
from roofline.report.throughput.analysis import THROUGHPUT
from roofline.store.run import Run

NUMBERS = {frozenset({int}): "Int64", frozenset({bool}): "boolean"}
"""Types of all values that a column has -> its dtype, which knows missing values; of others it is float64 or object."""

ANALYSES = {analysis.name: analysis for analysis in (THROUGHPUT, GRADIENTS, OVERLAP)}


def analysis_of(run: Run, record: dict) -> Analysis:
    """Return what judges the shape of a record."""
    return ANALYSES[run.shapes[shape_of(record)].analysis]


def frame(records: list[dict]):
    """Return `records` as a DataFrame, with every declared column of the analyses; what a record has not is missing
    there."""
    import pandas

    columns = {column.name: column for analysis in ANALYSES.values() for column in analysis.columns if column.doc}
    data = {}
    for name, column in columns.items():
        values = [record.get(name) for record in records]
        dtype = NUMBERS.get(frozenset(type(value) for value in values if value is not None))
        data[name] = pandas.Series(values, dtype=dtype or ("float64" if column.unit else "object"))
    return pandas.DataFrame(data)
