"""What a program reads: memory that nobody wrote, elements behind the last; and code that is right, its binary or not.

Controls have no mistake in the PTX of any release here, whatever was published of others, or of what ptxas makes of it.
"""

# ruff: noqa: N803 (kernel arguments: compile-time constants in capitals, as Triton code has them)

import torch
import triton
import triton.language as tl

from .exhibit import Exhibit, whole


@triton.jit
def add_up(x_ptr, out_ptr, count, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.atomic_add(out_ptr, tl.sum(tl.load(x_ptr + i, mask=i < count, other=0)))


def dirty_sum(mended: bool):
    x, out = whole(1000), torch.zeros(1, dtype=torch.int32)
    args = dict(x_ptr=x, out_ptr=out, count=1000, B=256)
    return add_up, (4,), args, {"out_ptr": x.sum()[None]}, dict(empty=() if mended else ("out_ptr",))


@triton.jit
def sum_slots(x_ptr, ws_ptr, done_ptr, out_ptr, splits, SLOTS: tl.constexpr, N: tl.constexpr, MENDED: tl.constexpr):
    """The last program sums more slots of a workspace than there are splits."""
    split, i = tl.program_id(0), tl.arange(0, N)
    tl.store(ws_ptr + split * N + i, tl.load(x_ptr + split * N + i))
    tl.debug_barrier()
    if tl.atomic_add(done_ptr, 1) == splits - 1:
        total = tl.zeros((N,), tl.int32)
        for slot in range(splits if MENDED else SLOTS):
            total += tl.load(ws_ptr + slot * N + i)
        tl.store(out_ptr + i, total)


def empty_workspace(mended: bool):
    x, done = whole(3, 128), torch.zeros(1, dtype=torch.int32)
    args = dict(x_ptr=x, ws_ptr=torch.zeros(4, 128, dtype=torch.int32), done_ptr=done, out_ptr=whole(128), splits=3)
    return sum_slots, (3,), args | dict(SLOTS=4, N=128, MENDED=mended), {"out_ptr": x.sum(0)}, dict(empty=["ws_ptr"])


@triton.jit
def row_max(x_ptr, out_ptr, columns, B: tl.constexpr, MENDED: tl.constexpr):
    i = tl.arange(0, B)
    if MENDED:
        x = tl.load(x_ptr + tl.program_id(0) * columns + i, mask=i < columns, other=-1000)
    else:
        x = tl.load(x_ptr + tl.program_id(0) * columns + i, mask=i < columns)
    tl.store(out_ptr + tl.program_id(0), tl.max(x, 0))


def no_other(mended: bool):
    x = whole(3, 100) - 100
    args = dict(x_ptr=x, out_ptr=whole(3), columns=100, B=128, MENDED=mended)
    return row_max, (3,), args, {"out_ptr": x.max(1).values}


@triton.jit
def scaled_sum(x_ptr, scale_ptr, out_ptr, K, GROUP: tl.constexpr, BLOCK: tl.constexpr, MENDED: tl.constexpr):
    row, total = tl.program_id(0), 0
    for k0 in range(0, K, BLOCK):
        k = k0 + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * K + k, mask=k < K, other=0)
        place = scale_ptr + row * (K // GROUP) + k // GROUP
        scale = tl.load(place, mask=k < K, other=0) if MENDED else tl.load(place)
        total += tl.sum(x * scale)
    tl.store(out_ptr + row, total)


def scales_beyond(mended: bool):
    x, scale = whole(3, 160), whole(3, 5)
    right = (x.reshape(3, 5, 32) * scale[:, :, None]).sum((1, 2))
    args = dict(x_ptr=x, scale_ptr=scale, out_ptr=whole(3), K=160, GROUP=32, BLOCK=128, MENDED=mended)
    return scaled_sum, (3,), args, {"out_ptr": right}


@triton.jit
def gather_rows(x_ptr, index_ptr, out_ptr, stride, N: tl.constexpr, MENDED: tl.constexpr):
    row = tl.load(index_ptr + tl.program_id(0))
    if MENDED:
        row = row.to(tl.int64)
    i = tl.arange(0, N)
    tl.store(out_ptr + tl.program_id(0) * N + i, tl.load(x_ptr + row * stride + i))


def wrapped_offset(mended: bool):
    """2 GiB, of which two rows are touched."""
    x = torch.empty((1 << 16) + 2, 1 << 15, dtype=torch.int8)
    index = torch.tensor([1, (1 << 16) + 1], dtype=torch.int32)
    for row in index.tolist():
        x[row, :128] = torch.arange(128)
    args = dict(x_ptr=x, index_ptr=index, out_ptr=torch.zeros(2, 128, dtype=torch.int8), stride=1 << 15, N=128)
    return gather_rows, (2,), args | dict(MENDED=mended), {"out_ptr": x[index.long(), :128]}


@triton.jit
def follow(a0, b0, a1, b1):
    return a0 * a1, a1 * b0 + b1


@triton.jit
def scan_rows(a_ptr, b_ptr, out_ptr, T: tl.constexpr, D: tl.constexpr):
    """The operator does not commute."""
    at = tl.arange(0, T)[:, None] * D + tl.arange(0, D)[None, :]
    _, h = tl.associative_scan((tl.load(a_ptr + at), tl.load(b_ptr + at)), 0, follow, reverse=True)
    tl.store(out_ptr + at, h)


def reversed_scan(mended: bool):
    a, b = torch.randint(-1, 2, (64, 4), dtype=torch.int32), whole(64, 4)
    right, h = torch.zeros_like(b), torch.zeros_like(b[0])
    for t in reversed(range(64)):
        right[t] = h = a[t] * h + b[t]
    return scan_rows, (1,), dict(a_ptr=a, b_ptr=b, out_ptr=whole(64, 4), T=64, D=4), {"out_ptr": right}


@triton.jit
def number_odd_rows(out_ptr, M: tl.constexpr, N: tl.constexpr):
    """LLVM adds two 16-bit numbers at a time, and ptxas 12.9 forgets the second one's +1."""
    at = tl.reshape(tl.arange(0, M * N), (1, M, N))
    is_odd = (tl.arange(0, M) % 2 == 1)[None, :, None]
    tl.store(out_ptr + at, tl.where(is_odd, (at * 9 + 1) % 1000, at), mask=at % 2 == 0)


def packed_add(mended: bool):
    at = torch.arange(256, dtype=torch.int32).reshape(32, 8)
    right = torch.where(torch.arange(32)[:, None] % 2 == 1, (at * 9 + 1) % 1000, at)
    right[:, 1::2] = 0
    return number_odd_rows, (1,), dict(out_ptr=torch.zeros_like(at), M=32, N=8, num_warps=1), {"out_ptr": right}


@triton.jit
def three_products(x_ptr, v_ptr, w_ptr, out_ptr, N: tl.constexpr, NARROW: tl.constexpr):
    """Products of narrow tiles one after another, and one whose x comes from registers."""
    m, n, narrow = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :], tl.arange(0, NARROW)
    x, v = tl.load(x_ptr + m * N + n), tl.load(v_ptr + m * N + n)
    w = tl.load(w_ptr + narrow[:, None] * N + n)
    scores = tl.dot(x, tl.trans(v)).to(tl.bfloat16)
    out = tl.dot(scores, tl.dot(v, tl.trans(w)).to(tl.bfloat16))
    tl.store(out_ptr + m * NARROW + narrow[None, :], out)


