"""The matmul that starts before its input has arrived: its producer waits on the device, chunk by chunk, for flags.

out[M, N] = x[M, K] @ w[N, K].T, where x is gathered over its columns from P ranks while this kernel runs. One launch of
as many programs as there are SMs. The roles and the ring are those of `kernels.warpgroup`; the work is a table of
tiles (`roofline.theory.schedule`), each with all chunks, in the order of their arrival. The last ones are cut along K
between programs, which pass their sums on as `kernels.stream_k` has it. Whoever has the last piece of a tile waits for
the others', so that all programs have to run at once:

    producer                                                 consumers

    a chunk begins: is its flag up? else look again          know nothing of flags
    fence: TMA may read what that allows
    load its steps into the ring  ------------------------>  multiply what is in the ring

So while the producer waits, both consumers multiply the stages that are full, some 2 us of products. Nothing is loaded
behind a pending wait, since one warp does both in turn.

Wins over launches per chunk or row block, which end with a wave of their own each and pass sums through memory. Loses
where the order of arrival leaves no tile with all its chunks for long: its sums stay in registers, and nothing else is
multiplied meanwhile (`kernels.flagged_spills`). `collectives.on_device` says what each table is good for.

A copier on the same SM needs registers. A launch takes as many for each thread as its code has at first, whatever
setmaxnreg asks for later: 168 x 384 = 64,512 of 65,536. `registers` of a configuration bounds them: at 152 it takes
58,368, and what a link needs is left. An instruction of 64x256x16 needs 154 by ptxas's word. One of 64x208x16 compiles
without a spill (Triton 3.9), and so do two of 64x128x16, of a tile of 256 rows. Where nothing copies on the SMs nothing
is bound.

What is assumed of memory: the flag is read with acquire at system scope, and its writer's data were written before. The
loads behind it are those of another proxy, the asynchronous one. PTX has a fence between proxies for the thread that
executes it (PTX ISA 9.7.13.4, membar / fence.proxy.async) and causality order through it (8.6), but says of no other
writer what his writes are to that proxy: that what was acquired counts as the thread's own is assumed, of stores by
SMs, of copy engines and of peers alike. `kernels.machine` demands that the fence is there.

Source: a flag for each part of a K-gather, staged by rows, is the idea of Iris's all_gather_matmul_hbm_buffer.
"""

# ruff: noqa: N803 (kernel arguments: sizes and compile-time constants in capitals, as Triton code has them)

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kernels import hopper
from kernels.contract import EXAMPLE_SIZE, KernelLaunch, Signals, example_operands, example_signals
from kernels.ring import aggregate, require_compiled
from kernels.signals import wait_for
from kernels.stream_k import Slots
from kernels.tables import TileSchedule, tile_schedule
from kernels.warpgroup import Tensors, run
from kernels.warpgroup_config import Roles, may_share, role_arguments, slot_arguments
from roofline.theory.arms import OverlapPlan, pieces_of
from roofline.theory.schedule import Grid, Piece

Config = Roles
"""What the tables of configurations have for this kernel."""


@aggregate
class Flags:
    """What a producer waits for, as `kernels.contract.Signals` has it."""

    flags_ptr: gl.tensor
    wanted: gl.tensor
    lost_ptr: gl.tensor
    patience: gl.tensor

    @gluon.jit
    def wait(self, number):
        """Wait for the flag `number`, counted from 1."""
        wait_for(self.flags_ptr + number - 1, self.wanted, self.lost_ptr, number, self.patience)


@aggregate
class Listed:
    """The pieces of each program, in a table with a row of six numbers for each: those of a
    `roofline.theory.schedule.Piece`."""

    table_ptr: gl.tensor
    first_ptr: gl.tensor
    SHARED: gl.constexpr  # whether tiles are cut along K

    @gluon.jit
    def pieces(self, program, steps):
        return gl.load(self.first_ptr + program + 1) - gl.load(self.first_ptr + program)

    @gluon.jit
    def piece(self, number, program, steps):
        """The number of a piece in the table, its first step, and the step behind its last."""
        piece = gl.load(self.first_ptr + program) + number
        if not self.SHARED:
            return piece, 0, steps
        return piece, self.field(piece, 2), self.field(piece, 3)

    @gluon.jit
    def field(self, piece, number):
        """A field of a piece."""
        return gl.load(self.table_ptr + piece * 6 + number)


