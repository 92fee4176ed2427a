"""benchmark.json of a run, from its journal: what pytest-benchmark saves of one, for its own `compare`."""

import json
from pathlib import Path

from roofline.analysis.records import records_of
from roofline.store.run import Run

NAME = "benchmark.json"

MEASURED = ("empty_call_s", "idle_power_w")
"""Measurements of a machine, in journals of before 2026-11-29 the power of an idle card, too. By that no two runs
would be of the same."""


def write(folder: Path, run: Run) -> Path:
    """Write benchmark.json of `run` into `folder`. Raises ValueError where pytest-benchmark is not installed."""
    try:
        from pytest_benchmark.stats import Stats
    except ImportError:
        raise ValueError("--json takes pytest-benchmark's statistics: pip install pytest-benchmark") from None
    rows = []
    for record in records_of(run):
        stats = Stats()
        for seconds in run.shape_of(record["shape"], record["contender"]).times_s(record["contender"]).values():
            stats.update(seconds)
        test = f"test_{record['op']}"
        name = f"{test}[{record['case']}]"
        row = {"group": None, "name": name, "fullname": f"tests/benchmarks/{test}.py::{name}"}
        row["params"] = {field: record[field] for field in ("shape", "contender")}
        row["param"] = record["case"]
        row["extra_info"] = record
        row["stats"] = stats.as_dict() | {"iterations": 1}
        rows.append(row)
    path = folder / NAME
    path.write_text(json.dumps(without_rows(run) | {"benchmarks": rows}, indent=4), encoding="utf-8")
    return path


def machine_info(machine: dict) -> dict:
    """The journal's entry of a machine, without its measurements."""
    return {name: value for name, value in machine.items() if name not in MEASURED}


def without_rows(run: Run) -> dict:
    """The file's entries beside its rows."""
    not_measured = [outcome.entry for outcome in run.missing]
    info = machine_info(run.metadata["machine"])
    return {"machine_info": info, "not_measured": not_measured, "ceilings": run.ceilings}
