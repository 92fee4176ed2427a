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
from roofline.measure.prepared import Prepare
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


def call_each(cases: list[Case], prepare: Prepare, folder: Path, device: str) -> None:
    """Prepare and call one case after the other on `device`: what one of them does is not laid on the others. Says in
    `folder` what it does. Exits where a call raised, since a new process is safer then."""

    def say(step: str, reason: str = "") -> None:
        with (folder / PROGRESS).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, "case": [shape, name], "reason": reason}) + "\n")

    for shape, name in cases:
        say(PREPARE)
        try:
            found = prepare(shape, [name])
        except Exception as error:  # operands that do not fit beside those of the run that began this, for one
            say(LOST, device_errors.reason(error))
            continue
        if name in found.entrants:
            try:
                with _counted(device):
                    say(CALL)
                    found.entrants[name].call()
                say(DONE)
            except Exception as error:
                say(LOST, device_errors.reason(error))
                sys.exit(f"{shape}-{name}: {device_errors.reason(error)}")
        else:
            rejection = found.rejected.get(name)
            say(LOST, rejection.reason if rejection else found.device_lost or "it was left out")
        found.entrants.clear()  # lets go of operands that are not shared with other cases


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
    prepare = operations.Runners(options).prepare
    call_each([tuple(case) for case in asked["cases"]], prepare, folder, options.device)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
