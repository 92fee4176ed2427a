"""The meaning of kernel benchmark numbers: work, chips, rooflines, measurement and reports.

`roofline.theory` needs the standard library only; `roofline.worker` needs torch, `roofline.pytest_plugin` pytest.
"""

from roofline.operations.contenders import contender

__all__ = ["by_tokens", "contender", "load"]
__version__ = "0.1.0"


def load(folder):
    """The run in a folder of results/. Its `frame()` is a pandas DataFrame with a row for each case, whose
    columns results/README.md documents; `roofline.report.plots` draws it. Raises ValueError where there is no run."""
    from roofline.analysis.records import AnalysedRun
    from roofline.store import journal

    return journal.load(folder, AnalysedRun)


def by_tokens(run):
    """The speed of a run that `load` returned, by rows of x: a pandas DataFrame with a row for each M and dtype, whose
    columns results/README.md documents. It has no row where nothing was measured beside a baseline."""
    from roofline.analysis import records, tokens

    return tokens.by_tokens(run, records.frame(run))
