"""The matmul for few rows, M <= 64: bounded by reading w once, so everything serves to keep reading.

out[M, N] = x[M, K] @ w[N, K].T. One program per SM streams its share of w through one loop that crosses tiles: the ring
of loads never drains before the program ends. With 144 to 180 KB of it in flight an SM covers some 4 us of latency at
its even share of an H200's bandwidth (36 GB/s), about four times what it has to.

Operands are swapped: rows of w are the 64 rows of a wgmma, tokens its n of 16, 32 or 64; the other way round 64 rows
would be computed for a few. x comes by TMA in the same ring: all of x fits no SM, but L2 holds it, and beside 128 rows
of w it adds M / 128 to what comes out of L2 and nothing to what comes from memory (rows beyond M are not fetched).
Tiles are dealt by `kernels.decode_split`: where whole ones leave SMs idle, K is split, and a tile that programs share
goes through an fp32 workspace.

Sharing: each program writes its sums of the tile to a slot of their own, then counts itself in; the last to do so adds
all slots, its own too, in the order of programs, rounds once, and sets the counter back. So the bits do not depend on
who is last. The count is an acq_rel atomic behind a barrier: stores of all threads happen before it, and loads behind
the last count see them. Both stand behind the loop, since Triton does not pipeline one with a barrier inside.

Wins where a tile of tokens would be mostly padding: at M = 1 against a matmul for more rows, and at M <= 64 against one
that reads with shallow rings or leaves SMs idle. Loses above (`kernels.persistent`): more than 64 rows of x beside 128
of w would make L2 the limit. The deal is fixed, so the slowest SM ends last. All this is reasoned, not yet measured.
Descriptors cost tens of microseconds of host time a launch: without a CUDA graph that is what a short call costs. Needs
a Hopper, and rows of a multiple of 16 bytes; with K no multiple of 8, M = 1 copies 8 or 4 bytes a thread, with K odd it
reads single elements and has no ring.

Sources: swapped operands and depth of the ring after TileOPs (https://github.com/tile-ai/TileOPs); runs of parts over
tile borders are stream-K (M. Osama et al., PPoPP 2023), in whole waves and with sums in a fixed order.
"""

# ruff: noqa: N803 (kernel arguments: sizes and compile-time constants in capitals, as Triton code has them)

from dataclasses import replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels import decode_split, hopper
from kernels.contract import Kernel, KernelLaunch, example_operands, validate
from kernels.hopper import describe, require_hopper, require_tma
from kernels.persistent import accumulate
from kernels.tiles import Config, choose_for
from kernels.workspace import Workspace, workspace

MOST_TOKENS = 64
"""Rows of x. A wgmma takes up to 256, but see where the kernel loses."""


@triton.jit
def first_step(part, split, steps):
    """Return the first step of a part, counted over all tiles."""
    return part // split * steps + part % split * steps // split


@triton.jit
def sharer_of(part, parts, programs):
    """Return the program whose run has `part`."""
    return ((part + 1) * programs - 1) // parts


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


