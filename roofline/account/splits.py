"""How to divide devices between FSDP (X) and tensor parallelism (Y): over whole divisors, and over the reals."""

import math
from collections.abc import Iterator
from dataclasses import replace

from roofline.account.communication_bound import bound
from roofline.account.question import Question, divisors

GRID = 256
"""Points at which the real Y are looked at, before the neighbourhood of the best one is cut down."""

GOLDEN = (math.sqrt(5) - 1) / 2


def whole(question: Question) -> Iterator[Question]:
    """Yield `question` with its devices divided in every way that fits the mesh; Y divides F."""
    devices = round(question.devices)
    for tp in divisors(math.gcd(devices, question.model.d_ff)):
        split = replace(question, tp=tp, fsdp=devices // tp)
        if not split.misfit():
            yield split


def best_whole(question: Question) -> Question:
    """Return the whole split with the least bound: there is one, since FSDP alone has a bound."""
    return min(whole(question), key=lambda split: bound(split).tokens)


def best_real(question: Question) -> Question:
    """Return the split with the least bound, of real X and Y: the best of a grid, even in log Y, then by golden
    sections between its neighbours. (On a torus with whole collectives docs/exercise.md has it in closed form.)"""
    devices = question.devices

    def at(part: float) -> Question:
        return replace(question, tp=devices**part, fsdp=devices ** (1 - part))

    def tokens(part: float) -> float:
        split = at(part)
        # Of a torus only: a real Y packs into no node.
        fits = not question.chip.torus_axes or not split.misfit()
        return bound(split).tokens if fits else math.inf

    grid = [i / GRID for i in range(GRID + 1)]
    best = min(range(GRID + 1), key=lambda i: tokens(grid[i]))
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, GRID)]
    while high - low > 1e-10:
        left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
        low, high = (low, right) if tokens(left) <= tokens(right) else (left, high)
    # Where a bound ends (the link takes longer than the chip), the best is at the edge, and `low` still has one.
    return at(min((low, high, grid[best]), key=tokens))
