"""One benchmark run: its folder and its journal, what of it is left to measure, and what it has learnt by now."""

import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from roofline import operations
from roofline.analysis import decision
from roofline.operations.options import as_values
from roofline.store import journal
from roofline.store.lines import as_read, plain
from roofline.store.outcome import FAILED, NOT_RUN, Outcome
from roofline.store.run import INTERRUPTED, Run, Shape
from roofline.store.stats import grouped
from roofline.supervise.epochs import Epochs
from roofline.supervise.plan import Plan
from roofline.worker.machine import anonymous
from roofline.worker.messages import Request

MOST_TIMES = 3
"""A run with decisions takes up to so many times the time of its plan."""


class Supervisor:
    """Keeps a run: says what is left to ask workers for, and journals what they told. `run` is what is known by now."""

    def __init__(
        self, options, planned: dict[str, list[str]], runners, root: Path | None, epochs: Epochs | None = None
    ):
        """`planned` is {shape: contenders}. `root` is the folder that workers begin in; without it they run in this
        process. `epochs` is what supervisors of several ranks say to one another."""
        self.options, self.planned, self.runners, self.root, self.epochs = options, planned, runners, root, epochs
        self.signals: list[tuple[str, float]] = []
        """(name, when) of those that ask for the end."""
        self.plan: Plan | None = None
        """How long the run takes, once that was reckoned."""
        self.hello: dict = {}
        """What the first worker tells of the machine, of its ranks, and of the clock that times the contenders."""
        self.end_reason = ""
        """Why nothing more can be measured, if that is so."""
        self.narrator = None
        """Shows how far the run is (`progress`), says something (`say`), where a run is timed."""
        self._is_gone_on = False
        """Whether decisions were waited for, or given up, when the time of the plan was over."""
        self.baseline_call_s: dict[str, float] = {}
        """Shape -> what a call of its baseline took when it was checked."""
        self.chosen: dict[str, dict] = {}
        """Shape -> facts that a worker chose when it checked it."""
        self.run: Run | None = None
        self.ceilings: list[dict] = []
        """Those that were measured by now, of which the probes take turns with contenders."""
        self.suspects: list[tuple[str, str]] = []
        """Shape and contender, at whose call a worker died. It is left out until it is tried alone."""

    def open(self, folder: Path, run: dict | Run) -> None:
        """Begin the run whose first line is `run`, in a new folder, or go on with `run` in its own.

        Raises OSError for a folder that cannot be written, or has no room."""
        self.folder = journal.make_folder(folder) if isinstance(run, dict) else folder
        self._journal = journal.Journal(self.folder)
        if isinstance(run, dict):
            self.run = Run(as_read(run))
            self.write({"kind": "run"} | self.run.metadata)
        else:
            self.run = run
            self.add({"kind": "resumed", "started": _now()})
        self.ceilings = self.run.ceilings
        self._recall_suspects()

    def _recall_suspects(self) -> None:
        """Those of a run that was cut off before it tried them alone."""
        for shape in self.run.shapes.values():
            if shape.stopped_by == INTERRUPTED:
                continue
            for name in self.planned.get(shape.id, []):
                if f"{shape.id}-{name}" not in self.outcomes and name not in shape.measured:
                    self.suspects.append((shape.id, name))

    @property
    def outcomes(self) -> dict[str, Outcome]:
        """By case, of what was tried and has no number."""
        without_number = self.run.not_measured if self.run else []
        return {outcome.case: outcome for outcome in without_number if outcome.outcome != NOT_RUN}

    def show_progress(self, text: str, done: float | None) -> None:
        """Show how far the run is, and the fraction of its passes that are made, where that is known."""
        if self.narrator and self.run:
            self.narrator.progress(text, done)

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
        out = [*self.outcomes, *map("-".join, self.suspects)]
        return [name for name in self.planned[shape] if f"{shape}-{name}" not in out]

    @property
    def undecided(self) -> list[Shape]:
        """The shapes that have the passes of the plan, and are not over."""
        undecided = []
        for name in self.run.interrupted:
            shape = self.run.shapes[name]
            if name in self.planned and shape.passes >= self.planned_passes:
                undecided.append(shape)
        return undecided

    def close_decided(self) -> None:
        """End the shapes that are decided; all of them where the run has taken `MOST_TIMES` the time of its plan, or
        comes nearest to that now, or where the plan is over and a decision is not to be expected."""
        still_open = []
        for shape in self.undecided:
            if shape.passes % self.passes:
                continue
            if decision.is_open(self.run, shape):
                still_open.append(shape)
            else:
                self.add(_pass_line(shape, stopped_by="decision"))
        if still_open and (self._is_time_up() or self._is_given_up(still_open)):
            for shape in still_open:
                self.add(_pass_line(shape, stopped_by="time"))

    def _is_given_up(self, shapes: list[Shape]) -> bool:
        """Whether no decision on `shapes` is waited for: something disturbs them when the time of the plan is over."""
        disturbance = "" if self._is_gone_on else decision.disturbance(shapes)
        self._is_gone_on = True
        if not disturbance:
            return False
        words = f"{len(shapes)} of {len(self.planned)} shapes are undecided after the time of the plan: {disturbance}"
        reason = f"{words}. They were given up; end what disturbs, and measure again."
        self.narrator.say(reason)
        self.note("decisions", reason)
        return True

    def _is_time_up(self) -> bool:
        """Whether the next process would take the run farther from `MOST_TIMES` its plan than it is now."""
        seconds = grouped((line["planned"], line["seconds"]) for line in self.run.processes)
        further = seconds.get(False, [0.0])
        return sum(further) + further[-1] / 2 > (MOST_TIMES - 1) * sum(seconds.get(True, []))

    def passes_made(self) -> dict[str, int]:
        """{shape: passes} that were made over it by now, of each shape that is not over."""
        made = {}
        for shape in filter(self.left, self.planned):
            measured = self.run.shapes.get(shape)
            made[shape] = measured.passes if measured else 0
        return made

    def passes_left(self) -> dict[str, int]:
        """{shape: passes} that the next process still has to make, of the plan or for a decision."""
        done = self.passes_made()
        left = {}
        for shape, passes in done.items():
            if passes // self.passes == min(done.values()) // self.passes:  # others are a process ahead
                left[shape] = self.passes - passes % self.passes
        return left

    def checked(self, shape: str) -> list[str]:
        """The contenders that a worker called on `shape`, and that are right."""
        return self.left(shape) if shape in self.baseline_call_s else []

    @property
    def fruitful(self) -> bool:
        """Whether anything that was asked for has a number."""
        return any(set(names) & set(self.run.measured(shape)) for shape, names in self.planned.items())

    def request(self, kind: str, cases: dict[str, list[str]], **fields) -> Request:
        """What a worker is asked for `cases`; `fields` are further ones of the request."""
        refused = {case: outcome.reason for case, outcome in self.outcomes.items() if outcome.outcome == FAILED}
        chosen = dict(self.chosen)
        entrants = {}
        for name, shape in self.run.shapes.items() if self.run else ():
            if shape.passes:
                chosen[name] = shape.choices
                entrants[name] = list(shape.late)
        return Request(
            kind,
            options=as_values(self.options),
            cases=cases,
            runners=operations.places(cases),
            path=sys.path,
            refused=refused,
            chosen=chosen,
            entrants=entrants,
            **fields,
        )

    # What workers told.

    def add_outcome(self, outcome: Outcome) -> None:
        """Journal that a case has no number, and why."""
        outcome = replace(outcome, reason=plain(anonymous(outcome.reason)))
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
            late = dict(measured.late)
            del late[name]
            self.add(_pass_line(measured, late=late))
        if measured.stopped_by == INTERRUPTED and not self.left(shape):  # nobody is left to go on with
            self.add(_pass_line(measured, stopped_by="time"))

    def note(self, about: str, text: str) -> None:
        """Tell in the report what is to be known `about` something, in place of what was told of it before."""
        self.add({"kind": "note", "about": about, "text": anonymous(text)})

    def add(self, *lines: dict) -> None:
        """Journal lines, and apply them to the run. If that fails, the run is over, and neither has any of them."""
        lines = [as_read(line) for line in lines]
        if self.write(*lines):
            for line in lines:
                self.run.apply(line)

    def write(self, *lines: dict) -> bool:
        """Journal lines, and return whether that went well. The run is over where it did not."""
        try:
            self._journal.write(*lines)
        except OSError as error:
            self.end_reason = f"the journal could not be written: {error.strerror}"
            return False
        return True

    def finish(self, why_cut_short: str) -> None:
        """End the run: all that has no number gets a reason."""
        cut_short = self.end_reason or why_cut_short
        asked = [f"{shape}-{name}" for shape, names in self.planned.items() for name in names]
        for outcome in self.run.missing:
            if outcome.outcome == NOT_RUN:
                reason = cut_short or "its test ended before it was measured"
                self.add_outcome(replace(outcome, reason=reason if outcome.case in asked else "not selected"))
        self.add({"kind": "end", "finished": _now(), "cut_short": cut_short or None})
        self._journal.close()


def _pass_line(shape, **changed) -> dict:
    """What the last pass over a shape came to, some of it `changed`."""
    names = "passes", "processes", "stopped_by", "round_count", "telemetry", "late"
    return {"kind": "pass", "shape": shape.id} | {name: getattr(shape, name) for name in names} | changed


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
