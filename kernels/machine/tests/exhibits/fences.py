"""Two proxies and one memory: what generic stores left for TMA to read, and where it stores."""

# ruff: noqa: N803 (kernel arguments: compile-time constants in capitals, as Triton code has them)

import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.tools.tensor_descriptor import TensorDescriptor as HostDescriptor

from .exhibit import Exhibit

tma_load = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared  # since Triton 3.9
tma_store = tma.async_store if hasattr(tma, "async_store") else tma.async_copy_shared_to_global

SIDE = gl.constexpr(64)  # of all tiles


def layout_of(tile: torch.Tensor) -> gl.NVMMASharedLayout:
    return gl.NVMMASharedLayout.get_default_for(list(tile.shape), gl.bfloat16)


@gluon.jit
def write_tile(x_ptr, tile, written, MENDED: gl.constexpr):
    """Triton adds the fence where one partition writes and reads. It cannot where another one reads."""
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    rows = gl.arange(0, SIDE, layout=gl.SliceLayout(1, layout))[:, None]
    columns = gl.arange(0, SIDE, layout=gl.SliceLayout(0, layout))[None, :]
    tile.store(gl.load(x_ptr + rows * SIDE + columns))
    if MENDED:
        fence_async_shared()
    mbarrier.arrive(written)


@gluon.jit
def store_tile(out_desc, tile, written):
    mbarrier.wait(written, 0)
    tma_store(out_desc, [0, 0], tile)
    tma.store_wait(0)


@gluon.jit
def write_and_store(x_ptr, out_desc, MENDED: gl.constexpr):
    tile = gl.allocate_shared_memory(gl.bfloat16, [SIDE, SIDE], out_desc.layout)
    written = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(written, count=1)
    gl.warp_specialize(
        [(write_tile, (x_ptr, tile, written, MENDED)), (store_tile, (out_desc, tile, written))], [1], [24]
    )


def stored_by_tma(mended: bool):
    x = torch.randint(-9, 10, (64, 64)).to(torch.bfloat16)
    out = torch.zeros_like(x)
    args = dict(
        x_ptr=x, out_desc=TensorDescriptor.from_tensor(out, [64, 64], layout_of(out)), MENDED=mended, num_warps=4
    )
    return write_and_store, (1,), args, {"out_desc": x}


@triton.jit
def send_and_load(x_ptr, sent_ptr, sent_desc, flag_ptr, out_ptr, N: tl.constexpr, MENDED: tl.constexpr):
    rows = tl.arange(0, N)[:, None]
    columns = tl.arange(0, N)[None, :]
    if tl.program_id(0) == 0:
        tl.store(sent_ptr + rows * N + columns, tl.load(x_ptr + rows * N + columns))
        tl.debug_barrier()
        tl.atomic_xchg(flag_ptr, 1, sem="release", scope="sys")
    else:
        while tl.atomic_add(flag_ptr, 0, sem="acquire", scope="sys") != 1:
            pass
        if MENDED:
            tl.inline_asm_elementwise(
                "fence.proxy.async.global; mov.u32 $0, 0;", "=r", [], dtype=tl.int32, is_pure=False, pack=1
            )
        tl.debug_barrier()
        tl.store(out_ptr + rows * N + columns, sent_desc.load([0, 0]))


def loaded_by_tma(mended: bool):
    x = torch.arange(1024, dtype=torch.int32).reshape(32, 32)
    sent, out, flag = torch.zeros_like(x), torch.zeros_like(x), torch.zeros(1, dtype=torch.int32)
    desc = HostDescriptor.from_tensor(sent, [32, 32])
    args = dict(x_ptr=x, sent_ptr=sent, sent_desc=desc, flag_ptr=flag, out_ptr=out, N=32, MENDED=mended)
    return send_and_load, (2,), args, {"out_ptr": x}


@triton.jit
def copy_rows(x_desc, out_desc):
    out_desc.store([0, 0], x_desc.load([0, 0]))


