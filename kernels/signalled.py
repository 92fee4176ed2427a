"""The matmul whose product is sent while it is computed: it tells, piece by piece, what another may read.

out[M, N] = x[M, K] @ w[N, K].T, of which the rows of each of P ranks go to that rank, in pieces of so many row blocks.
One launch of as many programs as there are SMs, as `kernels.persistent`; tiles are ordered by destination, the own rows
last. Each tile of a piece, once it is stored, adds one to the piece's counter, with release at system scope: the piece
is complete when the counter has grown by the number of its tiles. Counters only grow, so nothing is reset between
launches.

Wins over a launch for each destination, which ends with a wave of its own; the first piece goes after a fraction of the
matmul. Loses a little where nothing is sent: a tile waits until it lies in memory before the next one begins. Needs
pieces of whole tiles.

The store is TMA's, of another proxy and of no thread: a wait for its group without `.read` says that it is done, to the
thread that issued it and in the generic proxy (PTX ISA, async proxy); behind a barrier one thread tells for all.

Source of the idea: the counters of Kraken's gemm_reduce_scatter_ce_persistent and of Flux.
"""

# ruff: noqa: N803 (kernel arguments: compile-time constants in capitals, as Triton code has them)

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels import hopper
from kernels.contract import KernelLaunch, example_operands
from kernels.persistent import product, store_tile, tile_arguments, tile_corner
from kernels.signals import COMPILED, raise_counter
from kernels.tiles import Config


@dataclass(frozen=True)
class Pieces:
    """The pieces that a product is cut into."""

    order: Tensor
    """int32 [P], on the device: the ranks whose rows are computed, one after another, the own one last; where rows
    come and none is sent (`kernels.flagged_rows`), first."""
    blocks: int
    """Row blocks of each rank's rows: pieces."""
    config: Config

    @property
    def count(self) -> int:
        """Return the number of pieces that are sent."""
        return (len(self.order) - 1) * self.blocks

    def tiles(self, out: Tensor) -> int:
        """Return the tiles of a piece: by so much its counter grows in a launch."""
        rows = len(out) // len(self.order) // self.blocks
        return rows // self.config.block_m * -(-out.shape[1] // self.config.block_n)


@triton.jit(do_not_specialize=["ranks", "blocks", "row_tiles"])
def signalled_kernel(
    x_desc, w_desc, out_desc, order_ptr,
    counters_ptr,  # [(ranks - 1) blocks] int32, and when they were raised last, int64
    times_ptr,
    ranks, blocks,
    row_tiles,  # of a piece
    column_tiles, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr, SUBTILE: tl.constexpr,
):  # fmt: skip
    piece_tiles = row_tiles * column_tiles
    for tile in range(tl.program_id(0), ranks * blocks * piece_tiles, tl.num_programs(0)):
        piece = tile // piece_tiles
        m0, n0 = tile_corner(tile % piece_tiles, row_tiles, column_tiles, BLOCK_M, BLOCK_N, GROUP, False)
        m0 += (tl.load(order_ptr + piece // blocks) * blocks + piece % blocks) * row_tiles * BLOCK_M
        acc = product(x_desc, w_desc, m0, n0, K, BLOCK_M, BLOCK_N, BLOCK_K)
        store_tile(out_desc, acc, m0, n0, BLOCK_M, BLOCK_N, SUBTILE)
        if piece < (ranks - 1) * blocks:
            if COMPILED:
                stored: tl.constexpr = "cp.async.bulk.wait_group 0; mov.u32 $0, 0;"
                tl.inline_asm_elementwise(stored, "=r", [], tl.int32, is_pure=False, pack=1)
            tl.debug_barrier()
            raise_counter(counters_ptr + piece, times_ptr + piece, 1)


def matmul(x: Tensor, w: Tensor, out: Tensor, pieces: Pieces, counters: Tensor, times: Tensor) -> Tensor:
    """out[M, N] = x[M, K] @ w[N, K].T in bf16 or fp16 (fp32 in the interpreter); returns `out`.

    `counters`, int32, and `times`, int64, have an element for each piece but the own ones, in order. Raises what
    `require` raises.
    """
    require(x, w, out, pieces)
    prepare(x, w, out, pieces, counters, times).run(x.device)
    return out


def require(x: Tensor, w: Tensor, out: Tensor, pieces: Pieces) -> None:
    """Refuse what `kernels.hopper.require` and `require_whole_tiles` do."""
    hopper.require(signalled_kernel, x, w, out, "signalled")
    require_whole_tiles(x, pieces, "signalled")


def require_whole_tiles(x: Tensor, pieces: Pieces, name: str) -> None:
    """Raise ValueError for `pieces` of x that are not of whole tiles of the kernel `name`."""
    ranks, height = len(pieces.order), pieces.config.block_m
    if len(x) % (ranks * pieces.blocks * height):
        raise ValueError(
            f"{len(x)} rows over {ranks} ranks in {pieces.blocks} row blocks: {name} needs a multiple of its tile's "
            f"{height} in each; take fewer ranks or more rows"
        )


def prepare(x: Tensor, w: Tensor, out: Tensor, pieces: Pieces, counters: Tensor, times: Tensor) -> KernelLaunch:
    """Return the launch for checked tensors."""
    more = dict(counters_ptr=counters, times_ptr=times, ranks=len(pieces.order), blocks=pieces.blocks)
    return launch_over(signalled_kernel, x, w, out, pieces, **more)


def launch_over(kernel, x: Tensor, w: Tensor, out: Tensor, pieces: Pieces, **more) -> KernelLaunch:
    """Return the launch of a `kernel` whose programs walk the tiles of one piece after another. `more` are its other
    arguments."""
    config, ranks = pieces.config, len(pieces.order)
    row_tiles, column_tiles = len(x) // config.block_m, -(-len(w) // config.block_n)
    args = tile_arguments(x, w, out, config) | dict(
        order_ptr=pieces.order, row_tiles=row_tiles // (ranks * pieces.blocks), column_tiles=column_tiles, K=x.shape[1],
        GROUP=config.group_m,
    )  # fmt: skip
    return KernelLaunch(kernel, (min(hopper.programs(x.device), row_tiles * column_tiles),), args | more)


def example(config: Config, dtype: torch.dtype) -> KernelLaunch:
    """Return the launch over 8 ranks, in two pieces each."""
    pieces = Pieces(torch.arange(8, dtype=torch.int32), 2, config)
    return prepare(*example_operands(dtype), pieces, torch.empty(14, dtype=torch.int32), torch.empty(14).long())
