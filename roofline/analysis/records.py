"""A run's records: one for each case, by the analysis that judges it."""

from roofline.analysis.base import Analysis
from roofline.analysis.overlap.analysis import OVERLAP
from roofline.analysis.overlap.metrics import is_gathered
from roofline.analysis.throughput.analysis import THROUGHPUT
from roofline.store.journal import Run

ANALYSES = (THROUGHPUT, OVERLAP)


def analysis_of(shape: dict) -> Analysis:
    """What judges a shape (or a record of it)."""
    return OVERLAP if is_gathered(shape) else THROUGHPUT


def derive(run: Run, shape: dict, contender: str) -> dict:
    """One flat record, scalars only, of `contender` on `shape`: what goes into extra_info, tables and plots."""
    return analysis_of(shape).metrics(run, shape, contender)


def derive_all(run: Run) -> list[dict]:
    """A record for every case that was measured and asked for, with its `case` id, in the order of the run."""
    return [{"case": f"{shape['shape']}-{name}"} | derive(run, shape, name) for shape, name in run.cases()]
