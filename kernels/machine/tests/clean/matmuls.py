"""A matmul that is split along K. x [M, K], w [K, N]."""

# ruff: noqa: N803 (kernel arguments: sizes and compile-time constants in capitals, as Triton code has them)

import torch
import triton
import triton.language as tl

from . import Trial, trial, whole
from .orders import counters


@triton.jit
def split_kernel(
    x_ptr, w_ptr, out_ptr, turn_ptr, M, N, K, STEPS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    """Each split adds its STEPS steps of BK to what the ones before it left in `out`, which is one tile: a semaphore
    says whose turn it is.

    Splits wait for programs with smaller numbers alone, so all of a grid need not run at once.
    """
    m, n, split = tl.arange(0, BM)[:, None], tl.arange(0, BN), tl.program_id(0)
    acc = tl.zeros([BM, BN], tl.float32)
    for step in range(split * STEPS, split * STEPS + STEPS):
        k = step * BK + tl.arange(0, BK)
        x = tl.load(x_ptr + m * K + k, (m < M) & (k < K), 0.0)
        w = tl.load(w_ptr + k[:, None] * N + n, (k[:, None] < K) & (n < N), 0.0)
        acc = tl.dot(x, w, acc)
    inside = (m < M) & (n < N)
    if split > 0:
        while tl.atomic_add(turn_ptr, 0, sem="acquire") != split:
            pass
        acc += tl.load(out_ptr + m * N + n, inside)
    tl.store(out_ptr + m * N + n, acc, inside)
    tl.debug_barrier()  # one thread releases what all have stored
    tl.atomic_xchg(turn_ptr, split + 1, sem="release")


@trial
def split_k_semaphore() -> Trial:
    x, w = whole(60, 176, low=-2, high=2, dtype=torch.bfloat16), whole(176, 24, dtype=torch.bfloat16, seed=1)
    args = dict(x_ptr=x, w_ptr=w, out_ptr=torch.full((60, 24), 99.0), turn_ptr=counters(), M=60, N=24, K=176)
    args |= dict(STEPS=2, BM=64, BN=32, BK=32, num_warps=4, num_stages=2)
    return Trial(split_kernel, (3,), args, dict(out_ptr=x.float() @ w.float()))
