"""A case's record, by the analysis that judges it."""

from roofline.analysis.base import Analysis
from roofline.analysis.overlap.analysis import OVERLAP
from roofline.analysis.throughput.analysis import THROUGHPUT
from roofline.analysis.throughput.metrics import shape_of
from roofline.store.run import Run, Shape

ANALYSES = {one.name: one for one in (THROUGHPUT, OVERLAP)}


def analysis_of(run: Run, record: dict) -> Analysis:
    """What judges the shape of a record."""
    return ANALYSES[run.shapes[shape_of(record)].analysis]


def derive(run: Run, shape: Shape, contender: str) -> dict:
    """One flat record, scalars only, of `contender` on `shape`: what goes into extra_info, tables and plots."""
    return ANALYSES[shape.analysis].metrics(run, shape, contender)
