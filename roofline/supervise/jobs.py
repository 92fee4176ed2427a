"""What shares there are, one class a kind, and what becomes of what a share was at when it ends.

A job asks for shares of its kind one after another (`next_request`), hands on their messages (`handle`), and knows how
long each step may take. This is what happens where a kernel hangs, dies or loses the device: `Job.end`.
"""

import itertools
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from roofline import operations
from roofline.operations.contenders import FIRST_CALL_S
from roofline.store.run import INTERRUPTED, Shape
from roofline.supervise.blame import Blame, blame, limit_s
from roofline.supervise.plan import Timed, duration
from roofline.supervise.supervisor import Supervisor
from roofline.worker import METHOD_VERSION, launches, machine, telemetry
from roofline.worker.messages import (
    Broke,
    Done,
    JournalLine,
    Kind,
    MachineFound,
    Rejected,
    Request,
    ShapeChecked,
    ShapePrepared,
    Step,
    StepBegan,
    Turns,
)
from roofline.worker.prepared import FAILED

BUSY = 0.02
"""A first call that takes this share of a core, with all that it began, is at work."""

TRIES = 3
"""Shares in a row that may end without anybody to blame."""
CHECKERS = 4
"""Shares that check at once on a GPU at most, one for four cores: compiling takes most of a first call."""

Handlers = dict[type, Callable[["Job", Any], None]]
"""Type of message -> the method that takes it."""


def greet(supervisor: Supervisor) -> None:
    """Learn from a share what this machine is. Raises ValueError where nothing can be measured on it."""
    supervisor.supervise([Hello(supervisor)])
    if problem := supervisor.hello.get("problem") or supervisor.over:
        raise ValueError(problem)


def other_checkout(supervisor: Supervisor) -> Supervisor:
    """Return the supervisor of the shares of the checkout that --ffn-against names. Raises ValueError where they cannot
    be compared with these."""
    options = supervisor.options
    base = Supervisor(options, supervisor.planned, supervisor.runners, Path(options.against).expanduser(), is_base=True)
    try:
        greet(base)
    except ValueError as error:
        raise ValueError(f"--ffn-against {options.against}: {error}") from None
    method = base.hello.get("method_version")
    if method != METHOD_VERSION:
        raise ValueError(
            f"--ffn-against {options.against}: it measures by method {method or 'of before this option'}, and this "
            f"checkout by {METHOD_VERSION}: what took turns would not be alike; take one of this method"
        )
    return base


def measure(supervisor: Supervisor) -> None:
    """Check and measure all that is left. Afterwards each contender has a record in the run, or an `entry`, unless
    the run is `over`."""
    sides = [supervisor, supervisor.base] if supervisor.base else [supervisor]
    for side in [side for side in sides if side.root]:
        check(side)
        supervisor.over = supervisor.over or side.over
    job, *others = map(Measure, sides)
    for other in others:
        job.alternate_with(other)
    supervisor.supervise([job])


