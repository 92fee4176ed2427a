"""A decision on each ratio to the baseline (`--ffn-decide`), by looks at planned numbers of processes.

Each look may be wrong by a chance that alpha spending leaves it (Lan and DeMets 1983), and its interval is Student's
at that level over the processes so far: all of them hold together with `SURE` (Bonferroni). docs/trust.md says why, and
`tests/roofline/test_decision.py` simulates it.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from roofline.analysis.fields import MeasuredCase
from roofline.analysis.verdicts import UNDECIDED, Change, verdicts
from roofline.store.run import Run, Shape
from roofline.store.stats import grouped

SURE = 0.99
LOOKS = (1, 1.5, 2, 2.5, 3, 4.5)
"""In multiples of the processes that the run planned."""
POWER = 1.5
"""The chance is spent as this power of the number of processes."""
LEAST, VISITS_S = 4, 2.0
"""Processes to plan at least, and what each measures at least, all shapes together: about what it takes to begin."""
MOST_TIMES = 3
"""A run with decisions takes up to so many times the time of its plan."""


class Decision(NamedTuple):
    """The outcome of all looks at a ratio."""

    verdict: str = UNDECIDED
    decided: float | None = None
    decided_low: float | None = None
    decided_high: float | None = None
    looks: int = 0


def levels(planned: int) -> dict[int, float]:
    """{processes: chance that the interval of the look at so many is wrong} of a run that planned so many."""
    levels = {}
    spent = 0.0
    for multiple in LOOKS:
        count = round(planned * multiple)
        spent_by_now = (1 - SURE) * (count / round(planned * LOOKS[-1])) ** POWER
        levels[count] = spent_by_now - spent
        spent = spent_by_now
    return levels


def decide(ratios: Sequence[float], margin: float, planned: int) -> Decision:
    """The decision of the first look at the `ratios` of processes that decides, or else the last one so far."""
    logarithms = list(map(math.log, ratios))
    decision = Decision()
    for look, (count, alpha) in enumerate(levels(planned).items(), 1):
        if count > len(ratios) or decision.verdict != UNDECIDED:
            break
        change = Change.of_logarithms(logarithms[:count])
        (verdict,) = verdicts([change], margin, alpha, beyond_margin=True)
        decision = Decision(verdict, *change.interval(alpha), look)
    return decision


def decision_of(case: MeasuredCase) -> Decision | None:
    """The decision on a contender. There is none on one that is not judged, over a wire, and in a run that decides
    nothing."""
    shape = case.shape
    options = case.run.metadata.get("options", {})
    is_decided = options.get("decide") and shape.analysis == "throughput" and shape.anchor
    if not is_decided or case.contender not in shape.rivals:
        return None
    ratios = [*shape.ratios(case.contender).values()]
    return decide(ratios, options["decide"], options["processes"])


def is_open(run: Run, shape: Shape) -> bool:
    """A contender is open while more processes may decide on it."""
    for contender in shape.measured:
        decision = decision_of(MeasuredCase(run, shape, contender))
        if decision and decision.verdict == UNDECIDED and decision.looks < len(LOOKS):
            return True
    return False


def is_time_up(run: Run) -> bool:
    """True where the next process would take the run farther from `MOST_TIMES` its plan than it is now."""
    seconds = grouped((line["planned"], line["seconds"]) for line in run.processes)
    further = seconds.get(False, [0.0])
    next_s = further[-1] / 2
    most_s = (MOST_TIMES - 1) * sum(seconds.get(True, []))
    return sum(further) + next_s > most_s


def fields(case: MeasuredCase) -> dict:
    """The decision's fields of a record; {} where there is none."""
    decision = decision_of(case)
    return decision._asdict() if decision else {}
