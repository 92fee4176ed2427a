"""Workers from their beginning to their end, as a loop over what they tell.

A message is acknowledged when the loop asks for the next one: what its body did with it, as to journal it, came before.
Meanwhile this process sleeps. A worker that is at one step for too long, or ends by itself, is ended with all its
processes. How it ended is the last that is heard of it; what becomes of what it was at is in `supervise.blame`.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from copy import deepcopy
from multiprocessing.connection import wait

from roofline import operations
from roofline.supervise import signals
from roofline.supervise.child import DEATH_S, Child, Told, WorkerEnd
from roofline.supervise.epochs import RankLostError
from roofline.supervise.limits import Patience
from roofline.supervise.supervisor import Supervisor
from roofline.worker import machine
from roofline.worker import worker as worker_here
from roofline.worker.messages import Request, StepBegan, Stopped

LOOK_S = 0.5
"""From one look to the next at workers that tell nothing: one may have ended before it was connected."""

GRACE_S, RANKS_GRACE_S = 5.0, 1.0
"""For a worker to tell its whole rounds, once it was asked to end; on ranks it may wait for another that is gone."""
APART_S = 0.7
"""Signals closer together are one: `timeout` sends its own to the process and to its group."""
BY_SIGNAL = 130
"""Exit code of a run that a second signal ended."""


Messages = Iterator[tuple[Child, object]]
"""Workers, and what each tells."""


def run_workers(supervisor: Supervisor, requests: list[Request], hear: Callable[[Told, object], None]) -> None:
    """Run a worker for each of `requests`, all at once, and let `hear` handle what they tell, each one's `WorkerEnd`
    last. It may add requests. Raises KeyboardInterrupt where a signal came, once the workers have told their whole
    rounds."""
    if supervisor.root:
        with closing(listen(supervisor, requests)) as messages:
            for worker, message in messages:
                hear(worker, message)
        return

    def tell(message: object) -> None:
        message = deepcopy(message)  # as from another process
        worker.take(message)
        hear(worker, message)
        if supervisor.end_reason:
            raise Stopped

    while requests and not supervisor.end_reason:
        worker = Told(requests.pop(0))
        with suppress(Stopped):
            worker_here.run(worker.request, tell, supervisor.runners)
        hear(worker, worker.ended())


def listen(supervisor: Supervisor, requests: list[Request]) -> Messages:
    """Begin workers that do `requests`, and yield what each tells, until there are no more of both."""
    workers: list[Child] = []
    with signals.noted() as (supervisor.signals, woken):
        try:
            while not supervisor.signals:
                if requests and not supervisor.end_reason:
                    workers += _begun(supervisor, requests.pop(0))
                elif workers:
                    yield from _look(supervisor, workers, woken)
                else:
                    break
            if supervisor.signals:
                yield from _stop(supervisor, workers)
        except RankLostError as lost:
            supervisor.end_reason = str(lost)
        finally:
            for worker in workers:
                worker.end()
    if supervisor.signals:
        if supervisor.epochs:  # torchrun sends more
            signals.ignore_signals()
        else:
            signals.answer(lambda number, frame: _end_at_once(supervisor, signals.name_of(number)))
        raise KeyboardInterrupt(supervisor.signals[0][0])


def _begun(supervisor: Supervisor, request: Request) -> list[Child]:
    """A worker that begins, as all ranks begin theirs; none where the system has no room for it."""
    if supervisor.epochs:
        request = supervisor.epochs.begin(request)
    try:
        worker = Child(request, supervisor.root)
    except OSError as error:
        supervisor.end_reason = f"a worker could not begin: {error}; set TMPDIR to a folder that can be written"
        return []
    worker.patience = _patience(supervisor, worker)
    return [worker]


def _patience(supervisor: Supervisor, worker: Child) -> Patience:
    """How long a worker may be at its step, by what a call of the baseline took, or else by its work and what the
    machine does."""
    options, shape, call_s = supervisor.options, worker.step.shape, 0.0
    if shape:
        case, _ = operations.parse(shape)
        flops_per_s = machine.flops_per_s(options.device, supervisor.hello["machine"]["datasheet"])
        call_s = max(case.work.flop / flops_per_s, supervisor.baseline_call_s.get(shape, 0.0))
    return Patience(worker.step, options, call_s, worker.cpu_s)


def _look(supervisor: Supervisor, workers: list[Child], woken: list) -> Messages:
    """Yield what `workers` tell until the next look, and how those ended that are over, or hang: no step may outlast
    its limit."""
    places = [worker.waits_at for worker in workers]
    look_s = min(LOOK_S, *[worker.patience.left_s for worker in workers])
    ready = wait([*places, *woken], max(0.0, look_s))
    have_failed = supervisor.epochs and _hear_of_ranks(supervisor)
    for worker in list(workers):
        is_heard = worker.waits_at in ready or worker.is_over
        message = None
        if is_heard:
            message = _next(supervisor, worker)
        elif have_failed or worker.patience.is_over():
            message = _end(supervisor, worker, worker.stands())
        if message:
            yield worker, message
        if isinstance(message, WorkerEnd):
            workers.remove(worker)
        elif message:
            worker.channel.acknowledge(stop=bool(supervisor.end_reason))


def _hear_of_ranks(supervisor: Supervisor) -> bool:
    """Whether another rank has failed. A signal that came to one ends the run here, too."""
    supervisor.epochs.check_heartbeats()
    name = supervisor.epochs.store_get("interrupted")
    if name and not supervisor.signals:
        supervisor.signals.append((name, time.monotonic()))
    return bool(supervisor.epochs.store_get("failed"))


def _next(supervisor: Supervisor, worker: Child) -> object:
    """The next message of a worker that tells something, or how it ended; None where it only connects."""
    try:
        message = worker.receive()
    except (EOFError, OSError):
        how = worker.end(within_s=2.0)
        return _end(supervisor, worker, "" if worker.is_done else how)
    except ValueError as error:
        return _end(supervisor, worker, f"a message that cannot be read: {error}")
    if isinstance(message, StepBegan):
        worker.patience = _patience(supervisor, worker)
    if worker.broke and supervisor.epochs:  # nobody lets it go on
        return _end(supervisor, worker)
    return message


def _end(supervisor: Supervisor, worker: Child, how: str = "") -> WorkerEnd:
    """End a worker, which did well, or ended by `how`. Where ranks do not end well, the run is over, and this finds
    whose fault it was. Where the driver holds the process, the report says so."""
    end = worker.ended(how)
    if supervisor.epochs and not end.is_well and not supervisor.signals:
        end = supervisor.epochs.end(end)
    worker.end()
    if worker.is_held and supervisor.run:
        at = worker.step.words
        supervisor.note(
            f"held process, {at}",
            f"A process that was killed ({at}) was still there {DEATH_S:.0f} s later, held by the driver of its "
            "device: what was measured after it may have shared the device with it.",
        )
    return end


def _stop(supervisor: Supervisor, workers: list[Child]) -> Messages:
    """Let all workers tell their whole rounds and end. A second signal ends them and the run at once."""
    _, when = supervisor.signals[0]
    deadline = time.monotonic() + (RANKS_GRACE_S if supervisor.epochs else GRACE_S)
    for worker in workers:
        worker.process.terminate()
    while workers and time.monotonic() < deadline:
        yield from _look(supervisor, workers, [])
        name, again = supervisor.signals[-1]
        if again - when >= APART_S and not supervisor.epochs:
            for worker in workers:
                worker.end()
            _end_at_once(supervisor, name)


def _end_at_once(supervisor: Supervisor, name: str) -> None:
    if supervisor.narrator and supervisor.run:
        ways_on = signals.ways_on(supervisor.run, supervisor.folder)
        supervisor.narrator.say("\n".join(["", f"{name} came after another signal", *ways_on]))
    os._exit(BY_SIGNAL)
