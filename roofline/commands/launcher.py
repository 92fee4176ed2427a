"""The program that Nsight Compute runs for `roofline counters`: a copy of known size, then each case, three calls of
each.

    ncu ... python3 -m roofline.commands.launcher RUN CALLS CASE...

A case is prepared by its operation's runner and the options of RUN, whose contenders are checked on the way. None of
that is counted, and nothing is timed. The file CALLS gets a line of JSON before each call that is counted, by which
`roofline.commands.counters` knows whose kernels are whose, and one for what failed. Contenders from files, which the
journal names, are not executed.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from roofline import operations
from roofline.host import device_errors, machine
from roofline.host.checkout import commit_of
from roofline.operations.options import options_of
from roofline.store import conditions, journal
from roofline.store.run import Run
from roofline.worker.clocks import Call

COPY = "copy"
CALLS = 3
MARKER_CYCLES = 1000


def main(folder: Path, calls: Path, cases: list[str]) -> None:
    run = journal.load(folder)
    require_same_machine(run.metadata)
    options = options_of(run.metadata["options"])
    with calls.open("a") as file:

        def tell(**line) -> None:
            print(json.dumps(line), file=file, flush=True)

        runners = operations.Runners(replace(options, users=(), baseline=None))
        probes = runners.of(operations.find("matmul")).probes()
        copy = next(probe for probe in probes if probe.kind == "copy")
        call(copy_by_kernel(copy.amount // 2), tell, call=COPY, bytes=copy.amount)
        for case in cases:
            try:
                call(call_of(runners, run, case), tell, call=case)
            except Exception as error:
                tell(failed=case, reason=reason(error))


def call_of(runners: operations.Runners, run: Run, case: str) -> Call:
    """The call of a case of `run`, prepared as it was there, and checked. Raises ValueError where it is refused."""
    shape, name = operations.parse(case)
    operation = operations.find(shape.op)
    if name not in runners.planner(operation).choices():
        raise ValueError(f"{name} is from a file that the journal names, and nothing of it is executed")
    runners.of(operation).earlier[shape.id] = run.shape_of(shape.id, name).choices
    prepared = runners.prepare(shape, [name])
    if name in prepared.rejected:
        raise ValueError(prepared.rejected[name].reason)
    return prepared.entrants[name].call


def reason(error: Exception) -> str:
    """Why a case has no counts, in one line."""
    return str(error) if isinstance(error, ValueError) else device_errors.reason(error)


def copy_by_kernel(size: int) -> Callable[[], object]:
    """Make a call that reads so many bytes and writes as many. A plain copy is no kernel, and ncu counts kernels."""
    import torch

    source = torch.zeros(size, dtype=torch.int8, device="cuda")
    target = torch.empty_like(source)
    return lambda: torch.bitwise_not(source, out=target)


def require_same_machine(metadata: dict) -> None:
    """Raise ValueError where nothing of a run can be called on this machine. As where a run is gone on with, machine
    and checkout must be those that it measured."""
    if not machine.gpu_driver():
        raise ValueError("this machine has no NVIDIA GPU: take the one that the run was measured on")
    if problem := machine.unusable_gpu():
        raise ValueError(problem)
    now = metadata | {"machine": machine.describe("cuda"), "commit": commit_of(Path(__file__).parents[2])}
    if changes := conditions.changes_text(metadata, now):
        raise ValueError(f"{changes}: go back to what it was, or measure a new run")


def call(function: Callable[[], object], tell: Callable, **line) -> None:
    """Call `function` a few times while kernels are counted: each time tell the `line`, then launch a marker, a kernel
    that nothing else launches, then call `function`."""
    import torch

    for _ in range(CALLS):
        tell(**line)
        torch.cuda.synchronize()
        with torch.cuda.profiler.profile():  # cudaProfilerStart and cudaProfilerStop
            torch.cuda._sleep(MARKER_CYCLES)
            function()
            torch.cuda.synchronize()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
