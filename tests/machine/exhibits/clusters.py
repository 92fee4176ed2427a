"""Two CTAs of a cluster, and one load for both."""

# ruff: noqa: N803 (kernel arguments: compile-time constants in capitals, as Triton code has them)

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import cluster, mbarrier, tma, warpgroup_mma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from exhibits.exhibit import Exhibit

tma_load = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared  # since Triton 3.8
SIDE = gl.constexpr(64)  # of a CTA's tiles

if hasattr(mbarrier, "sync_cluster_init"):  # Triton 3.7
    meet = mbarrier.sync_cluster_init
else:

    @gluon.jit
    def meet():
        if hasattr(mbarrier, "fence_init_release_cluster"):  # from 3.9 on the compiler does it
            mbarrier.fence_init_release_cluster()
            cluster.barrier(relaxed=True)


@gluon.jit
def sum_products(x_desc, w_desc, out_ptr, steps, MENDED: gl.constexpr):
    """Each CTA has rows of x. Every w goes to both, into what both have to have read before."""
    both: gl.constexpr = x_desc.layout.cga_layout
    sums: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, SIDE, 16], both)
    x = gl.allocate_shared_memory(gl.bfloat16, [2 * SIDE, SIDE], x_desc.layout)
    w = gl.allocate_shared_memory(gl.bfloat16, [SIDE, SIDE], w_desc.layout)
    landed = mbarrier.allocate_mbarrier()
    mbarrier.init(landed, count=1)
    meet()
    acc = gl.zeros([2 * SIDE, SIDE], gl.float32, sums)
    for step in range(steps):
        mbarrier.expect(landed, x_desc.block_type.nbytes // 2 + w_desc.block_type.nbytes)
        tma_load(x_desc, [0, step * SIDE], landed, x)
        tma_load(w_desc, [step * SIDE, 0], landed, w, multicast=True)
        mbarrier.wait(landed, step & 1)
        acc = warpgroup_mma(x, w, acc)
        if MENDED:
            gl.barrier(cluster=True)
        else:
            gl.barrier()
    rows = gl.arange(0, 2 * SIDE, layout=gl.SliceLayout(1, sums))[:, None]
    gl.store(out_ptr + rows * SIDE + gl.arange(0, SIDE, layout=gl.SliceLayout(0, sums))[None, :], acc)
    gl.barrier(cluster=True)


def multicast(mended: bool):
    steps = 3
    x = torch.randint(-3, 4, (128, 64 * steps)).to(torch.bfloat16)
    w = torch.randint(-3, 4, (64 * steps, 64)).to(torch.bfloat16)
    out = torch.zeros(128, 64)
    x_desc, w_desc = (
        TensorDescriptor.from_tensor(
            tensor, box, gl.NVMMASharedLayout.get_default_for(box, gl.bfloat16, cga_layout=[along])
        )
        for tensor, box, along in ((x, [128, 64], [1, 0]), (w, [64, 64], [0, 0]))
    )
    args = dict(x_desc=x_desc, w_desc=w_desc, out_ptr=out, steps=steps, MENDED=mended, num_warps=4, num_ctas=2)
    return sum_products, (1,), args, {"out_ptr": x.float() @ w.float()}


EXHIBITS = [
    Exhibit("multicast", "inclusionAI/humming 54, 56", "H100, H200: 5.0 to 18.5 % of numbers wrong", multicast, "race"),
]
