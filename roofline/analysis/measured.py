"""A case as a run measured it: what each part of its record is formed of."""

from dataclasses import dataclass
from functools import cached_property

from roofline.store.run import Run, Shape
from roofline.store.stats import Interval


@dataclass(frozen=True)
class MeasuredCase:
    """A contender on a shape of a run, with samples."""

    run: Run
    shape: Shape
    contender: str

    @property
    def entrant(self) -> dict:
        """The journal's entry of the contender on this shape."""
        return self.shape.entrants[self.contender]

    @cached_property
    def times_s(self) -> dict[int, float]:
        """{round: seconds}."""
        return self.shape.times_s(self.contender)

    @cached_property
    def time(self) -> Interval:
        """Its typical time, told beside the baseline's."""
        return self.shape.time(self.contender)
