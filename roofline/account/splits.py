"""How to divide devices between FSDP (X) and tensor parallelism (Y): over whole divisors, and over the reals."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from roofline.account.communication_bound import Setting
from roofline.account.meshes import Nodes

GRID = 256
"""Points at which the real Y are looked at, before the neighbourhood of the best one is cut down."""

GOLDEN = (math.sqrt(5) - 1) / 2


class Split(NamedTuple):
    """`setting`, and what was least there: tokens of its bound, or seconds."""

    setting: Setting
    least: float


def divisors(number: int) -> list[int]:
    small = [divisor for divisor in range(1, math.isqrt(number) + 1) if number % divisor == 0]
    return sorted({*small, *(number // divisor for divisor in small)})


def whole(setting: Setting) -> Iterator[Setting]:
    """`setting` with its fsdp * tp devices divided in every other way: Y divides F, and packs into nodes."""
    sharding = setting.sharding
    together = round(sharding.fsdp * sharding.tp)
    for tp in divisors(math.gcd(together, setting.model.d_ff)):
        split = replace(setting, sharding=replace(sharding, tp=tp, fsdp=together // tp))
        # A split changes the groups of tp and of ep.
        if not isinstance(setting.mesh, Nodes) or setting.mesh.misfit(split.sharding) not in ("tp", "ep"):
            yield split


def best_whole(setting: Setting, tokens: float | None = None) -> Split | None:
    """The whole split that the chips set the pace of at the fewest tokens; None where none of them has a bound. With
    `tokens`, the one whose wires are busy for the shortest time in a step of so many."""
    found = (Split(one, least) for one in whole(setting) if (least := _value(one, tokens)) < math.inf)
    return min(found, key=lambda split: split.least, default=None)


def best_real(setting: Setting, tokens: float | None = None) -> Split | None:
    """As `best_whole`, of real X and Y: the best of a grid, even in log Y, then by golden sections between its
    neighbours. (On a torus with whole collectives docs/accounting.md has it in closed form.)"""
    sharding, together = setting.sharding, setting.sharding.fsdp * setting.sharding.tp

    def at(part: float) -> Split:
        tp = together**part
        split = replace(setting, sharding=replace(sharding, tp=tp, fsdp=together / tp))
        return Split(split, _value(split, tokens))

    grid = [i / GRID for i in range(GRID + 1)]
    best = min(range(GRID + 1), key=lambda i: at(grid[i]).least)
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, GRID)]
    while high - low > 1e-10:
        left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
        low, high = (low, right) if at(left).least <= at(right).least else (left, high)
    # Where a bound ends (the wire takes longer than the chip), the best is at the edge, and `low` still has one.
    found = min((at(low), at(high), at(grid[best])), key=lambda split: split.least)
    return found if found.least < math.inf else None


def wire_s(setting: Setting, tokens: float) -> float:
    """Seconds in which one block's wires are busy, in all its steps."""
    return sum(setting.wire_s(step, tokens) for step in setting.steps)


def _value(setting: Setting, tokens: float | None) -> float:
    """What is to be least: the tokens of the bound, or the time on the wires with so many."""
    return setting.bound().tokens if tokens is None else wire_s(setting, tokens)
