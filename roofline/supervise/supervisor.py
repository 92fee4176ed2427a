"""One benchmark run: its folder, its journal, and the workers that measure it.

The supervisor measures nothing. It begins a worker, journals each line that it tells before it is let go on, and sleeps
meanwhile. A worker that is at one step for too long, or ends by itself, is ended with all its processes, and its job
(`supervise.jobs`) says what becomes of what it was at.
"""

import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from datetime import UTC, datetime
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from roofline import operations
from roofline.operations.options import as_values
from roofline.store import journal
from roofline.store.lines import as_read, plain
from roofline.store.outcome import FAILED, NOT_RUN, Outcome
from roofline.store.run import INTERRUPTED, Run, Shape
from roofline.store.stats import grouped
from roofline.supervise import epochs, signals
from roofline.supervise.blame import HUNG
from roofline.supervise.child import DEATH_S, Child
from roofline.supervise.epochs import Epochs, RankLostError, WorkerEnd
from roofline.supervise.plan import Plan
from roofline.worker import worker
from roofline.worker.machine import anonymous
from roofline.worker.messages import Request, Step, Stopped, Turns

MOST_TIMES = 3
"""A run with decisions takes up to so many times the time of its plan."""

LOOK_S, RANKS_LOOK_S, FIRST_LOOK_S = 2.0, 0.5, 0.05
"""From one look to the next at a worker that tells nothing, on ranks, and at one that has told nothing yet."""

GRACE_S, RANKS_GRACE_S = 5.0, 1.0
"""For a worker to tell its whole rounds, once it was asked to end; on ranks it may wait for another that is gone."""
APART_S = 0.7
"""Signals closer together are one: `timeout` sends its own to the process and to its group."""
BY_SIGNAL = 130
"""Exit code of a run that a second signal ended."""


Running = dict[Child, Any]
"""Workers that run, each with its `supervise.jobs.Job`."""


