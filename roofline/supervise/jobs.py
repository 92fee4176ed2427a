"""What a worker is asked for, one class a kind, and what becomes of what a worker was at when it ends.

A job asks for workers of its kind one after another (`next_request`), and its table `handlers` names what handles each
of their messages. This is what happens where a kernel hangs, dies or loses the device: `Job.end`. The job that measures
is in `supervise.measuring`.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

from roofline import operations
from roofline.supervise.blame import Blame, WorkerEnd, blame
from roofline.supervise.limits import Patience, limit_s
from roofline.supervise.supervisor import Supervisor
from roofline.worker import machine
from roofline.worker.messages import (
    Broke,
    Done,
    JournalLine,
    Kind,
    MachineFound,
    Rejected,
    Request,
    ShapeChecked,
    Step,
    StepBegan,
)

TRIES = 3
"""Workers in a row that may end without anybody to blame."""


class Job:
    """Workers of one kind, one after another, until nothing is left for them."""

    alone = ""
    """The suspect that the worker has alone with the baseline; empty in any other worker."""

    def __init__(self, supervisor: Supervisor):
        self.supervisor = supervisor
        self._ended = defaultdict(int)
        """(step, shape) -> how many workers ended there without anybody to blame."""
        self._tried_alone: set[tuple[str, str]] = set()
        """Shapes and contenders."""

    def next_request(self) -> Request | None:
        """What the next worker is to do; None where nothing is left."""
        raise NotImplementedError

    def begin(self, request: Request, cpu_s: Callable[[], float]) -> None:
        """Make ready for a worker that does what is asked for. `cpu_s` returns what it has used of the CPU."""
        self.request = request
        self._cpu_s = cpu_s
        self.is_done = False
        self.broke: Broke | None = None
        self.on_step(StepBegan(Step.START))

    def baseline_call_s(self, shape: str) -> float:
        """About what a call takes on `shape`: what the baseline took, or else by its work and what the machine does."""
        case, _ = operations.parse(shape)
        device, datasheet = self.supervisor.options.device, self.supervisor.hello["machine"]["datasheet"]
        work_s = case.work.flop / machine.flops_per_s(device, datasheet)
        return max(work_s, self.supervisor.baseline_call_s.get(shape, 0.0))

    def progress(self) -> tuple[str, float | None]:
        """How far the run is, to stand before what it is at, and the fraction of the passes that are made."""
        return "", None

    def on_step(self, step: StepBegan) -> None:
        options = self.supervisor.options
        self.step = step
        self.patience = Patience(
            step,
            limit_s(step, options.device, self.baseline_call_s(step.shape) if step.shape else 0.0),
            cpu_s=self._cpu_s,
            chosen_s=options.first_call_seconds,
            are_ranks=bool(self.supervisor.epochs),
        )
        words, done = self.progress()
        self.supervisor.show_progress(f"{words}{step.words}", done)

    def on_line(self, message: JournalLine) -> None:
        self.supervisor.add(message.line)

    def on_rejected(self, message: Rejected) -> None:
        self.supervisor.lose(message.shape, message.name, message.outcome)

    def on_broke(self, message: Broke) -> None:
        self.broke = message

    def on_done(self, message: Done) -> None:
        self.is_done = True

    handlers: ClassVar[dict[type, Callable[["Job", Any], None]]] = {
        StepBegan: on_step,
        JournalLine: on_line,
        Rejected: on_rejected,
        Broke: on_broke,
        Done: on_done,
    }
    """Type of message -> the method that handles it. A job of a kind adds the messages of that kind, and those that it
    handles otherwise."""

    def culprits(self, end: WorkerEnd) -> list[str]:
        """Who may have ended the worker, by what it was at: a contender, or where that is not known, all but the
        baseline. None where it was at no shape."""
        step = end.step
        if not step.shape:
            return []
        if self.alone or step.name:
            return [self.alone or step.name]
        return self.supervisor.left(step.shape)

    def end(self, end: WorkerEnd) -> None:
        """A worker has ended. Where that was not well, what it was at gets its outcome.

        Where that is no single contender, the shape is tried once more, and then its contenders have it. Where it is
        nothing, the next worker goes on, a few times."""
        if (end.how or end.broke) and not (self.supervisor.end_reason or self.supervisor.signals):
            found = blame(end, self.culprits(end), self.patience.words)
            self.conclude(found.without(self.supervisor.outcomes))

    def conclude(self, found: Blame) -> None:
        """Journal who has which outcome."""
        supervisor, step, words = self.supervisor, found.outcome.step, found.outcome.words
        if supervisor.epochs:  # which are out of step
            supervisor.end_reason = f"rank {found.outcome.rank} ended the run, at {found.place}: {found.outcome.reason}"
            return self._lose(found)
        if step == Step.CEILINGS:
            return supervisor.note("ceilings", f"No shares of the roof: the worker ended by {words}.")
        if found.is_death and self.suspect(found.shape, found.names[0]):
            return
        place = step, found.shape
        self._ended[place] += not found.is_known
        if found.is_known or (found.names and self._ended[place] > 1):
            self._lose(found)
        elif self._ended[place] >= TRIES:
            supervisor.end_reason = f"{TRIES} workers ended at their {step}: {words}"
        else:
            where = f"{step} of {found.shape}" if found.shape else step
            supervisor.note(f"again {where}", f"A worker ended at the {where}: {words}. Another one made it anew.")

    def _lose(self, found: Blame) -> None:
        for name in found.names:
            outcome = replace(found.outcome, reason=f"{name}: {found.outcome.words}")
            self.supervisor.lose(found.shape, name, outcome)

    def suspect(self, shape: str, name: str) -> bool:
        """Leave a contender out since the process died at its call, and return True, unless that is proof. One death is
        none: another one's timer, or the system, may have ended the process."""
        supervisor = self.supervisor
        suspect = shape, name
        has_died_before = suspect in self._tried_alone or suspect in supervisor.suspects  # a baseline, beside others
        if has_died_before:
            return False
        supervisor.suspects.append(suspect)
        return True

    def next_suspect(self) -> tuple[str, str] | None:
        """The shape and the name of the next suspect to be tried alone; None where there is none."""
        self.alone = ""
        if not self.supervisor.suspects:
            return None
        suspect = self.supervisor.suspects.pop()
        self._tried_alone.add(suspect)
        _, self.alone = suspect
        return suspect


