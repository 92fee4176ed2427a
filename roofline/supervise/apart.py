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
            if self._is_whole(shape):
                continue
            names = [name for name in names if f"{shape}-{name}" not in out and not run.made(shape, name)]
            if names:
                cases[shape] = names
        return cases

    def _is_whole(self, shape: str, apart: str = "") -> bool:
        """True where a shape has all its passes, as `Run.made` has it."""
        made = self.writer.run.made(shape, apart)
        return bool(made and made.stopped_by != INTERRUPTED)

    def accuse(self, request: Request, shape: str, name: str, outcome: Outcome, *, is_sure: bool = False) -> None:
        """Say what a contender did in a worker that was asked for `request`: it loses its row where that `is_sure`, or
        it was alone; else it is suspected of it."""
        run = self.writer.run
        apart = request.apart
        if f"{shape}-{name}" in run.outcomes | self.given_up:
            return
        if is_sure or name == apart or not self.are_possible:
            self.failures[name] += name == apart
            self.writer.lose(shape, name, outcome)
        elif apart and ((shape, name) in self.innocent or (shape, name) in run.rows):
            self.failures[apart] += 1
            reason = f"{apart}: alone with {name}, which does well without it: {outcome.reason}"
            self.writer.lose(shape, apart, replace(outcome, reason=reason))
        else:
            self._suspect(shape, name, outcome.reason.removeprefix(f"{name}: "))
            if not apart and shape in [of_shape for of_shape, _ in self.innocent]:
                self._suspect_others(shape)

    def _suspect(self, shape: str, name: str, of_what: str) -> None:
        self.writer.take_out(shape, name)
        self.waiting.pop((shape, name), None)
        self.waiting[shape, name] = of_what

    def _suspect_others(self, shape: str) -> None:
        """Suspect all of a shape who were not tried there."""
        for name in self.left().get(shape, ()):
            if (shape, name) not in self.innocent:
                self._suspect(shape, name, "others of the shape had failed, and do well alone")

    def next(self, among: Container[str]) -> tuple[str, Cases]:
        """The next contender to be tried, and its cases on the shapes `among` which it is; nobody where none waits
        there. Who failed too often is given up, and where the time for trials is over, all are."""
        last = ""
        trials: dict[str, Cases] = {}
        for shape, name in list(self.waiting):
            if shape not in among:
                continue
            if why := self.why_no_more(name):
                of_what = self.waiting.pop((shape, name))
                beside = f" Beside others: {of_what}." * bool(of_what)
                self.given_up[f"{shape}-{name}"] = f"{name}: not tried alone, {why}.{beside}"
            else:
                last = name
                trials.setdefault(name, {})[shape] = [name]
        return last, trials.get(last, {})

    def why_no_more(self, name: str, seconds: float = 0.0) -> str:
        """Why a contender is tried no more, where its trial has lasted so many seconds by now; empty if it is."""
        if self.failures[name] >= MOST_FAILURES:
            return f"alone it failed on {self.failures[name]} shapes"
        return f"the {self.most_s:.0f} s for that are over" if self.seconds + seconds >= self.most_s else ""

    def close(self, worker: Told) -> None:
        """End a trial. Who came to the end of a shape, and did not lose the row, is innocent there. Who failed too
        often, and ended the worker by that, is not measured beside others any more either."""
        name = worker.request.apart
        self.seconds += worker.seconds
        for shape in worker.request.cases:
            case = f"{shape}-{name}"
            if case in self.writer.run.outcomes:
                del self.waiting[shape, name]
            elif shape in worker.done or self._is_whole(shape, name):
                self.innocent.add((shape, name))
                of_what = self.waiting.pop((shape, name))
                self.writer.note(f"apart {case}", f"{case} was tried alone, and does well. Beside others: {of_what}.")
        if worker.is_done or worker.is_stopped or self.failures[name] < MOST_FAILURES:
            return
        for shape, names in self.left().items():
            if name in names:
                self._suspect(shape, name, "")
