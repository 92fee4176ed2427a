"""The matmul for few rows, M <= 64: bounded by reading w once, so everything serves to keep reading.

out[M, N] = x[M, K] @ w[N, K].T. One program per SM streams its share of w through one loop that crosses tiles: the ring
of loads never drains before the program ends. With 144 to 180 KB of it in flight an SM covers some 4 us of latency at
its even share of an H200's bandwidth (36 GB/s), about four times what it has to.

Operands are swapped: rows of w are the 64 rows of a wgmma, tokens its n of 16, 32 or 64. x comes by TMA in the same
ring: beside 128 rows of w it adds M / 128 to what comes out of L2 and nothing to what comes from memory. Where whole
tiles leave SMs idle, their steps along K are cut into `split` parts each. Parts are numbered tile after tile, and a
program takes an unbroken run of them: at most its first and its last tile are shared with others, and go through an
fp32 workspace.

    up, tp 8, in tiles of 64 rows      104: 79 % of one wave of 132 SMs, which read as fast as all of them
    up, tp 8, in tiles of 128 rows     52: 39 % of one wave; 260 parts, 5 of a tile: 97 % of two
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
cut `up` into parts (nvidia-h200-2026-11-26): 0.94 to 1.11, 1.026 in the mean, and 0.94 to 0.99 for `up` at tp 8.

Sources: swapped operands and depth of the ring after TileOPs (https://github.com/tile-ai/TileOPs); runs of parts over
tile borders are stream-K (M. Osama et al., PPoPP 2023), in whole waves and with sums in a fixed order.
"""

# ruff: noqa: N803 (kernel arguments: sizes and compile-time constants in capitals, as Triton code has them)

from dataclasses import replace
from functools import cache
from itertools import pairwise

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels import hopper
from kernels.contract import Kernel, KernelLaunch, example_operands, launch_metadata
from kernels.hopper import describe
from kernels.persistent import accumulate
from kernels.stream_k import begin_of, gang_of
from kernels.tiles import Config
from kernels.workspace import workspace

MOST_TOKENS = 64
"""Rows of x. A wgmma takes up to 256, but see where the kernel loses."""

ENOUGH_WHOLE, ENOUGH = 0.78, 0.96
"""Of the SMs' time, what whole tiles have to keep to be left whole, and what parts have to. Those SMs that read do so a
little faster for each idle one, and a shared tile costs a few trips to L2 at the end. On an H100 the 104 whole tiles of
64 rows of `up` at tp 8, 0.79, took 80 us for one token, and five parts of each, 0.97, took 82
(results/reference/nvidia-h100-80gb-hbm3-2026-11-26-4/gangs_trial.txt)."""

LEAST_STEPS = 4
"""Of a part: what is read for it is then at least four times its partial sums (128 KB to 32 KB, for 64 rows of x)."""


@triton.jit
def first_step(part, split, steps):
    """Return the first step of a part, counted over all tiles: of part j of a tile its step `j * steps // split`."""
    return part // split * steps + part % split * steps // split


@triton.jit
def store_transposed(out_ptr, out_row, sums, n0, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Round sums[BLOCK_N, BLOCK_M] and store them where rows are tokens."""
    m = tl.arange(0, BLOCK_M)
    n = n0 + tl.arange(0, BLOCK_N)
    at = out_ptr + m.to(tl.int64)[:, None] * out_row + n[None, :]
    tl.store(at, sums.to(out_ptr.dtype.element_ty).T, mask=(m < M)[:, None] & (n < N)[None, :])


@triton.jit
def add_shares(slots, first, last, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Return the sum of the shares `first` to `last` of a tile, in this order."""
    sums = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)
    for share in tl.range(first, last + 1, loop_unroll_factor=4):  # four trips to L2 at once
        sums += tl.load(slots + share * (BLOCK_N * BLOCK_M), cache_modifier=".cg")
    return sums


# Neither makes the code better, and each value would be another kernel.
@triton.jit(do_not_specialize=["M", "split", "even", "more"], launch_metadata=launch_metadata)
def decode_kernel(
    x_desc, w_desc, out_ptr,
    partials_ptr,  # [tiles + programs - 1, BLOCK_N, BLOCK_M] fp32
    counters_ptr,  # [tiles] int32
    M, N, K, out_row, split,
    even, more,  # parts of each program, counted by the host: a division takes time before the first load
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SHARED: tl.constexpr,
):  # fmt: skip
    # 1. My run of steps, counted over all tiles: the same as `runs` has it.
    program = tl.program_id(0)
    steps = tl.cdiv(K, BLOCK_K)
    start, end = begin_of(program, even, more), begin_of(program + 1, even, more)
    if SHARED:
        start, end = first_step(start, split, steps), first_step(end, split, steps)
    else:
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
                store_transposed(out_ptr, out_row, acc, tile * BLOCK_N, M, N, BLOCK_M, BLOCK_N)
            acc = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)

    # 3. My first and my last tile, if others have steps of them too.
    if SHARED:
        tl.debug_barrier()  # the counts below, by one thread, stand for the stores of all
        head, tail = start // steps, (end - 1) // steps
        for tile in range(head, tail + 1, tl.maximum(tail - head, 1)):
            part = split * tile
            first, last = gang_of(part, even, more), gang_of(part + split - 1, even, more)
            if first < last:
                here = tl.atomic_add(counters_ptr + tile, 1, sem="acq_rel", scope="gpu")
                if here == last - first:
                    sums = add_shares(partials_ptr + slot, tile + first, tile + last, BLOCK_M, BLOCK_N)
                    store_transposed(out_ptr, out_row, sums, tile * BLOCK_N, M, N, BLOCK_M, BLOCK_N)
                    tl.store(counters_ptr + tile, 0)


