"""The matmul that starts before its input has arrived: it waits on the device, chunk by chunk, for arrival flags.

out[M, N] = x[M, K] @ w[N, K].T, where x is gathered over its columns from P ranks while this kernel runs. One launch of
as many programs as there are SMs; each walks its work tiles (`roofline.theory.schedule`): a tile of `out` times a run
of chunks, in the order of their arrival. Within a work tile a look at the flags says how many chunks are here, and one
pipelined loop takes them all, then looks again. The accumulator stays in registers across waits; where the table says
so it is spilled to memory in fp32, exactly, so that the program can go on with another tile. `collectives.on_device`
says what each table is good for.

Wins over launches per chunk or row block, which end with a wave of their own each and pass sums through memory. Loses a
little where nothing overlaps: each wait drains the pipeline, each look costs a trip to L2.

A chunk must not be loaded ahead of its flag. The loop over looks and the loop over K are nested on purpose: in a flat
one Triton's pipeliner issues the first loads of a chunk before the wait for it (`kernels.machine` tells).
`kernels.signals` has the wait for a flag.

Source: a flag for each part of a K-gather, staged by rows, is the idea of Iris's all_gather_matmul_hbm_buffer.
"""

# ruff: noqa: N803 (kernel arguments: compile-time constants in capitals, as Triton code has them)

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels import hopper, tables
from kernels.contract import EXAMPLE_SIZE, KernelLaunch, Signals, example_operands, launch_metadata
from kernels.persistent import accumulate, store_tile, tile_arguments
from kernels.signals import wait
from kernels.tiles import Config
from roofline.theory import schedule
from roofline.theory.schedule import Grid, Table

MOST_RANKS = 16  # the order of arrival is packed in 64 bits


@dataclass(frozen=True)
class TileSchedule:
    """A table of work tiles on the device, made by `tile_schedule` for a shape, an order of arrival and a height of row
    blocks."""

    table: Table
    grid: Grid
    order: tuple[int, ...]
    block_rows: int
    config: Config
    work_tiles: Tensor
    """int32 [work tiles, 4], program after program: m, n, chunk_from, chunk_to. A tile that has chunks already is
    resumed, and one that lacks some in the end is spilled."""
    first: Tensor
    """int32 [programs + 1]: where in `work_tiles` those of each program begin."""
    spilled: Tensor
    """fp32 [tiles, BLOCK_M, BLOCK_N], or empty where nothing is spilled."""

    @property
    def spilled_bytes(self) -> int:
        """The bytes of accumulators that one launch writes and reads back."""
        return 2 * tables.spills(self.table) * self.config.block_m * self.config.block_n * 4


