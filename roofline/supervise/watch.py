"""Workers to their end: begun one after another, listened to, let go on, and ended.

Nothing is measured here. A worker's message is handled, and what it tells journalled, before it is let go on; meanwhile
this process sleeps. A worker that is at one step for too long, or ends by itself, is ended with all its processes, and
its job (`supervise.jobs`) says what becomes of what it was at.
"""

import os
import time
from contextlib import suppress
from copy import deepcopy
from multiprocessing.connection import wait

from roofline.supervise import signals
from roofline.supervise.blame import WorkerEnd
from roofline.supervise.child import DEATH_S, Child
from roofline.supervise.epochs import RankLostError
from roofline.supervise.jobs import Job
from roofline.supervise.supervisor import Supervisor
from roofline.worker import worker
from roofline.worker.messages import Step, Stopped

LOOK_S, RANKS_LOOK_S, FIRST_LOOK_S = 2.0, 0.5, 0.05
"""From one look to the next at a worker that tells nothing, on ranks, and at one that has told nothing yet."""

GRACE_S, RANKS_GRACE_S = 5.0, 1.0
"""For a worker to tell its whole rounds, once it was asked to end; on ranks it may wait for another that is gone."""
APART_S = 0.7
"""Signals closer together are one: `timeout` sends its own to the process and to its group."""
BY_SIGNAL = 130
"""Exit code of a run that a second signal ended."""


def supervise(supervisor: Supervisor, jobs: list[Job]) -> None:
    """Run the workers of `jobs` at once, each job's one after another, until all jobs have no more.

    Raises KeyboardInterrupt where a signal came, once the workers have told their whole rounds."""
    if supervisor.root:
        Watch(supervisor).run(jobs)
        return
    for job in jobs:
        _run_here(supervisor, job)


def _run_here(supervisor: Supervisor, job: Job) -> None:
    """Run the workers of `job` in this process."""

    def tell(message: object) -> None:
        job.handlers[type(message)](job, deepcopy(message))  # as from another process
        if supervisor.end_reason:
            raise Stopped

    while not supervisor.end_reason and (request := job.next_request()):
        job.begin(request, time.process_time)
        with suppress(Stopped):
            worker.run(request, tell, supervisor.runners)
        job.end(WorkerEnd(job.step, broke=job.broke))


class Watch:
    """Watches the workers that run now, for `supervisor`."""

    def __init__(self, supervisor: Supervisor):
        self.supervisor, self.epochs = supervisor, supervisor.epochs
        self._jobs: dict[Child, Job] = {}
        """{running worker: its job}."""

    def run(self, jobs: list[Job]) -> None:
        supervisor = self.supervisor
        with signals.noted() as (supervisor.signals, woken):
            try:
                for job in jobs:
                    self._begin(job)
                while self._jobs and not supervisor.signals:
                    self._listen(woken)
                if supervisor.signals:
                    self._stop()
            except RankLostError as lost:
                supervisor.end_reason = str(lost)
            finally:
                for child in self._jobs:
                    child.end()
        if supervisor.signals:
            if self.epochs:  # torchrun sends more
                signals.ignore_signals()
            else:
                signals.answer(lambda number, frame: self._end_at_once(signals.name_of(number)))
            raise KeyboardInterrupt(supervisor.signals[0][0])

    def _begin(self, job: Job) -> None:
        """Begin the next worker of `job`, if it has one; all ranks begin theirs."""
        if self.supervisor.end_reason:
            return
        request = job.next_request()
        if not request or self.supervisor.signals:  # which may have come meanwhile
            return
        if self.epochs:
            request = self.epochs.begin(request)
        try:
            child = Child(request, self.supervisor.root)
        except OSError as error:
            reason = f"a worker could not begin: {error}; set TMPDIR to a folder that can be written"
            self.supervisor.end_reason = reason
            return
        self._jobs[child] = job
        job.begin(request, child.cpu_s)

    def _listen(self, woken: list) -> None:
        """Handle what workers tell until the next look, and end those that have ended or hang."""
        if self.epochs:
            self.epochs.check_heartbeats()
        children = {child.waits_at: child for child in self._jobs}
        ready = wait([*children, *woken], self._look_s())
        told = {children.get(place) for place in ready}
        for child in children.values():
            if child in told or child.is_over:
                self._hear(child)
            elif self._jobs[child].patience.is_over() or (self.epochs and self.epochs.store_get("failed")):
                self._end(child, child.stands())
        if self.epochs:
            self._hear_of_signals()

    def _hear_of_signals(self) -> None:
        """A signal that came to another rank ends the run here, too."""
        name = self.epochs.store_get("interrupted")
        if name and not self.supervisor.signals:
            self.supervisor.signals.append((name, time.monotonic()))

    def _look_s(self) -> float:
        """The seconds until the next look, where no worker tells anything: no step may outlast its limit."""
        look_s = RANKS_LOOK_S if self.epochs else LOOK_S
        if self.supervisor.signals or any(job.step.step == Step.START for job in self._jobs.values()):
            look_s = FIRST_LOOK_S
        least_left_s = min(job.patience.left_s for job in self._jobs.values())
        return max(0.0, min(look_s, least_left_s))

    def _hear(self, child: Child) -> None:
        """Handle a message, or the first connection, of a worker that tells something or has ended."""
        job = self._jobs[child]
        try:
            if child.is_over:
                raise EOFError
            if not child.channel:
                return child.connect()
            message = child.channel.receive()
        except (EOFError, OSError):
            how = child.end(within_s=2.0)
            return self._end(child, "" if job.is_done else how)
        job.handlers[type(message)](job, message)
        if job.broke and self.epochs:  # nobody lets it go on
            self._end(child)
        else:
            child.channel.acknowledge(stop=bool(self.supervisor.end_reason))

    def _end(self, child: Child, how: str = "") -> None:
        """The worker has ended: well, or by `how`. Where ranks do not end well, the run is over, and the job learns
        whose fault it was."""
        job = self._jobs[child]
        end = WorkerEnd(job.step, how, child.marked, job.broke)
        if self.epochs and (how or job.broke) and not self.supervisor.signals:
            end = self.epochs.end(end)
        del self._jobs[child]
        self._end_child(child, job)
        job.end(end)
        self._begin(job)

    def _end_child(self, child: Child, job: Job) -> None:
        """End the process of a worker. Where the driver holds it, the report says so."""
        child.end()
        if child.is_held and self.supervisor.run:
            at = job.step.words
            self.supervisor.note(
                f"held process, {at}",
                f"A process that was killed ({at}) was still there {DEATH_S:.0f} s later, held by the driver of its "
                "device: what was measured after it may have shared the device with it.",
            )

    def _stop(self) -> None:
        """Let all workers tell their whole rounds and end. A second signal ends them and the run at once."""
        _, when = self.supervisor.signals[0]
        deadline = time.monotonic() + (RANKS_GRACE_S if self.epochs else GRACE_S)
        for child in self._jobs:
            child.process.terminate()
        while self._jobs and time.monotonic() < deadline:
            self._listen([])
            name, again = self.supervisor.signals[-1]
            if again - when >= APART_S and not self.epochs:
                for child in self._jobs:
                    child.end()
                self._end_at_once(name)

    def _end_at_once(self, name: str) -> None:
        supervisor = self.supervisor
        if supervisor.narrator and supervisor.run:
            ways_on = signals.ways_on(supervisor.run, supervisor.folder)
            supervisor.narrator.say("\n".join(["", f"{name} came after another signal", *ways_on]))
        os._exit(BY_SIGNAL)
