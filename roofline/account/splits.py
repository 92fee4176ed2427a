"""How to divide devices between FSDP (X) and tensor parallelism (Y): over whole divisors, and over the reals."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from roofline.account.communication_bound import Setting
from roofline.account.meshes import Torus

GRID = 256
"""Points at which the real Y are looked at, before the neighbourhood of the best one is cut down."""

GOLDEN = (math.sqrt(5) - 1) / 2


class Split(NamedTuple):
    """`setting`, and the `tokens` of its bound."""

    setting: Setting
    tokens: float


def divisors(number: int) -> list[int]:
    small = [divisor for divisor in range(1, math.isqrt(number) + 1) if number % divisor == 0]
    return sorted({*small, *(number // divisor for divisor in small)})


def whole(setting: Setting) -> Iterator[Setting]:
    """`setting` with its fsdp * tp devices divided in every way that fits the mesh; Y divides F."""
    sharding = setting.sharding
    together = round(sharding.fsdp * sharding.tp)
    for tp in divisors(math.gcd(together, setting.model.d_ff)):
        split = replace(setting, sharding=replace(sharding, tp=tp, fsdp=together // tp))
        if not setting.mesh.misfit(split.sharding):
            yield split


def best_whole(setting: Setting) -> Split | None:
    """The whole split that the chips set the pace of at the fewest tokens; None where none of them has a bound."""
    bounds = (Split(split, tokens) for split in whole(setting) if (tokens := split.bound().tokens) < math.inf)
    return min(bounds, key=lambda split: split.tokens, default=None)


def best_real(setting: Setting) -> Split | None:
    """As `best_whole`, of real X and Y: the best of a grid, even in log Y, then by golden sections between its
    neighbours. (On a torus with whole collectives docs/accounting.md has it in closed form.)"""
    sharding, together = setting.sharding, setting.sharding.fsdp * setting.sharding.tp

    def at(part: float) -> Split:
        tp = together**part
        split = replace(setting, sharding=replace(sharding, tp=tp, fsdp=together / tp))
        # Of a torus only: a real Y packs into no node.
        fits = not isinstance(setting.mesh, Torus) or not setting.mesh.misfit(split.sharding)
        return Split(split, split.bound().tokens if fits else math.inf)

    grid = [i / GRID for i in range(GRID + 1)]
    best = min(range(GRID + 1), key=lambda i: at(grid[i]).tokens)
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, GRID)]
    while high - low > 1e-10:
        left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
        low, high = (low, right) if at(left).tokens <= at(right).tokens else (left, high)
    # Where a bound ends (the wire takes longer than the chip), the best is at the edge, and `low` still has one.
    least = min((at(low), at(high), at(grid[best])), key=lambda split: split.tokens)
    return least if least.tokens < math.inf else None
