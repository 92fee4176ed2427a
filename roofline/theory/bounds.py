"""The roofline: what a machine's FLOP/s and bytes/s allow at an arithmetic intensity."""

from typing import NamedTuple


class Roof(NamedTuple):
    """A machine's two bounds, by its datasheet or as a run measured them.

    >>> Roof(275e12, 100e9).ridge
    2750.0
    """

    flops: float
    read_bytes_per_s: float

    @property
    def ridge(self) -> float:
        """FLOP per byte at which the bounds meet: below it the bytes set the pace, above it the FLOP."""
        return self.flops / self.read_bytes_per_s

    def at(self, intensity: float) -> float:
        """Attainable FLOP/s at `intensity`, the lower of the two bounds."""
        return min(self.flops, intensity * self.read_bytes_per_s)

    def bound(self, intensity: float) -> str:
        """The lower bound at `intensity`: `memory` or `compute`."""
        return "memory" if self.at(intensity) < self.flops else "compute"
