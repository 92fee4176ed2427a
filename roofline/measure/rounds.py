"""Taking turns: contenders are timed in rounds, each in another order, until the medians are known well enough.

Drift, heat and the state that a predecessor leaves behind then hit all contenders alike, and ratios can be paired
within a round.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from roofline.measure.clocks import Call
from roofline.stats import median_interval
from roofline.store.run import Round


@dataclass(frozen=True)
class StopRule:
    """When to stop. Fixed before the first sample is seen."""

    max_seconds: float = 7.0
    """Cap on the time of one shape's rounds, all contenders together. A pass in which a call raises begins again."""
    width: float = 0.01
    """Stop once every contender's interval is narrower than this share of its median; looked at in the last pass."""
    min_rounds: int = 30
    max_rounds: int = 600
    check_every: float = 1.2
    """The width is looked at after `min_rounds`, and then each time that there are this many times as many rounds."""
    warmup_s: float = 0.2


class CallError(Exception):
    """The call of the entrant `name` raised its `__cause__` while it was timed."""

    def __init__(self, name: str):
        super().__init__(name)
        self.name = name


class Rounds:
    """The rounds of one shape, in one pass or in several with other shapes between them.

    What slows a shared machine down comes and goes within seconds: passes apart from one another meet more of it than
    the same time at one go, and their differences are in the interval (`stats.median_interval`'s `passes`).
    """

    def __init__(self, entrants: dict[str, Call], clock, rule: StopRule, *, seed: int, passes: int = 1):
        """Entrants are {name: call}. The same seed gives the same orders.

        A call may have an attribute `notes`: called after each turn, it returns {name: value} of the call's last
        sample, or raises where that was none. With what the clock said of the sample, these are the round's values; a
        `timeline` among them, a dict, is kept apart.
        """
        self.rounds: list[Round] = []
        self.late = dict.fromkeys(entrants, 0)
        """Samples dropped because the host was late, of each entrant that is still in."""
        self.timelines: dict[tuple[str, int], dict] = {}
        """By entrant and round."""
        self.stopped_by = ""
        """`width` (known well enough), `time` (the cap) or `rounds` (the most rounds); empty while it goes on."""
        self._entrants = {name: named(name, call) for name, call in entrants.items()}
        self._notes = {name: named(name, call.notes) for name, call in entrants.items() if hasattr(call, "notes")}
        self._clock, self._rule, self._passes = clock, rule, passes
        self._rng = np.random.default_rng(seed)
        self._look = rule.min_rounds
        self._passed = 0

    @property
    def times_s(self) -> dict[str, dict[int, float]]:
        """{entrant: {round: seconds}} of those that are still in; a sample that a late host spoilt is absent."""
        return {name: {one.index: one.time_s[name] for one in self.rounds if name in one.time_s} for name in self.late}

    def drop(self, name: str) -> None:
        """Go on without `name`, and forget its samples."""
        for known in (self._entrants, self._notes, self.late):
            known.pop(name, None)
        for one in self.rounds:
            one.time_s, one.values = ({n: v for n, v in of.items() if n != name} for of in (one.time_s, one.values))

    def run_pass(self) -> None:
        """Run rounds for this pass's share of the rule's time, the first pass's after a warm-up.

        Whole rounds are in `rounds` as soon as they are done, and stay there when this is interrupted. At least one is
        run, and at least `rule.min_rounds` in all unless the time cap comes first. The last pass notes what stopped
        it. Raises `CallError` where a call raises, and what the clock raises.
        """
        if not self._passed:
            self._warm_up()
        share = (self._passed + 1) / self._passes
        deadline = self._clock.now() + self._rule.max_seconds / self._passes
        stopped_by = ""
        while not stopped_by:
            self._round()
            done = len(self.rounds)
            if done >= self._rule.max_rounds * share:
                stopped_by = "rounds"
            elif self._clock.now() >= deadline:
                stopped_by = "time"
            elif done >= self._look:
                self._look = math.ceil(done * self._rule.check_every)
                if share == 1 and self._narrow():
                    stopped_by = "width"
        self._passed += 1  # not if a call raised: then this pass begins again
        if share == 1:
            self.stopped_by = stopped_by

    def _warm_up(self) -> None:
        """By time, not by count: a 20 ms kernel and a 20 us kernel need the same while to reach their clocks."""
        deadline, calls = self._clock.now() + self._rule.warmup_s, list(self._entrants.values())
        self._clock.turn(calls)
        while self._clock.now() < deadline:
            self._clock.turn(calls)

    def _round(self) -> None:
        order = self._rng.permutation(list(self._entrants)).tolist()
        times = self._clock.turn([self._entrants[name] for name in order])
        notes = {name: said() for name, said in self._notes.items()}
        read = getattr(self._clock, "said", None) or [{}] * len(order)
        one = Round(len(self.rounds), order, {}, {}, self._passed + 1)
        for name, time_s, of_clock in zip(order, times, read, strict=True):
            if time_s is None:
                self.late[name] += 1
                continue
            one.time_s[name] = time_s
            values = notes.get(name, {}) | of_clock
            if timeline := values.pop("timeline", None):
                self.timelines[name, one.index] = timeline
            if values:
                one.values[name] = values
        self.rounds.append(one)

    def _narrow(self) -> bool:
        return all(
            len(times) > 1
            and median_interval(list(times.values()), passes=self._passes).relative_width < self._rule.width
            for times in self.times_s.values()
        )


def take_turns(entrants: dict[str, Call], clock, rule: StopRule, *, seed: int) -> Rounds:
    """All rounds of `entrants` ({name: call}) in one pass."""
    rounds = Rounds(entrants, clock, rule, seed=seed)
    rounds.run_pass()
    return rounds


def named(name: str, call: Callable) -> Callable:
    """`call`, whose exceptions become `CallError`s that name it; with its attributes `long` and `seconds`, which clocks
    look at."""

    def run():
        try:
            return call()
        except Exception as error:
            raise CallError(name) from error

    run.long = getattr(call, "long", False)
    if hasattr(call, "seconds"):
        run.seconds = named(name, call.seconds)
    return run
