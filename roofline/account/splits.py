"""How to divide devices between FSDP (X) and tensor parallelism (Y): over whole divisors, and over the reals."""

import math
from collections.abc import Iterator
from dataclasses import replace

from roofline.account.communication_bound import Setting
from roofline.account.meshes import Sharding, Torus

GRID = 256
"""Points at which the real Y are looked at, before the neighbourhood of the best one is cut down."""

GOLDEN = (math.sqrt(5) - 1) / 2


def divisors(number: int) -> list[int]:
    small = [divisor for divisor in range(1, math.isqrt(number) + 1) if number % divisor == 0]
    return sorted({*small, *(number // divisor for divisor in small)})


def whole(setting: Setting) -> Iterator[Setting]:
    """`setting` with its devices divided in every way that fits the mesh; Y divides F."""
    devices = round(setting.sharding.devices)
    for tp in divisors(math.gcd(devices, setting.model.d_ff)):
        split = replace(setting, sharding=Sharding(tp=tp, fsdp=devices // tp))
        if not setting.mesh.misfit(split.sharding):
            yield split


def best_whole(setting: Setting) -> Setting:
    """The whole split that the chips set the pace of at the fewest tokens: there is one, since FSDP alone has a
    bound."""
    return min(whole(setting), key=lambda split: split.bound().tokens)


def best_real(setting: Setting) -> Setting:
    """As `best_whole`, of real X and Y: the best of a grid, even in log Y, then by golden sections between its
    neighbours. (On a torus with whole collectives docs/accounting.md has it in closed form.)"""
    devices = setting.sharding.devices

    def at(part: float) -> Setting:
        return replace(setting, sharding=Sharding(tp=devices**part, fsdp=devices ** (1 - part)))

    def tokens(part: float) -> float:
        split = at(part)
        # Of a torus only: a real Y packs into no node.
        fits = not isinstance(setting.mesh, Torus) or not setting.mesh.misfit(split.sharding)
        return split.bound().tokens if fits else math.inf

    grid = [i / GRID for i in range(GRID + 1)]
    best = min(range(GRID + 1), key=lambda i: tokens(grid[i]))
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, GRID)]
    while high - low > 1e-10:
        left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
        low, high = (low, right) if tokens(left) <= tokens(right) else (left, high)
    # Where a bound ends (the wire takes longer than the chip), the best is at the edge, and `low` still has one.
    return at(min((low, high, grid[best]), key=tokens))
