"""What programs do to each other in global memory: a lock, and flags of what a rank writes for another."""

# ruff: noqa: N803 (kernel arguments: compile-time constants in capitals, as Triton code has them)

import torch
import triton
import triton.language as tl

from .exhibit import Exhibit, whole


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


@triton.jit
def add_first_or_more(x_ptr, sum_ptr, lock_ptr, count_ptr, N: tl.constexpr, COUNTS: tl.constexpr, MENDED: tl.constexpr):
    """Whether there is a sum to add to, a count says that the lock guards, too."""
    i = tl.arange(0, N)
    row = tl.load(x_ptr + tl.program_id(0) * N + i)
    while tl.atomic_cas(lock_ptr, 0, 1) == 1:
        pass
    count = tl.load(count_ptr)
    if COUNTS == "first":
        if MENDED:  # else a warp may load what another has stored
            tl.debug_barrier()
        tl.store(count_ptr, count + 1)
    if count > 0:
        row += tl.load(sum_ptr + i)
    tl.store(sum_ptr + i, row)
    if MENDED or COUNTS == "last":
        tl.debug_barrier()
    if COUNTS == "last" and MENDED:
        tl.store(count_ptr, count + 1)
    tl.atomic_xchg(lock_ptr, 0)
    if COUNTS == "last" and not MENDED:
        tl.store(count_ptr, count + 1)


def counted(counts: str):
    def make(mended: bool):
        x = whole(3, 256)
        lock, count = torch.zeros(2, 1, dtype=torch.int32)
        args = dict(x_ptr=x, sum_ptr=whole(256), lock_ptr=lock, count_ptr=count, N=256, COUNTS=counts, MENDED=mended)
        return add_first_or_more, (3,), args, {"sum_ptr": x.sum(0)}

    return make


@triton.jit
def send_by_tensor(x_ptr, sent_ptr, flag_ptr, out_ptr, N: tl.constexpr):
    """The flag is a tensor of one element. That its sum goes to all threads takes a barrier, which Triton puts in."""
    i = tl.arange(0, N)
    if tl.program_id(0) == 0:
        tl.store(sent_ptr + i, tl.load(x_ptr + i))
        tl.debug_barrier()
        tl.atomic_xchg(flag_ptr, 1, sem="release")
    else:
        seen = 0
        while seen != 1:
            seen = tl.sum(tl.atomic_add(flag_ptr + tl.arange(0, 1), tl.zeros((1,), tl.int32), sem="acquire"), 0)
        tl.store(out_ptr + i, tl.load(sent_ptr + i))


def tensor_acquire(mended: bool):
    x, flag = whole(256), torch.zeros(1, dtype=torch.int32)
    args = dict(x_ptr=x, sent_ptr=whole(256), flag_ptr=flag, out_ptr=whole(256), N=256)
    return send_by_tensor, (2,), args, {"out_ptr": x}


@triton.jit
def meet(arrived_ptr, part_ptr, PROGRAMS: tl.constexpr, ROUNDS: tl.constexpr):
    """No data goes across."""
    for turn in range(ROUNDS):
        tl.atomic_add(part_ptr + tl.program_id(0), 1)
        tl.atomic_add(arrived_ptr + turn, 1, sem="release")
        while tl.load(arrived_ptr + turn, volatile=True) < PROGRAMS:
            pass


def volatile_barrier(mended: bool):
    arrived, parts = torch.zeros(3, dtype=torch.int32), torch.zeros(4, dtype=torch.int32)
    args = dict(arrived_ptr=arrived, part_ptr=parts, PROGRAMS=4, ROUNDS=3, num_warps=1)
    return meet, (4,), args, {"part_ptr": torch.full_like(parts, 3)}


BEFORE_39 = {"3.7": "race", "3.9": "exact"}  # when releases got a barrier before them: triton 10816
EXHIBITS = [
    Exhibit("lock", "tritonbench 1266, triton 10816", "RTX 4090: wrong in some 99 of 100 runs", lock, BEFORE_39),
    Exhibit("relaxed_flags", "vllm 57059", "4 MI100: torn values, NaN", relaxed_flags, "race"),
    Exhibit("locked_add", "stickbreaking-attention 7", "H200: hangs at times", counted("first"), "race"),
    Exhibit("count_after_lock", "vllm 55009", "none reported", counted("last"), "race"),
    Exhibit("tensor_acquire", "triton 7125", "none reported", tensor_acquire, "exact"),
    Exhibit("volatile_barrier", "FlagTree 1030", "right on NVIDIA's", volatile_barrier, "exact"),
]
