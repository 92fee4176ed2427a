"""Taking turns: contenders are timed in rounds, each in another order, until the medians are known well enough.

Drift, heat and the state that a predecessor leaves behind then hit all contenders alike, and ratios can be paired
within a round.
"""

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
    max_rounds: int = 300
    check_every: int = 10
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


def take_turns(entrants: dict[str, Call], clock, plan: Plan, *, seed: int) -> Turns:
    """Time `entrants` ({name: call}) on `clock` by `plan`. The same seed gives the same orders.

    At least one round is always run, and at least `plan.min_rounds` unless the time cap comes first.
    """
    names = list(entrants)
    turns = Turns({name: {} for name in names}, late=dict.fromkeys(names, 0))
    rng = np.random.default_rng(seed)
    _warm_up(entrants, clock, plan.warmup_s)
    deadline = clock.now() + plan.max_seconds
    for index in range(plan.max_rounds):
        order = [names[i] for i in rng.permutation(len(names))]
        turns.order.append(order)
        for name, time_s in zip(order, clock.turn([entrants[name] for name in order]), strict=True):
            if time_s is None:
                turns.late[name] += 1
            else:
                turns.times_s[name][index] = time_s
        if clock.now() >= deadline:
            turns.stopped_by = "time"
            break
        done = index + 1
        if done >= plan.min_rounds and done % plan.check_every == 0 and _narrow(turns, plan.width):
            turns.stopped_by = "width"
            break
    return turns


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
