"""Prepares cases by their ids in a process of its own, without pytest, and calls their contenders once each.

    python3 -m roofline.worker FOLDER

FOLDER has a request, which `request` writes: the options of the run, the runner of each operation, and the cases. What
the worker does, it says in a file there, line by line, since what it does next may be its end. It journals nothing and
times nothing: a tool that it runs under counts what the calls do.
"""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from roofline import operations
from roofline.measure import device_errors
from roofline.measure.prepared import Prepare, PreparedCase
from roofline.pytest_plugin.options import of_values

REQUEST, PROGRESS = "request.json", "progress.jsonl"
PREPARE, CALL, DONE, LOST = "prepare", "call", "done", "lost"
"""Steps that are said of a case. One of the last two is, unless the process ends there; the last has a reason."""

MARKER_CYCLES = 1000

Case = tuple[str, str]
"""(shape, contender)."""


def request(folder: Path, options: dict, cases: list[Case]) -> list[str]:
    """Ask for `cases` by the `options` of a run, as its metadata has them; returns the command that does it."""
    (folder / PROGRESS).unlink(missing_ok=True)
    runners = {name: one.runner for name, one in operations.OPERATIONS.items() if isinstance(one.runner, str)}
    asked = {"options": options, "runners": runners, "cases": cases}
    (folder / REQUEST).write_text(json.dumps(asked), encoding="utf-8")
    return [sys.executable, "-m", "roofline.worker", str(folder)]


def progress(folder: Path) -> list[dict]:
    """What the worker said: {step, case: [shape, contender], reason}. A line that its end cut off is left out."""
    if not (folder / PROGRESS).exists():
        return []
    lines = (folder / PROGRESS).read_text(encoding="utf-8").split("\n")[:-1]
    return [json.loads(line) for line in lines]


class Worker:
    """Calls cases on `device`, and says in `folder` what it does."""

    def __init__(self, folder: Path, device: str):
        self._progress, self._device = folder / PROGRESS, device

    def call_each(self, cases: list[Case], prepare: Prepare) -> None:
        """Prepare and call one case after the other: what one of them does is not laid on the others. Exits where a
        call raised, since a new process is safer then."""
        for shape, name in cases:
            self._say(PREPARE, shape, name)
            try:
                found = prepare(shape, [name])
            except Exception as error:  # operands that do not fit beside those of the run that began this, for one
                self._say(LOST, shape, name, device_errors.reason(error))
                continue
            if name in found.entrants:
                self._call(shape, name, found)
            else:
                rejection = found.rejected.get(name)
                self._say(LOST, shape, name, rejection.reason if rejection else found.device_lost or "it was left out")
            found.entrants.clear()  # lets go of operands that are not shared with other cases

    def _call(self, shape: str, name: str, found: PreparedCase) -> None:
        try:
            with _counted(self._device):
                self._say(CALL, shape, name)
                found.entrants[name].call()
            self._say(DONE, shape, name)
        except Exception as error:
            self._say(LOST, shape, name, device_errors.reason(error))
            sys.exit(f"{shape}-{name}: {device_errors.reason(error)}")

    def _say(self, step: str, shape: str, contender: str, reason: str = "") -> None:
        line = {"step": step, "case": [shape, contender], "reason": reason}
        with self._progress.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


@contextmanager
def _counted(device: str) -> Iterator[None]:
    """Count the kernels launched inside, after a marker by which `profile.parse.by_call` tells calls apart."""
    if device != "cuda":
        yield  # there is nothing to count; tests come this way
        return
    import torch

    torch.cuda.synchronize()
    with torch.cuda.profiler.profile():  # cudaProfilerStart and cudaProfilerStop
        torch.cuda._sleep(MARKER_CYCLES)
        yield
        torch.cuda.synchronize()


def main(folder: Path) -> None:
    """Do what the request in `folder` asks for."""
    asked = json.loads((folder / REQUEST).read_text(encoding="utf-8"))
    options = of_values(asked["options"])
    if options.device == "cpu" and not options.timed:
        os.environ["TRITON_INTERPRET"] = "1"  # before anything imports Triton, which decorates its helpers at import
    for name, runner in asked["runners"].items():
        operations.OPERATIONS[name] = replace(operations.OPERATIONS[name], runner=runner)
    Worker(folder, options.device).call_each(
        [tuple(case) for case in asked["cases"]], operations.Runners(options).prepare
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
