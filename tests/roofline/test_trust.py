"""Can the harness be trusted? Rounds, stop rule and intervals together, on a clock whose truth is known.

The clock drifts by 20 % while a shape is measured, slows all contenders down together now and then, and gives each of
them noise of its own that is correlated from round to round. In a run of several processes each contender is a little
faster or slower in each of them, too.
"""

import math

import numpy as np
import pytest
from fake_clock import case_of

from roofline.protocol.stop_rule import StopRule
from roofline.store.stats import ratio_of, time_of
from roofline.worker.clocks import Clock
from roofline.worker.rounds import Rounds, take_turns

PLAN = StopRule(max_seconds=1e9, max_rounds=200, warmup_s=0.0)
BETWEEN = 0.013
"""Standard deviation of a contender's time from process to process."""
TRIALS = 100


class DriftingClock(Clock):
    """The clock reads disturbed seconds of calls that return (name, true seconds). It is deterministic for a seed."""

    def __init__(self, seed, correlation, spread=0.03):
        self._rng = np.random.default_rng(seed)
        self._correlation, self._spread = correlation, spread
        self._own: dict[str, float] = {}
        self._shared, self._rounds, self.seconds = 0.0, 0, 0.0

    def now(self):
        return self.seconds

    def _next(self, state):
        return self._correlation * state + math.sqrt(1 - self._correlation**2) * self._rng.normal()

    def turn(self, calls):
        self._rounds += 1
        self._shared = self._next(self._shared)
        drift = (1 + 0.001 * self._rounds) * math.exp(0.05 * self._shared)
        times = []
        for call in calls:
            name, truth = call()
            self._own[name] = self._next(self._own.get(name, 0.0))
            times.append(truth * drift * math.exp(self._spread * self._own[name]))
        self.seconds += sum(times)
        return times


def calls_of(**truth):
    return case_of({name: (lambda name=name, seconds=seconds: (name, seconds)) for name, seconds in truth.items()})


@pytest.mark.parametrize(
    ("correlation", "at_least"),
    [pytest.param(0.0, 0.90, marks=pytest.mark.slow), pytest.param(0.5, 0.88, marks=pytest.mark.slow), (0.8, 0.86)],
)
def test_coverage_under_drift_and_correlation_with_the_stop_rule(correlation, at_least):
    hits = 0  # nominal 0.95
    for seed in range(TRIALS):
        turns = take_turns(calls_of(vendor=1.0, ours=0.8), DriftingClock(seed, correlation), PLAN, seed=seed)
        ratio = ratio_of(turns.times_s["vendor"], turns.times_s["ours"])
        hits += ratio.low <= 1 / 0.8 <= ratio.high
    print(f"correlation {correlation}: {hits} of {TRIALS} intervals cover the true ratio")
    assert hits >= at_least * TRIALS


def run_processes(seed, **truth):
    """Return {contender: its times} and the groups, as statistics take them, of a run of several processes."""
    rng, times, groups = np.random.default_rng(seed), {name: {} for name in truth}, {}
    for process in range(6):
        calls = calls_of(**{name: seconds * math.exp(BETWEEN * rng.normal()) for name, seconds in truth.items()})
        clock, rule = DriftingClock(1000 * seed + process, 0.5), StopRule(1e9, max_rounds=40, warmup_s=None)
        rounds = Rounds(calls, clock, rule, seed=seed + process, passes=4)
        for _ in range(4):
            rounds.run_pass()
        before = len(groups)
        groups |= {before + round_.index: (process, round_.pass_index) for round_ in rounds.rounds}
        for name, of_it in rounds.times_s.items():
            times[name] |= {before + index: time_s for index, time_s in of_it.items()}
    return times, groups


def test_coverage_where_processes_differ():
    hits = 0  # nominal 0.95
    for seed in range(TRIALS):
        times, groups = run_processes(seed, vendor=1.0, ours=0.8)
        ratio = ratio_of(times["vendor"], times["ours"], groups)
        hits += ratio.low <= 1 / 0.8 <= ratio.high
    print(f"{hits} of {TRIALS} intervals cover the true ratio")
    assert hits >= 0.9 * TRIALS


def test_stop_rule_stops_as_soon_as_the_interval_is_narrow_and_no_sooner():
    rng = np.random.default_rng(0)

    class Noisy(DriftingClock):
        def turn(self, calls):
            return [1 + 0.02 * rng.normal() for _ in calls]

    turns = take_turns(case_of({"a": lambda: None}), Noisy(0, 0.0), PLAN, seed=0)
    assert turns.stopped_by == "width"
    samples = turns.times_s["a"]

    def width(count):
        interval = time_of({index: samples[index] for index in range(count)})
        return (interval.high - interval.low) / interval.value

    assert width(len(samples)) < PLAN.width
    looked_at = [n for n in (30, 36, 44, 53, 64, 77, 93, 112, 135, 162, 195) if n < len(samples)]
    assert looked_at
    assert all(width(count) >= PLAN.width for count in looked_at)
