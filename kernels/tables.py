"""Tables of work tiles for the flagged kernel that no figure simulates, with as few spills as arrivals allow; and the
number of spills of any table.

`roofline.theory.schedule` says what a table is, and has those that the simulator of schedules knows.
"""

from collections.abc import Sequence
from functools import cache

from roofline.theory.schedule import Grid, Table, WorkTile, deal


def spills(table: Table) -> int:
    """The number of times that the work tiles of `table` write an accumulator. Each is read back once."""
    return sum(work_tile.spill for work_tiles in table for work_tile in work_tiles)


def spill_once(grid: Grid, programs: int, arrival_s: Sequence[float], chunk_s: float) -> Table:
    """Chunk-wise, with the accumulator kept in registers where possible, so that fewer tiles are spilled.

    `arrival_s[j]`: when all rows of the chunk at position j are expected here. `chunk_s`: as in `row_block`. A program
    stays with its tile while chunks for it are here. Then, if all chunks are here, it takes any unfinished tile; else
    an untouched one; else the tile with the fewest chunks done; else it waits with the accumulator in registers.
    """
    table = []
    for tiles in deal(grid, programs):
        work_tiles = []
        for tile, begin, end in _spill_once_plan(len(tiles), tuple(arrival_s), chunk_s):
            work_tiles.append(WorkTile(*tiles[tile], begin, end, begin > 0, end < len(arrival_s)))
        table.append(tuple(work_tiles))
    return tuple(table)


@cache  # many programs have as many tiles
def _spill_once_plan(tiles: int, arrival_s: tuple[float, ...], chunk_s: float) -> list[tuple[int, int, int]]:
    """(tile, chunk_from, chunk_to) of each work tile of a program that has `tiles` tiles."""
    chunks = len(arrival_s)
    done = [0] * tiles
    plan = []
    now = 0.0
    held = -1
    while min(done, default=chunks) < chunks:
        here = sum(arrival <= now for arrival in arrival_s)
        tile = held
        if held < 0 or done[held] >= here:
            # An untouched tile has the fewest chunks done. Once all chunks are here, any unfinished tile will do.
            tile = done.index(min(done))
        if done[tile] >= here:
            now = arrival_s[here]  # nothing to do; every tile has all that is here
            continue
        if tile == held:
            plan[-1] = (tile, plan[-1][1], done[tile] + 1)
        else:
            plan.append((tile, done[tile], done[tile] + 1))
        done[tile] += 1
        now += chunk_s
        held = tile if done[tile] < chunks else -1
    return plan
