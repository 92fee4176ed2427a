"""A row is lost only by what a contender does alone.

Whatever ends or spoils a shape in a worker where others stood beside a contender is no verdict. Who is suspected is
tried alone with the baseline, and the others go on together. Who fails alone, loses the row. Who does not has the
number that it had there; and if another one of the shape is suspected then, all of the shape are tried alone.
"""

from collections import Counter
from collections.abc import Container
from dataclasses import dataclass, field, replace

from roofline.protocol.messages import Request
from roofline.store.outcome import Outcome
from roofline.store.run import INTERRUPTED
from roofline.supervise.child import Told
from roofline.supervise.run_writer import RunWriter

LEAST_S, OF_PLAN = 60.0, 0.1
"""All trials of a run may take so many seconds, or so much of the time of its plan, whichever is more."""
MOST_FAILURES = 2
"""Who fails alone on so many shapes is not tried on the rest."""

Case = tuple[str, str]
"""A shape, and a contender of it."""
Cases = dict[str, list[str]]
"""{shape: contenders}."""


@dataclass
class Trials:
    """The suspects of a run, and what came of it."""

    writer: RunWriter
    planned: Cases
    most_s: float
    are_possible: bool
    """Whether workers are processes of this machine alone. Else all is a verdict."""
    waiting: dict[Case, str] = field(default_factory=dict)
    """What each is suspected of, in words; who was suspected last is tried first."""
    accusers: dict[Case, tuple[str, Outcome]] = field(default_factory=dict)
    """Of a baseline that failed beside one that was tried alone: beside whom, and how."""
    innocent: set[Case] = field(default_factory=set)
    """Who was tried in this stage, and did nothing."""
    given_up: dict[str, str] = field(default_factory=dict)
    """{case: why it is not tried}."""
    failures: Counter[str] = field(default_factory=Counter)
    """{contender: rows that it lost alone}."""
    seconds: float = 0.0
    """What trials took."""

    def __post_init__(self):
        """Of a run that is gone on with, a trial may not have ended, or not begun."""
        run = self.writer.run
        for shape, names in self.planned.items():
            together = run.made(shape)
            for name in names:
                alone = run.made(shape, name)
                was_left_out = together and together.passes and name not in together.late
                is_left = alone.stopped_by == INTERRUPTED if alone else was_left_out
                if is_left and f"{shape}-{name}" not in run.outcomes:
                    self.waiting[shape, name] = "it was left out before"

    def left(self) -> Cases:
        """The cases that are left to measure together: of shapes that are not whole all who are not out, or were
        measured alone."""
        run = self.writer.run
        out = {*run.outcomes, *self.given_up, *map("-".join, self.waiting)}
        cases = {}
        for shape, names in self.planned.items():
            made = run.made(shape)
            if made and made.stopped_by != INTERRUPTED:
                continue
            names = [name for name in names if f"{shape}-{name}" not in out and not run.made(shape, name)]
            if names:
                cases[shape] = names
        return cases

    def accuse(self, request: Request, shape: str, name: str, outcome: Outcome, *, is_sure: bool = False) -> None:
        """Say what a contender did in a worker that was asked for `request`: it loses its row where that `is_sure`, or
        it was alone; else it is suspected of it."""
        run = self.writer.run
        apart = request.apart
        is_innocent = (shape, name) in self.innocent or (apart and name in run.measured(shape))
        if f"{shape}-{name}" in run.outcomes | self.given_up:
            return
        if is_sure or name == apart or not self.are_possible:
            self.failures[name] += name == apart
            self.writer.lose(shape, name, outcome)
        elif apart and is_innocent:
            self._lose_beside(shape, name, apart, outcome)
        else:
            if apart:
                self.accusers[shape, name] = apart, outcome
            if not is_innocent:
                self._suspect(shape, name, outcome.reason.removeprefix(f"{name}: "))
            if not apart:
                self._suspect_all(shape)

    def _lose_beside(self, shape: str, innocent: str, name: str, outcome: Outcome) -> None:
        self.failures[name] += 1
        reason = f"{name}: alone with {innocent}, which does well without it: {outcome.reason}"
        self.writer.lose(shape, name, replace(outcome, reason=reason))

    def _suspect(self, shape: str, name: str, of_what: str) -> None:
        self.writer.take_out(shape, name)
        self.waiting.pop((shape, name), None)
        self.waiting[shape, name] = of_what

    def _suspect_all(self, shape: str) -> None:
        """Suspect all others of a shape of which one was innocent."""
        innocent = [name for of_shape, name in self.innocent if of_shape == shape]
        for name in self.left().get(shape, ()) if innocent else ():
            if name not in innocent:
                self._suspect(shape, name, "others of the shape had failed, and do well alone")

    def next(self, among: Container[str]) -> tuple[str, Cases]:
        """The next contender to be tried, and its cases on the shapes `among` which it is; nobody where none waits
        there. Who failed too often is given up, and where the time for trials is over, all are."""
        for case in [case for case in self.waiting if case[0] in among]:
            if self.is_enough(case[1]):
                self._give_up(case, f"alone it failed on {self.failures[case[1]]} shapes")
            elif self.seconds >= self.most_s:
                self._give_up(case, f"the {self.most_s:.0f} s for that are over")
        waiting = [case for case in self.waiting if case[0] in among]
        name = waiting[-1][1] if waiting else ""
        return name, {shape: [name] for shape, other in waiting if other == name}

    def is_enough(self, name: str) -> bool:
        """True where trials of a contender have shown enough."""
        return self.failures[name] >= MOST_FAILURES

    def close(self, worker: Told, done: Container[str]) -> None:
        """End a trial. Who is `done` with a shape, and did not lose the row, is innocent there. Who failed too often,
        and ended the worker by that, is not measured beside others any more either."""
        name = worker.request.apart
        self.seconds += worker.seconds
        for shape in worker.request.cases:
            if f"{shape}-{name}" in self.writer.run.outcomes:
                del self.waiting[shape, name]
            elif shape in done:
                self._clear(shape, name)
        has_ended_it = not (worker.is_done or worker.is_stopped)
        for shape, names in self.left().items() if has_ended_it and self.is_enough(name) else ():
            if name in names:
                self._suspect(shape, name, "")

    def _clear(self, shape: str, name: str) -> None:
        case = f"{shape}-{name}"
        of_what = self.waiting.pop((shape, name))
        self.innocent.add((shape, name))
        self.writer.note(f"apart {case}", f"{case} was tried alone, and does well. Beside others: {of_what}.")
        if accuser := self.accusers.pop((shape, name), None):
            self.waiting.pop((shape, accuser[0]), None)
            self._lose_beside(shape, name, *accuser)
        elif shape in [of_shape for of_shape, _ in self.waiting]:
            self._suspect_all(shape)

    def _give_up(self, case: Case, why: str) -> None:
        of_what = self.waiting.pop(case)
        beside = f" Beside others: {of_what}." * bool(of_what)
        self.given_up["-".join(case)] = f"{case[1]}: not tried alone, {why}.{beside}"
