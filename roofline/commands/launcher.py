"""The program that Nsight Compute runs for `roofline counters`: a copy of known size, then each case, three calls of
each.

    ncu ... python3 -m roofline.commands.launcher RUN BYTES CASE...

A case is prepared by its operation's runner and the options of RUN, whose contenders are checked on the way. None of
that is counted, and nothing is timed. A line of JSON is printed before each call that is counted, by which
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
from roofline.host.device_errors import RefusedError
from roofline.operations.options import options_of
from roofline.store import conditions, journal
from roofline.store.run import Run
from roofline.worker.clocks import Call

COPY = "copy"
CALLS = 3
MARKER_CYCLES = 1000


def main(folder: Path, copy_bytes: int, cases: list[str]) -> None:
    run = journal.load(folder)
    require_same_machine(run.metadata)
    options = options_of(run.metadata["options"])
    runners = operations.Runners(replace(options, users=(), baseline=None))
    call(COPY, copy_by_kernel(copy_bytes // 2))
    for case in cases:
        try:
            call(case, call_of(runners, run, case))
        except Exception as error:
            tell(failed=case, reason=device_errors.reason(error))


def tell(**line: str) -> None:
    print(f"\n{json.dumps(line)}", flush=True)


def call_of(runners: operations.Runners, run: Run, case: str) -> Call:
    """The call of a case of `run`, prepared as it was there, and checked. Raises RefusedError where it is refused."""
    shape, name = operations.parse(case)
    operation = operations.find(shape.op)
    if name not in runners.planner(operation).choices():
        raise RefusedError(f"{name} is from a file that the journal names, and nothing of it is executed")
    runners.of(operation).earlier[shape.id] = run.rows[shape.id, name].choices
    prepared = runners.prepare(shape, [name])
    if name in prepared.rejected:
        raise RefusedError(prepared.rejected[name].reason)
    return prepared.entrants[name].call


def copy_by_kernel(size: int) -> Callable[[], object]:
    """Make a call that reads so many bytes and writes as many. A plain copy is no kernel, and ncu counts kernels."""
    import torch

    source = torch.zeros(size, dtype=torch.int8, device="cuda")
    target = torch.empty_like(source)
    return lambda: torch.bitwise_not(source, out=target)


def require_same_machine(metadata: dict) -> None:
    """Raise ValueError where machine and checkout are not those that a run measured."""
    here = machine.describe(machine.choose_device("auto", timed=False))
    now = metadata | {"machine": here, "commit": commit_of(Path(__file__).parents[2])}
    if changes := conditions.changes_text(metadata, now):
        raise ValueError(f"{changes}: go back to what it was, or measure a new run")


def call(case: str, function: Callable[[], object]) -> None:
    """Call `function` a few times while kernels are counted: each time tell the `case`, then launch a marker, a kernel
    that nothing else launches, then call `function`."""
    import torch

    for _ in range(CALLS):
        tell(call=case)
        torch.cuda.synchronize()
        with torch.cuda.profiler.profile():  # cudaProfilerStart and cudaProfilerStop
            torch.cuda._sleep(MARKER_CYCLES)
            function()
            torch.cuda.synchronize()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
