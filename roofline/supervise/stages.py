"""Stages of a run: learn what the machine is, check, name kernels; each by workers. `supervise.measuring` measures."""

import time
from collections import Counter
from collections.abc import Iterable

from roofline import operations
from roofline.supervise.blame import conclude, next_suspect, outcome_of
from roofline.supervise.child import Told, WorkerEnd
from roofline.supervise.listen import run_workers
from roofline.supervise.supervisor import Supervisor
from roofline.worker import launches, machine
from roofline.worker.messages import JournalLine, Kind, MachineFound, Rejected, Request, ShapeChecked, StepBegan

CHECKERS = 4
"""Workers that check at once on a GPU at most, one for four cores: compiling takes most of a first call."""


def keep(supervisor: Supervisor, message: object) -> None:
    """Handle a message as every stage does that knows no better."""
    match message:
        case StepBegan():
            supervisor.show_progress(message.words, None)
        case JournalLine(line):
            supervisor.add(line)
        case Rejected(shape, name, outcome):
            supervisor.lose(shape, name, outcome)


def greet(supervisor: Supervisor) -> None:
    """Learn from a worker what this machine is. Raises ValueError where nothing can be measured on it."""

    def hear(worker: Told, message: object) -> None:
        match message:
            case MachineFound(fields):
                supervisor.hello = fields
                if supervisor.epochs:
                    supervisor.epochs.loopback = fields["ranks"]["loopback"]
            case WorkerEnd():
                if outcome := outcome_of(supervisor, worker, message):
                    supervisor.end_reason = f"a worker that only looks at the machine ended: {outcome.words}"

    run_workers(supervisor, [supervisor.request(Kind.HELLO, supervisor.planned)], hear)
    if problem := supervisor.hello.get("problem") or supervisor.end_reason:
        raise ValueError(problem)


def check(supervisor: Supervisor) -> None:
    """Call each contender in a worker that only checks before one that measures does. What hangs or dies there costs
    its own row. Compiles on the way."""
    shapes = _unchecked(supervisor)
    if not shapes:
        return
    count = sum(len(supervisor.left(shape)) for shape in shapes)
    began, before = time.monotonic(), len(supervisor.outcomes)
    beside = []
    if supervisor.options.device == "cuda" and not supervisor.epochs:
        beside = [shape for shape in shapes if not _is_linked(shape)]  # a link keeps no pace beside other processes
    several = max(1, min(CHECKERS, machine.cores() // 4))
    again = _check(supervisor, [beside[index::several] for index in range(several)], is_alone=False)
    _check(supervisor, [[shape for shape in shapes if shape in again or shape not in beside]], is_alone=True)
    took = f"{count} cases in {time.monotonic() - began:.0f} s"
    lost = len(supervisor.outcomes) - before
    supervisor.note("check", f"Checked in workers of their own: {took}, {lost} without a number.")


def _check(supervisor: Supervisor, parts: list[list[str]], *, is_alone: bool) -> set[str]:
    """Check all `parts` at once, the shapes of each by one worker after another. Returns those that lacked memory
    beside others, to be checked alone."""
    ended: Counter = Counter()
    unchecked = {shape for part in parts for shape in part}
    asked = len(unchecked)
    again = set()

    def next_requests(shapes: Iterable[str], suspect: str = "") -> list[Request]:
        """The request for what is left of a part, or else for a suspect, if there is one."""
        left = {shape: supervisor.left(shape) for shape in shapes if shape in unchecked}
        cases = {shape: names for shape, names in left.items() if names}
        if not cases and (found := next_suspect(supervisor, ended)):
            shape, suspect = found
            unchecked.add(shape)
            cases = {shape: [suspect]}
        return [supervisor.request(Kind.CHECK, cases, suspect=suspect)] if cases else []

    def hear(worker: Told, message: object) -> None:
        match message:
            case StepBegan():
                done = asked - len(unchecked)
                supervisor.show_progress(f"{done} of {asked} shapes checked: {message.words}", None)
            case Rejected(shape, _, outcome) if "out of memory" in outcome.reason and not is_alone:
                again.add(shape)
            case ShapeChecked(shape, baseline_call_s, facts):
                unchecked.discard(shape)
                supervisor.baseline_call_s[shape] = baseline_call_s
                supervisor.chosen[shape] = {"facts": facts, "medians_s": {}}
            case WorkerEnd():
                conclude(supervisor, worker, message, ended)
                requests.extend(next_requests(worker.request.cases, worker.request.suspect))
            case _:
                keep(supervisor, message)

    requests = [request for part in parts for request in next_requests(part)]
    run_workers(supervisor, requests, hear)
    return again


def _unchecked(supervisor: Supervisor) -> list[str]:
    """Shapes of which something is left, without a pass; those over a link last."""
    shapes = []
    for shape in sorted(filter(supervisor.left, supervisor.planned), key=_is_linked):
        measured = supervisor.run.shapes.get(shape)
        if not (measured and measured.passes):
            shapes.append(shape)
    return shapes


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

    def hear(worker: Told, message: object) -> None:
        if not isinstance(message, WorkerEnd):
            keep(supervisor, message)
        elif outcome := outcome_of(supervisor, worker, message):
            supervisor.note("kernel names", f"Kernel names: not all were found: {outcome.words}.")

    if cases:
        run_workers(supervisor, [supervisor.request(Kind.NAMES, cases)], hear)
