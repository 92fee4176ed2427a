"""In which order chunks arrive, and which tiles each program multiplies with which chunks. Times are inputs here.

The case is an all-gather before a matmul: x[B, D] is sharded by columns, one chunk a rank. Rank i owns chunk i, and
needs all of them, because every tile of out[B, F_loc] sums over all of D. A table of work tiles is made before the
launch for one rank; it counts chunks by their position in that rank's arrival order, the own chunk at 0.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple


@dataclass(frozen=True)
class Grid:
    """The output in tiles, visited `group` rows at a time and column after column within them: tiles that are computed
    at the same time then share rows and columns, which caches like."""

    row_tiles: int
    column_tiles: int
    group: int = 1

    @cached_property
    def tiles(self) -> tuple[tuple[int, int], ...]:
        """All (m, n), in the order of their computation.

        >>> Grid(3, 2, group=2).tiles
        ((0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (2, 1))
        """
        tiles = []
        for first in range(0, self.row_tiles, self.group):
            rows = range(first, min(first + self.group, self.row_tiles))
            for n in range(self.column_tiles):
                for m in rows:
                    tiles.append((m, n))
        return tuple(tiles)

    def waves(self, programs: int) -> int:
        """Rounds that `programs` programs need, one tile each a round."""
        return -(-self.row_tiles * self.column_tiles // programs)


class WorkTile(NamedTuple):
    """Tile (m, n) multiplied with the chunks at positions [chunk_from, chunk_to) of the arrival order.

    `resume`: its fp32 accumulator is read back first. `spill`: it is written afterwards, to be resumed later.
    """

    m: int
    n: int
    chunk_from: int
    chunk_to: int
    resume: bool = False
    spill: bool = False


Table = tuple[tuple[WorkTile, ...], ...]
"""The work tiles of each program, in order. A tile belongs to one program, so that no state crosses programs."""


def arrival_order(topology: str, ranks: int, rank: int) -> tuple[int, ...]:
    """Chunks in the order in which they are here at `rank`, its own first. Topologies are `ring`, where each sends to
    the next rank, and `direct`, from owners, all to all.

    >>> arrival_order("ring", 4, 1), arrival_order("direct", 4, 1)
    ((1, 0, 3, 2), (1, 2, 3, 0))

    Source of the ring: the scaling book's exercise on pipelined all-gather matmuls; `direct` is the rotation that
    all-to-all fabrics use.
    """
    step = -1 if topology == "ring" else 1
    return tuple((rank + step * hops) % ranks for hops in range(ranks))


def groups(ranks: Sequence[int], most: int) -> list[Sequence[int]]:
    """`ranks` in groups of `most`, in their order; the last group has the rest.

    >>> groups((1, 2, 3), 2)
    [(1, 2), (3,)]
    """
    return [ranks[first : first + most] for first in range(0, len(ranks), most)]


def inner_loops(
    arrival_s: Sequence[float], chunk_from: int, chunk_to: int, start_s: float, chunk_s: float
) -> list[tuple[int, float]]:
    """The runs of the inner loop over the chunks of one work tile, as (the chunk before which a run ends, when it
    ends). Each run takes all chunks that are here when it looks at the flags.

    `arrival_s[j]` is when the chunk at position j is here for this tile, `chunk_s` the time of one tile with one chunk.
    """
    loops = []
    now = start_s
    chunk = chunk_from
    while chunk < chunk_to:
        first = chunk
        now = max(now, arrival_s[chunk])
        while chunk < chunk_to and arrival_s[chunk] <= now:
            chunk += 1
        now += (chunk - first) * chunk_s
        loops.append((chunk, now))
    return loops


def deal(grid: Grid, programs: int) -> list[tuple[tuple[int, int], ...]]:
    """The tiles of each program, dealt in turn."""
    tiles = grid.tiles
    return [tiles[program::programs] for program in range(programs)]


def tile_outer(grid: Grid, programs: int, chunks: int) -> Table:
    """Each tile is visited once, with all chunks: it waits for them with the accumulator in registers."""
    return _visits(grid, programs, [chunks])


def chunk_outer(grid: Grid, programs: int, chunks: int) -> Table:
    """Each chunk is multiplied with all tiles of the program before the next one: every tile is spilled `chunks - 1`
    times."""
    return _visits(grid, programs, range(1, chunks + 1))


def _visits(grid: Grid, programs: int, ends: Sequence[int]) -> Table:
    """All tiles of a program are visited up to the chunk at each of `ends`, one end after the other."""
    table = []
    for tiles in deal(grid, programs):
        work_tiles = []
        begin = 0
        for end in ends:
            for m, n in tiles:
                work_tiles.append(WorkTile(m, n, begin, end, resume=begin > 0, spill=end < ends[-1]))
            begin = end
        table.append(tuple(work_tiles))
    return tuple(table)


def row_block(grid: Grid, programs: int, arrival_s: Sequence[Sequence[float]], chunk_s: float) -> tuple[Table, float]:
    """Tiles in the grid's order, each visited once with all chunks; the next goes to the program that is free
    first. With the table comes when the last program ends: to the bit what `simulate` says of it.

    `arrival_s[m][j]`: when row tile m is expected to have the chunk at position j. `chunk_s`: the time of one tile with
    one chunk.
    """
    table: list[list[WorkTile]] = [[] for _ in range(programs)]
    free = [(0.0, program) for program in range(programs)]
    ends_s: dict[tuple[int, float], float] = {}  # by row tile and start: most tiles of a wave have both in common
    for m, n in grid.tiles:
        start_s, program = heapq.heappop(free)
        chunks = len(arrival_s[m])
        table[program].append(WorkTile(m, n, 0, chunks))
        if (m, start_s) not in ends_s:
            _, ends_s[m, start_s] = inner_loops(arrival_s[m], 0, chunks, start_s, chunk_s)[-1]
        heapq.heappush(free, (ends_s[m, start_s], program))
    end_s, _ = max(free)
    return tuple(map(tuple, table)), end_s
