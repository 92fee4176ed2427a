"""FASTER, SLOWER, SAME or UNDECIDED: the one rule of `roofline compare` and `--ffn-decide`.

A `Change` is a mean of logarithms with its standard error; `verdicts` says a word of each. docs/trust.md explains both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from roofline.store.stats import Interval, beyond, student_quantile

VERDICTS = {
    "FASTER": "it is faster by more than the margin, and the test says so",
    "SLOWER": "it is slower by more than the margin, and the test says so",
    "SAME": "its whole interval lies within the margin",
    "UNDECIDED": "anything else: the interval reaches over an end of the margin, and the test does not tell",
}
"""The four words, and what each means of a change."""
FASTER, SLOWER, SAME, UNDECIDED = VERDICTS
SPEED, HIDDEN = "speed", "hidden"
"""The quantities that a change is of."""
MARGIN = 0.03
ALPHA = 0.05
"""The chance that any of the equal cases of a comparison is called changed."""


@dataclass(frozen=True)
class Change:
    """The logarithm of one speed over another, or what one hides more than the other, as `of` says; the standard error
    of that, and its degrees of freedom."""

    value: float
    error: float
    freedom: int
    of: str = SPEED

    @classmethod
    def of_logarithms(cls, values: Sequence[float]) -> Change:
        """The mean of two or more independent values, one a process."""
        error = stdev(values) / math.sqrt(len(values))
        return cls(fmean(values), error, len(values) - 1)

    def half_width(self, alpha: float = ALPHA) -> float:
        return student_quantile(self.freedom, 1 - alpha) * self.error

    def interval(self, alpha: float = ALPHA) -> Interval:
        """Student's interval of the speed, or of what is hidden more, which is wrong with a chance of `alpha`."""
        half = self.half_width(alpha)
        ends = self.value, self.value - half, self.value + half
        return Interval(*map(math.exp, ends)) if self.of == SPEED else Interval(*ends)

    @property
    def resolution(self) -> float:
        """The least change that its interval tells from none: of the speed, or of what is hidden."""
        half = self.half_width()
        return math.expm1(half) if self.of == SPEED else half

    def chance(self, least: float = 0.0) -> float:
        """The chance that one which changed by `least` seems to have changed as far: of the two-sided test."""
        excess = abs(self.value) - least
        if excess <= 0:
            return 1.0
        return beyond(excess / self.error, self.freedom) if self.error else 0.0


def verdicts(
    changes: Sequence[Change], margin: float = MARGIN, alpha: float = ALPHA, *, beyond_margin: bool = False
) -> list[str]:
    """The verdict on each of all the `changes` that are tested at once.

    FASTER and SLOWER are changes by more than the margin of which the test refutes that there is none; with
    `beyond_margin`, that they are no larger than the margin. The chance that any of them is false is at most `alpha`.
    """
    bound = math.log1p(margin)
    refuted = holm([change.chance(bound if beyond_margin else 0.0) for change in changes], alpha)
    words = []
    for change, is_refuted in zip(changes, refuted, strict=True):
        if is_refuted and abs(change.value) > bound:
            words.append(FASTER if change.value > 0 else SLOWER)
        elif abs(change.value) + change.half_width(alpha) <= bound:
            words.append(SAME)
        else:
            words.append(UNDECIDED)
    return words


def holm(chances: Sequence[float], alpha: float = ALPHA) -> list[bool]:
    """Which tests are refuted, so that the chance that any falsely is stays within `alpha` (Holm 1979)."""
    refuted = [False] * len(chances)
    for rank, index in enumerate(sorted(range(len(chances)), key=chances.__getitem__)):
        if chances[index] > alpha / (len(chances) - rank):
            break
        refuted[index] = True
    return refuted
