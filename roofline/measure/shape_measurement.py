"""A shape that is being measured, and the lines of the journal that come of it."""

import dataclasses
from dataclasses import dataclass, field

from roofline.measure import telemetry
from roofline.measure.prepared import PreparedCase
from roofline.measure.rounds import Rounds
from roofline.store.run import INTERRUPTED, Shape


@dataclass
class ShapeMeasurement:
    """A shape whose contenders are prepared, between the passes over it."""

    shape: str
    found: PreparedCase
    rounds: Rounds
    seed: int
    within_s: float
    """Longest that a pass may take."""
    telemetry: list[dict] = field(default_factory=list)
    journalled: int = 0
    """Rounds that the journal has."""

    def new_lines(self, pass_index: int) -> list[dict]:
        """What is new since these were asked for last: the line of the shape or pass, then rounds, and at the end of
        the last pass the timelines."""
        rounds = self.rounds
        now = {
            "passes": pass_index,
            "stopped_by": rounds.stopped_by or INTERRUPTED,
            "round_count": len(rounds.rounds),
            "telemetry": telemetry.merged(self.telemetry),
            "late": rounds.late,
        }
        line = self._shape(now).line() if pass_index == 1 else {"kind": "pass", "shape": self.shape} | now
        new = [one.line(self.shape) for one in rounds.rounds[self.journalled :]]
        self.journalled = len(rounds.rounds)
        return [line, *new, *(self._timelines() if rounds.stopped_by else [])]

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
        """Of each entrant that was traced or noted one: the trace, or that of the sample nearest to its median."""
        lines = []
        for name, times in self.rounds.times_s.items():
            ranked = sorted(times, key=times.get)
            middle = ranked[len(ranked) // 2] if ranked else None
            noted = self.rounds.timelines.get((name, middle))
            traced = self.found.entrants[name].timeline
            if timeline := noted and (traced or noted):
                about = {"kind": "timeline", "shape": self.shape, "contender": name}
                lines.append(about | {"round": None if traced else middle} | timeline)
        return lines
