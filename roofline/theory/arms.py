"""The arms, each declared once: what it measures, and how the simulator runs its schedule; and their plans, by which an
arm is cut on a machine.

`collectives` has functions of the same names, which run them.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

from roofline.theory import schedule
from roofline.theory.schedule import MOST_PARTS, Grid, Piece
from roofline.theory.simulator import arrivals, product_s

TILE = (128, 256)
"""Rows and columns of the tile that a compute-bound matmul is taken to have on a GPU."""

BLOCKS = (16, 8, 4, 2, 1)
"""Row blocks that an arm may be cut into: of these, what the simulator finds best."""

STEP = 1.01
"""Between ratios of T_comm to T_gemm at which a table is simulated; between them its end is interpolated."""

PERSISTENT = "_persistent"
"""The end of an arm's name that multiplies by our persistent matmul, where the one without it does by another."""

BY_PERSISTENT = "row_block_launches", "block_launches", "layer_launches", "overlapped"
"""These arms are measured with the persistent matmul, too: one of each operation."""

ALL_CORES = "serial_all_cores"
"""On a CPU, `serial` with a matmul on the link's core too: what a user has who overlaps nothing."""

GATHERED = ("all_gather_matmul",)
SCATTERED = ("matmul_reduce_scatter",)
BOTH = ("ffn",)
LAYER = GATHERED + SCATTERED + BOTH
"""A layer in tensor parallelism has a gather before it and a scatter behind it. `BOTH` is the layer with the two."""

TELLING = "signalled", "layer_signalled"
"""They tell on the device what may be sent, piece by piece of each rank's rows."""

PEER = "symm_mem"
"""torch's own fused operator between the GPUs of real ranks."""

ALL_REDUCE = "all_reduce"
"""Plain tensor parallelism, which overlaps nothing."""


def base_arm(arm: str) -> str:
    """The arm whose schedule `arm` has.

    >>> base_arm("row_block_launches_persistent"), base_arm("serial")
    ('row_block_launches', 'serial')
    """
    return arm.removesuffix(PERSISTENT)


def is_serial(arm: str) -> bool:
    """Serial arms overlap nothing."""
    return base_arm(arm) in ("serial", ALL_CORES, ALL_REDUCE)


class OverlapPlan(NamedTuple):
    """An arm's cut of matmul and gather: a grid of tiles on so many `workers` (SMs; a CPU is one, with a tile for each
    row block), over P `ranks`."""

    arm: str
    grid: Grid
    workers: int
    ranks: int
    row_blocks: int = 1
    ranks_per_launch: int = 1
    """An arm that multiplies `by_rank` takes the rows of so many ranks at a time, at most."""
    block_tiles: int = 0
    """The row tiles of a row block of `row_block` whose last waves are cut along K; the last block has the rest. 0: all
    have equally many, and tiles are whole."""
    chunk_steps: int = 0
    """The steps along K of a chunk that is cut."""

    def end_s(self, t_gemm_s: float, t_comm_s: float) -> float:
        """When the simulated arm ends, at best: without contention, launch costs or accumulator traffic.

        `t_gemm_s`: the whole matmul with all chunks here. `t_comm_s`: the whole gather with nothing beside it.

        >>> OverlapPlan("chunk_outer", Grid(1, 1), 1, ranks=2).end_s(t_gemm_s=2.0, t_comm_s=3.0)
        4.0
        """
        end_s: Any = ARMS[self.arm].end_s
        return end_s(self, t_gemm_s, t_comm_s)

    def ideal_s(self, t_gemm_s: float, t_comm_s: float) -> float:
        """When that ends: its own ideal. For a table of tiles, which has hundreds, it is interpolated between ratios of
        the two times, so that it can be asked for in every round."""
        if not ARMS[self.arm].table:
            return self.end_s(t_gemm_s, t_comm_s)
        steps = math.log(t_comm_s / t_gemm_s) / math.log(STEP)
        low = math.floor(steps)
        part = (STEP ** (steps % 1) - 1) / (STEP - 1)
        below = (1 - part) * _unit_ideal(self, low)
        return t_gemm_s * (below + part * _unit_ideal(self, low + 1))


