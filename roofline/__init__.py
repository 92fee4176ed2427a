"""What kernel benchmark numbers mean: work, chips, rooflines, measurement and reports.

`roofline.theory` needs the standard library only; `roofline.measure` needs torch, `roofline.pytest_plugin` pytest.
"""

__version__ = "0.1.0"


def load(folder):
    """The run in a folder of results/, as a `roofline.store.run.Run`. Raises ValueError where there is none."""
    from roofline.store import journal

    return journal.load(folder)


def frame(run):
    """A pandas DataFrame of `run`, a row for each case, whose columns results/README.md documents."""
    from roofline.analysis.records import records_of
    from roofline.report import analyses

    return analyses.frame(records_of(run))
