"""CTAs of a cluster: a load for both, into what both have to have read before; and an arrival at another's mbarrier."""

# ruff: noqa: N803 (kernel arguments: compile-time constants in capitals, as Triton code has them)

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import cluster, mbarrier
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from kernels.machine.ptx_kernel import PtxKernel

from .exhibit import Exhibit, whole
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


RELAY = """.version 8.3
.target sm_90a
.address_size 64
.visible .entry relay(.param .u64 .ptr .global out) .reqnctapercluster 2
{
    .shared .align 8 .b64 bar; .shared .align 4 .b32 data[32];
    .reg .b32 %t, %c, %b, %d, %rb, %v, %rd; .reg .pred %p, %q, %w; .reg .b64 %o, %s;
    ld.param.u64 %o, [out];
    mov.u32 %t, %tid.x; mov.u32 %c, %cluster_ctarank; mov.u32 %b, bar; mov.u32 %d, data;
    setp.eq.u32 %p, %t, 0; setp.eq.u32 %q, %c, 0;
    @%p mbarrier.init.shared::cta.b64 [%b], 32;
    @%p fence.mbarrier_init.release.cluster;
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    mad.lo.u32 %d, %t, 4, %d;
    @%q bra LEAD;
    add.u32 %v, %t, 100;
    st.shared.b32 [%d], %v;
    mapa.shared::cluster.u32 %rb, %b, 0;
    mbarrier.arrive.release.SCOPE.shared::cluster.b64 _, [%rb];
    bra END;
LEAD:
WAIT:
    mbarrier.try_wait.parity.acquire.SCOPE.shared::cta.b64 %w, [%b], 0;
    @!%w bra WAIT;
    mapa.shared::cluster.u32 %rd, %d, 1;
    ld.shared::cluster.b32 %v, [%rd];
    mad.wide.u32 %o, %t, 4, %o;
    st.global.b32 [%o], %v;
END:
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    ret;
}"""


def relay(mended: bool):
    """CTA 1 writes its shared memory and arrives at CTA 0's mbarrier; CTA 0 waits, and reads what CTA 1 wrote."""
    kernel = PtxKernel(RELAY.replace("SCOPE", "cluster" if mended else "cta"), None, (32,), 0, 1)
    return kernel, (2,), dict(out=whole(32)), dict(out=torch.arange(100, 132))


SOURCE, HARDWARE = "triton 11411, 11328, humming 54", "H100, H200: 4.4 to 20.7 % of numbers wrong"
EXHIBITS = [
    Exhibit("multicast", SOURCE, HARDWARE, multicast, "race"),
    Exhibit("relay", "cutlass 3324, quack 63", "B200: wrong in 29 of 200 runs", relay, "race"),
]
