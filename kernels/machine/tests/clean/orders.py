"""A scan and sorting: kernels whose threads, or programs, must agree on an order."""

# ruff: noqa: N803 (kernel arguments: compile-time constants in capitals, as Triton code has them)

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import Trial, trial, whole


def counters(count: int = 1) -> Tensor:
    return torch.zeros(count, dtype=torch.int32)


@triton.jit
def look_back_kernel(x_ptr, out_ptr, totals_ptr, flags_ptr, tickets_ptr, BLOCK: tl.constexpr):
    """Sums along a vector in one pass: a program waits for the total of all that come before its chunk.

    Chunks are drawn, not numbered by program_id: who waits knows that those before it have begun.
    """
    chunk = tl.atomic_add(tickets_ptr, 1, sem="relaxed")
    place = chunk * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + place)
    before = 0
    if chunk > 0:
        while tl.atomic_add(flags_ptr + chunk - 1, 0, sem="acquire") == 0:
            pass
        before = tl.load(totals_ptr + chunk - 1)
    tl.store(totals_ptr + chunk, before + tl.sum(x, 0))
    tl.debug_barrier()  # the thread that releases is perhaps not the one that stored
    tl.atomic_xchg(flags_ptr + chunk, 1, sem="release")
    tl.store(out_ptr + place, before + tl.cumsum(x, 0))


@trial
def look_back_scan() -> Trial:
    x = whole(6 * 128, dtype=torch.int32)
    shared = dict(totals_ptr=counters(6), flags_ptr=counters(6), tickets_ptr=counters())
    args = dict(x_ptr=x, out_ptr=torch.empty_like(x), **shared, BLOCK=128, num_warps=4)
    return Trial(look_back_kernel, (6,), args, dict(out_ptr=x.cumsum(0)))


@triton.jit
def sort_kernel(x_ptr, out_ptr, COLUMNS: tl.constexpr):
    place = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    tl.store(out_ptr + place, tl.sort(tl.load(x_ptr + place)))


@trial
def sort() -> Trial:
    x = whole(2, 256, low=-500, high=500, dtype=torch.int32)
    args = dict(x_ptr=x, out_ptr=torch.empty_like(x), COLUMNS=256, num_warps=4)
    return Trial(sort_kernel, (2,), args, dict(out_ptr=x.sort(1)[0]))
