"""The stage that measures: process by process, passes over all shapes, and how long that still takes.

A run that decides goes on with what is undecided, and who is suspected is measured alone.
"""

import time

from roofline.analysis import decision
from roofline.protocol.messages import Kind, Request, StepBegan
from roofline.supervise import stages
from roofline.supervise.child import Told, WorkerEnd
from roofline.supervise.listen import run_workers
from roofline.supervise.run_writer import pass_line
from roofline.supervise.session import Session
from roofline.theory.words import duration


def measure(session: Session) -> None:
    """Check and measure all that is left. Afterwards each contender has a record in the run, or an outcome, unless the
    run has an `end_reason`."""
    if session.root:
        stages.check(session)
        session.trials.innocent.clear()
    since, passes_before = time.monotonic(), passes_done(session)

    def hear(worker: Told, message: object) -> None:
        match message:
            case StepBegan():
                session.show_progress(f"{progress(session, worker, since, passes_before)}: {message.words}")
            case WorkerEnd():
                stages.keep(session, worker, message)
                if session.options.decide and not worker.request.apart:
                    about = {"process": worker.request.process, "planned": worker.request.is_planned}
                    session.writer.add({"kind": "process", "seconds": worker.seconds} | about)
                requests.extend(next_requests(session))
            case _:
                stages.keep(session, worker, message)

    requests = next_requests(session, "resume" if session.run.shapes else "start")
    run_workers(session, requests, hear)


def next_requests(session: Session, when: str = "") -> list[Request]:
    """The request for a trial, if one is due, or else for the next process, if anything is left: for passes over all
    shapes that are not over. `when` is that of `Request`."""
    if session.end_reason:
        return []
    apart, left = session.trials.next(session.planned)
    if not apart:
        close_decided(session)
        left = session.trials.left()
    made = {shape: session.run.passes(shape, apart) for shape in left}
    passes = passes_left(made, session.passes)
    if not passes:
        return []
    request = session.request(
        Kind.MEASURE,
        {shape: left[shape] for shape in passes},
        apart,
        passes=passes,
        processes=1 if apart else session.processes,
        when=when,
        is_planned=min(made.values()) < session.planned_passes,
    )
    return [request]


def close_decided(session: Session) -> None:
    """End the shapes that have the passes of the plan and are decided; all of them where the time for that is up."""
    run = session.run
    still_open = []
    for name in run.interrupted:
        shape = run.shapes[name]
        if name not in session.planned or shape.passes < session.planned_passes or shape.passes % session.passes:
            continue
        if decision.is_open(run, shape):
            still_open.append(shape)
        else:
            session.writer.add(pass_line(shape, stopped_by="decision"))
    if still_open and decision.is_time_up(run):
        for shape in still_open:
            session.writer.add(pass_line(shape, stopped_by="time"))


def passes_done(session: Session) -> int:
    return sum(shape.passes for shape in session.run.shapes.values())


def progress(session: Session, worker: Told, since: float, passes_before: int) -> str:
    """The progress of the run, in words. It goes on since `since`, and there were `passes_before` then."""
    done = passes_done(session)
    if worker.request.apart:
        return f"{done} passes, {worker.request.apart} alone"
    if not worker.request.is_planned:
        return f"{done} passes, {len(worker.request.cases)} of {len(session.planned)} shapes undecided"
    left = 0
    for shape in session.trials.left():
        left += max(0, session.planned_passes - session.run.passes(shape))
    words = f"{done} of {done + left} passes"
    if made := done - passes_before:
        left_s = left * (time.monotonic() - since) / made  # the rest goes on as it went until now
        words += f", {duration(left_s + session.plan.report_s)} left"
    return words


def passes_left(made: dict[str, int], passes: int) -> dict[str, int]:
    """{shape: passes} that the next process still has to make, where each process makes so many."""
    left = {}
    for shape, done in made.items():
        if done // passes == min(made.values()) // passes:  # others are a process ahead
            left[shape] = passes - done % passes
    return left