@lru_cache(maxsize=4096)
def _unit_ideal(plan: OverlapPlan, step: int) -> float:
    return plan.end_s(1.0, STEP**step)


def plan(arm: str, m: int, n: int, ranks: int, workers: int, t_gemm_s: float, t_comm_s: float) -> OverlapPlan:
    """The best of `cuts` for a matmul and a gather that take so long alone."""
    return min(cuts(arm, m, n, ranks, workers), key=lambda candidate: candidate.end_s(t_gemm_s, t_comm_s))


def cuts(arm: str, m: int, n: int, ranks: int, workers: int) -> list[OverlapPlan]:
    """The plans by which `arm` may compute out[m, n]: into how many row blocks it cuts the rows, or an arm of `TELLING`
    the rows of each rank. `workers` is 1 without a GPU."""
    parts = ranks if arm in TELLING else 1  # whose rows are cut each by itself
    row_tiles = parts
    column_tiles = 1
    if workers > 1:
        row_tiles = -(-m // TILE[0] // parts) * parts
        column_tiles = -(-n // TILE[1])
    plans = []
    for blocks in BLOCKS if ARMS[arm].by_block else (1,):
        divides_tiles = workers == 1 or row_tiles // parts % blocks == 0
        if m % blocks == 0 and divides_tiles:
            grid = Grid(max(blocks * parts, row_tiles), column_tiles)
            plans.append(OverlapPlan(arm, grid, workers, ranks, blocks))
    return plans


def chunk_launches(plan: OverlapPlan, t_gemm_s: float, t_comm_s: float) -> list[tuple[int, float]]:
    """(chunks done, when) after each launch. A launch takes all chunks that are here, and the whole chip computes it:
    all rows are one tile of one worker."""
    arrival_s = arrivals(plan.ranks, t_comm_s, 1)[0]
    return schedule.inner_loops(arrival_s, 0.0, t_gemm_s / plan.ranks)


def row_block_launches(plan: OverlapPlan, t_gemm_s: float, t_comm_s: float) -> list[tuple[int, float]]:
    """(row blocks done, when) after each launch. A launch takes all row blocks that are here, and ends with a wave of
    its own, full or not."""
    grid = plan.grid
    blocks = plan.row_blocks
    rows = grid.row_tiles // blocks
    of_blocks = arrivals(plan.ranks, t_comm_s, grid.row_tiles, rows)[::rows]
    launches = []
    now = 0.0
    block = 0
    while block < blocks:
        first = block
        start_s = max(now, of_blocks[block][-1])
        while block < blocks and of_blocks[block][-1] <= start_s:
            block += 1
        waves = Grid((block - first) * rows, grid.column_tiles).waves(plan.workers)
        now = start_s + t_gemm_s * waves / grid.waves(plan.workers)
        launches.append((block, now))
    return launches


# When each arm ends: what `ArmSpec.end_s` has.


def _serial(plan, t_gemm_s, t_comm_s):
    return t_comm_s + t_gemm_s


def _overlapped(plan, t_gemm_s, t_comm_s):
    """Matmul and gather do not wait for one another."""
    return max(t_gemm_s, t_comm_s)


def _last_of(launches):
    """The end of the last of an arm's `launches`."""
    return lambda *about: launches(*about)[-1][1]


def _block_launches(plan, t_gemm_s, t_comm_s):
    """The rows of the other ranks are computed first, group by group, and each group is sent once it is done; the own
    rows come last. A layer begins with a gather before a matmul, which takes as long: it is this backwards in time."""
    part_s = t_comm_s / (plan.ranks - 1)
    rows_s = t_gemm_s / plan.ranks
    now = free_s = 0.0
    for group in schedule.groups(range(1, plan.ranks), plan.ranks_per_launch):
        now += len(group) * rows_s
        free_s = max(free_s, now) + len(group) * part_s
    return max(now + rows_s, free_s)


def _layer_launches(plan, t_gemm_s, t_comm_s):
    """A layer has two matmuls, which take equally long: one with what it gathers, then one with what it scatters."""
    return 2 * _block_launches(plan, t_gemm_s / 2, t_comm_s / 2)


def _layer_signalled(plan, t_gemm_s, t_comm_s):
    halves = t_gemm_s / 2, t_comm_s / 2
    return _block_launches(plan, *halves) + _signalled(plan, *halves)


def _chained_launches(plan, t_gemm_s, t_comm_s):
    """The first matmul of the own rows, both matmuls of each group of other ranks' rows, and the second one of the own
    rows follow one another. The link brings all rows before it takes the first part."""
    piece_s = t_comm_s / 2 / (plan.ranks - 1)
    one_s = t_gemm_s / 2 / plan.ranks
    now = one_s
    free_s = t_comm_s / 2
    here_s = arrivals(plan.ranks, t_comm_s / 2, 1)[0]
    for group in schedule.groups(range(1, plan.ranks), plan.ranks_per_launch):
        now = max(now, here_s[group[-1]]) + 2 * len(group) * one_s
        free_s = max(free_s, now) + len(group) * piece_s
    return max(now + one_s, free_s)


def _chunk_outer(plan, t_gemm_s, t_comm_s):
    """Chunks come one after another, all rows of each. The program with a tile in every wave ends last. It adds up tile
    by tile."""
    chunk_s = product_s(plan.grid, plan.workers, plan.ranks, t_gemm_s)
    waves = plan.grid.waves(plan.workers)
    now = 0.0
    for here_s in arrivals(plan.ranks, t_comm_s, 1)[0]:
        now = max(now, here_s)
        for _ in range(waves):
            now += chunk_s
    return now


def row_block_plans(grid: Grid, workers: int, ranks: int, chunk_steps: int) -> list[OverlapPlan]:
    """The plans by which `row_block` may be cut: into equal row blocks, or such as fill half a wave, one, or two."""
    heights = {grid.row_tiles // blocks for blocks in BLOCKS if grid.row_tiles % blocks == 0}
    for waves in (0.5, 1, 2):
        height = int(waves * workers / grid.column_tiles)
        if grid.row_tiles <= height * max(BLOCKS) and height <= grid.row_tiles:
            heights.add(height)
    plans = []
    for height in sorted(heights, reverse=True):
        blocks = -(-grid.row_tiles // height)
        plans.append(OverlapPlan("row_block", grid, workers, ranks, blocks, 1, height, chunk_steps))
    return plans


def pieces_of(plan: OverlapPlan, t_gemm_s: float, t_comm_s: float) -> tuple[list[list[Piece]], float]:
    """The pieces of each program of a `row_block`, and when the last ends. With `block_tiles`, T_gemm is taken to be
    that of programs which all multiply until its end."""
    grid = plan.grid
    chunk_s = product_s(grid, plan.workers, plan.ranks, t_gemm_s)
    if plan.block_tiles:
        chunk_s = t_gemm_s * plan.workers / (len(grid.tiles) * plan.ranks)
    block_tiles = plan.block_tiles or grid.row_tiles // plan.row_blocks
    arrival_s = arrivals(plan.ranks, t_comm_s, grid.row_tiles, block_tiles)
    parts = min(MOST_PARTS, plan.chunk_steps * plan.ranks)
    return schedule.cut_last_waves(grid, plan.workers, arrival_s, chunk_s, plan.chunk_steps, max(1, parts))


def _row_block(plan, t_gemm_s, t_comm_s):
    return pieces_of(plan, t_gemm_s, t_comm_s)[1]


def _signalled(plan, t_gemm_s, t_comm_s):
    """The rows are computed in pieces of whole row tiles, ordered by destination, the own ones last; each of the other
    ranks' pieces is sent when it is computed.

    Simulated backwards in time, where a piece that is sent last arrives first, and each program computes its last tile
    first. With P = 3 and one row block, the pieces for the two others and the own one:

        piece                  0            1            2, its own
        arrives, backwards     T_comm       T_comm / 2   0
    """
    row_tiles = plan.grid.row_tiles
    pieces = plan.ranks * plan.row_blocks
    sent = pieces - plan.row_blocks
    ordered = Grid(row_tiles, plan.grid.column_tiles, row_tiles // pieces)
    tile_s = product_s(plan.grid, plan.workers, 1, t_gemm_s)
    last_s = 0.0
    for tiles in schedule.deal(ordered, plan.workers):
        now = 0.0
        for m, _ in reversed(tiles):
            left = max(0, sent - m * pieces // row_tiles)
            now = max(now, left * t_comm_s / sent) + tile_s
        last_s = max(last_s, now)
    return last_s


class ArmSpec(NamedTuple):
    """The facts of an arm that are known before it runs."""

    look: tuple[str, str]
    """Colour and marker in figures."""
    ops: tuple[str, ...]
    end_s: Callable[[OverlapPlan, float, float], float] | None
    """When a plan ends, by T_gemm and T_comm in seconds; None where these are not the arm's own: over a fabric of its
    own, or on more cores."""
    by_block: bool = False
    """It cuts the rows in blocks."""
    by_rank: bool = False
    """It multiplies the rows of some ranks at a time."""
    by_torch: bool = False
    """It multiplies by torch, which sums in fp32, whatever matmul the others multiply by."""
    table: bool = False
    """It is a table of tiles for one kernel, which waits or tells on the device: of GPUs alone."""


ARMS = {
    "serial": ArmSpec(("#666666", "o"), (*LAYER, "weight_prefetch"), _serial),
    ALL_CORES: ArmSpec(("#111111", "*"), (*LAYER, "weight_prefetch"), None),
    "chunk_launches": ArmSpec(("#0173b2", "s"), GATHERED, _last_of(chunk_launches), by_torch=True),
    "row_block_launches": ArmSpec(("#882255", "P"), GATHERED, _last_of(row_block_launches), by_block=True),
    "block_launches": ArmSpec(("#cc78bc", "<"), SCATTERED, _block_launches, by_rank=True),
    ALL_REDUCE: ArmSpec(("#ca9161", "d"), BOTH, _serial),
    "layer_launches": ArmSpec(("#332288", ">"), BOTH, _layer_launches, by_rank=True),
    "chained_launches": ArmSpec(("#117733", "h"), BOTH, _chained_launches, by_rank=True),
    "layer_signalled": ArmSpec(("#aa4499", "$\u25e2$"), BOTH, _layer_signalled, by_block=True, table=True),
    "chunk_outer": ArmSpec(("#d55e00", "X"), GATHERED, _chunk_outer, table=True),
    "row_block": ArmSpec(("#de8f05", "^"), GATHERED, _row_block, by_block=True, table=True),
    "signalled": ArmSpec(("#999933", "H"), SCATTERED, _signalled, by_block=True, table=True),
    "overlapped": ArmSpec(("#029e73", "D"), ("weight_prefetch",), _overlapped),
    PEER: ArmSpec(("#ece133", "p"), GATHERED + SCATTERED, None),
}
"""In the order in which they stand in figures."""

SIMULATED = tuple(name for name, spec in ARMS.items() if spec.end_s)


def arms_of(op: str, *, gpu: bool) -> list[str]:
    """The arms of `op` that have a schedule, on a GPU or without."""
    names = []
    for name in SIMULATED:
        spec = ARMS[name]
        if op in spec.ops and (gpu or not spec.table):
            names.append(name)
    return names
