"""A load for both CTAs of a cluster, into what both have to have read before."""

# ruff: noqa: N803 (kernel arguments: compile-time constants in capitals, as Triton code has them)

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import cluster, mbarrier
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from .exhibit import Exhibit
from .fences import SIDE, places, tma_load

if hasattr(mbarrier, "sync_cluster_init"):  # Triton 3.7
    meet = mbarrier.sync_cluster_init
else:

    @gluon.jit
    def meet():
        if hasattr(mbarrier, "fence_init_release_cluster"):  # from 3.9 on the compiler does it
            mbarrier.fence_init_release_cluster()
            cluster.barrier(relaxed=True)


@gluon.jit
def add_tiles(x_desc, out_ptr, tiles, LAYOUT: gl.constexpr, MENDED: gl.constexpr):
    tile = gl.allocate_shared_memory(gl.float32, [1, SIDE, SIDE], x_desc.layout).index(0)
    landed = mbarrier.allocate_mbarrier()
    mbarrier.init(landed, count=1)
    meet()
    total = gl.zeros([SIDE, SIDE], gl.float32, LAYOUT)
    for number in range(tiles):
        mbarrier.expect(landed, x_desc.block_type.nbytes)
        tma_load(x_desc, [number * SIDE, 0], landed, tile, multicast=True)
        mbarrier.wait(landed, number & 1)
        total += tile.load(LAYOUT)
        if MENDED:
            gl.barrier(cluster=True)
    gl.store(out_ptr + places(LAYOUT), total)
    gl.barrier(cluster=True)


def multicast(mended: bool):
    x, both = torch.randint(-9, 10, (3, 64, 64)).float(), [[0, 0]]
    shared = gl.NVMMASharedLayout.get_default_for([64, 64], gl.float32, cga_layout=both)
    x_desc = TensorDescriptor.from_tensor(x.reshape(-1, 64), [64, 64], shared)
    layout = gl.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0], both)
    args = dict(x_desc=x_desc, out_ptr=torch.zeros(64, 64), tiles=3, LAYOUT=layout, MENDED=mended)
    return add_tiles, (1,), args | dict(num_warps=4, num_ctas=2), {"out_ptr": x.sum(0)}


SOURCE, HARDWARE = "triton 11411, 11328, humming 54", "H100, H200: 4.4 to 20.7 % of numbers wrong"
EXHIBITS = [Exhibit("multicast", SOURCE, HARDWARE, multicast, "race")]
