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
    return _process(places, _shared(places), residuals, scale)


def best_scale(places: list[Place], residuals: list[float]) -> float:
    """That of SCALES which the residuals speak for most."""
    shared = _shared(places)
    return max(SCALES, key=lambda scale: _process(places, shared, residuals, scale).evidence())


def _process(
    places: list[Place], shared: list[list[tuple[float, float]]], residuals: list[float], scale: float
) -> Process:
    triangle: list[list[float]] = []
    for row in shared:
        *others, itself = (by_slopes + scale**2 * near for by_slopes, near in row)
        own = _solve(triangle, others)
        triangle.append([*own, math.sqrt(itself + NOISE**2 - _dot(own, own))])
    return Process(scale, places, triangle, _solve(triangle, residuals))


def _shared(places: list[Place]) -> list[list[tuple[float, float]]]:
    """What each place shares with those before it and with itself, whatever the scale."""
    return [[_parts(place, other) for other in places[: i + 1]] for i, place in enumerate(places)]


def _parts(a: Place, b: Place) -> tuple[float, float]:
    """Of a covariance: what the slopes make, and what the scale's square is multiplied by."""
    return _dot(a.slopes, b.slopes), math.exp(-math.dist(a.sizes, b.sizes) / LENGTH)


def _covariance(a: Place, b: Place, scale: float) -> float:
    by_slopes, near = _parts(a, b)
    return by_slopes + scale**2 * near


def _solve(triangle: list[list[float]], values: list[float]) -> list[float]:
    found: list[float] = []
    for row, value in zip(triangle, values, strict=True):
        found.append((value - _dot(found, row)) / row[-1])
    return found


def _dot(a, b) -> float:
    """Over the shorter of both."""
    return sum(map(mul, a, b))