def stored_beside(mended: bool):
    """TMA stores whole 16 bytes, beyond rows of 10."""
    columns = 8 if mended else 5
    x, out = torch.arange(64.0).reshape(8, 8).bfloat16(), torch.full((8, 8), -1.0, dtype=torch.bfloat16)
    x_desc, out_desc = (HostDescriptor(t, [8, columns], [8, 1], [8, 8]) for t in (x, out))
    right = torch.where(torch.arange(8) < columns, x, out)
    return copy_rows, (1,), dict(x_desc=x_desc, out_desc=out_desc, num_warps=1), {"out_desc": right}


@gluon.jit
def add_products(x_ptr, w_ptr, out_ptr, steps, WIDE: gl.constexpr, MENDED: gl.constexpr):
    """Left operands lie in registers, which the next step's are loaded into."""
    blocked: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    sums: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, SIDE, 16])
    left: gl.constexpr = gl.DotOperandLayout(0, sums, 2)
    w = gl.allocate_shared_memory(gl.bfloat16, [SIDE, SIDE], WIDE)
    w.store(gl.load(w_ptr + places(blocked)))
    fence_async_shared()
    acc = warpgroup_mma_init(gl.zeros([SIDE, SIDE], gl.float32, sums))
    for step in range(steps):
        x = gl.load(x_ptr + step * SIDE * SIDE + places(left))
        acc = warpgroup_mma(x, w, acc, is_async=True)
        if MENDED:
            acc = warpgroup_mma_init(warpgroup_mma_wait(0, deps=[acc]))
    gl.store(out_ptr + places(sums), warpgroup_mma_wait(0, deps=[acc]))


@gluon.jit
def places(LAYOUT: gl.constexpr):
    rows = gl.arange(0, SIDE, layout=gl.SliceLayout(1, LAYOUT))[:, None]
    return rows * SIDE + gl.arange(0, SIDE, layout=gl.SliceLayout(0, LAYOUT))[None, :]


def operand_reused(mended: bool):
    x, w = (torch.randint(-3, 4, (rows, 64)).to(torch.bfloat16) for rows in (3 * 64, 64))
    args = dict(x_ptr=x, w_ptr=w, out_ptr=torch.zeros(64, 64), steps=3, WIDE=layout_of(w), MENDED=mended, num_warps=4)
    return add_products, (1,), args, {"out_ptr": (x.float() @ w.float()).reshape(3, 64, 64).sum(0)}


@triton.jit
def take(lock_ptr, out_ptr, N: tl.constexpr):
    """Only the first CTA of a cluster asks, and all of them read its answer."""
    tl.store(out_ptr + tl.arange(0, N), tl.atomic_cas(lock_ptr, 0, 1))


def cluster_exit(mended: bool):
    lock, out = torch.full((1,), 7, dtype=torch.int32), torch.zeros(512, dtype=torch.int32)
    args = dict(lock_ptr=lock, out_ptr=out, N=512, num_ctas=1 if mended else 2)
    return take, (1,), args, {"out_ptr": torch.full_like(out, 7)}


TAKEN = {"3.7": "uninitialised", "3.8": "race", "3.9": "exact"}
EXHIBITS = [
    Exhibit("stored_by_tma", "Fuser 1962, FlashKDA 24", "Hopper: wrong without a sleep", stored_by_tma, "race"),
    Exhibit("stored_beside", "triton 11583", "H100, H200: up to 14 bytes behind each row", stored_beside, "wrong"),
    Exhibit("operand_reused", "DeepGEMM 448", "none reported", operand_reused, "misuse"),
    Exhibit("cluster_exit", "triton 11730, 10656", "none reported", cluster_exit, TAKEN),
    Exhibit("loaded_by_tma", "DeepEP 621, 632", "NVL72: wrong at batches above 256", loaded_by_tma, "race"),
]
