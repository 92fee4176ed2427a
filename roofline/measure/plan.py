"""How long a run takes: estimated before it begins, from then on corrected by what its steps took, kind by kind."""

import math
import time
from collections import defaultdict
from typing import NamedTuple

from roofline.measure import ceilings, steady
from roofline.measure.rounds import PATIENCE, StopRule
from roofline.theory.wires import parse as parse_wire

PREPARING, CEILINGS, BEGIN, PREPARE, MEASURE, STEADY, REPORT = range(7)
"""Kinds of steps. `BEGIN` is of a later process, `PREPARE` and `MEASURE` are of a shape."""
WORDS = "preparing", "ceilings", "its start", "preparing {}", "{}", "steady state of {}", "report"
PRIOR_S = 3.0
"""An estimate weighs as much as so many seconds, of steps of its kind, that were measured."""
COPY_BYTES_PER_S = 2e10


class Costs(NamedTuple):
    """What a run takes beside the calls in its rounds, in seconds. A pair has (seconds, times of a round)."""

    preparing_s: float
    trial_s: float  # of a case that is tried beside the run
    begin_s: float  # of a later process
    turn_s: float  # of a call in a round, beside the call
    prepare: tuple[float, float]  # of a matmul
    prepare_link: tuple[float, float]  # of a case over a link; in later processes a quarter
    of_cap: float  # share of the cap on a shape's time that is used, since times may be narrow before
    references: int  # entrants beside the arms of a gather
    report_s: float  # of an analysis


COSTS = {
    "cpu": Costs(1, 0, 4.5, 0.0025, (0.05, 6), (0.5, 8), 1.0, 3, 7),
    "cuda": Costs(8, 0.3, 15, 0.0002, (0.1, 20), (0.5, 20), 0.5, 7, 7),
}
"""`cpu`: by the reference runs. `cuda`: never measured, by the reckoning in CONTRIBUTING.md."""


class Step(NamedTuple):
    """What a run is at. Processes count from 0, passes from 1."""

    kind: int
    process: int = 0
    shape: str = ""
    pass_index: int = 0


def estimate(shapes: dict, options, passes: int, processes: int, flops: tuple[float, float]) -> dict[Step, float]:
    """Return the steps of a run in their order, each with its seconds. `shapes` is {id: (case, contenders)}; `flops` is
    about what a matmul reaches alone, and beside a link."""
    cost, rule = COSTS[options.device], StopRule.share(options.max_seconds, processes, options.device)
    tried = sum(len(names) for _, names in shapes.values())
    steps = {Step(PREPARING): cost.preparing_s + cost.trial_s * tried}
    steps[Step(CEILINGS)] = 2 + 3 * min(options.max_seconds, ceilings.STOP_RULE.max_seconds)
    for process in range(processes):
        steps |= {Step(BEGIN, process): cost.begin_s} if process else {}
        for index in range(1, passes + 1):
            for shape, (case, names) in shapes.items():
                linked, round_s = case.work.wire_bytes, _round_s(case, len(names), cost, flops)
                most_s = max(
                    cost.of_cap * rule.max_seconds, min(rule.min_rounds * round_s, PATIENCE * rule.max_seconds)
                )
                each = min(most_s / round_s, rule.max_rounds) / passes
                # The first pass has one round at least, and those after it fewer then.
                done, rounds = (i and max(1, math.ceil(each * i)) for i in (index - 1, index))
                if index == 1:
                    (seconds, calls), part = (
                        cost.prepare_link if linked else cost.prepare,
                        4 if linked and process else 1,
                    )
                    steps[Step(PREPARE, process, shape)] = (seconds + calls * round_s) / part + (rule.warmup_s or 0)
                steps[Step(MEASURE, process, shape, index)] = (rounds - done) * round_s
                long = not linked and case.work.flop / flops[0] >= steady.FROM_S
                by_default = options.device == "cuda" and getattr(case, "m", 0) >= steady.FROM_TOKENS
                if long and index == passes and not process and (options.steady or by_default):
                    blocks = steady.BLOCKS * len(names) if options.steady else 2
                    steps[Step(STEADY, 0, shape)] = blocks * (steady.DROPPED_S + steady.COUNTED_S)
    analyses = len({case.work.wire_bytes > 0 for case, _ in shapes.values()})
    return steps | {Step(REPORT): cost.report_s * analyses + 0.03 * tried}


