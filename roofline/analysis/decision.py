"""A decision on each ratio to the baseline (`--ffn-decide`), by looks at planned numbers of processes.

Each look may be wrong by a chance that alpha spending leaves it (Lan and DeMets 1983), and its interval is Student's
at that level over the processes so far: all of them hold together with `SURE` (Bonferroni). A ratio is FASTER or SLOWER
where its interval lies beyond the margin, of 3 % above 1.03 or below 1 / 1.03, and the SAME where it lies within.
docs/trust.md says why, and `tests/roofline/test_decision.py` simulates it.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from roofline.analysis.changes import FASTER, SAME, SLOWER
from roofline.store.run import Run, Shape
from roofline.store.stats import by_process, geometric_mean, student

UNDECIDED = "UNDECIDED"
VERDICTS = (FASTER, SLOWER, SAME, UNDECIDED)
SURE = 0.99
LOOKS, POWER = (1, 1.5, 2, 2.5, 3, 4.5), 1.5
"""In multiples of the processes that the run planned; the chance is spent as this power of their number."""
LEAST, VISITS_S = 4, 2.0
"""Processes to plan at least, and what each measures at least, all shapes together: about what it takes to begin."""


class Decision(NamedTuple):
    """What the looks at a ratio came to."""

    verdict: str = UNDECIDED
    decided: float | None = None
    decided_low: float | None = None
    decided_high: float | None = None
    looks: int = 0


def levels(planned: int) -> dict[int, float]:
    """Return {processes: chance that the interval of the look at so many is wrong} of a run that planned so many."""
    counts = [round(planned * multiple) for multiple in LOOKS]
    spent = [0.0, *((1 - SURE) * (count / counts[-1]) ** POWER for count in counts)]
    return {count: now - before for count, before, now in zip(counts, spent, spent[1:], strict=False)}


def decide(ratios: Sequence[float], margin: float, planned: int) -> Decision:
    """Return what the first look at the `ratios` of processes says that decides, or else the last one so far."""
    bound, decision = math.log1p(margin), Decision()
    for number, (count, level) in enumerate(levels(planned).items(), 1):
        if count > len(ratios) or decision.verdict != UNDECIDED:
            break
        interval = student(geometric_mean(ratios[:count]), list(ratios[:count]), confidence=1 - level)
        low, high = math.log(interval.low), math.log(interval.high)
        verdicts = {FASTER: low > bound, SLOWER: high < -bound, SAME: -bound < low and high < bound, UNDECIDED: True}
        decision = Decision(next(verdict for verdict, holds in verdicts.items() if holds), *interval, number)
    return decision


def of_case(run: Run, shape: Shape, contender: str) -> Decision | None:
    """Return the decision on a contender; None of one that is not judged, over a wire, and in a run that decides
    nothing."""
    options, times = run.metadata.get("options", {}), shape.times_s(contender)
    if not options.get("decide") or shape.analysis != "throughput" or not shape.anchor:
        return None
    if contender not in shape.rivals:
        return None
    ratios = by_process(lambda baseline_s, time_s: baseline_s / time_s, shape.anchor, times, groups=shape.groups)
    return decide([*ratios.values()], options["decide"], options["processes"])


def is_open(run: Run, shape: Shape) -> bool:
    """Return whether more processes may decide on a contender."""
    decisions = filter(None, (of_case(run, shape, name) for name in shape.measured))
    return any(decision.verdict == UNDECIDED and decision.looks < len(LOOKS) for decision in decisions)


def fields(run: Run, shape: Shape, contender: str) -> dict:
    """Return the decision's fields of a record, all None where there is none."""
    decision = of_case(run, shape, contender)
    return {name: getattr(decision, name, None) for name in Decision._fields}


def slower(run: Run) -> list[str]:
    """Return a line for each case that is SLOWER."""
    lines = []
    for shape, name in run.cases():
        decision = of_case(run, shape, name)
        if decision and decision.verdict == SLOWER:
            ratio = "{:.3f} [{:.3f}, {:.3f}]".format(*decision[1:4])
            lines.append(f"SLOWER: {shape.id}-{name}: {ratio} of {shape.baseline}'s speed")
    return lines
