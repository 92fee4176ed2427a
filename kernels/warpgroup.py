"""The matmul for Hopper at large M, in Gluon: a producer warp, two consumer warpgroups, and a ring of stages between.

out[M, N] = x[M, K] @ w[N, K].T. One warp does nothing but start TMA loads into a ring; two warpgroups do nothing but
multiply what is in it, half of the tile's rows each (64x256 or 128x128 sums: 128 registers of fp32 a thread), and store
the tile. The producer runs ahead across tiles: while a tile is rounded and stored, the next one's stages fill.
setmaxnreg moves registers from the producer (24 a thread) to the consumers (240).

Each stage has two mbarriers. `full` completes when its bytes have landed (one arrival, by the producer, and the bytes
of both loads); `empty` when both consumers have read it (two arrivals). Each side counts stages and flips the parity it
waits for when the ring wraps; the producer waits for the opposite parity, so that its first round passes barriers which
nobody has completed yet. A consumer keeps one wgmma group in flight: it issues the group of a stage, waits until only
that one is pending, and so knows that the stage *before* has been read and releases that.

The epilogue goes through shared memory in `subtile` parts, two buffers in turn for each consumer where there is more
than one part: 128x256x64 gets a fourth stage that way (229,576 of 232,448 bytes). Consumers share no buffer, and wait
for each other nowhere but at the ring.

128x256 is the tile of choice, by arithmetic: for 64 along K its 64x256x16 instructions read 80 KiB of shared memory and
TMA writes 48, in the 1,024 cycles they take at full rate. That is 128 bytes a cycle, all that an SM has. 256x128, in
64x128x16 instructions, reads 96 KiB for as many sums; it is for narrow N, of which 256 columns would be padded more.

Wins where the compiler's pipeline in `kernels.persistent` leaves the tensor cores waiting: loads need no issue slots of
the warps that multiply, and short K is where running ahead across tiles shows most. On an H200 and an H100 it hardly
does (results/reference): from 1024 rows on this one has 0.995 and 1.003 of cuBLAS's speed in the mean, and `persistent`
0.994 and 1.002. Loses at small M, 0.69 and 0.87 up to 64 rows, and where tiles leave the last wave nearly empty. Both
consumers store at the same time, so a tile's store is hidden behind loads alone: some 1 % of the time at K = 16384.
Gluon is experimental, its names move between releases: those used here mean the same in Triton 3.7 to 3.9, but for two
that 3.9 renamed.

Sources: the roles, 2 x 64x256 sums and 240 / 24 registers are those of CUTLASS's cooperative kernel and of fast.cu
(https://github.com/pranjalssh/fast.cu, matmul_12.cuh); barriers by parity after Triton's Gluon tutorial on warp
specialisation (python/tutorials/gluon/08-warp-specialization.py), which multiplies with Blackwell's instructions; one
wgmma group in flight is what Triton's own pipeliner leaves. Grid and order of tiles: `kernels.persistent`.
"""

# ruff: noqa: N803 (kernel arguments: sizes and compile-time constants in capitals, as Triton code has them)

from functools import cache

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from kernels import hopper, waves
from kernels.contract import Kernel, KernelLaunch, interpreted
from kernels.persistent import persistent_kernel, tile_corner
from kernels.tiles import Config

# Since Triton 3.9 these are called what TMA does; the older names are gone.
tma_load = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared
tma_store = tma.async_store if hasattr(tma, "async_store") else tma.async_copy_shared_to_global

CONSUMERS = gl.constexpr(2)  # warpgroups that multiply: their sums fill the registers of an SM
WARPS_PER_CONSUMER = 4  # a warpgroup, which is what wgmma is an instruction of
ROWS_PER_WGMMA = 64
# Registers a thread after setmaxnreg, a multiple of 8: 2 * 128 * 240 + 128 * 24 = 64,512 of 65,536, since a producer of
# one warp is given the registers of four.
CONSUMER_REGISTERS, PRODUCER_REGISTERS = 240, 24


@gluon.jit
def following(stage, phase, STAGES: gl.constexpr):
    """Return the stage after this one, and the parity of its round."""
    wraps = stage == STAGES - 1
    return gl.where(wraps, 0, stage + 1), gl.where(wraps, phase ^ 1, phase)


@gluon.jit
def preceding(stage, STAGES: gl.constexpr):
    """Return the stage before this one.

    Not remembered as `before = stage`: where both names begin with one value, Triton's code generator does not see that
    the loop changes `before`, and leaves it at that value.
    """
    return gl.where(stage == 0, STAGES - 1, stage - 1)


