"""Stages of a run: learn what the machine is, check, name kernels; each by workers. `supervise.measuring` measures."""

from roofline import operations
from roofline.host import machine
from roofline.protocol.messages import JournalLines, Kind, MachineFound, Rejected, Request, ShapeChecked, StepBegan
from roofline.supervise.blame import conclude, outcome_of
from roofline.supervise.child import Told, WorkerEnd
from roofline.supervise.listen import run_workers
from roofline.supervise.session import Session

CHECKERS = 4
"""Workers that check at once on a GPU at most, one for four cores: compiling takes most of a first call."""
NAMED = "cuda"
"""The device whose kernels have names."""


def keep(session: Session, worker: Told, message: object) -> None:
    """Handle a message as every stage does that knows no better."""
    match message:
        case StepBegan():
            session.show_progress(message.words)
        case JournalLines(lines):
            session.writer.add(*lines)
        case Rejected(shape, name, outcome, is_sure):
            session.trials.accuse(worker.request, shape, name, outcome, is_sure=is_sure)
        case WorkerEnd():
            conclude(session, worker, message)
            if worker.request.apart:
                session.trials.close(worker)


def greet(session: Session) -> None:
    """Learn from a worker what this machine is. Raises ValueError where nothing can be measured on it."""

    def hear(worker: Told, message: object) -> None:
        match message:
            case MachineFound(fields):
                session.hello = fields
            case WorkerEnd():
                if outcome := outcome_of(session, worker, message):
                    session.end(f"a worker that only looks at the machine ended: {outcome.reason}")

    run_workers(session, [session.request(Kind.HELLO, session.planned)], hear)
    if problem := session.hello.get("problem") or session.end_reason:
        raise ValueError(problem)


def check(session: Session) -> None:
    """Call each contender in a worker that only checks before one that measures does. What hangs or dies there costs
    its own row. Compiles on the way."""
    shapes = _unchecked(session)
    if not shapes:
        return
    beside = []
    if session.options.device == "cuda" and not session.epochs:
        beside = [shape for shape in shapes if not _is_linked(shape)]  # a link keeps no pace beside other processes
    several = max(1, min(CHECKERS, machine.cores() // 4))
    _check(session, [beside[index::several] for index in range(several)], [])
    _check(session, [[shape for shape in shapes if shape not in beside]], shapes)


def _check(session: Session, parts: list[list[str]], tried: list[str]) -> None:
    """Check all `parts` at once, the shapes of each by one worker after another. Who is suspected on a shape that is
    `tried` is checked alone; on others, where no more workers run beside, as it may have lacked memory."""
    trials = session.trials
    unchecked = {shape for part in parts for shape in part}
    asked = len(unchecked)

    def next_requests(part: list[str]) -> list[Request]:
        """The request for a trial, if one is due, or else for what is left of a part."""
        apart, cases = trials.next(tried)
        suspected = {name for shape, name in trials.waiting if shape in part}
        for shape, names in {} if apart else trials.left().items():
            names = [name for name in names if name not in suspected and (shape, name) not in trials.innocent]
            if shape in unchecked and shape in part and names:
                cases[shape] = names
        return [session.request(Kind.CHECK, cases, apart)] if cases else []

    def hear(worker: Told, message: object) -> None:
        match message:
            case StepBegan():
                done = asked - len(unchecked)
                session.show_progress(f"{done} of {asked} shapes checked: {message.words}")
            case ShapeChecked(shape):
                worker.done.add(shape)
                if not worker.request.apart:
                    unchecked.discard(shape)
                session.checked[shape] = message
            case WorkerEnd():
                keep(session, worker, message)
                requests.extend(next_requests(parts[0] if worker.request.apart else [*worker.request.cases]))
            case _:
                keep(session, worker, message)

    requests = [request for part in parts for request in next_requests(part)]
    run_workers(session, requests, hear)


def _unchecked(session: Session) -> list[str]:
    """Shapes of which something is left, without a pass; those over a link last."""
    left = sorted(session.trials.left(), key=_is_linked)
    return [shape for shape in left if not session.run.passes(shape)]


def _is_linked(shape: str) -> bool:
    return operations.find(shape).analysis == "overlap"


def name_kernels(session: Session) -> None:
    """Journal the names of the kernels that were measured and have none yet, or the bytes that their calls need. What
    runs between ranks is left out. Arms run the matmul of the same name and the link's copier. A trace that is made
    again on one rank alone would leave the others waiting."""
    cases: dict[str, list[str]] = {}
    for shape in session.run.shapes.values():
        field = "costs" if shape.facts.get("has_costs") else "kernel_name"
        is_nameless = session.options.device != NAMED or operations.find(shape.op).between_ranks
        if field == "kernel_name" and is_nameless:
            continue
        for name in shape.measured:
            if field not in shape.entrants[name]:
                cases.setdefault(shape.id, []).append(name)

    def hear(worker: Told, message: object) -> None:
        match message:
            case JournalLines([{"shape": shape_id} as line]):
                for made in [shape for shape in session.run.shapes.values() if shape.id == shape_id]:
                    session.writer.add(line | {"apart": made.apart})
            case WorkerEnd():
                if outcome := outcome_of(session, worker, message):
                    session.writer.note("kernel names", f"Kernel names: not all were found: {outcome.reason}.")
            case _:
                keep(session, worker, message)

    if cases:
        run_workers(session, [session.request(Kind.NAMES, cases)], hear)