@aggregate
class Arriving:
    """The tiles of `kernels.flagged`, and the flags of their chunks."""

    dealt: Listed
    flags: Flags
    slots: Slots
    order: gl.tensor
    row_tiles: gl.tensor
    K: gl.constexpr
    CHUNK: gl.constexpr
    block_m: gl.constexpr
    block_n: gl.constexpr
    block_k: gl.constexpr

    @gluon.jit
    def place(self):
        return gl.program_id(0), 0

    @gluon.jit
    def corner(self, piece, member):
        """The first row and column of a piece's tile."""
        return self.dealt.field(piece, 0) * self.block_m, self.dealt.field(piece, 1) * self.block_n

    @gluon.jit
    def column(self, piece, step, is_first):
        """The first column of a step, in the order of arrival. Where a piece or a chunk begins, wait until it is
        here."""
        steps: gl.constexpr = self.CHUNK // self.block_k
        chunk = step // steps
        if (is_first | (step % steps == 0)) & (chunk > 0):
            others: gl.constexpr = self.K // self.CHUNK - 1
            self.flags.wait(self.dealt.field(piece, 0) // self.row_tiles * others + chunk)
        owner = (self.order >> (chunk * 4) & 15).to(gl.int32)
        return owner * self.CHUNK + step % steps * self.block_k

    @gluon.jit
    def owns(self, first, last, steps):
        """Whether a piece is the last of a tile that others have pieces of."""
        return (first > 0) & (last == steps)

    @gluon.jit
    def leaves(self, first, last, steps):
        """Whether another program has the last piece of a tile."""
        return last < steps

    @gluon.jit
    def peers(self, piece, steps):
        """The number of others who have pieces of a tile whose last this is."""
        return self.dealt.field(piece, 5)

    @gluon.jit
    def leave(self, piece, acc, WHO: gl.constexpr, COLUMNS: gl.constexpr):
        """Leave a consumer's sums to the program that has the last piece of the tile."""
        self.slots.leave(acc, self.dealt.field(piece, 4), WHO, COLUMNS)

    @gluon.jit
    def fetch(self, piece, steps, smem, ring):
        """Load what others have left of a tile into the ring. Returns the place behind it."""
        return self.slots.fetch(self.dealt.field(piece, 4), 1, self.peers(piece, steps), smem, ring)


# These arguments change from launch to launch, and a new variant may not be loaded while a kernel spins.
@gluon.jit(
    do_not_specialize=["wanted", "order", "patience", "row_tiles"],
    do_not_specialize_on_alignment=["flags_ptr", "lost_ptr"],
)
def flagged_kernel(
    x_desc, w_desc, out_desc, w_rest_desc, out_rest_desc,  # as in `kernels.warpgroup`
    sums_desc, sums_rest_desc, sums_ptr, slot_flags_ptr,  # of `kernels.stream_k`; None where all tiles are whole
    work_tiles_ptr, first_ptr, flags_ptr, wanted, lost_ptr, patience,
    order,  # the chunk at position j of the arrival order is in bits 4 j .. 4 j + 3
    row_tiles,  # of a row block
    CHUNK: gl.constexpr, RANKS: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr,
    STAGES: gl.constexpr, BUFFERS: gl.constexpr, CONSUMER_REGISTERS: gl.constexpr, PRODUCER_REGISTERS: gl.constexpr,
):  # fmt: skip
    work = Arriving(
        Listed(work_tiles_ptr, first_ptr, sums_ptr is not None), Flags(flags_ptr, wanted, lost_ptr, patience),
        Slots(sums_desc, sums_rest_desc, sums_ptr, slot_flags_ptr, BLOCK_N),
        order.to(gl.int64),  # a small value comes as 32 bits
        row_tiles, CHUNK * RANKS, CHUNK, BLOCK_M, BLOCK_N, x_desc.block_type.shape[1],
    )  # fmt: skip
    scales: gl.constexpr = (None, None, None, None)
    tensors = Tensors(x_desc, w_desc, out_desc, w_rest_desc, out_rest_desc, scales, False)
    run(work, tensors, STAGES, BUFFERS, False, False, CONSUMER_REGISTERS, PRODUCER_REGISTERS)


def require(x: Tensor, w: Tensor, out: Tensor, tiles: TileSchedule) -> None:
    """Refuse what `kernels.hopper.require` does; ValueError for sizes that `tiles` was not made for, for one that
    spills, and in Triton's interpreter."""
    hopper.require("flagged", x, w, out)
    tiles.require(x, w)
    if not all(isinstance(piece, Piece) for pieces in tiles.table for piece in pieces):
        raise ValueError("the schedule is not of pieces, and flagged keeps sums in registers; take flagged_spills")
    require_compiled("flagged", "flagged_spills")


def prepare(x: Tensor, w: Tensor, out: Tensor, tiles: TileSchedule, signals: Signals) -> KernelLaunch:
    """The launch for checked tensors in bf16 or fp16: out[M, N] = x[M, K] @ w[N, K].T, each chunk of x's columns once
    its flag is up. Whether a chunk was given up is in `signals.lost` when the device is done.

    Raises ValueError for a configuration that does not fit two consumers, or cannot be cut along K.
    """
    if tiles.slots and not may_share(tiles.config, x.element_size()):
        raise ValueError(f"{tiles.config} cannot be cut along K, and the schedule does; make one of whole tiles")
    args = role_arguments(x, w, out, tiles.config) | tiles.arguments(x, signals)
    args |= slot_arguments(x, tiles.config, tiles.slots)
    return KernelLaunch(flagged_kernel, (len(tiles.table),), args)


def example(config: Config, dtype: torch.dtype) -> KernelLaunch:
    """A launch over 8 ranks."""
    ranks, (x, w, out) = 8, example_operands(dtype)
    grid = Grid(*config.tile_counts(*out.shape))
    steps = EXAMPLE_SIZE // ranks // config.block_k
    plan = OverlapPlan("row_block", grid, 3, ranks, block_tiles=grid.row_tiles, chunk_steps=steps)
    pieces, _ = pieces_of(plan, 1.0, 1.0)
    tiles = tile_schedule(pieces, grid, range(ranks), EXAMPLE_SIZE, config, "cpu")
    return prepare(x, w, out, tiles, example_signals(ranks - 1))
