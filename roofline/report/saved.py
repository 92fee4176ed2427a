"""The parts of benchmark.json that a run's journal knows, beside what pytest-benchmark saves."""

from roofline.store.run import Run

NAME = "benchmark.json"

MEASURED = ("empty_call_s", "idle_power_w")
"""Measurements of a machine, in journals of before 2026-11-29 the power of an idle card, too. By that no two runs
would be of the same."""


def without_rows(run: Run) -> dict:
    """The file's entries beside its rows; of the machine what was not measured."""
    not_measured = list(map(vars, run.missing))
    info = {name: value for name, value in run.metadata["machine"].items() if name not in MEASURED}
    return {"machine_info": info, "not_measured": not_measured, "ceilings": run.ceilings}
