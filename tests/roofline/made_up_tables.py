"""Tables of work tiles for tests: those that `schedule` makes, and any others that keep its rules."""

import random
from collections.abc import Sequence
from itertools import pairwise

from roofline.theory import schedule
from roofline.theory.schedule import Grid, Table, WorkTile

TABLES = ("tile_outer", "chunk_outer", "spill_once", "row_block", "any")


def make_table(
    name: str, grid: Grid, programs: int, expected_s: Sequence[Sequence[float]], chunk_s: float, seed: int
) -> Table:
    """Return one of `TABLES` for chunks that row tile m expects at `expected_s[m]`, each of which takes `chunk_s`.

    "any" has runs of chunks of any length, in any order that keeps those of a tile.
    """
    chunks = len(expected_s[0])
    if name != "any":
        expected = {"row_block": (expected_s, chunk_s), "spill_once": (expected_s[0], chunk_s)}.get(name, (chunks,))
        return getattr(schedule, name)(grid, programs, *expected)
    rng, table = random.Random(seed), [[] for _ in range(programs)]
    for m, n in grid.tiles:
        inner = sorted(rng.sample(range(1, chunks), rng.randrange(chunks)))
        program, runs = rng.choice(table), list(pairwise([0, *inner, chunks]))
        places = sorted(rng.randrange(len(program) + 1) for _ in runs)
        for number, ((start, end), place) in enumerate(zip(runs, places, strict=True)):
            program.insert(place + number, WorkTile(m, n, start, end, start > 0, end < chunks))
    return tuple(map(tuple, table))
