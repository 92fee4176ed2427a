"""The matmul for few rows, M <= 64: bounded by reading w once, so everything serves to keep reading.

out[M, N] = x[M, K] @ w[N, K].T. One program per SM streams its part of w through one loop that crosses tiles: the ring
of loads never drains before the program ends. With 144 to 180 KB of it in flight an SM covers some 4 us of latency at
its even part of an H200's bandwidth (36 GB/s), about four times what it has to.

Operands are swapped: rows of w are the 64 rows of a wgmma, tokens its n of 16, 32 or 64. x comes by TMA in the same
ring: beside 128 rows of w it adds M / 128 to the bytes from L2 and nothing to those from memory. A program takes an
unbroken run of whole tiles. Where those leave too many SMs idle (ENOUGH_WHOLE), runs are of steps along K, cut evenly:
at most the first and the last tile of a program are shared with others, and go through an fp32 workspace.

    up, tp 8, in tiles of 64 rows      104: 79 % of one wave of 132 SMs, which read as fast as all of them
    up, tp 8, in tiles of 128 rows     52: 39 % of one wave; 52 x 128 steps are 50 or 51 for each SM
    up, tp 1, in tiles of 64 rows      832: 90 % of seven waves
    down, any tp, in tiles of 64 rows  256: 97 % of two waves

Sharing: each program writes its sums of the tile to a slot of their own, then counts itself in; the last to do so adds
all slots in the order of programs, rounds once, and sets the counter back. So the bits do not depend on who is last.
The count is an acq_rel atomic behind a barrier: stores of all threads happen before it, and loads behind the last count
see them. Both stand behind the loop, since Triton does not pipeline one with a barrier inside.

Wins where a tile of tokens would be mostly padding, against one that reads with shallow rings or leaves SMs idle. Loses
above 64 rows (`kernels.persistent`): more of x beside 128 rows of w would make L2 the limit. The deal is fixed, so the
slowest SM ends last. Descriptors cost tens of microseconds of host time a launch: without a CUDA graph that is what a
short call costs. Needs a Hopper, and rows of a multiple of 16 bytes.

Measured over twelve shapes of 1 to 64 rows, on an H100 (results/reference/nvidia-h100-80gb-hbm3-2026-11-26-4): 1.01 to
1.08 of cuBLAS's speed, 1.045 in the mean, at 88 to 97 % of the roof. On an H200 only older tiles were measured, which
cut `up` into parts (nvidia-h200-2026-11-26): 0.94 to 1.11, 1.026 in the mean, and 0.94 to 0.99 for `up` at tp 8. On
an H100 that shape was 2.5 to 7 % faster by whole tiles than by five parts of each, in six of six pairs (gangs_trial.txt
beside that run). Since then the host deals the tiles, and no 64-bit divisions stand before the first load: nobody has
timed that.

Sources: swapped operands and depth of the ring after TileOPs (https://github.com/tile-ai/TileOPs); runs of steps over
tile borders are stream-K (M. Osama et al., PPoPP 2023), with sums in a fixed order.
"""

# ruff: noqa: N803 (kernel arguments: sizes and compile-time constants in capitals, as Triton code has them)

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels import hopper, tiles
from kernels.contract import Kernel, KernelLaunch, Scales, scale_arguments
from kernels.persistent import accumulate, begin_of, program_of, scaled
from kernels.workspace import workspace

MOST_TOKENS = 64
"""The most rows of x. A wgmma takes up to 256, but see where the kernel loses."""

ENOUGH_WHOLE = 0.78
"""Tiles are left whole where they keep this fraction of the SMs' time busy. The SMs that read do so a little faster for
each idle one, and a shared tile costs a few trips to L2 at the end. On an H100 the 104 whole tiles of 64 rows of `up`
at tp 8, 0.79, took 80 us for one token, and five parts of each, 0.97, took 82
(results/reference/nvidia-h100-80gb-hbm3-2026-11-26-4/gangs_trial.txt)."""

