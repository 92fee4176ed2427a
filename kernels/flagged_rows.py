"""The matmul whose rows come from other ranks while it runs: it waits on the device for the rows of each.

out[M, N] = x[M, K] @ w[N, K].T, where the rows of x are gathered from P ranks. One launch of as many programs as there
are SMs, as `kernels.persistent`; tiles are ordered by rank, in the order of arrival, the own rows first. Before its
first tile of a rank's rows a program waits for the rank's flag, as `kernels.flagged` does for a chunk of columns, and
with the same bound.

Wins over a launch for each rank's rows, which ends with a wave of its own: a rank's rows may have fewer tiles than the
chip has SMs. Loses a little where all is here before. Needs rows of whole tiles.
"""

# ruff: noqa: N803 (kernel arguments: compile-time constants in capitals, as Triton code has them)

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels import hopper
from kernels.contract import KernelLaunch, Signals, example_operands
from kernels.persistent import product, store_tile, tile_corner
from kernels.signalled import Pieces, launch_over, require_whole_tiles
from kernels.signals import wait
from kernels.tiles import Config


# They change from launch to launch, and a new variant may not be loaded while one spins.
@triton.jit(
    do_not_specialize=["wanted", "patience", "row_tiles"], do_not_specialize_on_alignment=["flags_ptr", "lost_ptr"]
)
def flagged_rows_kernel(
    x_desc, w_desc, out_desc, order_ptr,
    flags_ptr,  # [RANKS - 1] int32, in the order of arrival
    wanted, lost_ptr, patience,
    row_tiles,  # of a rank
    column_tiles, K,
    RANKS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr, SUBTILE: tl.constexpr,
):  # fmt: skip
    rank_tiles = row_tiles * column_tiles
    ready = tl.full((), 1, dtype=tl.int32)  # how many ranks' rows are here
    for tile in range(tl.program_id(0), RANKS * rank_tiles, tl.num_programs(0)):
        place = tile // rank_tiles
        if place >= ready:
            ready = wait(flags_ptr - 1, place, wanted, lost_ptr, place, patience, RANKS)
        m0, n0 = tile_corner(tile % rank_tiles, row_tiles, column_tiles, BLOCK_M, BLOCK_N, GROUP, False)
        m0 += tl.load(order_ptr + place) * row_tiles * BLOCK_M
        acc = product(x_desc, w_desc, m0, n0, K, BLOCK_M, BLOCK_N, BLOCK_K)
        store_tile(out_desc, acc, m0, n0, BLOCK_M, BLOCK_N, SUBTILE)


def matmul(x: Tensor, w: Tensor, out: Tensor, pieces: Pieces, signals: Signals) -> Tensor:
    """out[M, N] = x[M, K] @ w[N, K].T in bf16 or fp16 (fp32 in the interpreter), the rows of each rank once its flag is
    up; returns `out`. `pieces` has one row block a rank and the own rank first; `signals` has a flag for each other.

    It only enqueues: whether rows were given up is in `signals.lost` when the device is done. Raises what `require`
    raises.
    """
    require(x, w, out, pieces)
    prepare(x, w, out, pieces, signals).run(x.device)
    return out


def require(x: Tensor, w: Tensor, out: Tensor, pieces: Pieces) -> None:
    """Refuse what `kernels.hopper.require` and `kernels.signalled.require_whole_tiles` do."""
    hopper.require(flagged_rows_kernel, x, w, out, "flagged_rows")
    require_whole_tiles(x, pieces, "flagged_rows")


def prepare(x: Tensor, w: Tensor, out: Tensor, pieces: Pieces, signals: Signals) -> KernelLaunch:
    """Return the launch for checked tensors."""
    more = dict(
        flags_ptr=signals.flags, wanted=signals.wanted, lost_ptr=signals.lost, patience=signals.patience,
        RANKS=len(pieces.order),
    )  # fmt: skip
    return launch_over(flagged_rows_kernel, x, w, out, pieces, **more)


def example(config: Config, dtype: torch.dtype) -> KernelLaunch:
    """Return the launch over 8 ranks."""
    flags = torch.empty(7, dtype=torch.int32)
    pieces = Pieces(torch.arange(8, dtype=torch.int32), 1, config)
    return prepare(*example_operands(dtype), pieces, Signals(flags, 1, flags[:1], 1))
