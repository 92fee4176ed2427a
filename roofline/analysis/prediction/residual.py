"""What measured cases say of others beyond the constants: a Gaussian process over logarithms of time.

A time is off by what its constants are off by, along its slopes, and by a part that close sizes share, since libraries
choose kernels by size. That part is not smooth: another kernel takes another time at once, so its correlation falls as
exp(-distance / LENGTH). Only `scale` is fitted, on the cases at hand. Algorithm 2.1 of Rasmussen and Williams (2006);
standard library only.
"""

import math
from operator import mul
from typing import NamedTuple

MODEL_ERROR = 0.05
"""What the constants alone are taken to be wrong by, as a logarithm, where few cases say otherwise."""

LENGTH = math.log(4)
"""Of m, n or k: what is measured a factor of 4 away says little more of a case."""

NOISE = 0.02
"""What a measured time itself is off by, as a logarithm."""

SCALES = tuple(MODEL_ERROR * 2 ** (step / 2) for step in range(-3, 7))


class Place(NamedTuple):
    """A case: the logarithms of m, n and k, and its slopes by constants, each over how far its constant may be off."""

    sizes: tuple[float, ...]
    slopes: tuple[float, ...]


class Process(NamedTuple):
    """`places`, the triangle of their covariance, and their residuals solved by it."""

    scale: float
    places: list[Place]
    triangle: list[list[float]]
    told: list[float]

    def at(self, place: Place) -> tuple[float, float]:
        """Mean and variance of the residual of `place`, measured."""
        seen = _solve(self.triangle, [_covariance(place, known, self.scale) for known in self.places])
        return _dot(seen, self.told), _covariance(place, place, self.scale) + NOISE**2 - _dot(seen, seen)

    def evidence(self) -> float:
        """The logarithm of how likely the residuals are, and a scale that is MODEL_ERROR but for a factor of e."""
        size = sum(math.log(row[-1]) for row in self.triangle)
        return -size - (_dot(self.told, self.told) + math.log(self.scale / MODEL_ERROR) ** 2) / 2


def process(places: list[Place], residuals: list[float], scale: float) -> Process:
    """Of `residuals` at `places`, log(measured / said by the constants), that are spread by `scale`."""
    triangle: list[list[float]] = []
    for i, place in enumerate(places):
        own = _solve(triangle, [_covariance(place, other, scale) for other in places[:i]])
        triangle.append([*own, math.sqrt(_covariance(place, place, scale) + NOISE**2 - _dot(own, own))])
    return Process(scale, places, triangle, _solve(triangle, residuals))


def best_scale(places: list[Place], residuals: list[float]) -> float:
    """That of SCALES which the residuals speak for most."""
    return max(SCALES, key=lambda scale: process(places, residuals, scale).evidence())


def _covariance(a: Place, b: Place, scale: float) -> float:
    return _dot(a.slopes, b.slopes) + scale**2 * math.exp(-math.dist(a.sizes, b.sizes) / LENGTH)


def _solve(triangle: list[list[float]], values: list[float]) -> list[float]:
    found: list[float] = []
    for row, value in zip(triangle, values, strict=True):
        found.append((value - _dot(found, row)) / row[-1])
    return found


def _dot(a, b) -> float:
    """Over the shorter of both."""
    return sum(map(mul, a, b))
