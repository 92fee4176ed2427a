"""Gluon: a matmul whose loads run ahead. x [M, K], w [K, N]."""

# ruff: noqa: N803 (kernel arguments: sizes and compile-time constants in capitals, as Triton code has them)

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from . import Trial, trial, whole

# Since Triton 3.8 these are called what TMA does.
tma_load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
tma_store = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global


@gluon.jit
def store_tile(out_desc, acc, m, n):
    rounded = gl.allocate_shared_memory(out_desc.dtype, out_desc.block_type.shape, out_desc.layout)
    rounded.store(acc.to(out_desc.dtype))
    fence_async_shared()  # TMA reads through another proxy than these stores wrote
    tma_store(out_desc, [m, n], rounded)
    tma.store_wait(0)  # shared memory must outlive what reads it


@gluon.jit
def sums(BM: gl.constexpr, BN: gl.constexpr):
    """Return zeros as wgmma has them, a warp's 16 rows below another's."""
    return gl.zeros([BM, BN], gl.float32, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BN, 16]))


@gluon.jit
def load(x_desc, w_desc, x_ring, w_ring, full, m, n, step):
    """Start a step's loads into its stage of the ring."""
    stage = step % x_ring.shape[0]
    k = step * x_desc.block_type.shape[1]
    mbarrier.expect(full.index(stage), x_desc.block_type.nbytes + w_desc.block_type.nbytes)
    tma_load(x_desc, [m, k], full.index(stage), x_ring.index(stage))
    tma_load(w_desc, [k, n], full.index(stage), w_ring.index(stage))


@gluon.jit
def pipelined_kernel(x_desc, w_desc, out_desc, K, STAGES: gl.constexpr):
    """Loads are STAGES - 1 steps ahead of the products, all by the same four warps."""
    bm: gl.constexpr = x_desc.block_type.shape[0]
    bk: gl.constexpr = x_desc.block_type.shape[1]
    bn: gl.constexpr = w_desc.block_type.shape[1]
    x_ring = gl.allocate_shared_memory(x_desc.dtype, [STAGES, bm, bk], x_desc.layout)
    w_ring = gl.allocate_shared_memory(w_desc.dtype, [STAGES, bk, bn], w_desc.layout)
    full = mbarrier.allocate_mbarrier(batch=STAGES)
    m = gl.program_id(0) * bm
    n = gl.program_id(1) * bn
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
    fence_async_shared()
    for i in gl.static_range(STAGES - 1):
        load(x_desc, w_desc, x_ring, w_ring, full, m, n, i)  # zeros, where K is over
    acc = sums(bm, bn)
    steps = gl.cdiv(K, bk)
    for step in range(steps):
        gl.barrier()  # the products of all warps have read the stage of the step before
        load(x_desc, w_desc, x_ring, w_ring, full, m, n, step + STAGES - 1)
        mbarrier.wait(full.index(step % STAGES), step // STAGES % 2)
        acc = warpgroup_mma(x_ring.index(step % STAGES), w_ring.index(step % STAGES), acc)
    for i in gl.static_range(STAGES - 1):
        mbarrier.wait(full.index((steps + i) % STAGES), (steps + i) // STAGES % 2)  # what nobody reads must land, too
    store_tile(out_desc, acc, m, n)


@trial
def pipelined() -> Trial:
    m, n, k = 60, 88, 320
    x, w = (whole(*shape, dtype=torch.bfloat16, seed=i, low=-2, high=2) for i, shape in enumerate(((m, k), (k, n))))
    out = torch.full((m, n), 99, dtype=torch.bfloat16)
    layout = gl.NVMMASharedLayout.get_default_for([64, 64], gl.bfloat16)
    x_desc, w_desc, out_desc = (TensorDescriptor.from_tensor(tensor, [64, 64], layout) for tensor in (x, w, out))
    args = dict(x_desc=x_desc, w_desc=w_desc, out_desc=out_desc, K=k, STAGES=3, num_warps=4)
    return Trial(pipelined_kernel, (1, 2), args, dict(out_desc=(x.double() @ w.double()).bfloat16()))