def check(supervisor: Supervisor) -> None:
    """Call each contender in a share that only checks before one that measures does. What hangs or dies there costs
    its own row. Compiles on the way."""
    shapes = {
        name: names
        for name in supervisor.planned
        if name not in supervisor.run.shapes and (names := supervisor.left(name))
    }
    linked = {name: shapes[name] for name in shapes if operations.find(name.partition("-")[0]).analysis == "overlap"}
    others = [(name, names) for name, names in shapes.items() if name not in linked]
    if not shapes:
        return
    began, before = time.monotonic(), set(supervisor.entries)
    # The last one checks alone: a link keeps no pace beside other processes.
    is_gpu = supervisor.options.device == "cuda" and not supervisor.epochs
    several = max(1, min(CHECKERS, machine.cores() // 4)) if is_gpu else 0
    parts = [Check(supervisor, dict(others[index::several])) for index in range(several)]
    last = Check(supervisor, linked if several else dict(others) | linked, is_alone=True)
    supervisor.supervise(parts)
    for part in parts:
        last.cases = part.again | last.cases
    supervisor.supervise([last])
    cases, lost = sum(map(len, shapes.values())), len(set(supervisor.entries) - before)
    took = f"{cases} cases in {time.monotonic() - began:.0f} s"
    supervisor.note("check", f"Checked in shares of their own: {took}, {lost} without a number.")


def name_kernels(supervisor: Supervisor) -> None:
    """Journal the names of the kernels that were measured and have none yet, or what their calls cost in parts. What
    runs between ranks is left out. Arms run the matmul of the same name and the link's copier. A trace that is made
    again on one rank alone would leave the others waiting."""
    cases, has_names = {}, supervisor.options.device == launches.DEVICE
    for shape in supervisor.run.shapes.values():
        if shape.facts.get("has_costs") or (has_names and not operations.find(shape.op).between_ranks):
            field = "costs" if shape.facts.get("has_costs") else "kernel_name"
            cases[shape.id] = [name for name in shape.measured if field not in shape.entrants[name]]
    supervisor.supervise([Names(supervisor, {name: nameless for name, nameless in cases.items() if nameless})])


class Job:
    """Shares of one kind, one after another, until nothing is left for them."""

    kind = ""

    def __init__(self, supervisor: Supervisor):
        self.supervisor, self.device = supervisor, supervisor.options.device
        self.is_done, self.marked = False, 0
        self.step = StepBegan(Step.START)
        self._limit_s = self._idle_s = self._most_s = self._began = self._cpu_s = 0.0
        self.cpu_s: Callable[[], float] = lambda: 0.0
        """Returns what the present share has used of the CPU."""
        self.broke: Broke | None = None
        self._ended = defaultdict(int)
        """(step, shape) -> how many shares ended there without anybody to blame."""
        self.alone = ""
        """The suspect that the share has alone with the baseline; empty in any other share."""
        self._tried_alone: set[str] = set()
        """Cases."""

    def next_request(self) -> Request | None:
        """Return what the next share is to do; None where nothing is left."""
        raise NotImplementedError

    def next_jobs(self) -> list["Job"]:
        """Return the jobs in the order in which they are asked for the next share: the first that has one begins it."""
        return [self]

    def begin(self, asked: Request) -> None:
        """Make ready for a share that does what is asked for."""
        self.is_done, self.broke = False, None
        self.on_step(StepBegan(Step.START))

    def handle(self, message: object) -> None:
        """Hand on a message of the share to whom the table `handlers` names."""
        handler = self.handlers[type(message)]
        handler(self, message)

    @property
    def left_s(self) -> float:
        """Return the seconds until what it is at hangs."""
        return self._began + self._limit_s - time.monotonic()

    def reference_s(self, shape: str) -> float:
        """Return about what a call takes on `shape`: what the baseline took, or else by its work and what the machine
        does."""
        case, _ = operations.parse(shape)
        flops_per_s = machine.flops_per_s(self.device, self.supervisor.hello["machine"]["datasheet"])
        return max(case.work.flop / flops_per_s, self.supervisor.reference_s.get(shape, 0.0))

    def on_step(self, step: StepBegan) -> None:
        self.step, self._began = step, time.monotonic()
        self._limit_s = limit_s(step, self.device, self.reference_s(step.shape) if step.shape else 0.0)
        self._idle_s = self._most_s = self._limit_s
        if step.step == Step.CALL:
            self.allow_first_call(step)
        words, done = self.progress()
        self.supervisor.progress(f"{words}{step.words}", done)

    def allow_first_call(self, step: StepBegan) -> None:
        """A first call has more time than other steps while it uses the CPU, or as long as the option says."""
        chosen_s, are_ranks = self.supervisor.options.first_call_seconds, bool(self.supervisor.epochs)
        usual_s = 0.0 if are_ranks else FIRST_CALL_S["usual"]
        self._most_s = chosen_s or max(self._limit_s, step.seconds or usual_s)
        if chosen_s or are_ranks:  # one sleeps while another compiles
            self._limit_s = self._most_s
        self._cpu_s = self.cpu_s()

    def is_hung(self) -> bool:
        """Return whether the time for what it is at is up. A first call gets as much again while it uses the CPU."""
        if self.left_s > 0:
            return False
        cpu_s = self.cpu_s()
        if self._limit_s >= self._most_s or cpu_s - self._cpu_s < BUSY * self._idle_s:
            return True
        self._cpu_s, self._limit_s = cpu_s, min(self._limit_s + self._idle_s, self._most_s)
        return False

    def progress(self) -> tuple[str, float | None]:
        """Return how far the run is, to stand before what it is at, and the share of the passes that are made."""
        return "", None

    def on_line(self, message: JournalLine) -> None:
        self.supervisor.add(message.line)

    def on_rejected(self, message: Rejected) -> None:
        self.supervisor.lose(message.shape, message.name, message.outcome, message.reason)

    def on_broke(self, message: Broke) -> None:
        self.broke = message

    def on_done(self, message: Done) -> None:
        self.is_done = True

    handlers: ClassVar[Handlers] = {
        StepBegan: on_step,
        JournalLine: on_line,
        Rejected: on_rejected,
        Broke: on_broke,
        Done: on_done,
    }
    """A job of a kind adds the messages of that kind, and those that it handles otherwise."""

    def culprits(self) -> list[str]:
        """Return who may have ended the share, by what it was at: a contender, or where that is not known, all but the
        baseline. None where it was at no shape."""
        if not self.step.shape:
            return []
        if self.alone:
            return [self.alone]
        return [self.step.name] if self.step.name else self.supervisor.left(self.step.shape)

    def end(self, how: str, rank: str = "") -> None:
        """Take in that a share has ended: well, or by `how` on a `rank`, and then what it was at gets its outcome.

        Where that is no single contender, the shape is tried once more, and then its contenders have it. Where it is
        nothing, the next share goes on, a few times."""
        if (how or self.broke) and not (self.supervisor.over or self.supervisor.signals):
            found = blame(self.step, self.culprits(), how, limit=self.limit_in_words, broke=self.broke)
            self.conclude(replace(found, reason=rank + found.reason))

    @property
    def limit_in_words(self) -> str:
        words = f"{self._limit_s:.4g} s, the limit"
        if self.step.step != Step.CALL:
            return words
        if self._limit_s < self._most_s:
            words += " of one that uses no CPU"
        return f"{words}; --ffn-first-call-seconds sets another"

    def conclude(self, found: Blame) -> None:
        """Journal who has which outcome."""
        if found.step == Step.CEILINGS:
            return self.supervisor.note("ceilings", f"No shares of the roof: the share ended by {found.reason}.")
        if found.is_death and self.suspect(found.shape, found.names[0]):
            return
        place = found.step, found.shape
        self._ended[place] += not found.is_known
        if found.is_known or (found.names and self._ended[place] > 1):
            for name in found.names:
                self.supervisor.lose(found.shape, name, found.outcome, f"{name}: {found.reason}")
        elif self._ended[place] >= TRIES:
            self.supervisor.over = f"{TRIES} shares ended at their {found.step}: {found.reason}"

    def suspect(self, shape: str, name: str) -> bool:
        """Leave a contender out since the process died at its call, and return True, unless that is proof. One death is
        none: another one's timer, or the system, may have ended the process."""
        supervisor, case = self.supervisor, f"{shape}-{name}"
        if case in self._tried_alone or case in supervisor.suspects or supervisor.epochs or supervisor.is_of_two:
            return False
        supervisor.suspects[case] = shape, name
        return True

    def next_suspect(self) -> tuple[str, str] | None:
        """Return the shape and the name of the next suspect to be tried alone; None where there is none."""
        self.alone = ""
        if not self.supervisor.suspects:
            return None
        case, (shape, name) = self.supervisor.suspects.popitem()
        self._tried_alone.add(case)
        self.alone = name
        return shape, name


class Hello(Job):
    """Learns what the machine is."""

    kind = Kind.HELLO

    def next_request(self) -> Request | None:
        is_asked = self.supervisor.hello or self._ended
        return None if is_asked else self.supervisor.request(self.kind, self.supervisor.planned)

    def on_machine(self, message: MachineFound) -> None:
        self.supervisor.hello = message.fields
        if epochs := self.supervisor.epochs:
            epochs.loopback = message.fields["ranks"]["loopback"]

    handlers = Job.handlers | {MachineFound: on_machine}

    def conclude(self, found: Blame) -> None:
        self._ended[Step.START, ""] += 1
        self.supervisor.over = f"a share that only looks at the machine ended: {found.reason}"


class Check(Job):
    """Calls each contender before it is trusted."""

    kind = Kind.CHECK

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
        return self.supervisor.request(self.kind, self.cases) if self.cases else None

    def begin(self, asked: Request) -> None:
        self.cases = asked.cases  # on other ranks than 0, too
        super().begin(asked)

    def on_rejected(self, message: Rejected) -> None:
        if "out of memory" in message.reason and not self.is_alone:
            self.again[message.shape] = self.cases[message.shape]
        else:
            super().on_rejected(message)

    def on_checked(self, message: ShapeChecked) -> None:
        self.cases.pop(message.shape)
        self.supervisor.reference_s[message.shape] = message.reference_s
        self.supervisor.chosen[message.shape] = {"facts": message.facts, "medians_s": {}}

    handlers = Job.handlers | {Rejected: on_rejected, ShapeChecked: on_checked}


class Measure(Job):
    """Makes the passes over all shapes, process by process."""

    kind = Kind.MEASURE

    def __init__(self, supervisor: Supervisor):
        super().__init__(supervisor)
        self.when = "resume" if supervisor.run.shapes else "start"
        self._turns: Iterator[list[Job]] = itertools.repeat([self])
        self._sides = [self]
        """With that of the other checkout, whose shares take turns with these."""
        self._timed, self._since = Timed(), time.monotonic()

    def alternate_with(self, base: "Measure") -> None:
        """Let the shares of another checkout take turns with these: A B B A, or B A A B, by the seed. What drifts
        evenly meets both alike."""
        draw = random.Random(self.supervisor.options.seed)

        def turns() -> Iterator[list[Job]]:
            ahead, behind = [self, base], [base, self]
            yield from (ahead, behind, behind, ahead)  # the first of all measures the ceilings
            while True:
                first, second = draw.sample([ahead, behind], 2)
                yield from (first, second, second, first)

        base.when, self._turns = "", turns()
        base._turns = self._turns
        self._sides = base._sides = [self, base]

    def next_jobs(self) -> list[Job]:
        return next(self._turns)

    def next_request(self) -> Request | None:
        run = self.supervisor.run
        self.alone = ""
        self.supervisor.close_decided()
        passes = self.supervisor.passes_left()
        number = 1 + max((round_.process for shape in run.shapes.values() for round_ in shape.rounds), default=-1)
        if not passes:
            return self.request_alone(number)
        cases = {shape: self.supervisor.left(shape) for shape in passes}
        about = {"processes": self.supervisor.processes, "ceilings": run.ceilings, "when": self.when}
        self.when = ""
        return self.supervisor.request(self.kind, cases, passes=passes, process=number, **about)

    def request_alone(self, number: int) -> Request | None:
        """Return the request for the next suspect: of its shape, which is over for the others, all passes at once."""
        if not (suspect := self.next_suspect()):
            return None
        shape, name = suspect
        measured = self.supervisor.run.shapes.get(shape)
        if not measured or measured.stopped_by == INTERRUPTED:  # nobody else was measured on it
            return self.next_request()
        if name == measured.baseline and name in measured.measured:  # it took turns with the others since
            return self.request_alone(number)
        about = {"passes": {shape: self.supervisor.passes}, "process": number, "ceilings": self.supervisor.run.ceilings}
        asked = self.supervisor.request(self.kind, {shape: [name]}, **about)
        return replace(asked, entrants={shape: [*measured.late, name]})

    def begin(self, asked: Request) -> None:
        self._number, self._cases, self._share_since = asked.process, asked.cases, time.monotonic()
        self._undecided = {shape.id for shape in self.supervisor.undecided} & asked.cases.keys()
        self._prepared: dict[str, dict] = {}
        self._measured: set[str] = set()
        """Shapes that the share told turns of."""
        self._timed.begin_process(time.monotonic())
        super().begin(asked)

    def on_step(self, step: StepBegan) -> None:
        self._timed.begin_step(step, time.monotonic())
        super().on_step(step)

    def _passes_left(self) -> dict[str, int]:
        """Return {shape: passes} of the plan that are not made."""
        supervisor, left = self.supervisor, {}
        for name in filter(supervisor.left, supervisor.planned):
            shape = supervisor.run.shapes.get(name)
            left[name] = supervisor.passes * supervisor.processes - (shape.passes if shape else 0)
        return {name: count for name, count in left.items() if count > 0}

    def _left_s(self) -> float | None:
        return self._timed.left_s(self._passes_left(), self.supervisor.passes)

    def progress(self) -> tuple[str, float | None]:
        supervisor = self.supervisor
        done = sum(shape.passes for shape in supervisor.run.shapes.values())
        if self._undecided:
            return f"{done} passes, {len(self._undecided)} of {len(supervisor.planned)} shapes undecided: ", None
        asked, left_s = done + sum(self._passes_left().values()), [side._left_s() for side in self._sides]
        if None in left_s:
            wait_s = supervisor.plan.first_estimate_s * len(self._sides) - (time.monotonic() - self._since)
            words = f"measuring; first estimate in {duration(wait_s)}" if wait_s > 0 else "measuring; no estimate yet"
        else:
            words = f"{done} of {asked} passes, {duration(sum(left_s) + supervisor.plan.report_s)} left"
        return f"{words}: ", done / asked if asked else 1.0

    def culprits(self) -> list[str]:
        entrants, prepared = self.step.entrants, self._prepared.get(self.step.shape)
        if not (entrants and prepared):
            return super().culprits()
        contenders = [name for name in entrants if "role" not in prepared["entrants"][name]]
        at_turn = entrants[self.marked - 1] if self.marked else ""
        if at_turn in contenders:
            return [at_turn]
        return [name for name in contenders if name != prepared["baseline"]] or contenders

    def on_prepared(self, message: ShapePrepared) -> None:
        self._prepared[message.line["id"]] = message.line
        self.step = replace(self.step, shape="")

    def on_turns(self, turns: Turns) -> None:
        """Journal new rounds, numbered behind those of earlier shares, and how far their shape is measured by now."""
        is_new_process = turns.shape not in self._measured
        self._measured.add(turns.shape)
        shape = self.supervisor.run.shapes.get(turns.shape)
        if is_new_process and shape and not shape.passes:  # rounds of no whole pass
            shape = None
        for index, round_ in enumerate(turns.rounds, shape.round_count if shape else 0):
            round_.index = index
            round_.pass_index = shape.passes + 1 if shape else 1
            round_.process = self._number
        header = {"kind": "pass", "shape": turns.shape} if shape else self._prepared[turns.shape]
        self.supervisor.add_turns(header | self._shape_fields(turns, shape, is_new_process), turns)
        self.step = replace(self.step, shape="")  # which is over

    def _shape_fields(self, turns: Turns, shape: Shape | None, is_new_process: bool) -> dict:
        """The fields of a shape that `turns` change. `shape` is None where it has no rounds yet."""
        fields = {
            "passes": int(turns.whole),
            "processes": int(is_new_process),
            "stopped_by": turns.stopped_by if self._is_last(turns, shape) else INTERRUPTED,
            "round_count": len(turns.rounds),
            "telemetry": turns.telemetry,
            "late": turns.late,
        }
        if shape is None:
            return fields
        fields["passes"] += shape.passes
        fields["processes"] += shape.processes
        fields["round_count"] += shape.round_count
        fields["late"] = {}
        for name, count in shape.late.items():
            if self.alone or f"{turns.shape}-{name}" in self.supervisor.suspects:  # it is in, and took no turn
                fields["late"][name] = count
        for name, count in turns.late.items():
            fields["late"][name] = count + shape.late.get(name, 0)
        fields["telemetry"] = shape.telemetry
        if turns.whole:
            in_pass = len(turns.rounds) + sum(round_.pass_index > shape.passes for round_ in shape.rounds)
            before = fields["round_count"] - in_pass
            fields["telemetry"] = telemetry.merged(shape.telemetry, before, turns.telemetry, in_pass)
        if self.alone:  # the shape is over for the others
            fields["entrants"] = self._prepared[turns.shape]["entrants"] | shape.entrants
            fields["stopped_by"] = shape.stopped_by
        return fields

    def _is_last(self, turns: Turns, shape: Shape | None) -> bool:
        """Whether the plan asks for no more turns of the shape. `close_decided` ends one that is to be decided."""
        supervisor = self.supervisor
        analysis = shape.analysis if shape else self._prepared[turns.shape]["analysis"]
        if supervisor.options.decide and analysis == "throughput":
            return False
        passes = 1 + (shape.passes if shape else 0)
        return bool(turns.whole and turns.stopped_by) and passes == supervisor.passes * supervisor.processes

    handlers = Job.handlers | {StepBegan: on_step, ShapePrepared: on_prepared, Turns: on_turns}

    def end(self, how: str, rank: str = "") -> None:
        super().end(how, rank)
        if self.supervisor.options.decide:
            about = {"process": self._number, "planned": not self._undecided}
            self.supervisor.add({"kind": "process", "seconds": time.monotonic() - self._share_since} | about)
        # A shape that it did not measure is not asked for again.
        if not (how or self.broke or self.supervisor.over):
            for shape, names in self._cases.items():
                for name in names:
                    if shape not in self._measured and name in self.supervisor.left(shape):
                        reason = f"{name}: its runner left it out, and did not say why"
                        self.supervisor.lose(shape, name, FAILED, reason)


class Names(Job):
    """Names the kernels of what was measured."""

    kind = Kind.NAMES

    def __init__(self, supervisor: Supervisor, cases: dict[str, list[str]]):
        super().__init__(supervisor)
        self.cases = cases

    def next_request(self) -> Request | None:
        cases, self.cases = self.cases, {}
        return self.supervisor.request(self.kind, cases) if cases else None

    def conclude(self, found: Blame) -> None:
        self.supervisor.note("kernel names", f"Kernel names: not all were found: {found.reason}.")