def register_operand(mended: bool):
    x, v, w = (torch.randint(-1, 2, (rows, 64)).to(torch.bfloat16) for rows in (64, 64, 32))
    right = (x @ v.T).float() @ (v @ w.T).float()
    args = dict(x_ptr=x, v_ptr=v, w_ptr=w, out_ptr=torch.zeros(64, 32), N=64, NARROW=32, num_warps=4)
    return three_products, (1,), args, {"out_ptr": right}


UNKNOWN = "not looked up"


@triton.jit
def lowest_in_row(x_ptr, out_ptr, N: tl.constexpr, B: tl.constexpr, MENDED: tl.constexpr):
    """The default kernel for NVIDIA in release 5.0.2 has the mask True: a row reads into the next."""
    i, row = tl.arange(0, B), tl.program_id(0)
    tl.store(out_ptr + row, tl.argmin(tl.load(x_ptr + row * N + i, mask=(i < N) | (not MENDED), other=99), 0))


def masked_argmin(mended: bool):
    x = torch.stack([torch.randperm(100, dtype=torch.int32) for _ in range(4)])
    args = dict(x_ptr=x, out_ptr=whole(4), N=100, B=128, MENDED=mended)
    return lowest_in_row, (4,), args, {"out_ptr": x.argmin(1)}


EXHIBITS = [
    Exhibit("dirty_sum", "Triton-distributed 184", UNKNOWN, dirty_sum, "uninitialised"),
    Exhibit("empty_workspace", "Triton-distributed 184", UNKNOWN, empty_workspace, "uninitialised"),
    Exhibit("no_other", "Triton's language: undefined", "none reported", no_other, "wrong"),
    Exhibit("masked_argmin", "FlagGems 6447, live", "wrong indices", masked_argmin, "bounds"),
    Exhibit("scales_beyond", "triton 10772", UNKNOWN, scales_beyond, "bounds"),
    Exhibit(
        "wrapped_offset",
        "FLA 1080, sglang 20389, megablocks 185",
        "wrong; illegal accesses",
        wrapped_offset,
        "bounds",
        orders=1,
    ),
    Exhibit("reversed_scan", "triton 4362, 8412", UNKNOWN, reversed_scan, "exact"),
    Exhibit("packed_add", "triton 11581", "H100: ptxas 12.9.86 wrong", packed_add, "exact"),
    Exhibit("register_operand", "triton 11366, 11781", "H20, H100: ptxas 12.9 wrong", register_operand, "exact"),
]
