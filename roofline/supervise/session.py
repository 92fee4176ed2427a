"""The session: all that pytest's process knows of its run, from the command line, through workers, to the report."""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from roofline import operations
from roofline.operations.options import Options, as_values
from roofline.protocol.messages import Request, ShapeChecked
from roofline.store import journal
from roofline.store.outcome import FAILED, NOT_RUN, Outcome
from roofline.store.run import Run
from roofline.supervise.apart import LEAST_S, OF_PLAN, Trials
from roofline.supervise.child import Told
from roofline.supervise.epochs import Epochs
from roofline.supervise.plan import Plan
from roofline.supervise.run_writer import RunWriter, pass_line


@dataclass
class Session:
    """A session of pytest: what was asked for, what is known of the machine, and the run."""

    options: Options
    runners: operations.Runners
    epochs: Epochs | None = None
    """What supervisors of several ranks say to one another."""
    resume: Path | None = None
    """The folder of the run that --ffn-resume goes on with, and that run."""
    resumed: Run | None = None
    held: BinaryIO | None = None
    """Its journal, or the new run's: as long as it is open, no other process goes on with it."""
    planned: dict[str, list[str]] = field(default_factory=dict)
    """{shape: contenders}."""
    root: Path | None = None
    """The folder that workers begin in; without it they run in this process."""
    hello: dict = field(default_factory=dict)
    """What the first worker tells of the machine, of its ranks, and of the clock that times the contenders."""
    plan: Plan = field(default_factory=Plan)
    """How long the run takes; nothing until that was reckoned."""
    narrator: Any = None
    """Shows how far the run is (`progress`), says something (`say`), where a run is timed."""
    has_begun: bool = False
    writer: RunWriter = field(init=False)
    """The run and its journal, and who is suspected in it, once that has begun."""
    trials: Trials = field(init=False)
    signals: list[tuple[str, float]] = field(default_factory=list)
    """(name, when) of those that ask for the end."""
    end_reason: str = ""
    """Why nothing more can be measured, if that is so."""
    interrupted: str = ""
    """What interrupted pytest, in words."""
    problems: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    """Why sizes do not fit the operations that were asked for."""
    checked: dict[str, ShapeChecked] = field(default_factory=dict)
    """By shape, what a worker told that checked it."""

    def open(self, folder: Path, run: dict | Run) -> None:
        """Begin a run, or go on with one, as `RunWriter` does. Raises OSError."""
        self.writer = RunWriter(folder, run, self.end)
        self.has_begun = True
        most_s = max(LEAST_S, OF_PLAN * self.plan.seconds)
        self.trials = Trials(self.writer, self.planned, most_s, are_possible=bool(self.root and not self.epochs))

    def end(self, reason: str) -> None:
        """End the measuring, for a `reason` that holds from now on."""
        self.end_reason = self.end_reason or reason

    def is_over(self, worker: Told) -> bool:
        """True where a worker is to do no more of what it was asked for."""
        apart = worker.request.apart
        return bool(self.end_reason or (apart and self.trials.why_no_more(apart, worker.seconds)))

    @property
    def cases(self) -> list[str]:
        """The ids of the cases that were selected."""
        return [f"{shape}-{name}" for shape, names in self.planned.items() for name in names]

    @property
    def run(self) -> Run:
        """The run as it is known by now, once it has begun."""
        return self.writer.run

    @property
    def folder(self) -> Path:
        return self.writer.folder

    @property
    def passes(self) -> int:
        """The number of times that each process comes back to a shape."""
        return self.hello["passes"]

    @property
    def processes(self) -> int:
        """The number of processes that measure each shape, one after another."""
        return self.options.processes or self.hello["processes"]

    @property
    def planned_passes(self) -> int:
        """The number of passes that the plan makes over each shape."""
        return self.passes * self.processes

    @property
    def cases_left(self) -> list:
        """The case of each shape that was selected and is not measured yet."""
        run = self.resumed
        left = [name for name in self.planned if not run or name in run.interrupted or name not in run.shapes]
        return [operations.parse(name)[0] for name in left]

    def is_of_workers(self, shape: str) -> bool:
        """True where workers measure or check the shape. This process checks only what needs no other rank."""
        return self.options.timed or bool(self.epochs and operations.find(shape).between_ranks)

    def outcome(self, shape: str, name: str) -> Outcome | None:
        """Why a contender has no number, or in plain pytest is not right; None where that is not so."""
        case = f"{shape}-{name}"
        if outcome := self.run.outcomes.get(case):
            return outcome
        is_checked = shape in self.checked and name in self.trials.left().get(shape, ())
        if (shape, name) in self.run.rows if self.options.timed else is_checked:
            return None
        return Outcome(NOT_RUN, self.trials.given_up.get(case) or self.end_reason)

    def show_progress(self, text: str) -> None:
        """Show how far the run is."""
        if self.narrator and self.has_begun:
            self.narrator.progress(text)

    def request(self, kind: str, cases: dict[str, list[str]], apart: str = "", **fields) -> Request:
        """The request to a worker for `cases`; `fields` are further ones of the request."""
        run = self.run if self.has_begun else Run({})
        refused = dict(self.trials.given_up) if self.has_begun else {}
        chosen = {shape: {"facts": told.facts, "medians_s": {}} for shape, told in self.checked.items()}
        made = {}
        process = 0
        for case, outcome in run.outcomes.items():
            if outcome.outcome == FAILED:
                refused[case] = outcome.reason
        for shape in run.shapes.values():
            if shape.rounds:
                process = max(process, 1 + shape.rounds[-1].process)
            if shape.passes:
                chosen[shape.id] = shape.choices
                if shape.apart == apart:
                    made[shape.id] = pass_line(shape)
        return Request(
            kind,
            options=as_values(self.options),
            cases=cases,
            runners=operations.places(cases),
            path=sys.path,
            refused=refused,
            chosen=chosen,
            made=made,
            process=process,
            ceilings=run.ceilings,
            apart=apart,
            **fields,
        )

    def finish(self, why_cut_short: str) -> None:
        """End the run: all that has no number gets a reason."""
        if journal.cut(self.folder):
            self.end(f"something else {journal.CHANGED}")
        cut_short = self.end_reason or why_cut_short
        reasons = dict.fromkeys(self.cases, cut_short or "its test ended before it was measured")
        self.writer.finish(cut_short, reasons | self.trials.given_up)
