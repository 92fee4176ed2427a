"""In which order chunks arrive, and which tiles each program multiplies with which chunks. Times are inputs here.

The case is an all-gather before a matmul: x[B, D] is sharded by columns, one chunk a rank. Rank i owns chunk i, and
needs all of them, because every tile of out[B, F_loc] sums over all of D. A table of work tiles is made before the
launch for one rank; it counts chunks by their position in that rank's arrival order, the own chunk at 0.
"""

import heapq
import math
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


class Piece(NamedTuple):
    """Steps [first, last) along K of tile (m, n), in the order of arrival. Of a tile that several programs have, each
    leaves its sums in a `slot`; the one that has the last step adds those of `peers` slots, from `slot` on."""

    m: int
    n: int
    first: int
    last: int
    slot: int = 0
    peers: int = 0


MOST_PARTS = 8
PART_COST = 0.03
"""What each further part that a tile is cut into is taken to cost, of the time of a tile: its sums are written in fp32,
and read by the program that has the last part. Untimed."""


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


def inner_loops(arrival_s: Sequence[float], start_s: float, chunk_s: float) -> list[tuple[int, float]]:
    """The runs of the inner loop over the chunks of one work tile, as (the chunk before which a run ends, when it
    ends). Each run takes all chunks that are here when it looks at the flags.

    `arrival_s[j]` is when the chunk at position j is here for this tile, `chunk_s` the time of one tile with one chunk.
    """
    loops = []
    now = start_s
    chunk = 0
    chunks = len(arrival_s)
    while chunk < chunks:
        first = chunk
        now = max(now, arrival_s[chunk])
        while chunk < chunks and arrival_s[chunk] <= now:
            chunk += 1
        now += (chunk - first) * chunk_s
        loops.append((chunk, now))
    return loops


def deal(grid: Grid, programs: int) -> list[tuple[tuple[int, int], ...]]:
    """The tiles of each program, dealt in turn."""
    tiles = grid.tiles
    return [tiles[program::programs] for program in range(programs)]


def cut_last_waves(
    grid: Grid, programs: int, arrival_s: Sequence[Sequence[float]], chunk_s: float, chunk_steps: int, most_parts: int
) -> tuple[list[list[Piece]], float]:
    """The pieces of each program, and when the last ends. Tiles go in the grid's order, with all chunks, to the program
    that is free first, while they end no later than all would that are left, dealt evenly. Those behind are cut along
    K, all alike into `most_parts` parts at most, and dealt part after part: programs on one part share x and w. With
    one part all are whole.

    `arrival_s[m][j]`: when row tile m is expected to have the chunk at position j. `chunk_s`: the time of one tile with
    one chunk, which is `chunk_steps` steps along K.
    """
    chunks = len(arrival_s[0])
    tile_s = chunks * chunk_s
    all_here_s = max(here_s[-1] for here_s in arrival_s)
    free = [(0.0, program) for program in range(programs)]
    spent_s = 0.0
    pieces: list[list[Piece]] = [[] for _ in free]
    dealt = 0
    for m, n in grid.tiles:
        start_s, program = free[0]
        _, end_s = inner_loops(arrival_s[m], start_s, chunk_s)[-1]
        even_s = (spent_s + (len(grid.tiles) - dealt) * tile_s) / programs
        if most_parts > 1 and end_s > max(even_s, all_here_s) * (1 + 1e-9):
            break
        dealt += 1
        spent_s += end_s - start_s
        pieces[program].append(Piece(m, n, 0, chunks * chunk_steps))
        heapq.heapreplace(free, (end_s, program))

    least_s = math.inf
    for parts in range(1, most_parts + 1):
        cut, cut_end_s = _in_parts(parts, grid.tiles[dealt:], free, arrival_s, chunk_s, chunk_steps)
        cost_s = cut_end_s + PART_COST * tile_s * parts
        if cost_s < least_s:
            least_s, last, end_s = cost_s, cut, cut_end_s
    for program, piece in last:
        pieces[program].append(piece)
    return pieces, end_s


def _in_parts(
    parts: int, tiles: Sequence[tuple[int, int]], free: list[tuple[float, int]],
    arrival_s: Sequence[Sequence[float]], chunk_s: float, chunk_steps: int,
) -> tuple[list[tuple[int, Piece]], float]:  # fmt: skip
    """(program, piece) of `tiles` in so many parts each, for programs that are `free` from then on; and when the last
    ends."""
    free = list(free)
    steps = len(arrival_s[0]) * chunk_steps
    pieces = []
    for part in range(parts):
        first, last = steps * part // parts, steps * (part + 1) // parts
        for number, (m, n) in enumerate(tiles):
            slot = number * (parts - 1)
            is_last = part == parts - 1
            piece = Piece(m, n, first, last, slot, part) if is_last else Piece(m, n, first, last, slot + part)
            now, program = free[0]
            for chunk in range(first // chunk_steps, -(-last // chunk_steps)):
                width = min(last, (chunk + 1) * chunk_steps) - max(first, chunk * chunk_steps)
                now = max(now, arrival_s[m][chunk]) + width * chunk_s / chunk_steps
            heapq.heapreplace(free, (now, program))
            pieces.append((program, piece))
    return pieces, max(free)[0]
