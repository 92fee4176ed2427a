"""What programs do to each other in global memory: a lock, and flags of what a rank writes for another."""

# ruff: noqa: N803 (kernel arguments: compile-time constants in capitals, as Triton code has them)

import torch
import triton
import triton.language as tl

from exhibits.exhibit import Exhibit


@triton.jit
def add_under_lock(x_ptr, total_ptr, lock_ptr, N: tl.constexpr, MENDED: tl.constexpr):
    columns = tl.arange(0, N)
    row = tl.load(x_ptr + tl.program_id(0) * N + columns)
    while tl.atomic_cas(lock_ptr, 0, 1) == 1:
        pass
    tl.store(total_ptr + columns, tl.load(total_ptr + columns) + row)
    if MENDED:
        tl.debug_barrier()
    tl.atomic_xchg(lock_ptr, 0)


def lock(mended: bool):
    x = torch.randint(-9, 10, (3, 256), dtype=torch.int32)
    total = torch.zeros(256, dtype=torch.int32)
    args = dict(x_ptr=x, total_ptr=total, lock_ptr=torch.zeros(1, dtype=torch.int32), N=256, MENDED=mended)
    return add_under_lock, (3,), args, {"total_ptr": x.sum(0)}


@triton.jit
def exchange(x_ptr, shared_ptr, flags_ptr, out_ptr, N: tl.constexpr, MENDED: tl.constexpr):
    """Each program is a rank."""
    release: tl.constexpr = "release" if MENDED else "relaxed"
    acquire: tl.constexpr = "acquire" if MENDED else "relaxed"
    rank = tl.program_id(0)
    columns = tl.arange(0, N)
    tl.store(shared_ptr + rank * N + columns, tl.load(x_ptr + rank * N + columns))
    tl.debug_barrier()
    tl.atomic_xchg(flags_ptr + 1 - rank, 1, sem=release, scope="sys")
    while tl.atomic_add(flags_ptr + rank, 0, sem=acquire, scope="sys") != 1:
        pass
    tl.debug_barrier()
    tl.store(out_ptr + rank * N + columns, tl.load(shared_ptr + (1 - rank) * N + columns))


def relaxed_flags(mended: bool):
    x = torch.arange(256, dtype=torch.int32).reshape(2, 128)
    shared, out, flags = torch.zeros_like(x), torch.zeros_like(x), torch.zeros(2, dtype=torch.int32)
    args = dict(x_ptr=x, shared_ptr=shared, flags_ptr=flags, out_ptr=out, N=128, MENDED=mended)
    return exchange, (2,), args, {"out_ptr": x.flip(0)}


BEFORE_39 = {"3.7": "race", "3.9": "exact"}  # when releases got a barrier before them: triton 10816
EXHIBITS = [
    Exhibit("lock", "tritonbench 1266, triton 10816", "RTX 4090: wrong in some 99 of 100 runs", lock, BEFORE_39),
    Exhibit("relaxed_flags", "vllm 57059", "4 MI100: torn values, NaN", relaxed_flags, "race"),
]
