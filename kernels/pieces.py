"""The matmul by pieces of rows: it waits for each piece of x to arrive, or tells when each piece of out is done.

out[M, N] = x[M, K] @ w[N, K].T, whose rows are cut into pieces that are computed one after another. One launch has as
many programs as there are SMs, as in `kernels.persistent`. With `signals`, rows of x are gathered while it runs: a
program waits for the flag of a piece before its first tile of the piece, as `kernels.flagged` does for a chunk of
columns, and with the same bound. With `counters`, rows of out are sent while it runs: each tile of a piece, once it is
stored, adds one to the piece's counter, with release at system scope. A piece is complete when its counter has grown by
the number of its tiles. Counters only grow, so nothing is reset between launches.

Wins over a launch for each rank's rows, which ends with a wave of its own: they may have fewer tiles than the chip has
SMs, and the first piece goes after a fraction of the matmul. Loses a little where nothing comes or goes: a look at a
flag costs a trip to L2, and a program that tells of a tile waits until the tile lies in memory before it begins the
next one. Needs pieces of whole tiles.

TMA stores a tile, by the async proxy and for no thread. A wait for its bulk group without `.read` makes the writes
visible to the thread that issued the store, in the generic proxy (PTX ISA, async proxy); behind a barrier one thread
tells for all.

Source of the idea: the counters of Kraken's gemm_reduce_scatter_ce_persistent and of Flux.
"""

# ruff: noqa: N803 (kernel arguments: compile-time constants in capitals, as Triton code has them)

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kernels import hopper, tiles
from kernels.contract import KernelLaunch, Signals, example_operands, example_signals
from kernels.flagged import Config, Flags
from kernels.persistent import tile_corner
from kernels.ring import aggregate, require_compiled
from kernels.signals import raise_counter
from kernels.stream_k import Dealt, deal
from kernels.warpgroup import Tensors, run
from kernels.warpgroup_config import role_arguments


@dataclass(frozen=True)
class Pieces:
    """The pieces that rows are cut into: as many for each rank, of whole tiles."""

    order: Tensor
    """int32 [pieces], on the device: the numbers of the pieces, from the first row on, in the order of computing."""
    per_rank: int
    config: tiles.Config

    @classmethod
    def of_ranks(
        cls, ranks: Sequence[int], per_rank: int, config: tiles.Config, device: torch.device | str
    ) -> "Pieces":
        """`per_rank` pieces of the rows of each of `ranks`, one rank after another. This process's own rank is the
        first where rows come, and the last where they go."""
        order = [rank * per_rank + number for rank in ranks for number in range(per_rank)]
        return cls(torch.tensor(order, dtype=torch.int32, device=device), per_rank, config)

    @property
    def count(self) -> int:
        """The number of pieces of other ranks."""
        return len(self.order) - self.per_rank

    def tiles(self, out: Tensor) -> int:
        """The number of tiles of a piece: its counter grows by so much in a launch."""
        rows, columns = self.config.tile_counts(*out.shape)
        return rows * columns // len(self.order)


@aggregate
class InPieces:
    """The tiles of `kernels.pieces`, piece after piece, whose numbers are `order`."""

    dealt: Dealt
    K: gl.tensor
    order_ptr: gl.tensor
    row_tiles: gl.tensor
    column_tiles: gl.tensor
    flags: object  # `Flags`, one for each piece but the first; None: all rows are here
    counters: object  # counters_ptr, times_ptr and counted; None: nobody is told
    block_m: gl.constexpr
    block_n: gl.constexpr
    block_k: gl.constexpr
    GROUP: gl.constexpr

    @gluon.jit
    def place(self):
        return gl.program_id(0), 0

    @gluon.jit
    def number(self, tile):
        """The place of a tile's piece in the order of computing."""
        return tile // (self.row_tiles * self.column_tiles)

    @gluon.jit
    def corner(self, tile, member):
        """The first row and column of a tile."""
        inside = tile % (self.row_tiles * self.column_tiles)
        m0, n0 = tile_corner(inside, self.row_tiles, self.column_tiles, self.block_m, self.block_n, self.GROUP, False)
        return m0 + gl.load(self.order_ptr + self.number(tile)) * self.row_tiles * self.block_m, n0

    @gluon.jit
    def column(self, tile, step, is_first):
        """The first column of a step. Where a tile begins, wait until its rows are here."""
        if self.flags is not None:
            piece = self.number(tile)
            if is_first & (piece > 0):
                self.flags.wait(piece)
        return step * self.block_k

    @gluon.jit
    def tell(self, tile):
        """Say that a tile lies in memory."""
        counters_ptr, times_ptr, counted = self.counters
        piece = self.number(tile)
        if piece < counted:
            raise_counter(counters_ptr + piece, times_ptr + piece, 1)