@triton.jit(do_not_specialize=["M", "split"])  # neither makes the code better, and each value another kernel
def decode_kernel(
    x_desc, w_desc, out_ptr,
    partials_ptr,  # [tiles + programs - 1, BLOCK_N, BLOCK_M] fp32
    counters_ptr,  # [tiles] int32
    M, N, K, out_row, split,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SHARED: tl.constexpr,
):  # fmt: skip
    # 1. My run of steps, counted over all tiles: the same as kernels.decode_split has it.
    program = tl.program_id(0).to(tl.int64)
    programs = tl.num_programs(0)
    tiles, steps = tl.cdiv(N, BLOCK_N), tl.cdiv(K, BLOCK_K)
    parts = tiles * split
    start = first_step(program * parts // programs, split, steps).to(tl.int32)
    end = first_step((program + 1) * parts // programs, split, steps).to(tl.int32)

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
            part = split.to(tl.int64) * tile
            first, last = sharer_of(part, parts, programs), sharer_of(part + split - 1, parts, programs)
            if first < last:
                here = tl.atomic_add(counters_ptr + tile, 1, sem="acq_rel", scope="gpu")
                if here == last - first:
                    sums = add_shares(partials_ptr + slot, tile + first, tile + last, BLOCK_M, BLOCK_N)
                    store_transposed(out_ptr, out_row, sums, tile * BLOCK_N, M, N, BLOCK_M, BLOCK_N)
                    tl.store(counters_ptr + tile, 0)


def require(x: Tensor, w: Tensor, out: Tensor | None = None) -> None:
    """Refuse what `kernels.contract.validate` does. TypeError: a dtype that cannot be run here. ValueError: a GPU that
    is no Hopper, M above 64, rows of x or w that are no multiple of 16 bytes or overlap, a base address that is no
    multiple of 16. `out` may have any rows."""
    validate(x, w, out)
    require_hopper(decode_kernel, x, "decode")
    (m, k), n = x.shape, w.shape[0]
    if m > MOST_TOKENS:
        raise ValueError(f"x has M={m} rows, decode takes up to {MOST_TOKENS}; use kernels.persistent or kernels.tiled")
    if m and n and k:  # else nothing is launched
        require_tma("x", "K", m, k, x.stride(0), x)
        require_tma("w", "K", n, k, w.stride(0), w)


def config_for(x: Tensor, w: Tensor) -> Config:
    """Return the configuration of the table for these inputs, with the split that it leaves open."""
    config = choose_for("decode", x, w)
    return replace(config, split=deal_for(x, w, config).split) if x.numel() and w.numel() else config


def deal_for(x: Tensor, w: Tensor, config: Config) -> decode_split.Deal:
    """Deal by the split of `config`, or by the one chosen where that is 0."""
    return decode_split.choose(*w.shape, config.block_n, config.block_k, hopper.programs(x.device), config.split)


def prepare(x: Tensor, w: Tensor, out: Tensor, config: Config, given: Workspace | None = None) -> KernelLaunch:
    """Return the launch for checked, non-empty tensors. `given` stands in for the workspace of the stream."""
    m = x.shape[0]
    if m > config.block_m:
        raise ValueError(f"x has M={m} rows, the tile has room for {config.block_m}; change the configuration")
    deal = deal_for(x, w, config)
    slots = deal.tiles + deal.programs - 1 if deal.shared else 0
    sizes = slots * config.block_n * config.block_m, deal.tiles if deal.shared else 0
    partials, counters = given or workspace(x.device, *sizes)
    args = dict(
        x_desc=describe(x, (config.block_m, config.block_k)),
        w_desc=describe(w, (config.block_n, config.block_k)),
        out_ptr=out, partials_ptr=partials, counters_ptr=counters,
        M=m, N=w.shape[0], K=x.shape[1], out_row=out.stride(0), split=deal.split,
        BLOCK_M=config.block_m, BLOCK_N=config.block_n, BLOCK_K=config.block_k, SHARED=deal.shared,
        num_warps=config.num_warps, num_stages=config.num_stages,
    )  # fmt: skip
    return KernelLaunch(decode_kernel, (deal.programs,), args)


def example(config: Config, dtype: torch.dtype, split: int = 3) -> KernelLaunch:
    """Return the launch for as many rows as the tile has. K is split, which takes more registers and shared memory."""
    return prepare(*example_operands(dtype, config.block_m), replace(config, split=split))


def variants(config: Config) -> list[Config]:
    """Return three splits of K: the one chosen for the shape, none, and several."""
    return [replace(config, split=split) for split in (0, 1, 3)]


matmul = Kernel(
    name="decode", jit=decode_kernel, require=require, prepare=prepare, example=example, choose=config_for,
    variants=variants, grid=dict(split=(0, 1, 2, 3, 4, 5, 6, 8), num_stages=(3, 4, 5, 6)),
)  # fmt: skip
"""out[M, N] = x[M, K] @ w[N, K].T for M <= 64, in bf16 or fp16 (fp32 in the interpreter). With a `split` of 0 the split
is chosen for the shape."""
