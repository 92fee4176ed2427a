"""The stages of a run: learn what the machine is, check, measure, name kernels; each by workers."""

import time

from roofline import operations
from roofline.supervise.jobs import Check, Hello, Names
from roofline.supervise.measuring import Measure
from roofline.supervise.supervisor import Supervisor
from roofline.supervise.watch import supervise
from roofline.worker import launches, machine

CHECKERS = 4
"""Workers that check at once on a GPU at most, one for four cores: compiling takes most of a first call."""


def greet(supervisor: Supervisor) -> None:
    """Learn from a worker what this machine is. Raises ValueError where nothing can be measured on it."""
    supervise(supervisor, [Hello(supervisor)])
    if problem := supervisor.hello.get("problem") or supervisor.end_reason:
        raise ValueError(problem)


def measure(supervisor: Supervisor) -> None:
    """Check and measure all that is left. Afterwards each contender has a record in the run, or an outcome, unless the
    run has an `end_reason`."""
    if supervisor.root:
        check(supervisor)
    supervise(supervisor, [Measure(supervisor)])


def check(supervisor: Supervisor) -> None:
    """Call each contender in a worker that only checks before one that measures does. What hangs or dies there costs
    its own row. Compiles on the way."""
    cases = _unchecked(supervisor)
    if not cases:
        return
    count = sum(map(len, cases.values()))
    began, before = time.monotonic(), len(supervisor.outcomes)
    parts = []
    if supervisor.options.device == "cuda" and not supervisor.epochs:
        others = [shape for shape in cases if not _is_linked(shape)]  # a link keeps no pace beside other processes
        several = max(1, min(CHECKERS, machine.cores() // 4))
        for index in range(several):
            parts.append(Check(supervisor, {shape: cases.pop(shape) for shape in others[index::several]}))
    supervise(supervisor, parts)
    for part in parts:
        cases = part.again | cases
    supervise(supervisor, [Check(supervisor, cases, is_alone=True)])
    took = f"{count} cases in {time.monotonic() - began:.0f} s"
    lost = len(supervisor.outcomes) - before
    supervisor.note("check", f"Checked in workers of their own: {took}, {lost} without a number.")


def _unchecked(supervisor: Supervisor) -> dict[str, list[str]]:
    """{shape: contenders} that are left of shapes without a pass, those over a link last."""
    cases = {}
    for shape in sorted(supervisor.planned, key=_is_linked):
        measured = supervisor.run.shapes.get(shape)
        names = supervisor.left(shape)
        if names and not (measured and measured.passes):
            cases[shape] = names
    return cases


def _is_linked(shape: str) -> bool:
    return operations.find(shape).analysis == "overlap"


def name_kernels(supervisor: Supervisor) -> None:
    """Journal the names of the kernels that were measured and have none yet, or the bytes that their calls need. What
    runs between ranks is left out. Arms run the matmul of the same name and the link's copier. A trace that is made
    again on one rank alone would leave the others waiting."""
    cases, has_names = {}, supervisor.options.device == launches.DEVICE
    for shape in supervisor.run.shapes.values():
        if shape.facts.get("has_costs") or (has_names and not operations.find(shape.op).between_ranks):
            field = "costs" if shape.facts.get("has_costs") else "kernel_name"
            if nameless := [name for name in shape.measured if field not in shape.entrants[name]]:
                cases[shape.id] = nameless
    supervise(supervisor, [Names(supervisor, cases)])