LEAST_STEPS = 4
"""The fewest steps of a run: it then reads at least four times the bytes of its partial sums (128 KB to 32 KB, for 64
rows of x)."""


@dataclass(frozen=True)
class Config(tiles.Config):
    """A tile, and how it is dealt."""

    split: int = 0  # 1: whole tiles; 2: they are cut along K; 0: `with_split` chooses

    def own_words(self) -> list[str]:
        return [f"split{self.split}"] if self.split else []


@triton.jit
def store_transposed(
    out_ptr, out_row, sums, x_scales_ptr, w_scales_ptr, n0, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):  # fmt: skip
    """Scale and round sums[BLOCK_N, BLOCK_M] and store them where rows are tokens."""
    if x_scales_ptr is not None:
        sums = scaled(sums, w_scales_ptr, x_scales_ptr, n0, 0, N, M)
    m = tl.arange(0, BLOCK_M)
    n = n0 + tl.arange(0, BLOCK_N)
    at = out_ptr + m.to(tl.int64)[:, None] * out_row + n[None, :]
    tl.store(at, sums.to(out_ptr.dtype.element_ty).T, mask=(m < M)[:, None] & (n < N)[None, :])


@triton.jit
def add_shares(slots, first, last, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """The sum of the shares `first` to `last` of a tile, in this order."""
    sums = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)
    for share in tl.range(first, last + 1, loop_unroll_factor=4):  # four trips to L2 at once
        sums += tl.load(slots + share * (BLOCK_N * BLOCK_M), cache_modifier=".cg")
    return sums


# Specialising for these makes no better code, and each value would be another kernel.
@triton.jit(do_not_specialize=["M", "even", "more"])
def decode_kernel(
    x_desc, w_desc, out_ptr, x_scales_ptr, w_scales_ptr,
    partials_ptr,  # [tiles + programs - 1, BLOCK_N, BLOCK_M] fp32
    counters_ptr,  # [tiles] int32
    M, N, K, out_row,
    even, more,  # tiles of each program, or steps, counted by the host: a division takes time before the first load
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SHARED: tl.constexpr,
):  # fmt: skip
    # 1. My run of steps, counted over all tiles.
    program = tl.program_id(0)
    steps = tl.cdiv(K, BLOCK_K)
    start, end = begin_of(program, even, more), begin_of(program + 1, even, more)
    if not SHARED:
        start, end = start * steps, end * steps

    # 2. Read all of it. Tile and program both grow along the work, so their sum numbers the shares of tiles, each once.
    slot = tl.arange(0, BLOCK_N)[:, None] * BLOCK_M + tl.arange(0, BLOCK_M)[None, :]
    acc = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)
    for step in range(start, end):
        tile = step // steps
        k = step - tile * steps
        acc = accumulate(acc, w_desc, x_desc, tile * BLOCK_N, 0, k * BLOCK_K)
        if (k == steps - 1) | (step == end - 1):
            if SHARED and (k < steps - 1) | (step - k < start):
                share = (tile + program) * (BLOCK_N * BLOCK_M)
                tl.store(partials_ptr + share + slot, acc)  # rows beyond M too: masked, 64 of them would spill
            else:
                store_transposed(
                    out_ptr, out_row, acc, x_scales_ptr, w_scales_ptr, tile * BLOCK_N, M, N, BLOCK_M, BLOCK_N
                )  # fmt: skip
            acc = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)

    # 3. My first and my last tile, if others have steps of them too.
    if SHARED:
        tl.debug_barrier()  # the counts below, by one thread, stand for the stores of all
        head, tail = start // steps, (end - 1) // steps
        for tile in range(head, tail + 1, tl.maximum(tail - head, 1)):
            first = program_of(tile * steps, even, more)
            last = program_of(tile * steps + steps - 1, even, more)
            if first < last:
                here = tl.atomic_add(counters_ptr + tile, 1, sem="acq_rel", scope="gpu")
                if here == last - first:
                    sums = add_shares(partials_ptr + slot, tile + first, tile + last, BLOCK_M, BLOCK_N)
                    store_transposed(
                        out_ptr, out_row, sums, x_scales_ptr, w_scales_ptr, tile * BLOCK_N, M, N, BLOCK_M, BLOCK_N
                    )  # fmt: skip
                    tl.store(counters_ptr + tile, 0)


