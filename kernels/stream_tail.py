"""The tail of a persistent matmul: the tiles of its last wave, shared out along K, so that no SM is idle.

Of T tiles on P programs, T mod P are left after the full waves. Their steps along K, tile after tile, are one stretch
that `sharers` programs divide evenly: each multiplies its part of one or two tiles. A tile that one program does not
finish is summed through a workspace (kernels.workspace): each program leaves its sums there in fp32, and the last one
to arrive adds all of them in the order of the programs, so that the same inputs give the same bits. That is the split
of Stream-K, for the last wave alone; full waves stay as they are.

Wins where the last wave is nearly empty and K is long: by the model, 416 tiles on 132 SMs of an H200 take about 3.3
waves in place of 4. Loses where the last wave is nearly full: writing and adding the sums costs more than the idle
SMs. `roofline.theory.waves` says which. Unmeasured on a GPU.

Source of the idea: M. Osama et al., Stream-K (https://arxiv.org/abs/2301.03598).
"""

# ruff: noqa: N803 (kernel arguments: sizes and compile-time constants in capitals, as Triton code has them)

import triton
import triton.language as tl

CHUNK_N = 32
"""Columns that the last one adds at a time: few registers, rows of 128 bytes."""


@triton.jit
def first_step(sharer, steps, sharers):
    """Where a program's part of the stretch of `steps` begins; that of the next is its end."""
    return sharer * steps // sharers


@triton.jit
def sharer_of(step, steps, sharers):
    """The program whose part has `step`."""
    return ((step + 1) * sharers - 1) // steps


@triton.jit
def leave_sums(sums_ptr, acc, slot, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Write a tile's fp32 sums to `slot` of the workspace."""
    rows, columns = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N)
    base = sums_ptr + slot.to(tl.int64) * (BLOCK_M * BLOCK_N)
    tl.store(base + rows[:, None] * BLOCK_N + columns[None, :], acc)


@triton.jit
def is_last(arrived_ptr, tile, contributors):
    """Count this program's arrival; whether it is the last. The last one sets the count back for the next launch."""
    tl.debug_barrier()  # all threads of the program have left their sums
    before = tl.atomic_add(arrived_ptr + tile, 1, sem="acq_rel", scope="gpu")
    last = before == contributors - 1
    if last:
        tl.store(arrived_ptr + tile, 0)
    return last


@triton.jit
def add_sums(
    sums_ptr, out_ptr, stride, m0, n0, M, N, tile, first, last, steps, tile_steps, sharers,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Add what programs `first` to `last` left of the tile at (m0, n0), and store it."""
    rows = tl.arange(0, BLOCK_M)
    for chunk in range(BLOCK_N // CHUNK):
        columns = chunk * CHUNK + tl.arange(0, CHUNK)
        acc = tl.zeros((BLOCK_M, CHUNK), dtype=tl.float32)
        for sharer in tl.range(first, last + 1, loop_unroll_factor=4):  # four trips to L2 at once
            # A program's first tile is in its even slot, a second one in the odd one.
            second = first_step(sharer, steps, sharers) < tile * tile_steps
            base = sums_ptr + (2 * sharer + second.to(tl.int32)).to(tl.int64) * (BLOCK_M * BLOCK_N)
            acc += tl.load(base + rows[:, None] * BLOCK_N + columns[None, :], cache_modifier=".cg")
        out_rows, out_columns = m0 + rows, n0 + columns
        at = out_ptr + out_rows[:, None].to(tl.int64) * stride + out_columns[None, :]
        mask = (out_rows < M)[:, None] & (out_columns < N)[None, :]
        tl.store(at, acc.to(out_ptr.dtype.element_ty), mask=mask)
