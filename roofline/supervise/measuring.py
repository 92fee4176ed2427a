"""The stage that measures: process by process, passes over all shapes, and how long that still takes.

A run that decides goes on with what is undecided, and a suspect is measured alone.
"""

import time
from collections import Counter

from roofline.store.lines import as_read
from roofline.store.outcome import FAILED, Outcome
from roofline.store.run import INTERRUPTED, Shape
from roofline.supervise import stages
from roofline.supervise.blame import conclude, next_suspect
from roofline.supervise.child import Told, WorkerEnd
from roofline.supervise.listen import run_workers
from roofline.supervise.plan import duration
from roofline.supervise.supervisor import Supervisor
from roofline.worker import telemetry
from roofline.worker.messages import Kind, Request, ShapePrepared, StepBegan, Turns


def measure(supervisor: Supervisor) -> None:
    """Check and measure all that is left. Afterwards each contender has a record in the run, or an outcome, unless the
    run has an `end_reason`."""
    if supervisor.root:
        stages.check(supervisor)
    ended: Counter = Counter()
    since, passes_before = time.monotonic(), passes_done(supervisor)

    def hear(worker: Told, message: object) -> None:
        match message:
            case StepBegan():
                words, done = progress(supervisor, worker, since, passes_before)
                supervisor.show_progress(f"{words}: {message.words}", done)
            case ShapePrepared(shape):
                worker.prepared[shape.id] = shape
            case Turns():
                add_turns(supervisor, worker, message)
            case WorkerEnd():
                conclude(supervisor, worker, message, ended)
                _close(supervisor, worker, message)
                requests.extend(next_requests(supervisor, ended))
            case _:
                stages.keep(supervisor, message)

    requests = next_requests(supervisor, ended, "resume" if supervisor.run.shapes else "start")
    run_workers(supervisor, requests, hear)


def next_requests(supervisor: Supervisor, ended: Counter, when: str = "") -> list[Request]:
    """The request for the next process, if anything is left: for passes over all shapes that are not over, or else for
    a suspect. `when` is that of `Request`."""
    if supervisor.end_reason:
        return []
    supervisor.close_decided()
    passes = supervisor.passes_left()
    if not passes:
        return _request_alone(supervisor, ended, when)
    cases = {shape: supervisor.left(shape) for shape in passes}
    is_planned = min(supervisor.passes_made().values()) < supervisor.planned_passes
    processes = supervisor.processes
    return [_request(supervisor, cases, passes, processes=processes, when=when, is_planned=is_planned)]


def _request_alone(supervisor: Supervisor, ended: Counter, when: str) -> list[Request]:
    """The request for all passes of a suspect, over its shape, which is over for the others."""
    if not (suspect := next_suspect(supervisor, ended)):
        return []
    shape, name = suspect
    measured = supervisor.run.shapes.get(shape)
    is_measured = measured and measured.stopped_by != INTERRUPTED  # else nobody else was
    if not is_measured or (name == measured.baseline and name in measured.measured):  # it took turns since
        return next_requests(supervisor, ended, when)
    request = _request(supervisor, {shape: [name]}, {shape: supervisor.passes}, suspect=name)
    request.entrants[shape] = [*measured.late, name]
    return [request]


def _request(supervisor: Supervisor, cases: dict[str, list[str]], passes: dict[str, int], **fields) -> Request:
    """The request for a process that measures; `fields` are further ones."""
    shapes = supervisor.run.shapes.values()
    number = 1 + max((round_.process for shape in shapes for round_ in shape.rounds), default=-1)
    ceilings = supervisor.ceilings
    return supervisor.request(Kind.MEASURE, cases, passes=passes, process=number, ceilings=ceilings, **fields)


def passes_done(supervisor: Supervisor) -> int:
    return sum(shape.passes for shape in supervisor.run.shapes.values())


