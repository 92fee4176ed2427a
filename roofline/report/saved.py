"""The parts of benchmark.json that a run's journal knows, beside what pytest-benchmark saves."""

from roofline.store.run import Run

NAME = "benchmark.json"

MEASURED = ("empty_call_s", "idle_power_w")
"""Measurements of a machine, in journals of before 2026-11-29 the power of an idle card, too. By that no two runs
would be of the same."""


def machine_info(machine: dict) -> dict:
    """The journal's entry of a machine, without its measurements."""
    return {name: value for name, value in machine.items() if name not in MEASURED}


def without_rows(run: Run) -> dict:
    """The file's entries beside its rows."""
    not_measured = list(map(vars, run.missing))
    info = machine_info(run.metadata["machine"])
    return {"machine_info": info, "not_measured": not_measured, "ceilings": run.ceilings}
