"""A shape that is being measured, and the lines of the journal that come of it."""

from dataclasses import dataclass, field

from roofline.measure import telemetry
from roofline.measure.prepared import PreparedCase
from roofline.measure.rounds import Rounds
from roofline.store import journal


@dataclass
class Entered:
    """A shape whose contenders are prepared, between the visits to it."""

    shape: str
    found: PreparedCase
    rounds: Rounds
    seed: int
    within_s: float
    """Longest that a visit may take."""
    telemetry: list[dict] = field(default_factory=list)
    journalled: int = 0
    """Rounds that the journal has."""

    def new_lines(self, visit: int) -> list[dict]:
        """What is new since these were asked for last: the line of the shape or visit, then samples, and at the end of
        the last visit the timelines."""
        turns = self.rounds.turns
        line = {
            "visit": visit,
            "stopped_by": turns.stopped_by or journal.INTERRUPTED,
            "rounds": len(turns.order),
            "telemetry": telemetry.merged(self.telemetry),
            "late": turns.late,
        }
        line = {"kind": "shape"} | self._about() | line if visit == 1 else {"kind": "visit", "shape": self.shape} | line
        samples = [
            {
                "kind": "sample",
                "shape": self.shape,
                "contender": name,
                "round": index,
                "position": position,
                "time_s": turns.times_s[name][index],
            }
            | {key: value for key, value in self._note(name, index).items() if key != "timeline"}
            for index, order in enumerate(turns.order)
            for position, name in enumerate(order)
            if index >= self.journalled and index in turns.times_s.get(name, ())
        ]
        self.journalled = len(turns.order)
        return [line, *samples, *(self._timelines() if turns.stopped_by else [])]

    def _note(self, name: str, index: int) -> dict:
        return self.rounds.turns.notes.get(name, {}).get(index, {})

    def _about(self) -> dict:
        found, case = self.found, self.found.case
        return {
            "shape": self.shape,
            "op": case.op,
            "model": case.model,
            "layer": case.layer,
            **{key: getattr(case, key) for key in ("tp", "m", "n", "k", "dtype")},
            **{key: getattr(case.work, key) for key in ("flop", "device_bytes", "wire_bytes")},
            **found.facts,
            "vendor": found.baseline,
            "seed": self.seed,
            "cache": found.cache,
            "contenders": {
                name: {"config": entrant.config, "relative_error": entrant.relative_error}
                | ({"role": entrant.role} if entrant.role else {})
                | entrant.facts
                for name, entrant in found.entrants.items()
            },
        }

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
