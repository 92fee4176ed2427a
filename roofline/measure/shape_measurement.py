"""A shape that is being measured, and the lines of the journal that come of it."""

import dataclasses
from dataclasses import dataclass, field

from roofline.measure import telemetry
from roofline.measure.prepared import PreparedCase
from roofline.measure.rounds import Rounds
from roofline.store.run import INTERRUPTED, Shape


@dataclass
class ShapeMeasurement:
    """A shape whose contenders are prepared, between the passes over it that one process makes."""

    shape: str
    found: PreparedCase
    rounds: Rounds
    seed: int
    within_s: float
    """Longest that a pass may take."""
    process: int = 0
    processes: int = 1
    """How many share its passes."""
    before: Shape | None = None
    """What earlier processes measured of it."""
    telemetry: list[dict] = field(default_factory=list)
    journalled: int = 0
    """Rounds that the journal has."""

    def __post_init__(self):
        self._passes, self._rounds, self._late = 0, 0, {}
        if before := self.before:
            self._passes, self._rounds, self._late = before.passes, before.round_count, before.late
            self.telemetry += [before.telemetry] * before.passes

    def new_lines(self, pass_index: int) -> list[dict]:
        """What is new since these were asked for last: the line of the shape or pass, then rounds, and at the end of
        the last pass the timelines."""
        rounds, is_last = self.rounds, self.process == self.processes - 1
        now = {
            "passes": self._passes + pass_index,
            "processes": self.process + bool(rounds.stopped_by),
            "stopped_by": rounds.stopped_by if is_last and rounds.stopped_by else INTERRUPTED,
            "round_count": self._rounds + len(rounds.rounds),
            "telemetry": telemetry.merged(self.telemetry),
            "late": {name: count + self._late.get(name, 0) for name, count in rounds.late.items()},
        }
        is_first = pass_index == 1 and not self.before
        line = self._shape(now).line() if is_first else {"kind": "pass", "shape": self.shape} | now
        new = [one.line(self.shape) for one in rounds.rounds[self.journalled :]]
        self.journalled = len(rounds.rounds)
        return [line, *new, *(self._timelines() if rounds.stopped_by and not self.process else [])]

    def _shape(self, now: dict) -> Shape:
        found, case = self.found, self.found.case
        return Shape(
            id=self.shape,
            op=case.op,
            analysis=found.analysis,
            params=dataclasses.asdict(case),
            dtype=case.dtype,
            work=case.work,
            baseline=found.baseline,
            cache=found.cache,
            entrants={
                name: {"config": entrant.config, "relative_error": entrant.relative_error}
                | ({"role": entrant.role} if entrant.role else {})
                | entrant.facts
                for name, entrant in found.entrants.items()
            },
            seed=self.seed,
            facts=case.facts | found.facts,
            **now,
        )

    def _timelines(self) -> list[dict]:
        """Of each entrant that noted one: that of the sample nearest to its median."""
        lines = []
        for name, times in self.rounds.times_s.items():
            ranked = sorted(times, key=times.get)
            middle = ranked[len(ranked) // 2] if ranked else None
            if timeline := self.rounds.timelines.get((name, middle)):
                about = {"kind": "timeline", "shape": self.shape, "contender": name, "round": middle}
                lines.append(about | timeline)
        return lines
