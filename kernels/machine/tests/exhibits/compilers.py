"""Kernels that are right as they are written, which some release of Triton compiles to code that is not."""

# ruff: noqa: N803 (kernel arguments: compile-time constants in capitals, as Triton code has them)

import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.tools.tensor_descriptor import TensorDescriptor

from .exhibit import Exhibit

SIDE = gl.constexpr(64)  # of all tiles


@gluon.jit
def sum_products(a_ptr, b_ptr, out_ptr, steps, MENDED: gl.constexpr):
    """Both warpgroups read each b, and all of their threads overwrite it behind the wait."""
    sums: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [8, 1], [16, SIDE, 16])
    loads: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [8, 1], [1, 0])
    shared: gl.constexpr = gl.NVMMASharedLayout.get_default_for([SIDE, SIDE], gl.bfloat16)
    columns = gl.arange(0, SIDE, layout=gl.SliceLayout(0, loads))[None, :]
    in_a = gl.arange(0, 2 * SIDE, layout=gl.SliceLayout(1, loads))[:, None] * SIDE + columns
    in_b = gl.arange(0, SIDE, layout=gl.SliceLayout(1, loads))[:, None] * SIDE + columns
    a = gl.allocate_shared_memory(gl.bfloat16, [2 * SIDE, SIDE], shared)
    even = gl.allocate_shared_memory(gl.bfloat16, [SIDE, SIDE], shared)
    odd = gl.allocate_shared_memory(gl.bfloat16, [SIDE, SIDE], shared)
    a.store(gl.load(a_ptr + in_a))
    even.store(gl.load(b_ptr + in_b))
    acc = gl.zeros([2 * SIDE, SIDE], gl.float32, sums)
    for step in range(steps):
        fence_async_shared()
        acc = warpgroup_mma(a, even, acc, is_async=True)
        odd.store(gl.load(b_ptr + (2 * step + 1) * SIDE * SIDE + in_b))
        fence_async_shared()
        acc = warpgroup_mma(a, odd, acc, is_async=True)
        acc = warpgroup_mma_wait(1, deps=[acc])
        if MENDED:
            gl.barrier()
        even.store(gl.load(b_ptr + (2 * step + 2) * SIDE * SIDE + in_b))
        acc = warpgroup_mma_wait(0, deps=[acc])
    rows = gl.arange(0, 2 * SIDE, layout=gl.SliceLayout(1, sums))[:, None]
    gl.store(out_ptr + rows * SIDE + gl.arange(0, SIDE, layout=gl.SliceLayout(0, sums))[None, :], acc)


def wait_of_two(mended: bool):
    steps = 3
    a = torch.randint(-3, 4, (128, 64)).to(torch.bfloat16)
    b = torch.randint(-3, 4, (2 * steps + 1, 64, 64)).to(torch.bfloat16)
    out = torch.zeros(128, 64)
    args = dict(a_ptr=a, b_ptr=b, out_ptr=out, steps=steps, MENDED=mended, num_warps=8)
    return sum_products, (1,), args, {"out_ptr": (a.float() @ b[:-1].float()).sum(0)}


@triton.jit
def store_and_tell(x_ptr, sent_desc, sent_ptr, flag_ptr, out_ptr, N: tl.constexpr, MENDED: tl.constexpr):
    rows = tl.arange(0, N)[:, None]
    columns = tl.arange(0, N)[None, :]
    if tl.program_id(0) == 0:
        sent_desc.store([0, 0], tl.load(x_ptr + rows * N + columns))
        if MENDED:
            tl.inline_asm_elementwise(
                "cp.async.bulk.wait_group 0; mov.u32 $0, 0;", "=r", [], dtype=tl.int32, is_pure=False, pack=1
            )
            tl.debug_barrier()
        tl.atomic_xchg(flag_ptr, 1, sem="release")
    else:
        while tl.atomic_add(flag_ptr, 0, sem="acquire") != 1:
            pass
        tl.store(out_ptr + rows * N + columns, tl.load(sent_ptr + rows * N + columns))


def flag_behind_bulk_store(mended: bool):
    x = torch.arange(1024, dtype=torch.int32).reshape(32, 32)
    sent, out, flag = torch.zeros_like(x), torch.zeros_like(x), torch.zeros(1, dtype=torch.int32)
    desc = TensorDescriptor.from_tensor(sent, [32, 32])
    args = dict(x_ptr=x, sent_desc=desc, sent_ptr=sent, flag_ptr=flag, out_ptr=out, N=32, MENDED=mended)
    return store_and_tell, (2,), args, {"out_ptr": x}


EXHIBITS = [
    Exhibit("wait_of_two", "triton 11047, 11056", "a reproducer", wait_of_two, {"3.7": "race", "3.9": "exact"}),
    Exhibit(
        "flag_behind_bulk_store", "triton 10415", "none reported", flag_behind_bulk_store,
        {"3.7": "race", "3.8": "exact"},
    ),
]  # fmt: skip
