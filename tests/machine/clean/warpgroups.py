"""Gluon: matmuls whose loads run ahead, by one CTA, and by a cluster of two that share a load. x [M, K], w [K, N]."""

# ruff: noqa: N803 (kernel arguments: sizes and compile-time constants in capitals, as Triton code has them)

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    cluster,
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from clean import Trial, trial, whole

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
def sums(BM: gl.constexpr, BN: gl.constexpr, CTAS: gl.constexpr = ()):
    """Return zeros as wgmma has them, a warp's 16 rows below another's; `CTAS`: of a cluster."""
    return gl.zeros([BM, BN], gl.float32, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BN, 16], CTAS))


@gluon.jit
def load(x_desc, w_desc, x_ring, w_ring, full, m, n, step, MULTICAST: gl.constexpr):
    """Start a step's loads into its stage of the ring. CTAs of a cluster share the rows of x."""
    stage = step % x_ring.shape[0]
    k = step * x_desc.block_type.shape[1]
    mbarrier.expect(full.index(stage), x_desc.block_type.nbytes // gl.num_ctas() + w_desc.block_type.nbytes)
    tma_load(x_desc, [m, k], full.index(stage), x_ring.index(stage))
    tma_load(w_desc, [k, n], full.index(stage), w_ring.index(stage), multicast=MULTICAST)


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
        load(x_desc, w_desc, x_ring, w_ring, full, m, n, i, False)  # zeros, where K is over
    acc = sums(bm, bn)
    steps = gl.cdiv(K, bk)
    for step in range(steps):
        gl.barrier()  # the products of all warps have read the stage of the step before
        load(x_desc, w_desc, x_ring, w_ring, full, m, n, step + STAGES - 1, False)
        mbarrier.wait(full.index(step % STAGES), step // STAGES % 2)
        acc = warpgroup_mma(x_ring.index(step % STAGES), w_ring.index(step % STAGES), acc)
    for i in gl.static_range(STAGES - 1):
        mbarrier.wait(full.index((steps + i) % STAGES), (steps + i) // STAGES % 2)  # what nobody reads must land, too
    store_tile(out_desc, acc, m, n)


if hasattr(mbarrier, "fence_init_release_cluster"):  # 3.8

    @gluon.jit
    def announce():
        mbarrier.fence_init_release_cluster()
        cluster.barrier(relaxed=True)
else:  # the compiler does it

    @gluon.jit
    def announce():
        pass


@gluon.jit
def multicast_ring_kernel(x_desc, w_desc, out_desc, K, STAGES: gl.constexpr):
    """Two CTAs have half the rows of a tile each, and a load of the first brings the same part of w to both.

    Loads run ahead: both CTAs tell the first what they have read.
    """
    bm: gl.constexpr = x_desc.block_type.shape[0]
    bk: gl.constexpr = x_desc.block_type.shape[1]
    bn: gl.constexpr = w_desc.block_type.shape[1]
    x_ring = gl.allocate_shared_memory(x_desc.dtype, [STAGES, bm, bk], x_desc.layout)
    w_ring = gl.allocate_shared_memory(w_desc.dtype, [STAGES, bk, bn], w_desc.layout)
    full = mbarrier.allocate_mbarrier(batch=STAGES)
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout([[0]]))  # the first CTA's, of both
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=1)  # of each CTA
    announce()
    m = gl.program_id(0) * bm
    n = gl.program_id(1) * bn
    acc = sums(bm, bn, x_desc.layout.cga_layout)
    steps = gl.cdiv(K, bk)
    for i in gl.static_range(STAGES - 1):
        load(x_desc, w_desc, x_ring, w_ring, full, m, n, i, True)
    for step in range(steps):
        coming = step + STAGES - 1
        mbarrier.wait(empty.index(coming % STAGES), coming // STAGES % 2 ^ 1)
        load(x_desc, w_desc, x_ring, w_ring, full, m, n, coming, True)
        mbarrier.wait(full.index(step % STAGES), step // STAGES % 2)
        acc = warpgroup_mma(x_ring.index(step % STAGES), w_ring.index(step % STAGES), acc)
        gl.barrier()  # one thread tells what all have read
        mbarrier.arrive(empty.index(step % STAGES))
    for i in gl.static_range(STAGES - 1):
        mbarrier.wait(full.index((steps + i) % STAGES), (steps + i) // STAGES % 2)
    store_tile(out_desc, acc, m, n)
    gl.barrier(cluster=True)  # the first CTA must outlive what arrives at its mbarriers


def matmul(kernel, grid, shape, blocks, *, ctas: int = 1, **more) -> Trial:
    """`blocks`: of M, N and K, in a cluster."""
    (m, n, k), (bm, bn, bk) = shape, blocks
    x, w = (whole(*s, dtype=torch.bfloat16, seed=i, low=-2, high=2) for i, s in enumerate(((m, k), (k, n))))
    out = torch.full((m, n), 99, dtype=torch.bfloat16)
    rows, same = ([[1, 0]], [[0, 0]]) if ctas == 2 else ([], [])
    operands = dict(x=(x, [bm, bk], rows), w=(w, [bk, bn], same), out=(out, [bm, bn], rows))
    args = {
        f"{name}_desc": TensorDescriptor.from_tensor(
            tensor, block, gl.NVMMASharedLayout.get_default_for(block, gl.bfloat16, cga_layout=ctas_along)
        )
        for name, (tensor, block, ctas_along) in operands.items()
    }
    args |= dict(K=k, num_warps=4, num_ctas=ctas, **more)
    return Trial(kernel, grid, args, dict(out_desc=(x.double() @ w.double()).bfloat16()))


@trial
def pipelined() -> Trial:
    return matmul(pipelined_kernel, (1, 2), (60, 88, 320), (64, 64, 64), STAGES=3)


@trial(since=(3, 8))  # 3.7 gives each CTA an mbarrier of its own
def multicast_ring() -> Trial:
    return matmul(multicast_ring_kernel, (1, 1), (120, 56, 320), (128, 64, 64), ctas=2, STAGES=3)