def require(x: Tensor, w: Tensor, out: Tensor | None = None, scales: Scales | None = None) -> None:
    """Refuse what `kernels.hopper.require` does, but `out` may have any rows; ValueError for M above 64."""
    hopper.require("decode", x, w, out, scales, any_out=True)
    if (m := len(x)) > MOST_TOKENS:
        raise ValueError(f"x has M={m} rows, decode takes up to {MOST_TOKENS}; use kernels.persistent or kernels.tiled")


def with_split(config: Config, w: Tensor) -> Config:
    """`config` with a split of 1 or 2 for w[N, K] where its own is 0: whole tiles, where they keep ENOUGH_WHOLE of the
    SMs' time, or runs of steps."""
    tiles, sms = -(-w.shape[0] // config.block_n), hopper.programs(w.device)
    waves = -(-tiles // sms)
    is_enough = tiles >= ENOUGH_WHOLE * sms * waves
    return replace(config, split=config.split or (1 if is_enough else 2))


def operand_arguments(x: Tensor, w: Tensor, out: Tensor, config: Config, describe: Callable) -> dict[str, Any]:
    """The arguments of a kernel whose operands are swapped. Raises ValueError for more rows than a tile has."""
    (m, k) = x.shape
    if m > config.block_m:
        raise ValueError(f"x has M={m} rows, the tile has room for {config.block_m}; change the configuration")
    return dict(
        x_desc=describe(x, (config.block_m, config.block_k)),
        w_desc=describe(w, (config.block_n, config.block_k)),
        out_ptr=out, M=m, N=len(w), K=k, out_row=out.stride(0),
    )  # fmt: skip


def prepare(x: Tensor, w: Tensor, out: Tensor, config: Config, scales: Scales | None = None) -> KernelLaunch:
    """The launch for checked, non-empty tensors."""
    args = operand_arguments(x, w, out, config, hopper.describe) | scale_arguments(scales)
    split = with_split(config, w).split
    if split > 2:
        raise ValueError(f"split={split}: whole tiles are 1, tiles cut along k are 2; 0 chooses")
    tiles, steps = -(-len(w) // config.block_n), -(-x.shape[1] // config.block_k)
    dealt, shared, most = tiles, split > 1, tiles
    if shared:
        dealt, most = tiles * steps, max(tiles, tiles * steps // LEAST_STEPS)
    programs = min(hopper.programs(x.device), most)
    even, more = divmod(dealt, programs)
    slots = (tiles + programs - 1) * config.block_n * config.block_m
    partials, counters = workspace(x.device, slots if shared else 0, tiles if shared else 0)
    args |= dict(partials_ptr=partials, counters_ptr=counters, even=even, more=more, SHARED=shared)
    return KernelLaunch(decode_kernel, (programs,), args | config.arguments)


class Decode(Kernel[Config]):
    def choose(self, x: Tensor, w: Tensor) -> Config:
        return with_split(super().choose(x, w), w)

    def example(self, config: Config, dtype: torch.dtype, rows: int = 0) -> KernelLaunch:
        """A launch, by default for as many rows as the tile has. Tiles are shared, which takes more registers."""
        return super().example(replace(config, split=2), dtype, rows or config.block_m)


matmul = Decode(
    name="decode", require=require, prepare=prepare,
    variants=lambda config: [replace(config, split=split) for split in (1, 2)],
)  # fmt: skip
"""out[M, N] = x[M, K] @ w[N, K].T for M <= 64, in bf16, fp16 or fp8 (fp32 in the interpreter). A `split` of 0 is
replaced by the one that suits the shape."""
