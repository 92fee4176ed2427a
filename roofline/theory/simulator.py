"""The part that overlapping hid; arrivals of chunks, and the time of a tile, by which `arms` simulates each schedule.

Only arrivals and products take time: what contention, launches and accumulator traffic cost is measured elsewhere.
"""

import math

from roofline.theory.schedule import Grid


def hidden_fraction(t_gemm_s: float, t_comm_s: float, t_overlap_s: float) -> float:
    """The fraction of the shorter of the two that overlapping hid: 1 is perfect, 0 is one after the other.

    >>> hidden_fraction(t_gemm_s=2.0, t_comm_s=1.0, t_overlap_s=2.25)
    0.75
    """
    return (t_gemm_s + t_comm_s - t_overlap_s) / min(t_gemm_s, t_comm_s)


def arrivals(chunks: int, t_comm_s: float, row_tiles: int, block_tiles: int = 0) -> list[tuple[float, ...]]:
    """`[m][j]`: when row tile m has the chunk at position j, the own chunk at 0. The link moves row blocks of
    `block_tiles` row tiles one after another, piece after piece, and has moved all at `t_comm_s`. The last block has
    the rest; without `block_tiles` there is one.

    >>> arrivals(chunks=3, t_comm_s=4.0, row_tiles=2, block_tiles=1)
    [(0.0, 1.0, 2.0), (0.0, 3.0, 4.0)]
    >>> arrivals(chunks=3, t_comm_s=6.0, row_tiles=3, block_tiles=2)
    [(0.0, 2.0, 4.0), (0.0, 2.0, 4.0), (0.0, 5.0, 6.0)]
    """
    block_tiles = block_tiles or row_tiles
    others = chunks - 1
    unit = math.gcd(row_tiles, block_tiles)  # where blocks are equal, a piece: times are then the same to the bit
    here_s = []
    for first in range(0, row_tiles, block_tiles):
        rows = min(block_tiles, row_tiles - first)
        of_block = [0.0]
        for number in range(1, chunks):
            moved = (first * others + rows * number) // unit
            of_block.append(moved * t_comm_s / (row_tiles // unit * others))
        here_s += [tuple(of_block)] * rows
    return here_s


def product_s(grid: Grid, programs: int, chunks: int, t_gemm_s: float) -> float:
    """The time of one tile with one chunk, when all of the matmul takes `t_gemm_s` in whole waves."""
    return t_gemm_s / (grid.waves(programs) * chunks)