# These arguments change from launch to launch, and a new variant may not be loaded while a kernel spins.
@triton.jit(
    do_not_specialize=["wanted", "order", "patience", "row_tiles", "column_tiles"],
    do_not_specialize_on_alignment=["flags_ptr", "lost_ptr"],
    launch_metadata=launch_metadata,
)
def flagged_kernel(
    x_desc, w_desc, out_desc, work_tiles_ptr, first_ptr, spilled_ptr, flags_ptr, wanted, lost_ptr, patience,
    order,  # the chunk at position j of the arrival order is in bits 4 j .. 4 j + 3
    row_tiles,  # of a row block
    column_tiles,
    CHUNK: tl.constexpr, RANKS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SUBTILE: tl.constexpr,
    SPILLS: tl.constexpr,
):  # fmt: skip
    steps: tl.constexpr = CHUNK // BLOCK_K
    program = tl.program_id(0)
    order = order.to(tl.int64)  # a small value comes as 32 bits
    ready, ready_flag = 0, -1
    for work_tile in range(tl.load(first_ptr + program), tl.load(first_ptr + program + 1)):
        row = work_tiles_ptr + work_tile * 4
        m, n = tl.load(row), tl.load(row + 1)
        chunk, chunk_to = tl.load(row + 2), tl.load(row + 3)
        first_flag = m // row_tiles * (RANKS - 1)
        if first_flag != ready_flag:
            ready, ready_flag = 0, first_flag
        m0, n0 = m * BLOCK_M, n * BLOCK_N
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        if SPILLS:
            place = (m * column_tiles + n).to(tl.int64) * (BLOCK_M * BLOCK_N)
            inside = tl.arange(0, BLOCK_M)[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
            held = spilled_ptr + place + inside
            # No branch: behind one, ptxas has each wgmma wait for the one before, in the whole loop.
            acc = tl.load(held, mask=chunk > 0, other=0.0)
        while chunk < chunk_to:
            if ready < chunk_to:  # else there is nothing to look for
                flags = flags_ptr + first_flag - 1
                ready = wait(flags, chunk, wanted, lost_ptr, first_flag + chunk, patience, RANKS)
            here = tl.minimum(ready, chunk_to)
            for step in range(chunk * steps, here * steps):
                owner = (order >> (step // steps * 4)) & 15
                k0 = owner.to(tl.int32) * CHUNK + step % steps * BLOCK_K
                acc = accumulate(acc, x_desc, w_desc, m0, n0, k0)
            chunk = here
        if SPILLS:  # noqa: SIM102 (the first is known when this is compiled)
            if chunk_to < RANKS:
                tl.store(held, acc)
        if chunk_to == RANKS:
            store_tile(out_desc, acc, m0, n0, BLOCK_M, BLOCK_N, SUBTILE)


def tile_schedule(
    table: Table, grid: Grid, order: Sequence[int], block_rows: int, config: Config, device: torch.device | str
) -> TileSchedule:
    """Put `table`, which has all of `grid` with all chunks, on `device`.

    `order`: chunk numbers in the order of arrival, the own one first. `block_rows`: rows of a row block, which has
    flags of its own; M where the rows are not cut. Raises ValueError for more than MOST_RANKS ranks, and tiles that lie
    across row blocks.
    """
    if len(order) > MOST_RANKS:
        raise ValueError(
            f"{len(order)} ranks: flagged packs their order in 64 bits, the limit is {MOST_RANKS}; take fewer"
        )
    if block_rows % config.block_m and -(-block_rows // config.block_m) < grid.row_tiles:
        raise ValueError(
            f"row blocks of {block_rows} rows: flagged needs a multiple of its tile's {config.block_m}; take fewer"
        )
    ends = torch.tensor([0, *map(len, table)], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    work_tiles = torch.tensor([work_tile[:4] for program in table for work_tile in program], dtype=torch.int32)
    tiles = len(grid.tiles) if tables.spills(table) else 0
    spilled = torch.empty((tiles, config.block_m, config.block_n), dtype=torch.float32, device=device)
    return TileSchedule(table, grid, tuple(order), block_rows, config, work_tiles.to(device), ends.to(device), spilled)


def matmul(x: Tensor, w: Tensor, out: Tensor, tiles: TileSchedule, signals: Signals) -> Tensor:
    """out[M, N] = x[M, K] @ w[N, K].T in bf16 or fp16, each chunk of x's columns once its flag is up; returns `out`.

    It only enqueues: whether a chunk was given up is in `signals.lost` when the device is done. Raises what `require`
    raises.
    """
    require(x, w, out, tiles)
    prepare(x, w, out, tiles, signals).run(x.device)
    return out


def require(x: Tensor, w: Tensor, out: Tensor, tiles: TileSchedule) -> None:
    """Refuse what `kernels.hopper.require` does; ValueError for sizes that `tiles` was not made for."""
    hopper.require(flagged_kernel, "flagged", x, w, out)
    (m, k), n, ranks, config = x.shape, w.shape[0], len(tiles.order), tiles.config
    if k % ranks or k // ranks % config.block_k:
        raise ValueError(
            f"K={k} over {ranks} ranks: flagged needs chunks of a multiple of {config.block_k} columns; take fewer"
        )
    rows, columns = -(-m // config.block_m), -(-n // config.block_n)  # triton.cdiv takes microseconds
    if (rows, columns) != (tiles.grid.row_tiles, tiles.grid.column_tiles):
        raise ValueError(f"out is {rows} x {columns} tiles, the schedule is for {tiles.grid}; make one for this shape")


def prepare(x: Tensor, w: Tensor, out: Tensor, tiles: TileSchedule, signals: Signals) -> KernelLaunch:
    """The launch for checked tensors."""
    config, ranks = tiles.config, len(tiles.order)
    order = sum(chunk << (4 * position) for position, chunk in enumerate(tiles.order))
    args = tile_arguments(x, w, out, config) | dict(
        work_tiles_ptr=tiles.work_tiles, first_ptr=tiles.first, spilled_ptr=tiles.spilled,
        flags_ptr=signals.flags, wanted=signals.wanted, lost_ptr=signals.lost, patience=signals.patience,
        order=order - (order >> 63 << 64), row_tiles=-(-tiles.block_rows // config.block_m),
        column_tiles=tiles.grid.column_tiles,
        CHUNK=x.shape[1] // ranks, RANKS=ranks, SPILLS=bool(len(tiles.spilled)),
    )  # fmt: skip
    return KernelLaunch(flagged_kernel, (len(tiles.table),), args)


def example(config: Config, dtype: torch.dtype, deal: Callable[..., Table] = schedule.tile_outer) -> KernelLaunch:
    """A launch over 8 ranks, by the table that `deal` makes, which spills or does not."""
    ranks, (x, w, out) = 8, example_operands(dtype)
    grid = Grid(EXAMPLE_SIZE // config.block_m, EXAMPLE_SIZE // config.block_n)
    tiles = tile_schedule(deal(grid, 2, ranks), grid, range(ranks), EXAMPLE_SIZE, config, "cpu")
    flags = torch.empty(ranks - 1, dtype=torch.int32)
    return prepare(x, w, out, tiles, Signals(flags, 1, flags[:1], 1))


def example_that_spills(config: Config, dtype: torch.dtype) -> KernelLaunch:
    """A launch by a table that spills. It has tiles of its own, since spilling takes registers."""
    return example(config, dtype, schedule.chunk_outer)
