"""The flagged matmul whose sums may be spilled: it waits on the device, chunk by chunk, for arrival flags.

out[M, N] = x[M, K] @ w[N, K].T, as in `kernels.flagged`; here all warps wait, and all multiply. Within a work tile a
look at the flags says how many chunks are here, and one pipelined loop takes them all, then looks again. The
accumulator stays in registers across waits; where the table says so it is spilled to memory in fp32, exactly, so that
the program can go on with another tile.

Wins where every tile should be multiplied with each chunk as it comes, whatever that takes. Loses where nothing
overlaps: each wait drains the pipeline, each look costs a trip to L2.

A chunk must not be loaded ahead of its flag. The loop over looks and the loop over K are nested on purpose: in a flat
one Triton's pipeliner issues the first loads of a chunk before the wait for it (`kernels.machine` tells).
`kernels.signals` has the wait for a flag.
"""

# ruff: noqa: N803 (kernel arguments: compile-time constants in capitals, as Triton code has them)

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels import hopper
from kernels.contract import EXAMPLE_SIZE, KernelLaunch, Signals, example_operands, example_signals
from kernels.persistent import accumulate, store_tile, tile_arguments
from kernels.signals import wait
from kernels.tables import TileSchedule, spill_once, tile_schedule
from kernels.tiles import Config
from roofline.theory.schedule import Grid


# These arguments change from launch to launch, and a new variant may not be loaded while a kernel spins.
@triton.jit(
    do_not_specialize=["wanted", "order", "patience", "row_tiles", "column_tiles"],
    do_not_specialize_on_alignment=["flags_ptr", "lost_ptr"],
)
def flagged_spills_kernel(
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
        row = work_tiles_ptr + work_tile * 6
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


def require(x: Tensor, w: Tensor, out: Tensor, tiles: TileSchedule) -> None:
    """Refuse what `kernels.hopper.require` does; ValueError for sizes that `tiles` was not made for."""
    hopper.require("flagged_spills", x, w, out)
    tiles.require(x, w)


def prepare(x: Tensor, w: Tensor, out: Tensor, tiles: TileSchedule, signals: Signals) -> KernelLaunch:
    """The launch for checked tensors, as that of `kernels.flagged`, by tables that spill, too."""
    args = tile_arguments(x, w, out, tiles.config) | tiles.arguments(x, signals)
    args |= dict(spilled_ptr=tiles.spilled, column_tiles=tiles.grid.column_tiles, SPILLS=bool(len(tiles.spilled)))
    return KernelLaunch(flagged_spills_kernel, (len(tiles.table),), args)


def example(config: Config, dtype: torch.dtype) -> KernelLaunch:
    """A launch over 8 ranks, by a table that spills."""
    ranks, (x, w, out) = 8, example_operands(dtype)
    grid = Grid(*config.tile_counts(*out.shape))
    tiles = tile_schedule(spill_once(grid, 2, range(ranks), 0.01), grid, range(ranks), EXAMPLE_SIZE, config, "cpu")
    return prepare(x, w, out, tiles, example_signals(ranks - 1))