@gluon.jit
def produce(x_desc, w_desc, x_ring, w_ring, full, empty, M, N, K, GROUP: gl.constexpr, ALONG_N: gl.constexpr):
    """Fill stage after stage, of all this program's tiles in turn, as soon as both consumers have read it."""
    block_m: gl.constexpr = x_desc.block_type.shape[0]
    block_n: gl.constexpr = w_desc.block_type.shape[0]
    block_k: gl.constexpr = x_desc.block_type.shape[1]
    tiles_m = gl.cdiv(M, block_m)
    tiles_n = gl.cdiv(N, block_n)
    stage = 0
    phase = 0
    for tile in range(gl.program_id(0), tiles_m * tiles_n, gl.num_programs(0)):
        m0, n0 = tile_corner(tile, tiles_m, tiles_n, block_m, block_n, GROUP, ALONG_N)
        for k0 in range(0, K, block_k):
            mbarrier.wait(empty.index(stage), phase ^ 1)
            # A block that reaches past the matrix is filled with zeros and counts all its bytes. This also arrives.
            mbarrier.expect(full.index(stage), x_desc.block_type.nbytes + w_desc.block_type.nbytes)
            tma_load(x_desc, [m0, k0], full.index(stage), x_ring.index(stage))
            tma_load(w_desc, [n0, k0], full.index(stage), w_ring.index(stage))
            stage, phase = following(stage, phase, full.shape[0])


@gluon.jit
def consume(
    x_desc, w_desc, out_desc, x_ring, w_ring, staging, full, empty, M, N, K,
    GROUP: gl.constexpr, ALONG_N: gl.constexpr, WHO: gl.constexpr,
):  # fmt: skip
    """Multiply the rows of consumer WHO in every stage, and store them at the end of each tile."""
    block_m: gl.constexpr = x_desc.block_type.shape[0]
    block_n: gl.constexpr = w_desc.block_type.shape[0]
    block_k: gl.constexpr = x_desc.block_type.shape[1]
    rows: gl.constexpr = block_m // CONSUMERS
    sums: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, block_n, 16])
    tiles_m = gl.cdiv(M, block_m)
    tiles_n = gl.cdiv(N, block_n)
    stage = 0
    phase = 0
    for tile in range(gl.program_id(0), tiles_m * tiles_n, gl.num_programs(0)):
        m0, n0 = tile_corner(tile, tiles_m, tiles_n, block_m, block_n, GROUP, ALONG_N)
        acc = gl.zeros([rows, block_n], gl.float32, sums)
        for k0 in range(0, K, block_k):
            mbarrier.wait(full.index(stage), phase)
            x = x_ring.index(stage).slice(WHO * rows, rows)
            w = w_ring.index(stage).permute((1, 0))
            acc = warpgroup_mma(x, w, acc, is_async=True)
            acc = warpgroup_mma_wait(1, deps=[acc])
            # One group is in flight, so that of the stage before has ended.
            mbarrier.arrive(empty.index(preceding(stage, full.shape[0])), pred=k0 > 0)
            stage, phase = following(stage, phase, full.shape[0])
        acc = warpgroup_mma_wait(0, deps=[acc])
        mbarrier.arrive(empty.index(preceding(stage, full.shape[0])))
        store_parts(out_desc, acc, m0 + WHO * rows, n0, staging, WHO, 0)
    tma.store_wait(0)  # shared memory must outlive what reads it


@gluon.jit
def store_parts(out_desc, acc, m0, n0, staging, WHO: gl.constexpr, PART: gl.constexpr):
    """Store the columns of `acc` in parts as wide as `out_desc` has them, halving it until they are."""
    rows: gl.constexpr = acc.shape[0]
    columns: gl.constexpr = acc.shape[1]
    if columns > out_desc.block_type.shape[1]:
        # A thread holds both columns of each pair that is parted, so nothing moves.
        left, right = acc.reshape((rows, 2, columns // 2)).permute((0, 2, 1)).split()
        store_parts(out_desc, left, m0, n0, staging, WHO, PART * 2)
        store_parts(out_desc, right, m0, n0, staging, WHO, PART * 2 + 1)
    else:
        buffers: gl.constexpr = staging.shape[0] // CONSUMERS
        buffer = staging.index(WHO * buffers + PART % buffers)
        rounded = acc.to(out_desc.dtype)
        tma.store_wait(buffers - 1)  # the store that used this buffer last has read it
        buffer.store(gl.convert_layout(rounded, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, columns, 16])))
        fence_async_shared()  # TMA reads through another proxy than these stores wrote
        tma_store(out_desc, [m0, n0 + PART * columns], buffer)