def _round_s(case, contenders: int, cost: Costs, flops: tuple[float, float]) -> float:
    alone_s, beside_s = (case.work.flop / rate for rate in flops)
    if not (wire_bytes := case.work.wire_bytes):  # a probe takes its turn, too
        return (max(contenders, 2) + 1) * (alone_s + cost.turn_s)
    about = {"t_gemm_s": beside_s, "wire_bytes": wire_bytes, "copy_bytes_per_s": COPY_BYTES_PER_S}
    pace = parse_wire(case.wire).bytes_per_s(chip_flops=flops[1], **about) or COPY_BYTES_PER_S
    # Some take the sum of the two times, some the longer one, and of the references each takes one.
    wire_s = wire_bytes / pace
    return (max(contenders, 2) + cost.references) * (0.7 * (beside_s + wire_s) + cost.turn_s)


class Plan:
    """A run's steps, which of them it is at, and how long the others take."""

    def __init__(self, seconds: dict[Step, float], now=time.monotonic):
        """`seconds` is as `estimate` returns it."""
        self._seconds, self._steps, self._now = seconds, list(seconds), now
        self._index = {step: index for index, step in enumerate(self._steps)}
        self._took, self._expected = defaultdict(float), defaultdict(float)
        self._position, self._since = 0, now()
        self._processes, self._passes = 1 + max(s.process for s in seconds), max(s.pass_index for s in seconds)

    @property
    def at(self) -> Step:
        return self._steps[self._position]

    def begin(self, step: Step) -> None:
        """The run begins `step`, and all before it is done or left out. One that was not planned changes nothing."""
        index, now = self._index.get(step, self._position), self._now()
        if index == self._position:
            return
        passed = [(step_passed, self._corrected(step_passed)) for step_passed in self._steps[self._position : index]]
        share = (now - self._since) / (sum(expected_s for _, expected_s in passed) or 1.0)
        for step_passed, expected_s in passed:
            self._took[step_passed.kind, step_passed.process > 0] += share * expected_s
            self._expected[step_passed.kind, step_passed.process > 0] += self._seconds[step_passed]
        self._position, self._since = index, now

    def left_s(self) -> float:
        """Return the seconds until the report is drawn."""
        at_s = max(0.0, self._corrected(self.at) - (self._now() - self._since))
        return at_s + sum(map(self._corrected, self._steps[self._position + 1 :]))

    def _corrected(self, step: Step) -> float:
        return self._seconds[step] * self._factor(step.kind, step.process > 0)

    def _factor(self, kind: int, later: bool) -> float:
        """Return what steps of the kind took, over what was estimated; what the first process took tells of later
        ones."""
        prior = PRIOR_S * (self._factor(kind, False) if later else 1.0)
        return (self._took[kind, later] + prior) / (self._expected[kind, later] + PRIOR_S)

    def __str__(self) -> str:
        """Return how long the whole run and each part of it will take."""
        of = defaultdict(float)
        for step, seconds in self._seconds.items():
            of[MEASURE if step.kind in (BEGIN, PREPARE) else step.kind] += seconds
        each = duration(of[MEASURE] / self._processes)
        measuring = f"{self._processes} processes of {each}" if self._processes > 1 else f"measuring {each}"
        parts = [f"preparing {duration(of[PREPARING])}", f"ceilings {duration(of[CEILINGS])}", measuring]
        parts += [f"steady states {duration(of[STEADY])}"] if of[STEADY] else []
        return f"about {duration(sum(of.values()))}: {', '.join(parts)}, report {duration(of[REPORT])}"

    def line(self) -> str:
        """Return what the run is at, and the time left."""
        kind, process, shape, index = self.at
        words = [f"process {process + 1} of {self._processes}"] if self._processes > 1 and (shape or process) else []
        words += [f"pass {index} of {self._passes}"] if index and self._passes > 1 else []
        return f"{', '.join([*words, WORDS[kind].format(shape)])}: {duration(self.left_s())} left"


def duration(seconds: float) -> str:
    """Return `seconds` in words, rounded as a person would.

    >>> duration(3.2), duration(47), duration(309), duration(4000)
    ('under 5 s', '45 s', '5 min 10 s', '67 min')
    """
    if seconds < 97.5:
        return f"{5 * round(seconds / 5)} s" if seconds >= 5 else "under 5 s"
    minutes, rest = divmod(10 * round(seconds / 10), 60)
    return f"{minutes} min {rest} s" if rest and minutes < 10 else f"{round(seconds / 60)} min"