class Supervisor:
    """Runs the workers of a run, and journals what they tell. `run` is what is known of it by now."""

    def __init__(
        self, options, planned: dict[str, list[str]], runners, root: Path | None, epochs: Epochs | None = None,
        *, is_base: bool = False,
    ):  # fmt: skip
        """`planned` is {shape: contenders}. `root` is the folder that workers begin in; without it they run in this
        process. `epochs` is what supervisors of several ranks say to one another. `is_base`: its workers are those of
        another checkout, which is `root`."""
        self.options, self.planned, self.runners, self.root, self.epochs = options, planned, runners, root, epochs
        self.signals: list[tuple[str, float]] = []
        """(name, when) of those that ask for the end."""
        self.plan: Plan | None = None
        """How long the run takes, once that was reckoned."""
        self.hello: dict = {}
        """What the first worker tells of the machine, of its ranks, and of the clock that times the contenders."""
        self.end_reason = ""
        """Why nothing more can be measured, if that is so."""
        self.progress: Callable[[str, float | None], None] = lambda text, done: None
        """Shows how far the run is: in words, and as the fraction of its passes that are made, where that is known."""
        self.say: Callable[[str], None] = lambda text: None
        self.name_kernels: Callable[[], None] = lambda: None
        """Called once all timing is over."""
        self.is_open: Callable[[Shape], bool] = lambda shape: False
        """Returns whether more processes may decide on a contender of a shape."""
        self.why_undecided: Callable[[list[Shape]], str] = lambda shapes: ""
        """Returns why shapes that the plan left undecided are given up; empty to go on. Asked once."""
        self._is_gone_on = False
        self.reference_s: dict[str, float] = {}
        """Shape -> what a call of its baseline took when it was checked."""
        self.chosen: dict[str, dict] = {}
        """Shape -> facts that a worker chose when it checked it."""
        self.base: Supervisor | None = None
        """That of the other checkout, whose workers take turns with these."""
        self._is_base = is_base
        self.run: Run | None = None
        self.ceilings: list[dict] = []
        """Those that were measured by now, of which the probes take turns with contenders."""
        self.outcomes: dict[str, Outcome] = {}
        """By case, of what was tried and has no number."""
        self.suspects: dict[str, tuple[str, str]] = {}
        """Case -> shape and contender, at whose call a worker died. It is left out until it is tried alone."""

    def open(self, folder: Path, run: dict | Run) -> None:
        """Begin the run whose first line is `run`, in a new folder, or go on with `run` in its own.

        Raises OSError for a folder that cannot be written, or has no room."""
        self.folder = journal.make_folder(folder) if isinstance(run, dict) else folder
        self._journal = journal.Journal(self.folder)
        if isinstance(run, dict):
            self.run = Run(as_read(run))
            self.add({"kind": "run"} | run)
        else:
            self.run = run
            self.add({"kind": "resumed", "started": _now()})
        self.ceilings = self.run.ceilings
        self._recall_outcomes()
        for shape in self.run.shapes.values():  # a run that was cut off before it tried its suspects alone
            lacking = [] if shape.stopped_by == INTERRUPTED else self.planned.get(shape.id, [])
            for name in lacking:
                case = f"{shape.id}-{name}"
                if case not in self.outcomes and name not in shape.measured:
                    self.suspects[case] = shape.id, name
        if self.base:
            self.base.join(self)

    def join(self, other: "Supervisor") -> None:
        """Begin the run of another checkout within that of `other`, in its journal, or go on with it."""
        self.folder, self._journal = other.folder, other._journal
        self.progress = lambda text, done: other.progress(f"base, {text}", done)
        self.say = lambda text: other.say(text)
        self.plan = other.plan
        run = other.run
        run.base = run.base or Run(run.metadata | run.metadata["against"])
        self.run = run.base
        self.ceilings = run.ceilings  # so that the same probes take turns on both sides
        self._recall_outcomes()

    def _recall_outcomes(self) -> None:
        self.outcomes = {each.case: each for each in self.run.not_measured if each.outcome != NOT_RUN}

    @property
    def is_of_two(self) -> bool:
        """Whether its workers take turns with those of another checkout."""
        return self._is_base or self.base is not None

    @property
    def passes(self) -> int:
        """How many times each process comes back to a shape."""
        return self.hello["passes"]

    @property
    def processes(self) -> int:
        """How many processes measure each shape, one after another."""
        return self.options.processes or self.hello["processes"]

    @property
    def planned_passes(self) -> int:
        """How many passes the plan makes over each shape."""
        return self.passes * self.processes

    # What is asked for, and what of it is left.

    def left(self, shape: str) -> list[str]:
        """The contenders to measure on `shape`, unless it is whole."""
        measured = self.run.shapes.get(shape)
        if measured and measured.stopped_by != INTERRUPTED:
            return []
        out = self.outcomes.keys() | self.suspects.keys()
        return [name for name in self.planned[shape] if f"{shape}-{name}" not in out]

    @property
    def undecided(self) -> list[Shape]:
        """The shapes that have the passes of the plan, and are not over."""
        shapes = [self.run.shapes[name] for name in self.run.interrupted if name in self.planned]
        return [shape for shape in shapes if shape.passes >= self.planned_passes]

    def close_decided(self) -> None:
        """End the shapes that are decided; all of them where the run has taken `MOST_TIMES` the time of its plan, or
        comes nearest to that now, or where the plan is over and a decision is not to be expected."""
        still_open = []
        for shape in self.undecided:
            if shape.passes % self.passes:
                continue
            if self.is_open(shape):
                still_open.append(shape)
            else:
                self.add(_pass_line(shape, stopped_by="decision"))
        is_over = self._is_time_up()
        if still_open and not (is_over or self._is_gone_on):
            self._is_gone_on = True
            if reason := self.why_undecided(still_open):
                is_over = True
                self.note("decisions", reason)
        for shape in still_open if is_over else ():
            self.add(_pass_line(shape, stopped_by="time"))

    def _is_time_up(self) -> bool:
        """Whether the next process would take the run farther from `MOST_TIMES` its plan than it is now."""
        seconds = grouped((line["planned"], line["seconds"]) for line in self.run.processes)
        further = seconds.get(False, [0.0])
        return sum(further) + further[-1] / 2 > (MOST_TIMES - 1) * sum(seconds.get(True, []))

    def passes_left(self) -> dict[str, int]:
        """{shape: passes} that the next process still has to make, of the plan or for a decision."""
        each, done = self.passes, {}
        for shape in self.planned:
            if self.left(shape):
                measured = self.run.shapes.get(shape)
                done[shape] = measured.passes if measured else 0
        process = min((passes // each for passes in done.values()), default=0)
        return {shape: each - passes % each for shape, passes in done.items() if passes // each == process}

    def checked(self, shape: str) -> list[str]:
        """The contenders that a worker called on `shape`, and that are right."""
        return self.left(shape) if shape in self.reference_s else []

    @property
    def fruitful(self) -> bool:
        """Whether anything that was asked for has a number."""
        return any(set(names) & set(self.run.measured(shape)) for shape, names in self.planned.items())

    def request(self, kind: str, cases: dict[str, list[str]], **fields) -> Request:
        """What a worker is asked for `cases`; `fields` are further ones of the request."""
        refused = {case: outcome.reason for case, outcome in self.outcomes.items() if outcome.outcome == FAILED}
        chosen = {name: self.chosen[name] for name in cases if name in self.chosen}
        entrants = {}
        for name, shape in self.run.shapes.items() if self.run else ():
            if name in cases and shape.passes:
                chosen[name] = shape.choices
                entrants[name] = list(shape.late)
        return Request(
            kind,
            options=as_values(self.options),
            cases=cases,
            runners=operations.places(cases),
            path=self.path,
            refused=refused,
            chosen=chosen,
            entrants=entrants,
            **fields,
        )

    @property
    def path(self) -> list[str]:
        """Where its workers look for modules: this process's folders, with those of its own checkout in place of this
        one's."""
        if not self._is_base:
            return sys.path
        here, environment, path = Path(operations.__file__).parents[2], Path(sys.prefix), []
        for entry in sys.path:
            folder = Path(entry).absolute()
            is_ours = folder.is_relative_to(here) and not folder.is_relative_to(environment)
            path.append(str(self.root / folder.relative_to(here)) if is_ours else entry)
        return path

    # Workers, to their end.

    def supervise(self, jobs: list) -> None:
        """Run the workers of `jobs` at once, each job's one after another, until all jobs have no more.

        Raises KeyboardInterrupt where a signal came, once the workers have told their whole rounds."""
        if not self.root:
            for job in jobs:
                self._run_here(job)
            return
        running: Running = {}
        with signals.noted() as (self.signals, woken):
            try:
                for job in jobs:
                    self._begin(job, running)
                while running and not self.signals:
                    self._listen(running, woken)
                if self.signals:
                    self._stop(running)
            except RankLostError as lost:
                self.end_reason = str(lost)
            finally:
                for child in running:
                    child.end()
        if self.signals:
            if self.epochs:  # torchrun sends more
                signals.ignore_signals()
            else:
                signals.end_by_next(self._end_at_once)
            raise KeyboardInterrupt(self.signals[0][0])

    def _run_here(self, job) -> None:
        def tell(message: object) -> None:
            job.handlers[type(message)](job, deepcopy(message))  # as from another process
            if self.end_reason:
                raise Stopped

        while not self.end_reason and (request := job.next_request()):
            job.begin(request)
            with suppress(Stopped):
                worker.run(request, tell, self.runners)
            job.end("")

    def _begin(self, job, running: Running) -> None:
        """Begin the next worker of `job`, if it has one; all ranks begin theirs."""
        requests = ((each, request) for each in job.next_jobs() if (request := each.next_request()))
        if self.end_reason or not (pair := next(requests, None)) or self.signals:  # which may have come meanwhile
            return
        job, request = pair
        if self.epochs:
            request = replace(request, world=self.epochs.begin(request))
        try:
            child = Child(request, job.supervisor.root)
        except OSError as error:
            self.end_reason = f"a worker could not begin: {error}; set TMPDIR to a folder that can be written"
            return
        running[child] = job
        job.begin(request, child.cpu_s)

    def _listen(self, running: Running, woken: list) -> None:
        """Handle what workers tell until the next look, and end those that have ended or hang."""
        children = {child.waits_at: child for child in running}
        ready = wait([*children, *woken], self._look_s(running))
        told = {children.get(place) for place in ready}
        for child in children.values():
            if child in told:
                self._hear(child, running)
            elif running[child].patience.is_over():
                self._end(child, running, HUNG)
            elif child.has_ended and not wait([child.waits_at], 0):
                self._end_by_itself(child, running)
            elif self.epochs:
                self.epochs.check_heartbeats()
                if self.epochs.reports():
                    self._end_epoch(child, running)
        if self.epochs:
            self._hear_of_signals()

    def _hear_of_signals(self) -> None:
        """A signal that came to another rank ends the run here, too."""
        name = self.epochs.store_get("interrupted")
        if name and not self.signals:
            self.signals.append((name, time.monotonic()))

    def _look_s(self, running: Running) -> float:
        """The seconds until the next look, where no worker tells anything: no step may outlast its limit."""
        look_s = RANKS_LOOK_S if self.epochs else LOOK_S
        if self.signals or any(job.step.step == Step.START for job in running.values()):
            look_s = FIRST_LOOK_S
        return max(0.0, min(look_s, *(job.patience.left_s for job in running.values())))

    def _hear(self, child: Child, running: Running) -> None:
        """Handle a message, or the first connection, of a worker that tells something or has ended."""
        job = running[child]
        try:
            if not child.channel:
                return child.connect()
            message = child.channel.receive()
        except (EOFError, OSError):
            return self._end_by_itself(child, running, within_s=2.0)
        job.handlers[type(message)](job, message)
        if job.broke and self.epochs:  # nobody lets it go on
            self._end_epoch(child, running, WorkerEnd(0, epochs.RAISED, job.step, broke=job.broke))
        else:
            child.channel.acknowledge(stop=bool(self.end_reason))

    def _end_by_itself(self, child: Child, running: Running, within_s: float = 0.0) -> None:
        how = child.end(within_s)
        self._end(child, running, "" if running[child].is_done else how)

    def _end(self, child: Child, running: Running, how: str) -> None:
        """The worker has ended: well, or by `how`."""
        if how and self.epochs:
            kind = epochs.HUNG if how == HUNG else epochs.DIED
            stands_at = child.stands_at() if how == HUNG else ""
            end = WorkerEnd(0, kind, running[child].step, how, child.marked, stands_at)
            return self._end_epoch(child, running, end)
        job = running.pop(child)
        self._end_child(child, job)
        job.marked = child.marked
        job.end(how)
        self._begin(job, running)

    def _end_child(self, child: Child, job) -> None:
        """End the process of a worker. Where the driver holds it, the report says so."""
        child.end()
        if child.is_held and self.run:
            at = job.step.words
            self.note(
                f"held process, {at}",
                f"A process that was killed ({at}) was still there {DEATH_S:.0f} s later, held by the driver of its "
                "device: what was measured after it may have shared the device with it.",
            )

    def _end_epoch(self, child: Child, running: Running, mine: WorkerEnd | None = None) -> None:
        """End the workers of all ranks since one has ended: this rank's, by `mine`, or another's.

        The job learns whose it was."""
        end = self.epochs.end(mine, self.signals)
        job = running.pop(child)
        self._end_child(child, job)
        if end:
            job.step, job.marked, job.broke = end.step, end.marked, end.broke
            job.end(end.how, str(end.rank))
            self._begin(job, running)

    def _stop(self, running: Running) -> None:
        """Let all workers tell their whole rounds and end. A second signal ends them and the run at once."""
        (name, when), deadline = self.signals[0], time.monotonic() + (RANKS_GRACE_S if self.epochs else GRACE_S)
        for child in running:
            child.process.terminate()
        while running and time.monotonic() < deadline:
            self._listen(running, [])
            name, again = self.signals[-1]
            if again - when >= APART_S and not self.epochs:
                for child in running:
                    child.end()
                self._end_at_once(name)

    def _end_at_once(self, name: str) -> None:
        ways_on = signals.ways_on(self.run, self.folder) if self.run else []
        self.say("\n".join(["", f"{name} came after another signal", *ways_on]))
        os._exit(BY_SIGNAL)

    # What they told.

    def add_outcome(self, outcome: Outcome) -> None:
        """Journal that a case has no number, and why."""
        outcome = replace(outcome, reason=plain(anonymous(outcome.reason)))
        self.outcomes[outcome.case] = outcome
        self.add({"kind": "not_measured"} | outcome.entry)

    def lose(self, shape: str, name: str, outcome: Outcome) -> None:
        """Take a contender out of a shape, with its samples."""
        case = f"{shape}-{name}"
        if case not in self.outcomes:
            self.add_outcome(replace(outcome, case=case))
        measured = self.run.shapes.get(shape)
        if not (measured and measured.rounds):
            return
        if name in measured.late:
            late = {other: count for other, count in measured.late.items() if other != name}
            self.add(_pass_line(measured, late=late))
        if measured.stopped_by == INTERRUPTED and not self.left(shape):  # nobody is left to go on with
            self.add(_pass_line(measured, stopped_by="time"))

    def note(self, about: str, text: str) -> None:
        """Tell in the report what is to be known `about` something, in place of what was told of it before."""
        self.add({"kind": "note", "about": about, "text": plain(anonymous(text))})

    def add(self, *lines: dict) -> None:
        """Journal lines, and apply them to the run. If that fails, the run is over, and neither has any of them."""
        lines = [as_read(line) for line in lines]
        if self._write(*lines):
            for line in lines:
                self.run.take(line)

    def add_turns(self, header: dict, turns: Turns) -> None:
        """Journal the line of a shape, and behind it its new rounds; the run gets the rounds themselves."""
        header = as_read(header)
        timelines = [as_read(timeline) for timeline in turns.timelines]
        rounds = [round_.line(turns.shape) for round_ in turns.rounds]
        if self._write(header, *rounds, *timelines):
            self.run.take(header)
            self.run.shapes[turns.shape].rounds += turns.rounds
            for timeline in timelines:
                self.run.take(timeline)

    def _write(self, *lines: dict) -> bool:
        """Journal lines, and return whether that went well. The run is over where it did not."""
        try:
            self._journal.write(*(line | {"checkout": "base"} if self._is_base else line for line in lines))
        except OSError as error:
            self.end_reason = f"the journal could not be written: {error.strerror}"
            return False
        return True

    def finish(self, why_cut_short: str) -> None:
        """End the run: its kernels get their names if it came to its end, and all that has no number a reason."""
        if not why_cut_short and not self.end_reason:
            self.name_kernels()
        reason = self.end_reason or why_cut_short or "its test ended before it was measured"
        asked = {f"{shape}-{name}" for shape, names in self.planned.items() for name in names}
        for outcome in self.run.missing:
            if outcome.outcome == NOT_RUN:
                self.add_outcome(replace(outcome, reason=reason if outcome.case in asked else "not selected"))
        self.add({"kind": "end", "finished": _now(), "cut_short": self.end_reason or why_cut_short or None})
        self._journal.close()


def _pass_line(shape, **changed) -> dict:
    """What the last pass over a shape came to, some of it `changed`."""
    fields = ("passes", "processes", "stopped_by", "round_count", "telemetry", "late")
    return {"kind": "pass", "shape": shape.id} | {name: getattr(shape, name) for name in fields} | changed


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
