"""How long an all-gather matmul takes when it overlaps: a simulator that reads the tables of `schedule`, tile by tile.

Only arrivals and products take time by themselves. Contention, launches and the accumulator's traffic are measured
elsewhere, and handed in as a slowdown or a loss where a caller wants them counted.
"""

from collections.abc import Sequence
from typing import NamedTuple

from roofline.theory import schedule
from roofline.theory.schedule import Grid, Table, at_least_one, known_name

FLAGS = ("piece", "block")
"""One flag for each (row block, chunk), or one for each row block, raised when its last piece is here."""

COARSE_ARMS = ("serial", "chunk_launches", "chunk_outer", "ideal")
"""The arms that need no tiles. `ideal`: the longer of the matmul and the gather, which no arm can beat."""


class Span(NamedTuple):
    """One run of an inner loop: a program multiplies tile (m, n) with the chunks at [chunk_from, chunk_to)."""

    program: int
    m: int
    n: int
    chunk_from: int
    chunk_to: int
    start_s: float
    end_s: float


class LaunchSpan(NamedTuple):
    """One matmul launch on the whole chip: the row blocks at [block_from, block_to) with the chunks at
    [chunk_from, chunk_to)."""

    chunk_from: int
    chunk_to: int
    block_from: int
    block_to: int
    start_s: float
    end_s: float


class Wait(NamedTuple):
    """A program looked at the flags of tile (m, n) at `start_s`, and went on with the chunk at position `chunk`."""

    program: int
    m: int
    n: int
    chunk: int
    start_s: float
    end_s: float


class Simulation(NamedTuple):
    """When the last product is done, what ran until then, and what waited. Times count from the first transfer."""

    end_s: float
    spans: tuple[Span, ...] | tuple[LaunchSpan, ...]
    waits: tuple[Wait, ...] = ()


def hidden_fraction(t_gemm_s: float, t_comm_s: float, t_overlap_s: float) -> float:
    """The share of the shorter of the two that overlapping hid: 1 is perfect, 0 is one after the other.

    >>> hidden_fraction(t_gemm_s=2.0, t_comm_s=1.0, t_overlap_s=2.25)
    0.75

    Raises ValueError where a time is not above 0.
    """
    for name, value in (("t_gemm_s", t_gemm_s), ("t_comm_s", t_comm_s), ("t_overlap_s", t_overlap_s)):
        if not value > 0:
            raise ValueError(f"{name}={value:g}: it must be above 0, or nothing can be hidden")
    return (t_gemm_s + t_comm_s - t_overlap_s) / min(t_gemm_s, t_comm_s)


def arrivals(
    chunks: int, t_comm_s: float, row_tiles: int, blocks: int = 1, major: str = "chunk", flags: str = "piece"
) -> tuple[tuple[float, ...], ...]:
    """`[m][j]`: when the rows of row tile m have the chunk at position j, on a link that moves piece after piece.

    Of n equal pieces the i-th (from 0) is here at (i + 1) / n of `t_comm_s`, the own chunk at 0. With one flag a block
    nothing of the block can be used, not even the own chunk, before its last piece is here.

    >>> arrivals(chunks=3, t_comm_s=4.0, row_tiles=2, blocks=2, major="block")
    ((0.0, 1.0, 2.0), (0.0, 3.0, 4.0))

    Raises ValueError for unknown names, counts below 1, a negative time, or blocks that do not divide the row tiles.
    """
    known_name("flags", flags, FLAGS)
    at_least_one(row_tiles=row_tiles)
    not_negative(t_comm_s=t_comm_s)
    moved = schedule.pieces(range(chunks), blocks, major)
    if row_tiles % blocks:
        raise ValueError(f"blocks={blocks} does not divide row_tiles={row_tiles}: choose a divisor of it")
    here_s = [[0.0] * chunks for _ in range(blocks)]
    for i, piece in enumerate(moved, 1):
        here_s[piece.block][piece.chunk] = i * t_comm_s / len(moved)
    if flags == "block":
        here_s = [[max(block)] * chunks for block in here_s]
    return tuple(tuple(here_s[m * blocks // row_tiles]) for m in range(row_tiles))


def product_s(grid: Grid, programs: int, chunks: int, t_gemm_s: float) -> float:
    """The time of one tile with one chunk, when all of the matmul takes `t_gemm_s` in whole waves."""
    at_least_one(chunks=chunks)
    return t_gemm_s / (grid.waves(programs) * chunks)


def simulate(
    table: Table,
    arrival_s: Sequence[Sequence[float]],
    chunk_s: float,
    *,
    slowdown: float = 1.0,
    wait_s: float = 0.0,
    spill_s: float = 0.0,
    resume_s: float = 0.0,
) -> Simulation:
    """Run the visits of each program of `table`, one after another; no chunk is used before it is here.

    `arrival_s[m][j]`: when row tile m has the chunk at position j. `chunk_s`: the time of one tile with one chunk;
    the flagged kernel takes `slowdown` times as long. `wait_s`: lost in each wait (`schedule.inner_loops` says what
    counts as one). `spill_s`, `resume_s`: to write a tile's accumulator, and to read it back.

    Raises ValueError for a negative time or slowdown.
    """
    not_negative(chunk_s=chunk_s, slowdown=slowdown, wait_s=wait_s, spill_s=spill_s, resume_s=resume_s)
    spans, waits = [], []
    for program, visits in enumerate(table):
        now = 0.0
        for m, n, chunk_from, chunk_to, resume, spill in visits:
            now += resume_s if resume else 0.0
            for loop in schedule.inner_loops(arrival_s[m], chunk_from, chunk_to, now, chunk_s * slowdown, wait_s):
                if loop.waited:
                    waits.append(Wait(program, m, n, loop.chunk_from, loop.look_s, loop.start_s))
                spans.append(Span(program, m, n, loop.chunk_from, loop.chunk_to, loop.start_s, loop.end_s))
                now = loop.end_s
            now += spill_s if spill else 0.0
    return Simulation(max((span.end_s for span in spans), default=0.0), tuple(spans), tuple(waits))


def coarse(arm: str, ranks: int, t_gemm_s: float, t_comm_s: float) -> float:
    """When `arm` ends if the chip is one worker that no tile size holds up: an own ideal in closed form, for any ranks.

    The worker goes chunk by chunk, and one chunk holds it up most: it ends when that one has come and the work from it
    on is done. Chunks come at equal intervals and take equal times, so that is the first or the last one.

    >>> coarse("chunk_outer", ranks=8, t_gemm_s=1.0, t_comm_s=1.0)
    1.125

    Raises ValueError for an arm that is not in COARSE_ARMS, ranks below 1, or a negative time.
    """
    known_name("coarse arm", arm, COARSE_ARMS)
    at_least_one(ranks=ranks)
    not_negative(t_gemm_s=t_gemm_s, t_comm_s=t_comm_s)
    if arm == "serial":
        return t_gemm_s + t_comm_s
    if arm == "ideal":
        return max(t_gemm_s, t_comm_s)
    if ranks == 1:
        return t_gemm_s
    return max(t_gemm_s, t_comm_s + t_gemm_s / ranks)


def not_negative(**values: float) -> None:
    """Raise ValueError for a value below 0."""
    for name, value in values.items():
        if not value >= 0:
            raise ValueError(f"{name}={value:g}: it must be 0 or more")