def progress(supervisor: Supervisor, worker: Told, since: float, passes_before: int) -> tuple[str, float | None]:
    """How far the run is, in words, and the fraction of the passes that are made; None where nobody knows. The run goes
    on since `since`, and there were `passes_before` then."""
    done = passes_done(supervisor)
    if not worker.request.is_planned:
        undecided = f"{len(worker.request.cases)} of {len(supervisor.planned)} shapes undecided"
        return f"{done} passes, {undecided}", None
    left = sum(max(0, supervisor.planned_passes - made) for made in supervisor.passes_made().values())
    words = f"{done} of {done + left} passes"
    if made := done - passes_before:
        left_s = left * (time.monotonic() - since) / made  # the rest goes on as it went until now
        words += f", {duration(left_s + supervisor.plan.report_s)} left"
    return words, done / (done + left or 1)


def add_turns(supervisor: Supervisor, worker: Told, turns: Turns) -> None:
    """Journal new rounds, numbered behind those of earlier workers, behind the line of how far their shape is measured
    by now. The run gets the rounds themselves."""
    is_new_process = turns.shape not in worker.measured
    worker.measured.add(turns.shape)
    shape = supervisor.run.shapes.get(turns.shape)
    if is_new_process and shape and not shape.passes:  # rounds of no whole pass
        shape = None
    before = shape or worker.prepared[turns.shape]
    for index, round_ in enumerate(turns.rounds, before.round_count):
        round_.index = index
        round_.pass_index = before.passes + 1
        round_.process = worker.request.process
    header = {"kind": "pass", "shape": turns.shape} if shape else before.line()
    header = as_read(header | _changes(supervisor, worker, turns, before, is_new_process))
    if supervisor.write(header, *[round_.line(turns.shape) for round_ in turns.rounds]):
        supervisor.run.apply(header)
        supervisor.run.shapes[turns.shape].rounds += turns.rounds
        supervisor.add(*turns.timelines)


def _changes(supervisor: Supervisor, worker: Told, turns: Turns, before: Shape, is_new_process: bool) -> dict:
    """The fields of a shape that `turns` change."""
    suspect = worker.request.suspect
    passes = before.passes + turns.whole
    is_decided = supervisor.options.decide and before.analysis == "throughput"  # by `close_decided`
    is_last = turns.whole and passes == supervisor.planned_passes and not is_decided
    read = before.telemetry or turns.telemetry
    if turns.whole:
        cut_off = sum(round_.pass_index > before.passes for round_ in before.rounds)
        in_pass = cut_off + len(turns.rounds)
        read = telemetry.merged(before.telemetry, before.round_count - cut_off, turns.telemetry, in_pass)
    fields = {
        "passes": passes,
        "processes": before.processes + is_new_process,
        "stopped_by": (is_last and turns.stopped_by) or INTERRUPTED,
        "round_count": before.round_count + len(turns.rounds),
        "telemetry": read,
        "late": _late(supervisor, worker, turns, before.late),
    }
    if suspect:  # the shape is over for the others
        fields["entrants"] = worker.prepared[turns.shape].entrants | before.entrants
        fields["stopped_by"] = before.stopped_by
    return fields


def _late(supervisor: Supervisor, worker: Told, turns: Turns, before: dict[str, int]) -> dict[str, int]:
    """The samples dropped by now, of each entrant that is still in."""
    late = {}
    for name, count in before.items():
        if worker.request.suspect or (turns.shape, name) in supervisor.suspects:  # it is in, and took no turn
            late[name] = count
    for name, count in turns.late.items():
        late[name] = count + before.get(name, 0)
    return late


def _close(supervisor: Supervisor, worker: Told, end: WorkerEnd) -> None:
    """Journal what a process took, of a run that decides. Where it did all that it was asked for, who has neither a
    turn nor an outcome is not asked for again."""
    request = worker.request
    if supervisor.options.decide:
        line = {"kind": "process", "seconds": time.monotonic() - worker.began}
        supervisor.add(line | {"process": request.process, "planned": request.is_planned})
    if not end.is_well or supervisor.end_reason:
        return
    for shape, names in request.cases.items():
        for name in names:
            if shape not in worker.measured and name in supervisor.left(shape):
                outcome = Outcome(FAILED, f"{name}: its runner left it out, and did not say why")
                supervisor.lose(shape, name, outcome)
