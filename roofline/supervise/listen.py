"""Workers from their beginning to their end, as a loop over what they tell.

A message is acknowledged when the loop asks for the next one: what its body did with it, as to journal it, came before.
Meanwhile this process sleeps. A worker that is at one step for too long, or ends by itself, is ended with all its
processes. How it ended is the last that is heard of it; what becomes of what it was at is in `supervise.blame`.
"""

import os
import time
from collections.abc import Callable, Generator
from contextlib import closing, suppress
from multiprocessing.connection import wait

from roofline import operations
from roofline.host import orphans
from roofline.protocol.messages import Message, Request, Stopped
from roofline.store import typed
from roofline.supervise import signals
from roofline.supervise.child import DEATH_S, Child, Told, WorkerEnd
from roofline.supervise.epochs import RankLostError
from roofline.supervise.limits import limit_s
from roofline.supervise.plan import flops_per_s
from roofline.supervise.session import Session
from roofline.worker import worker as worker_here

LOOK_S = 0.5
"""From one look to the next at workers that tell nothing, and for signals: what one forked may hold its end of the
channel."""

GRACE_S, RANKS_GRACE_S = 5.0, 1.0
"""For a worker to tell its whole rounds, once it was asked to end; on ranks it may wait for another that is gone."""
APART_S = 0.7
"""Signals closer together are one: `timeout` sends its own to the process and to its group."""
BY_SIGNAL = 130
"""Exit code of a run that a second signal ended."""


def run_workers(session: Session, requests: list[Request], hear: Callable[[Told, object], None]) -> None:
    """Run a worker for each of `requests`, all at once, and let `hear` handle what they tell, each one's `WorkerEnd`
    last. It may add requests. Raises KeyboardInterrupt where a signal came, once the workers have told their whole
    rounds."""
    if session.root:
        with closing(listen(session, requests)) as messages:
            for child, message in messages:
                hear(child, message)
        return

    def tell(message: Message) -> None:
        message = typed.read(type(message), typed.decoded(typed.encoded(message)))  # as from another process
        worker.take(message)
        hear(worker, message)
        if session.end_reason:
            raise Stopped

    while requests and not session.end_reason:
        worker = Told(requests.pop(0))
        with suppress(Stopped):
            worker_here.run(worker.request, tell, session.runners)
        hear(worker, worker.ended())


def listen(session: Session, requests: list[Request]) -> Generator[tuple[Child, Message | WorkerEnd], None, None]:
    """Begin workers that do `requests`, and yield what each tells, until there are no more of both."""
    workers: list[Child] = []
    with signals.noted() as session.signals, orphans.adopted():
        try:
            while _goes_on(session, workers, requests):
                for worker in _ready(session, workers):
                    message = worker.hear()
                    if isinstance(message, WorkerEnd):
                        workers.remove(worker)
                        yield worker, _end(session, worker, message)
                    else:
                        yield worker, message
                        worker.go_on(stop=session.is_over(worker))
        except RankLostError as lost:
            session.end(str(lost))
        finally:
            for worker in workers:
                worker.end()
    if session.signals:
        if session.epochs:  # torchrun sends more
            signals.ignore_signals()
        else:
            signals.answer(lambda number, frame: _end_at_once(session, signals.name_of(number)))
        raise KeyboardInterrupt(session.signals[0][0])


def _goes_on(session: Session, workers: list[Child], requests: list[Request]) -> bool:
    """True while there is a worker to listen to. Begins those that are asked for. Once a signal came, all have a while
    to tell their whole rounds and end; a second signal ends them and the run at once."""
    while requests and not (session.end_reason or session.signals):
        _begin(session, workers, requests.pop(0))
    if not session.signals:
        return bool(workers)
    (_, when), (name, again) = session.signals[0], session.signals[-1]
    if again - when >= APART_S and not session.epochs:
        for worker in workers:
            worker.end()
        _end_at_once(session, name)
    for worker in workers:
        worker.stop()
    grace_s = RANKS_GRACE_S if session.epochs else GRACE_S
    return bool(workers) and time.monotonic() < when + LOOK_S + grace_s


def _begin(session: Session, workers: list[Child], request: Request) -> None:
    """Begin a worker, as all ranks begin theirs, and add it to `workers`. The run ends where the system has no room
    for it."""
    if session.epochs:
        request = session.epochs.begin(request)
    try:
        workers.append(Child(request, session.root))
    except OSError as error:
        session.end(f"a worker could not begin: {error}; set TMPDIR to a folder that can be written")


def _set_limit(session: Session, worker: Child) -> None:
    """Set the limit of a worker at its step, by what a call of the baseline took, or else by its work and what the
    machine does."""
    shape, call_s = worker.step.shape, 0.0
    if shape:
        case, _ = operations.parse(shape)
        usual_s = case.work.flop / flops_per_s(session.hello["machine"])
        call_s = max(usual_s, session.checked[shape].baseline_call_s if shape in session.checked else 0.0)
    worker.limit_s = limit_s(worker.step, session.options, call_s)
    worker.deadline = time.monotonic() + worker.limit_s


def _ready(session: Session, workers: list[Child]) -> list[Child]:
    """Those of `workers` that tell something until the next look, are over, or hang: no step may outlast its limit.
    Where another rank has failed, all; a signal that came to one ends the run here, too."""
    look_s = LOOK_S
    for worker in workers:
        if not worker.limit_s:
            _set_limit(session, worker)
        look_s = min(look_s, worker.deadline - time.monotonic())
    wait([worker.channel for worker in workers], max(0.0, look_s))
    if epochs := session.epochs:
        name = epochs.store_get("interrupted")
        if name and not session.signals:
            session.signals.append((name, time.monotonic()))
        if epochs.store_get("failed"):
            return list(workers)
    return [worker for worker in workers if worker.has_told() or time.monotonic() >= worker.deadline]


def _end(session: Session, worker: Child, end: WorkerEnd) -> WorkerEnd:
    """End a worker, and say how it ended. Where ranks do not end well, the run is over, and this finds whose fault it
    was. Where the driver holds the process, the report says so."""
    if session.epochs and not end.is_well and not session.signals:
        end = session.epochs.end(end)
    worker.end()
    if worker.is_held and session.has_begun:
        at = worker.step.words
        session.writer.note(
            f"held process, {at}",
            f"A process that was killed ({at}) was still there {DEATH_S:.0f} s later, held by the driver of its "
            "device: what was measured after it may have shared the device with it.",
        )
    return end


def _end_at_once(session: Session, name: str) -> None:
    if session.narrator and session.has_begun:
        session.narrator.say("\n".join(["", f"{name} came after another signal", *session.narrator.ways_on()]))
    os._exit(BY_SIGNAL)