@gluon.jit(do_not_specialize=["M"])  # it differs from shape to shape
def warpgroup_kernel(
    x_desc, w_desc, out_desc, M, N, K,
    STAGES: gl.constexpr, BUFFERS: gl.constexpr, GROUP: gl.constexpr, ALONG_N: gl.constexpr,
    CONSUMER_REGISTERS: gl.constexpr, PRODUCER_REGISTERS: gl.constexpr,
):  # fmt: skip
    x_ring = gl.allocate_shared_memory(x_desc.dtype, [STAGES] + x_desc.block_type.shape, x_desc.layout)  # noqa: RUF005
    w_ring = gl.allocate_shared_memory(w_desc.dtype, [STAGES] + w_desc.block_type.shape, w_desc.layout)  # noqa: RUF005
    staging = gl.allocate_shared_memory(
        out_desc.dtype,
        [CONSUMERS * BUFFERS] + out_desc.block_type.shape,  # noqa: RUF005 (Gluon knows no unpacking)
        out_desc.layout,
    )
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=CONSUMERS)
    fence_async_shared()  # TMA completes barriers through its own proxy; warp_specialize is a barrier for the threads
    gl.warp_specialize(
        [
            (consume, (x_desc, w_desc, out_desc, x_ring, w_ring, staging, full, empty, M, N, K, GROUP, ALONG_N, 0)),
            (consume, (x_desc, w_desc, out_desc, x_ring, w_ring, staging, full, empty, M, N, K, GROUP, ALONG_N, 1)),
            (produce, (x_desc, w_desc, x_ring, w_ring, full, empty, M, N, K, GROUP, ALONG_N)),
        ],
        [4, 1],
        [CONSUMER_REGISTERS, PRODUCER_REGISTERS],
    )


def require(x: Tensor, w: Tensor, out: Tensor | None = None) -> None:
    """Refuse what `kernels.hopper.require` does; ValueError in Triton's interpreter, which knows no Gluon."""
    hopper.require(persistent_kernel, "warpgroup", x, w, out)  # which tells whether kernels are interpreted
    if interpreted(persistent_kernel):
        raise ValueError(
            "TRITON_INTERPRET is set, and Gluon, which warpgroup is written in, has no interpreter; "
            "use kernels.persistent, or unset it on a machine with a Hopper GPU"
        )


def describe(tensor: Tensor, block: tuple[int, int]) -> TensorDescriptor:
    """Return the descriptor of `kernels.hopper` with its layout in shared memory: rows as wide a swizzle as the block
    allows."""
    plain = hopper.describe(tensor, block)
    return TensorDescriptor(plain.base, plain.shape, plain.strides, plain.block_shape, _layout(block, tensor.dtype))


@cache  # making one takes longer than the rest of a descriptor
def _layout(block: tuple[int, int], dtype: torch.dtype) -> gl.NVMMASharedLayout:
    gluon_dtype = {torch.bfloat16: gl.bfloat16, torch.float16: gl.float16}[dtype]
    return gl.NVMMASharedLayout.get_default_for(list(block), gluon_dtype)


def prepare(x: Tensor, w: Tensor, out: Tensor, config: Config) -> KernelLaunch:
    """Return the launch for checked, non-empty tensors. Raises ValueError for a configuration that is none for two
    consumers."""
    consumers = CONSUMERS.value
    rows, problem = consumers * ROWS_PER_WGMMA, None
    if config.num_warps != consumers * WARPS_PER_CONSUMER:
        problem = f"num_warps={config.num_warps}, warpgroup multiplies with {consumers} warpgroups of 4"
    elif config.block_m % rows:
        problem = f"block_m={config.block_m}, {consumers} consumers of 64-row wgmma need a multiple of {rows}"
    elif config.subtile not in (1, 2, 4):
        problem = f"subtile={config.subtile}, warpgroup stores in 1, 2 or 4 parts"
    if problem:
        raise ValueError(f"{problem}; change the configuration")
    (m, k), n = x.shape, w.shape[0]
    tiles = -(-m // config.block_m) * -(-n // config.block_n)
    args = dict(
        x_desc=describe(x, (config.block_m, config.block_k)),
        w_desc=describe(w, (config.block_n, config.block_k)),
        out_desc=describe(out, (config.block_m // consumers, config.block_n // config.subtile)),
        M=m, N=n, K=k,
        STAGES=config.num_stages, BUFFERS=min(2, config.subtile),
        GROUP=config.group_m, ALONG_N=config.raster == "n",
        CONSUMER_REGISTERS=CONSUMER_REGISTERS, PRODUCER_REGISTERS=PRODUCER_REGISTERS,
        num_warps=WARPS_PER_CONSUMER,  # of the first consumer; warp_specialize adds the others
    )  # fmt: skip
    return KernelLaunch(warpgroup_kernel, (min(hopper.programs(x.device), tiles),), args)


matmul = Kernel(
    name="warpgroup", jit=warpgroup_kernel, require=require, prepare=prepare,
    grid=dict(num_stages=(3, 4, 5, 6), subtile=(1, 2, 4), group_m=waves.GROUPS, raster=("m", "n")),
)  # fmt: skip
"""out[M, N] = x[M, K] @ w[N, K].T in bf16 or fp16, on a Hopper GPU."""
