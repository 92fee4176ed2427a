"""A shape that is being measured, and the lines of the journal that come of it."""

import dataclasses
from dataclasses import dataclass, field

from roofline.measure import telemetry
from roofline.measure.prepared import PreparedCase
from roofline.measure.rounds import Rounds
from roofline.store.run import INTERRUPTED, Round, Shape


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
        turns = self.rounds.turns
        now = {
            "passes": pass_index,
            "stopped_by": turns.stopped_by or INTERRUPTED,
            "round_count": len(turns.order),
            "telemetry": telemetry.merged(self.telemetry),
            "late": turns.late,
        }
        line = self._shape(now).line() if pass_index == 1 else {"kind": "pass", "shape": self.shape} | now
        rounds = [self._round(index, pass_index) for index in range(self.journalled, len(turns.order))]
        self.journalled = len(turns.order)
        return [line, *(one.line(self.shape) for one in rounds), *(self._timelines() if turns.stopped_by else [])]

    def _round(self, index: int, pass_index: int) -> Round:
        turns = self.rounds.turns
        order = turns.order[index]
        times = {name: turns.times_s[name][index] for name in order if index in turns.times_s.get(name, ())}
        noted = {name: {k: v for k, v in self._note(name, index).items() if k != "timeline"} for name in times}
        return Round(index, order, times, {name: own for name, own in noted.items() if own}, pass_index)

    def _note(self, name: str, index: int) -> dict:
        return self.rounds.turns.notes.get(name, {}).get(index, {})

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
        for name, times in self.rounds.turns.times_s.items():
            ranked = sorted(times, key=times.get)
            middle = ranked[len(ranked) // 2] if ranked else None
            noted = middle is not None and self._note(name, middle).get("timeline")
            traced = self.found.entrants[name].timeline
            if timeline := noted and (traced or noted):
                about = {"kind": "timeline", "shape": self.shape, "contender": name}
                lines.append(about | {"round": None if traced else middle} | timeline)
        return lines
