"""The benchmark as it runs under Nsight Compute: cases are prepared as ever, and called once while kernels are counted.

A pytest of its own, begun by `counting` with --ffn-counted=FOLDER. What FOLDER says is to be counted, it prepares by
the benchmarks' own fixtures, so that there is one way to prepare a case. It journals nothing and times nothing. What it
does, it says in a file there, line by line, since what it does next may be its end.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from roofline.measure import device_errors
from roofline.measure.prepared import Prepare

CASES, SAID = "cases.json", "progress.jsonl"
PREPARE, CALL, DONE, LOST = "prepare", "call", "done", "lost"
"""Steps that are said of a case. One of the last two is, unless the process ends there; the last has a reason."""

MARKER_CYCLES = 1000


def write(folder: Path, cases: list[tuple[str, str]]) -> None:
    """Tell the benchmark to count `cases`, pairs of shape and contender."""
    (folder / SAID).unlink(missing_ok=True)
    (folder / CASES).write_text(json.dumps(cases), encoding="utf-8")


def read(folder: Path) -> list[dict]:
    """What it said: {step, case: [shape, contender], reason}. A line that its end cut off is left out."""
    if not (folder / SAID).exists():
        return []
    lines = (folder / SAID).read_text(encoding="utf-8").split("\n")[:-1]
    return [json.loads(line) for line in lines]


class Counted:
    """What `folder` says is to be counted on `device`, once for each shape."""

    def __init__(self, folder: Path, device: str):
        self._said, self._device = folder / SAID, device
        self._wanted: dict[str, list[str]] = {}
        for shape, contender in json.loads((folder / CASES).read_text(encoding="utf-8")):
            self._wanted.setdefault(shape, []).append(contender)

    def select(self, items: list, case_of: Callable) -> list:
        """One of `items` for each shape that is wanted; `case_of(item)` is its (shape, contender)."""
        by_shape = {case_of(item)[0]: item for item in items if case_of(item)}
        return [item for shape, item in by_shape.items() if shape in self._wanted]

    def call(self, shape: str, prepare: Prepare) -> None:
        """Prepare `shape` as the benchmark does, and call each of its contenders once while kernels are counted."""
        for name in self._wanted[shape]:  # one by one, so that what one of them does is not laid on the others
            self._say(PREPARE, shape, name)
            try:
                found = prepare(shape, [name])
            except Exception as error:  # operands that do not fit beside those of the run that began this, for one
                self._say(LOST, shape, name, device_errors.reason(error))
                continue
            if name not in found.entrants:
                rejection = found.rejected.get(name)
                self._say(LOST, shape, name, rejection.reason if rejection else found.device_lost or "it was left out")
                found.entrants.clear()
                continue
            try:
                with _counted(self._device):
                    self._say(CALL, shape, name)
                    found.entrants[name].call()
                self._say(DONE, shape, name)
                found.entrants.clear()  # lets go of operands that are not shared with other cases
            except Exception as error:
                self._say(LOST, shape, name, device_errors.reason(error))
                pytest.exit(f"{shape}-{name}: {device_errors.reason(error)}", returncode=1)  # a new process is safer

    def _say(self, step: str, shape: str, contender: str, reason: str = "") -> None:
        line = {"step": step, "case": [shape, contender], "reason": reason}
        with self._said.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


@contextmanager
def _counted(device: str) -> Iterator[None]:
    """Count the kernels launched inside, after a marker by which `counters.by_call` tells calls apart."""
    if device != "cuda":
        yield  # there is nothing to count; tests come this way
        return
    import torch

    torch.cuda.synchronize()
    with torch.cuda.profiler.profile():  # cudaProfilerStart and cudaProfilerStop
        torch.cuda._sleep(MARKER_CYCLES)
        yield
        torch.cuda.synchronize()
