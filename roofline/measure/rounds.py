"""Taking turns: contenders are timed in rounds, each in another order, until the medians are known well enough.

Drift, heat and the state that a predecessor leaves behind then hit all contenders alike, and ratios can be paired
within a round.
"""

import math
from dataclasses import dataclass, field

import numpy as np

from roofline.measure.clocks import Call
from roofline.stats import median_interval


@dataclass(frozen=True)
class Plan:
    """When to stop. Fixed before the first sample is seen."""

    max_seconds: float = 7.0
    """Cap on the time of one shape's rounds, all contenders together."""
    width: float = 0.01
    """Stop once every contender's interval is narrower than this share of its median."""
    min_rounds: int = 30
    max_rounds: int = 600
    check_every: float = 1.2
    """The width is looked at after `min_rounds`, and then each time that there are this many times as many rounds."""
    warmup_s: float = 0.2


@dataclass
class Turns:
    """Samples of one shape. `times_s[name][round]` is in seconds; a round that a late host spoilt is absent."""

    times_s: dict[str, dict[int, float]]
    order: list[list[str]] = field(default_factory=list)
    """Who ran when, round by round."""
    late: dict[str, int] = field(default_factory=dict)
    """Samples dropped because the host was late, per contender."""
    stopped_by: str = "rounds"
    """`width` (known well enough), `time` (the cap) or `rounds` (the most rounds)."""

    @classmethod
    def of(cls, names) -> "Turns":
        """No round yet."""
        return cls({name: {} for name in names}, late=dict.fromkeys(names, 0))


class CallError(Exception):
    """The call of the entrant `name` raised its `__cause__` while it was timed."""

    def __init__(self, name: str):
        super().__init__(name)
        self.name = name


def take_turns(entrants: dict[str, Call], clock, plan: Plan, *, seed: int, into: Turns | None = None) -> Turns:
    """Time `entrants` ({name: call}) on `clock` by `plan`. The same seed gives the same orders.

    At least one round is always run, and at least `plan.min_rounds` unless the time cap comes first. Whole rounds are
    in `into`, if given, as soon as they are done, so that they are there when an interruption ends the call. Raises
    `CallError` where a call raises, and what the clock raises.
    """
    names = list(entrants)
    turns = into or Turns.of(names)
    entrants = {name: named(name, call) for name, call in entrants.items()}
    rng = np.random.default_rng(seed)
    _warm_up(entrants, clock, plan.warmup_s)
    look = plan.min_rounds
    deadline = clock.now() + plan.max_seconds
    for index in range(plan.max_rounds):
        order = [names[i] for i in rng.permutation(len(names))]
        times = clock.turn([entrants[name] for name in order])
        turns.order.append(order)
        for name, time_s in zip(order, times, strict=True):
            if time_s is None:
                turns.late[name] += 1
            else:
                turns.times_s[name][index] = time_s
        if clock.now() >= deadline:
            turns.stopped_by = "time"
            break
        if index + 1 == look:
            if _narrow(turns, plan.width):
                turns.stopped_by = "width"
                break
            look = math.ceil(look * plan.check_every)
    return turns


def named(name: str, call: Call) -> Call:
    """`call`, whose exceptions become `CallError`s that name it."""

    def run():
        try:
            return call()
        except Exception as error:
            raise CallError(name) from error

    return run


def _warm_up(entrants, clock, seconds: float) -> None:
    """By time, not by count: a 20 ms kernel and a 20 us kernel need the same while to reach their clocks."""
    deadline = clock.now() + seconds
    clock.turn(list(entrants.values()))
    while clock.now() < deadline:
        clock.turn(list(entrants.values()))


def _narrow(turns: Turns, width: float) -> bool:
    return all(
        len(times) > 1 and median_interval(list(times.values())).relative_width < width
        for times in turns.times_s.values()
    )
