"""Matmuls: split along K, as streams of steps, and of groups. x [M, K], w [K, N]."""

# ruff: noqa: N803 (kernel arguments: sizes and compile-time constants in capitals, as Triton code has them)

from itertools import pairwise

import torch
import triton
import triton.language as tl

from . import Trial, trial, whole
from .orders import counters


@triton.jit
def products(
    x_ptr, w_ptr, m, n, begin, end, M, N, K, acc,
    BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Add steps `begin` to `end`, of BK along K each, to the sums of rows `m` and columns `n`."""
    for step in range(begin, end):
        k = step * BK + tl.arange(0, BK)
        x = tl.load(x_ptr + m[:, None] * K + k, (m[:, None] < M) & (k < K), 0.0)
        w = tl.load(w_ptr + k[:, None] * N + n, (k[:, None] < K) & (n < N), 0.0)
        acc = tl.dot(x, w, acc)
    return acc


@triton.jit
def corner(tile, N, BM: tl.constexpr, BN: tl.constexpr):
    """Return the rows and the columns of a tile."""
    tiles_n = tl.cdiv(N, BN)
    return tile // tiles_n * BM + tl.arange(0, BM), tile % tiles_n * BN + tl.arange(0, BN)


@triton.jit
def split_kernel(
    x_ptr, w_ptr, out_ptr, turns_ptr, M, N, K,
    SPLITS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Each split adds its share of K to what the ones before it left in `out`: a semaphore says whose turn it is.

    Splits wait for programs with smaller numbers alone, so all of a grid need not run at once.
    """
    tile, split = tl.program_id(0), tl.program_id(1)
    m, n = corner(tile, N, BM, BN)
    steps = tl.cdiv(tl.cdiv(K, BK), SPLITS)
    acc = products(
        x_ptr, w_ptr, m, n, split * steps, split * steps + steps, M, N, K, tl.zeros([BM, BN], tl.float32), BN, BK
    )
    inside = (m[:, None] < M) & (n < N)
    if split > 0:
        while tl.atomic_add(turns_ptr + tile, 0, sem="acquire") != split:
            pass
        acc += tl.load(out_ptr + m[:, None] * N + n, inside)
    tl.store(out_ptr + m[:, None] * N + n, acc, inside)
    tl.debug_barrier()  # one thread releases what all have stored
    tl.atomic_xchg(turns_ptr + tile, (split + 1) % SPLITS, sem="release")


@triton.jit
def grouped_kernel(
    x_ptr, w_ptr, out_ptr, bounds_ptr, N, K,
    GROUPS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Rows bounds[g] to bounds[g + 1] of x times w[g]: programs go through the tiles of all groups in turn."""
    tile, tiles_before = tl.program_id(0), 0
    for group in range(GROUPS):
        begin, end = tl.load(bounds_ptr + group), tl.load(bounds_ptr + group + 1)
        tiles = tl.cdiv(end - begin, BM) * tl.cdiv(N, BN)
        while tile < tiles_before + tiles:
            m, n = corner(tile - tiles_before, N, BM, BN)
            m += begin
            acc = tl.zeros([BM, BN], tl.float32)
            acc = products(x_ptr, w_ptr + group * K * N, m, n, 0, tl.cdiv(K, BK), end, N, K, acc, BN, BK)
            tl.store(out_ptr + m[:, None] * N + n, acc.to(tl.bfloat16), (m[:, None] < end) & (n < N))
            tile += tl.num_programs(0)
        tiles_before += tiles


def matmul(kernel, grid, m: int, n: int, k: int, **more) -> Trial:
    x, w = (whole(*shape, low=-2, high=2, dtype=torch.bfloat16, seed=i) for i, shape in enumerate(((m, k), (k, n))))
    args = dict(x_ptr=x, w_ptr=w, out_ptr=torch.full((m, n), 99.0), M=m, N=n, K=k, **more, BM=64, BN=32, BK=32)
    return Trial(kernel, grid, dict(num_warps=4, num_stages=2) | args, dict(out_ptr=x.float() @ w.float()))


@trial
def split_k_semaphore() -> Trial:
    return matmul(split_kernel, (1, 3), 60, 24, 176, turns_ptr=counters(1), SPLITS=3)


@trial
def grouped_matmul() -> Trial:
    bounds = [0, 50, 50, 130, 140]
    x, w = (
        whole(140, 64, dtype=torch.bfloat16, low=-2, high=2),
        whole(4, 64, 56, dtype=torch.bfloat16, seed=1, low=-2, high=2),
    )
    args = dict(x_ptr=x, w_ptr=w, out_ptr=x.new_full((140, 56), 99), bounds_ptr=torch.tensor(bounds, dtype=torch.int32))
    expected = torch.cat([x[a:b].float() @ w[g].float() for g, (a, b) in enumerate(pairwise(bounds))])
    sizes = dict(N=56, K=64, GROUPS=4, BM=64, BN=32, BK=32, num_warps=4, num_stages=2)
    return Trial(grouped_kernel, (3,), args | sizes, dict(out_ptr=expected.bfloat16()))