class Hello(Job):
    """Learns what the machine is."""

    def next_request(self) -> Request | None:
        is_asked = self.supervisor.hello or self._ended
        return None if is_asked else self.supervisor.request(Kind.HELLO, self.supervisor.planned)

    def on_machine(self, message: MachineFound) -> None:
        self.supervisor.hello = message.fields
        if epochs := self.supervisor.epochs:
            epochs.loopback = message.fields["ranks"]["loopback"]

    handlers = Job.handlers | {MachineFound: on_machine}

    def conclude(self, found: Blame) -> None:
        self._ended[Step.START, ""] += 1
        self.supervisor.end_reason = f"a worker that only looks at the machine ended: {found.outcome.words}"


class Check(Job):
    """Calls each contender before it is trusted."""

    def __init__(self, supervisor: Supervisor, cases: dict[str, list[str]], *, is_alone: bool = False):
        super().__init__(supervisor)
        self.cases, self.is_alone = dict(cases), is_alone
        self._asked = len(self.cases)
        self.again: dict[str, list[str]] = {}
        """What lacked memory beside others, to be checked alone."""

    def progress(self) -> tuple[str, float | None]:
        return f"{self._asked - len(self.cases)} of {self._asked} shapes checked: ", None

    def next_request(self) -> Request | None:
        left = {shape: self.supervisor.left(shape) for shape in self.cases}
        self.cases = {shape: names for shape, names in left.items() if names}
        if not self.cases and (suspect := self.next_suspect()):
            shape, name = suspect
            self.cases = {shape: [name]}
        return self.supervisor.request(Kind.CHECK, self.cases) if self.cases else None

    def on_rejected(self, message: Rejected) -> None:
        if "out of memory" in message.outcome.reason and not self.is_alone:
            self.again[message.shape] = self.cases[message.shape]
        else:
            super().on_rejected(message)

    def on_checked(self, message: ShapeChecked) -> None:
        self.cases.pop(message.shape)
        self.supervisor.baseline_call_s[message.shape] = message.baseline_call_s
        self.supervisor.chosen[message.shape] = {"facts": message.facts, "medians_s": {}}

    handlers = Job.handlers | {Rejected: on_rejected, ShapeChecked: on_checked}


class Names(Job):
    """Names the kernels of what was measured."""

    def __init__(self, supervisor: Supervisor, cases: dict[str, list[str]]):
        super().__init__(supervisor)
        self.cases = cases

    def next_request(self) -> Request | None:
        cases, self.cases = self.cases, {}
        return self.supervisor.request(Kind.NAMES, cases) if cases else None

    def conclude(self, found: Blame) -> None:
        text = f"Kernel names: not all were found: {found.outcome.words}."
        self.supervisor.note("kernel names", text)