def require(x: Tensor, w: Tensor, out: Tensor | None = None) -> None:
    """Refuse what `kernels.hopper.require` does of all but `out`, which may have any rows; ValueError for M above
    64."""
    hopper.require(decode_kernel, "decode", x, w, out, any_out=True)
    if (m := len(x)) > MOST_TOKENS:
        raise ValueError(f"x has M={m} rows, decode takes up to {MOST_TOKENS}; use kernels.persistent or kernels.tiled")


def runs(tiles: int, steps: int, split: int, programs: int) -> list[int]:
    """Return the number of steps of each program. The first ones have a part more than others.

    >>> runs(tiles=2, steps=8, split=3, programs=4)  # parts of 2, 3 and 3 steps, twice, dealt 2, 2, 1, 1
    [5, 5, 3, 3]
    """
    even, more = divmod(tiles * split, programs)
    parts = (program * even + min(program, more) for program in range(programs + 1))
    return [end - start for start, end in pairwise(first_step.fn(part, split, steps) for part in parts)]


@cache
def best_split(tiles: int, steps: int, sms: int) -> int:
    """Return 1 where whole tiles keep ENOUGH_WHOLE of the SMs' time, else the smallest split that keeps ENOUGH, or the
    one that keeps most, where all read equally fast.

    >>> best_split(tiles=52, steps=128, sms=132)
    5
    """
    shares = {}
    for split in range(1, max(1, min(steps // LEAST_STEPS, sms)) + 1):
        shares[split] = tiles * steps / (sms * max(runs(tiles, steps, split, min(sms, tiles * split))))
        if shares[split] >= (ENOUGH_WHOLE if split == 1 else ENOUGH):
            return split
    return max(shares, key=shares.get)


def with_split(config: Config, w: Tensor) -> Config:
    """Return `config`, with the split that is best for w[N, K] where its own is 0."""
    tiles, steps = -(-w.shape[0] // config.block_n), -(-w.shape[1] // config.block_k)
    split = config.split or best_split(max(tiles, 1), max(steps, 1), hopper.programs(w.device))
    return replace(config, split=split)


def prepare(x: Tensor, w: Tensor, out: Tensor, config: Config) -> KernelLaunch:
    """Return the launch for checked, non-empty tensors."""
    (m, k), n, split = x.shape, w.shape[0], with_split(config, w).split
    if m > config.block_m:
        raise ValueError(f"x has M={m} rows, the tile has room for {config.block_m}; change the configuration")
    tiles, steps = -(-n // config.block_n), -(-k // config.block_k)
    if split > steps:
        raise ValueError(f"split={split}: a tile has {steps} steps along k, choose 1 to {steps}")
    programs, shared = min(hopper.programs(x.device), tiles * split), split > 1
    even, more = divmod(tiles * split, programs)
    slots = (tiles + programs - 1) * config.block_n * config.block_m
    partials, counters = workspace(x.device, slots if shared else 0, tiles if shared else 0)
    args = dict(
        x_desc=describe(x, (config.block_m, config.block_k)),
        w_desc=describe(w, (config.block_n, config.block_k)),
        out_ptr=out, partials_ptr=partials, counters_ptr=counters,
        M=m, N=n, K=k, out_row=out.stride(0), split=split, even=even, more=more,
        BLOCK_M=config.block_m, BLOCK_N=config.block_n, BLOCK_K=config.block_k, SHARED=shared,
        num_warps=config.num_warps, num_stages=config.num_stages,
    )  # fmt: skip
    return KernelLaunch(decode_kernel, (programs,), args)


class Decode(Kernel):
    def choose(self, x: Tensor, w: Tensor) -> Config:
        return with_split(super().choose(x, w), w)

    def example(self, config: Config, dtype: torch.dtype) -> KernelLaunch:
        """Return the launch for as many rows as the tile has. K is split, which takes more registers and memory."""
        return self.prepare(*example_operands(dtype, config.block_m), replace(config, split=3))


matmul = Decode(
    name="decode", jit=decode_kernel, require=require, prepare=prepare,
    variants=lambda config: [replace(config, split=split) for split in (0, 1, 3)],  # 0: as chosen for the shape
    grid=dict(split=(0, 1, 2, 3, 4, 5, 6, 8), num_stages=(3, 4, 5, 6)),
)  # fmt: skip
"""out[M, N] = x[M, K] @ w[N, K].T for M <= 64, in bf16 or fp16 (fp32 in the interpreter). With a `split` of 0 the split
is chosen for the shape."""
