"""How to divide devices between FSDP (X) and tensor parallelism (Y): over whole divisors, and over the reals."""

import math
from collections.abc import Callable, Iterator
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


def whole(setting: Setting) -> Iterator[Setting]:
    """`setting` with its fsdp * tp devices divided in every other way: Y divides F, and packs into nodes."""
    sharding = setting.sharding
    together = round(sharding.fsdp * sharding.tp)
    most = math.gcd(together, setting.model.d_ff)
    small = [tp for tp in range(1, math.isqrt(most) + 1) if most % tp == 0]
    for tp in sorted({*small, *(most // tp for tp in small)}):
        split = replace(setting, sharding=replace(sharding, tp=tp, fsdp=together // tp))
        if _packs(split):
            yield split


def _packs(setting: Setting) -> bool:
    """Whether the groups that a split changes, of tp and of ep, pack into nodes."""
    return not isinstance(setting.mesh, Nodes) or setting.mesh.misfit(setting.sharding) not in ("tp", "ep")


def least_bound(setting: Setting) -> Split | None:
    """The whole split that the chips set the pace of at the fewest tokens; None where none of them has a bound."""
    return _least(whole(setting), lambda split: split.bound().tokens)


def least_wire(setting: Setting, tokens: float) -> Split:
    """The whole split whose wires are busy for the shortest time, in a step of `tokens`."""
    return _least(whole(setting), lambda split: wire_s(split, tokens))


def least_bound_real(setting: Setting) -> Split | None:
    """As `least_bound`, of real X and Y. On a torus with whole collectives (alpha = C / W, M axes) it is, in tokens on
    each device, alpha^2 / (M_X M_Y F) where the wires run beside each other, and four times that where they add up."""
    return _least_real(setting, lambda split: split.bound().tokens)


def least_wire_real(setting: Setting, tokens: float) -> Split:
    """As `least_wire`, of real X and Y. On a torus with whole collectives X = sqrt(B / F * M_X / M_Y * N)."""
    return _least_real(setting, lambda split: wire_s(split, tokens))


def wire_s(setting: Setting, tokens: float) -> float:
    """Seconds in which one block's wires are busy, in all its steps."""
    return sum(setting.wire_s(step, tokens) for step in setting.steps)


def _with_tp(setting: Setting, tp: float) -> Setting:
    sharding = setting.sharding
    return replace(setting, sharding=replace(sharding, tp=tp, fsdp=sharding.fsdp * sharding.tp / tp))


def _least(settings: Iterator[Setting], value: Callable[[Setting], float | None]) -> Split | None:
    found = [Split(one, least) for one in settings if (least := value(one)) is not None]
    return min(found, key=lambda split: split.least, default=None)


def _least_real(setting: Setting, value: Callable[[Setting], float | None]) -> Split | None:
    """The best of a grid, even in log Y, then by golden sections between its neighbours."""
    together = setting.sharding.fsdp * setting.sharding.tp

    def at(part: float) -> float:
        found = value(_with_tp(setting, together**part))
        return math.inf if found is None else found

    grid = [i / GRID for i in range(GRID + 1)]
    best = min(range(GRID + 1), key=lambda i: at(grid[i]))
    if at(grid[best]) == math.inf:
        return None
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, GRID)]
    while high - low > 1e-10:
        left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
        low, high = (low, right) if at(left) <= at(right) else (left, high)
    # Where a bound ends (the wire takes longer than the chip), the best is at the edge, and `low` still has one.
    least = min((low, high, grid[best]), key=at)
    return Split(_with_tp(setting, together**least), at(least))