# These arguments change from launch to launch, and a new variant may not be loaded while a kernel spins.
@gluon.jit(
    do_not_specialize=["gangs", "whole", "more", "row_tiles", "column_tiles", "wanted", "patience", "counted"],
    do_not_specialize_on_alignment=["flags_ptr", "lost_ptr", "counters_ptr", "times_ptr"],
)
def pieces_kernel(
    x_desc, w_desc, out_desc, w_rest_desc, out_rest_desc,  # as in `kernels.warpgroup`
    order_ptr, gangs, whole, more,  # programs and their tiles (`kernels.stream_k`)
    row_tiles,  # of a piece
    column_tiles, K,
    flags_ptr,  # int32, one for each piece but the first, in the order of computing; None: all rows are here
    wanted, lost_ptr, patience,
    counters_ptr,  # int32, one for each of the first `counted` pieces; None: nobody is told
    times_ptr,  # int64: when each was raised last
    counted,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr, BUFFERS: gl.constexpr, GROUP: gl.constexpr,
    CONSUMER_REGISTERS: gl.constexpr, PRODUCER_REGISTERS: gl.constexpr,
):  # fmt: skip
    flags = None
    counters = None
    if flags_ptr is not None:
        flags = Flags(flags_ptr, wanted, lost_ptr, patience)
    if counters_ptr is not None:
        counters = counters_ptr, times_ptr, counted
    work = InPieces(
        Dealt(gangs, whole, gl.to_tensor(0), more, False), K, order_ptr, row_tiles, column_tiles, flags, counters,
        BLOCK_M, BLOCK_N, x_desc.block_type.shape[1], GROUP,
    )  # fmt: skip
    scales: gl.constexpr = (None, None, None, None)
    tensors = Tensors(x_desc, w_desc, out_desc, w_rest_desc, out_rest_desc, scales, False)
    run(work, tensors, STAGES, BUFFERS, False, counters_ptr is not None, CONSUMER_REGISTERS, PRODUCER_REGISTERS)


def require(x: Tensor, w: Tensor, out: Tensor, pieces: Pieces) -> None:
    """Refuse what `kernels.hopper.require` does; ValueError for pieces that are not of whole tiles."""
    hopper.require("pieces", x, w, out)
    count, height = len(pieces.order), pieces.config.block_m
    if len(x) % (count * height):
        raise ValueError(
            f"{len(x)} rows in {count} pieces: each must be a multiple of the tile's {height} rows; "
            "take fewer ranks or row blocks, or more rows"
        )
    require_compiled("pieces", "persistent")


def prepare(
    x: Tensor, w: Tensor, out: Tensor, pieces: Pieces,
    signals: Signals | None = None, counters: tuple[Tensor, Tensor] | None = None,
) -> KernelLaunch:  # fmt: skip
    """The launch for checked tensors in bf16 or fp16: out[M, N] = x[M, K] @ w[N, K].T.

    `signals` has a flag for each piece but the first, in the order of computing. `counters` are int32 counters and the
    int64 times in ns at which they were raised last, of each piece but those of the last rank. Whether rows were given
    up is in `signals.lost` when the device is done.

    Raises ValueError for a configuration that does not fit two consumers.
    """
    config, count = pieces.config, len(pieces.order)
    row_tiles, column_tiles = config.tile_counts(*out.shape)
    if counters and config.subtile != 4:
        raise ValueError(
            f"subtile={config.subtile}, pieces tells of tiles that are stored in 4 parts; change the configuration"
        )
    signals = signals or Signals(None, 0, None, 0)
    counters_ptr, times_ptr = counters or (None, None)
    dealt = deal(row_tiles * column_tiles, 1, hopper.programs(x.device), 0)
    args = role_arguments(x, w, out, config) | dict(
        order_ptr=pieces.order, gangs=dealt["gangs"], whole=dealt["whole"], more=dealt["more"],
        row_tiles=row_tiles // count, column_tiles=column_tiles, K=x.shape[1],
        flags_ptr=signals.flags, wanted=signals.wanted, lost_ptr=signals.lost, patience=signals.patience,
        counters_ptr=counters_ptr, times_ptr=times_ptr, counted=pieces.count, GROUP=config.group_m,
    )  # fmt: skip
    return KernelLaunch(pieces_kernel, (dealt["gangs"],), args)


def example_that_waits(config: Config, dtype: torch.dtype) -> KernelLaunch:
    """A launch over 8 ranks, whose rows arrive."""
    pieces = Pieces.of_ranks(range(8), 1, config, "cpu")
    return prepare(*example_operands(dtype), pieces, example_signals(7))


def example_that_tells(config: Config, dtype: torch.dtype) -> KernelLaunch:
    """A launch over 8 ranks, to which rows go in two pieces each."""
    counters = torch.empty(14, dtype=torch.int32), torch.empty(14, dtype=torch.int64)
    return prepare(*example_operands(dtype), Pieces.of_ranks(range(8), 2, config, "cpu"), None, counters)
