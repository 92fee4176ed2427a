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
than one part: 128x256x64 gets a fourth stage that way (229,592 of 232,448 bytes). Consumers share no buffer, and wait
for each other nowhere but at the ring.

128x256 is the tile of choice, by arithmetic: for 64 along K its 64x256x16 instructions read 80 KiB of shared memory and
TMA writes 48, in the 1,024 cycles they take at full rate. That is 128 bytes a cycle, all that an SM has. 256x128, in
64x128x16 instructions, reads 96 KiB for as many sums; it is for narrow N, of which 256 columns would be padded more.

Two odd widths fill waves where N is 13 times a power of two: 128x208, and 128x104 for half a wave of those. At up, tp
1, M = 256, 128x208 keeps the SMs busy for 0.97 of its waves, 128x256 for 0.79. Their blocks are three parts and a rest,
all powers of two wide; `kernels.wgmma` multiplies by them, from Triton 3.9 on. Nobody has timed them. By the same
arithmetic they ask for 135 and 175 bytes a cycle. But it is no bound: 128x128 asks for 160, which at 128 bytes would be
640 cycles a step, and takes 606 at up, tp 8, M = 256 on an H100 and 566 on an H200 (by their clocks, less the 14.5 us
that `kernels.waves` says a call takes beside its products).

A last wave that tiles would leave nearly empty is cut along K between gangs of programs (`kernels.stream_k`), where the
model of waves or an entry of the table says so. The sums that others have of a tile come through the same ring, by TMA,
under the tile's last steps: a consumer adds them to its own in the epilogue. `SHARED` is code of its own; without it
nothing of that is there.

With scales by block (`BY_BLOCK`) a stage is one block along K: its products are summed from zero, and a consumer scales
and adds them (`promoted`) while the other one's are in the tensor cores. That takes a second set of sums: 128x128 is
all that fits. DeepGEMM has the same roles and tile.

With a `cluster` of 2, from Triton 3.8 on, two CTAs have neighbouring tiles of the same columns, and w is loaded once
for both: 128x256x64 takes 32 KiB a step from L2 and not 48. The cluster has twice the rows of a tile. The first 128 are
those of the first consumer of both CTAs, 64 in each, the next 128 those of the second. Each CTA loads its own rows of
x. The first one loads w, by a multicast of TMA into the same stage of both, once all four consumers have read that
stage: they arrive at a third mbarrier of the stage, `both`, which lies in the first CTA. Sums of a shared tile pass
`both` by: behind them nothing is multicast, and each CTA fetches its own rows at its own pace. Triton makes the
barriers of the cluster, behind the mbarriers' initialisation. Nobody has timed it. At 256 rows it should win, where
calls wait for L2: an H100's cuBLAS, which has clusters of 8 there, moves 0.48 GB through it and a `warpgroup` without
them 0.69. Elsewhere gains of 0.6 to 3 % are published (fast.cu, 777 to 799 TFLOP/s, with other changes at the same
time; Triton's TLX, 672 to 676). It loses at 128 rows or fewer, where half of each cluster has none.

Wins from some 500 rows on, where cuBLAS has a ragged last wave. Loses at small M, where bytes decide, and at 256 rows
(README has the figures). Both consumers store at the same time, so a tile's store is hidden behind loads alone. Gluon
is experimental, its names move between releases: those used here mean the same in Triton 3.7 to 3.9, but for two that
3.9 renamed, and PTX, which 3.9 brought.

Sources: the roles, 2 x 64x256 sums and 240 / 24 registers are those of CUTLASS's cooperative kernel and of fast.cu
(https://github.com/pranjalssh/fast.cu, matmul_12.cuh); barriers by parity after Triton's Gluon tutorial on warp
specialisation (python/tutorials/gluon/08-warp-specialization.py), which multiplies with Blackwell's instructions; one
wgmma group in flight is what Triton's own pipeliner leaves. Grid and order of tiles: `kernels.persistent`.
"""

# ruff: noqa: N803 (kernel arguments: sizes and compile-time constants in capitals, as Triton code has them)

from dataclasses import replace
from dataclasses import replace
from functools import partial

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from kernels import hopper
from kernels.contract import BLOCK, Kernel, KernelLaunch, Scales, launch_metadata, scale_arguments
from kernels.persistent import persistent_kernel
from kernels.ring import aggregate, as_block, begin, describe, prefetch_descriptors, require_compiled, tma_load, tma_store
from kernels.stream_k import Dealt, Work, deal
from kernels.tiles import Config, triton_release
from kernels.wgmma import CONSUMERS, inline_asm, multiply, no_sums, parts_of, promoted, wait, wgmma_layout
from kernels.workspace import workspace

WARPS_PER_CONSUMER = 4  # a warpgroup, which executes a wgmma together
ROWS_PER_WGMMA = 64
# Registers a thread after setmaxnreg, a multiple of 8: 2 * 128 * 240 + 128 * 24 = 64,512 of 65,536, since a producer of
# one warp is given the registers of four.
CONSUMER_REGISTERS, PRODUCER_REGISTERS = 240, 24
ODD_PARTS = {(128, 208, 64): (64, 16), (128, 104, 64): (32, 8)}
"""{odd tile: the columns of each of its first three parts, and of the rest}."""


@aggregate
class Tensors:
    """What a kernel reads and writes, as descriptors and pointers; None where there is none."""

    x: object
    w: object
    out: object
    w_rest: object  # UNTIMED (odd widths): the last part of a tile; w and out are then the others
    out_rest: object
    scales: object  # of fp8: pointers to those of x and of w, M and N
    BY_BLOCK: gl.constexpr


@aggregate
class Smem:
    """The stages of the ring, the mbarriers of each, and where tiles are staged."""

    x: gl.shared_memory_descriptor
    w: gl.shared_memory_descriptor
    staging: gl.shared_memory_descriptor
    full: gl.shared_memory_descriptor
    empty: gl.shared_memory_descriptor
    w_free: object  # UNTIMED (clusters): in the first CTA, where the consumers of both arrive; else None


@gluon.jit
def produce(work, tensors, smem, ZIGZAG: gl.constexpr):
    """Fill stage after stage, of all this program's tiles in turn, as soon as both consumers have read it. Behind a
    tile whose last steps others have, fetch their sums of it through the same ring."""
    x_rows: gl.constexpr = tensors.x.block_type.shape[0]
    x_parts: gl.constexpr = work.block_m // x_rows
    w_rows: gl.constexpr = tensors.w.block_type.shape[0]
    rest: gl.constexpr = work.block_n % w_rows
    steps = gl.cdiv(work.K, work.block_k)
    gang, member = work.place()
    ring = begin(smem.full.shape[0])
    for number in range(work.dealt.pieces(gang, steps)):
        super_tile, first, last = work.dealt.piece(number, gang, steps)
        m0, n0 = work.corner(super_tile, member)
        for step in range(first, last):
            full = smem.full.index(ring.stage)
            mbarrier.wait(smem.empty.index(ring.stage), ring.phase ^ 1)
            if smem.w_free is not None:  # the first CTA waits: it loads w for the other, too
                mbarrier.wait(smem.w_free.index(ring.stage), ring.phase ^ 1)
            # A block that reaches past the matrix is filled with zeros and counts all its bytes. This also arrives.
            mbarrier.expect(full, tensors.x.block_type.nbytes // x_rows * (x_rows + work.block_n))
            k0 = step * work.block_k
            if ZIGZAG and number % 2 == 1:  # UNTIMED (zigzag): L2 still holds what was read last
                k0 = (first + last - 1 - step) * work.block_k
            for part in gl.static_range(x_parts):  # one; in a cluster one for each consumer
                x_part = smem.x.index(ring.stage * x_parts + part)
                tma_load(tensors.x, [m0 + part * x_rows, k0], full, x_part)
            for part in gl.static_range(work.block_n // w_rows):  # one; in an odd tile three, and the rest
                w_part = smem.w.index(ring.stage).slice(part * w_rows, w_rows)
                tma_load(tensors.w, [n0 + part * w_rows, k0], full, w_part, multicast=smem.w_free is not None)
            if tensors.w_rest is not None:
                w_part = smem.w.index(ring.stage).slice(work.block_n - rest, rest)
                tma_load(tensors.w_rest, [n0 + work.block_n - rest, k0], full, w_part)
            ring = ring.next()
        if work.dealt.SHARED and (first == 0) & (last < steps):
            ring = work.fetch(super_tile, steps, smem, ring)


@gluon.jit
def consume(work, tensors, smem, WHO: gl.constexpr):
    """Multiply the rows of consumer WHO in every stage. At the end of each tile add the sums that others have of it and
    store it; or leave the sums to its owner."""
    x_rows: gl.constexpr = tensors.x.block_type.shape[0]
    rows: gl.constexpr = work.block_m // CONSUMERS
    steps = gl.cdiv(work.K, work.block_k)
    gang, member = work.place()
    ring = begin(smem.full.shape[0])
    for number in range(work.dealt.pieces(gang, steps)):
        super_tile, first, last = work.dealt.piece(number, gang, steps)
        m0, n0 = work.corner(super_tile, member)
        acc = no_sums(rows, work.block_n, tensors.w.block_type.shape[0], tensors.x.layout.cga_layout, tensors.x.dtype)
        for step in range(first, last):
            mbarrier.wait(smem.full.index(ring.stage), ring.phase)
            x_part = smem.x.index(ring.stage * (work.block_m // x_rows) + WHO * rows // x_rows)
            x_part = x_part.slice(WHO * rows % x_rows, rows)
            w_part = smem.w.index(ring.stage)
            if tensors.BY_BLOCK:
                acc = (promoted(x_part, w_part, acc[0], tensors.scales, m0 + WHO * rows, n0, step, steps),)
            else:
                acc = multiply(x_part, w_part, acc, work.block_n)
                acc = wait(1, acc)
            # One group is in flight at most, so that of the stage before has ended.
            release(smem, ring.before(), step > first)
            ring = ring.next()
        acc = wait(0, acc)
        release(smem, ring.before(), True)
        peers = 0
        if work.dealt.SHARED and (first == 0) & (last < steps):
            peers = work.dealt.last_gang(super_tile, steps) - gang
        if work.dealt.SHARED and first > 0:
            work.leave(acc[0], WHO, tensors.out.block_type.shape[1])
        else:
            ring = finish(work, tensors, smem, ring, acc, peers, m0 + WHO * rows, n0, WHO)
    tma.store_wait(0)  # shared memory must outlive what reads it


@gluon.jit
def release(smem, stage, pred):
    """Say that a consumer has read a stage."""
    mbarrier.arrive(smem.empty.index(stage), pred=pred)
    if smem.w_free is not None:
        mbarrier.arrive(smem.w_free.index(stage), pred=pred)


@gluon.jit
def finish(work, tensors, smem, ring, acc, peers, m0, n0, WHO: gl.constexpr):
    """Store a consumer's sums of a tile, part by part. Of a tile that `peers` others have steps of, each part as wide
    as they are fetched first gets theirs. Returns the place in the ring behind those."""
    columns: gl.constexpr = tensors.out.block_type.shape[1]
    if work.dealt.SHARED:
        wide = parts_of(acc[0], work.sums.block_type.shape[1])
        for place in gl.static_range(len(wide)):
            sums, ring = work.add(wide[place], peers, smem, ring, WHO)
            parts = parts_of(sums, columns)
            for part in gl.static_range(len(parts)):
                store(tensors.out, tensors, smem, parts[part], m0, n0, WHO, place * len(parts) + part)
    elif tensors.out_rest is None:
        parts = parts_of(acc[0], columns)
        for part in gl.static_range(len(parts)):
            store(tensors.out, tensors, smem, parts[part], m0, n0, WHO, part)
    else:
        for part in gl.static_range(3):
            store(tensors.out, tensors, smem, acc[part], m0, n0, WHO, part)
        wider: gl.constexpr = columns - acc[3].shape[1]  # than the rest is
        store(tensors.out_rest, tensors, smem, acc[3], m0, n0 + 3 * wider, WHO, 3)
    return ring


@gluon.jit
def store(out, tensors, smem, acc, m0, n0, WHO: gl.constexpr, PART: gl.constexpr):
    """Round part PART of a tile's columns, and store it by `out`. Parts use a consumer's buffers in turn."""
    columns: gl.constexpr = acc.shape[1]
    layout: gl.constexpr = wgmma_layout(columns, smem.staging.layout.cga_layout)
    if tensors.scales[0] is not None and not tensors.BY_BLOCK:
        acc = scaled(acc, tensors.scales, m0, n0 + PART * columns, layout)
    buffers: gl.constexpr = smem.staging.shape[0] // CONSUMERS
    buffer = as_block(smem.staging.index(WHO * buffers + PART % buffers), out)
    rounded = acc.to(out.dtype)
    tma.store_wait(buffers - 1)  # the store that used this buffer last has read it
    buffer.store(gl.convert_layout(rounded, layout))
    fence_async_shared()  # TMA reads through another proxy than these stores wrote
    tma_store(out, [m0, n0 + PART * columns], buffer)


@gluon.jit
def scaled(acc, scales, m0, n0, layout: gl.constexpr):
    """Sums of fp8, in `layout`, times the scales of their rows of x and of w."""
    x_scales_ptr, w_scales_ptr, rows, columns = scales
    m = m0 + gl.arange(0, acc.shape[0], gl.SliceLayout(1, layout))
    n = n0 + gl.arange(0, acc.shape[1], gl.SliceLayout(0, layout))
    x_scales = gl.load(x_scales_ptr + m, mask=m < rows, other=0.0)
    w_scales = gl.load(w_scales_ptr + n, mask=n < columns, other=0.0)
    return gl.convert_layout(acc, layout) * x_scales[:, None] * w_scales[None, :]


# These arguments differ from shape to shape.
@gluon.jit(
    do_not_specialize=["M", "supers_m", "supers_n", "gangs", "gang_m", "gang_n", "whole", "even", "more"],
    launch_metadata=launch_metadata,
)
def warpgroup_kernel(
    x_desc, w_desc, out_desc,
    w_rest_desc, out_rest_desc,  # the last part of an odd tile; w_desc and out_desc are then the others
    sums_desc,  # [programs * rows of a tile, columns of a tile] fp32: each program's sums of a tile that another owns
    sums_ptr, flags_ptr,  # int32 [programs * CONSUMERS]
    x_scales_ptr, w_scales_ptr, M, N,  # of fp8; else None
    K,
    supers_m, supers_n,  # super-tiles, counted by the host: each division here takes time before the first load
    gangs, gang_m, gang_n, whole, even, more,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr, BUFFERS: gl.constexpr, GROUP: gl.constexpr,
    ALONG_N: gl.constexpr, SHARED: gl.constexpr, BY_BLOCK: gl.constexpr, ZIGZAG: gl.constexpr,
    PREFETCH: gl.constexpr, CONSUMER_REGISTERS: gl.constexpr, PRODUCER_REGISTERS: gl.constexpr,
):  # fmt: skip
    if PREFETCH:  # UNTIMED (prefetch)
        prefetch_descriptors("warpgroup_kernel", 3)
    block_k: gl.constexpr = x_desc.block_type.shape[1]
    x_blocks: gl.constexpr = STAGES * (BLOCK_M // x_desc.block_type.shape[0])
    x_ring = gl.allocate_shared_memory(x_desc.dtype, [x_blocks] + x_desc.block_type.shape, x_desc.layout)  # noqa: RUF005
    w_rows: gl.constexpr = triton.next_power_of_2(BLOCK_N)  # as Gluon allocates
    w_ring = gl.allocate_shared_memory(w_desc.dtype, [STAGES, w_rows, block_k], w_desc.layout)
    staging = gl.allocate_shared_memory(
        out_desc.dtype,
        [CONSUMERS * BUFFERS] + out_desc.block_type.shape,  # noqa: RUF005 (Gluon knows no unpacking)
        out_desc.layout,
    )
    full = mbarrier.allocate_mbarrier(batch=STAGES)
    empty = mbarrier.allocate_mbarrier(batch=STAGES)
    if gl.num_ctas() == 1:
        w_free: gl.constexpr = None
    else:  # UNTIMED (clusters): in the first CTA
        w_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout([[0]]))
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=CONSUMERS)
        if w_free is not None:
            mbarrier.init(w_free.index(stage), count=CONSUMERS)
    fence_async_shared()  # TMA completes barriers through its own proxy; warp_specialize is a barrier for the threads
    dealt = Dealt(gangs, whole, even, more, SHARED)
    work = Work(
        dealt, K, supers_m, supers_n, gang_m, gang_n, sums_desc, sums_ptr, flags_ptr,
        BLOCK_M, BLOCK_N, block_k, GROUP, ALONG_N,
    )  # fmt: skip
    scales = x_scales_ptr, w_scales_ptr, M, N
    tensors = Tensors(x_desc, w_desc, out_desc, w_rest_desc, out_rest_desc, scales, BY_BLOCK)
    smem = Smem(x_ring, w_ring, staging, full, empty, w_free)
    gl.warp_specialize(
        [
            (consume, (work, tensors, smem, 0)),
            (consume, (work, tensors, smem, 1)),
            (produce, (work, tensors, smem, ZIGZAG)),
        ],
        [4, 1],
        [CONSUMER_REGISTERS, PRODUCER_REGISTERS],
    )
    if w_free is not None:
        gl.barrier(cluster=True)  # the first CTA must outlive what arrives at its mbarriers


def require(
    x: Tensor, w: Tensor, out: Tensor | None = None, scales: Scales | None = None, by_block: bool = False
) -> None:
    """Refuse what `kernels.hopper.require` does; ValueError in Triton's interpreter, which knows no Gluon."""
    name, other = ("warpgroup_blockwise", "blockwise") if by_block else ("warpgroup", "persistent")
    hopper.require(persistent_kernel, name, x, w, out, scales, by_block=by_block)
    require_compiled(name, other)


def prepare(
    x: Tensor,
    w: Tensor,
    out: Tensor,
    config: Config,
    scales: Scales | None = None,
    by_block: bool = False,
    programs: int | None = None,
) -> KernelLaunch:
    """The launch for checked, non-empty tensors, of one program on each SM, or of `programs`. Raises ValueError for a
    configuration that does not fit two consumers, or the shape."""
    problem = problem_of(config, x.element_size())
    if by_block and not problem and (config.block_n, config.block_k) != (BLOCK, BLOCK):
        problem = f"{config} has steps of {config.block_n}x{config.block_k} of w, a block has {BLOCK}x{BLOCK}"
    if by_block and not problem and (config.cluster > 1 or config.zigzag):
        problem = f"{config}, by block there are no clusters, and each tile is walked through forwards"
    if problem:
        raise ValueError(f"{problem}; change the configuration")
    (m, k), n = x.shape, w.shape[0]
    parted, same = (((1, 0),), ((0, 0),)) if config.cluster > 1 else ((), ())
    members = config.gang_m * config.gang_n
    supers_m = -(-m // (config.block_m * config.gang_m))
    supers_n = -(-n // (config.block_n * config.gang_n))
    supers = supers_m * supers_n
    programs = programs or hopper.programs(x.device)
    gangs = programs // members
    if not gangs:
        raise ValueError(f"gang {config.gang_m}x{config.gang_n}: this device has fewer SMs; change the configuration")
    dealt = deal(supers, -(-k // config.block_k), gangs, config.shared_waves)
    is_shared = dealt.even > 0
    gangs = gangs if is_shared else min(gangs, supers)
    rows = config.block_m * config.cluster // CONSUMERS.value
    wide, rest = ODD_PARTS.get((config.block_m, config.block_n, config.block_k), (config.block_n, 0))
    args = dict(
        x_desc=describe(x, (config.block_m, config.block_k), parted),
        w_desc=describe(w, (wide, config.block_k), same),
        out_desc=describe(out, (rows, wide if rest else wide // config.subtile), parted),
        w_rest_desc=describe(w, (rest, config.block_k)) if rest else None,
        out_rest_desc=describe(out, (rows, rest)) if rest else None,
        sums_desc=None, sums_ptr=None, flags_ptr=None,
        **scale_arguments(scales), M=m if scales else None, N=n if scales else None,
        K=k, supers_m=supers_m, supers_n=supers_n, gangs=gangs, gang_m=config.gang_m // config.cluster,
        gang_n=config.gang_n, **dealt._asdict(),
        BLOCK_M=config.block_m * config.cluster, BLOCK_N=config.block_n, STAGES=config.num_stages,
        BUFFERS=min(2, config.subtile), GROUP=config.group_m, ALONG_N=config.raster == "n", SHARED=is_shared,
        BY_BLOCK=by_block, ZIGZAG=config.zigzag, PREFETCH=config.prefetch,
        CONSUMER_REGISTERS=CONSUMER_REGISTERS, PRODUCER_REGISTERS=PRODUCER_REGISTERS,
        num_warps=WARPS_PER_CONSUMER,  # of the first consumer; warp_specialize adds the others
        num_ctas=config.cluster,
    )  # fmt: skip
    programs = gangs * members
    if is_shared:
        size = programs * config.block_m * config.block_n
        kept = workspace(x.device, size, programs * CONSUMERS.value)
        sums = kept.partials[:size].view(-1, config.block_n)
        args |= dict(
            sums_desc=describe(sums, (rows, sums_width(config, x.element_size())), parted),
            sums_ptr=sums, flags_ptr=kept.counters,
        )  # fmt: skip
    return KernelLaunch(warpgroup_kernel, (programs // config.cluster,), args)


def problem_of(config: Config, itemsize: int) -> str:
    """Why a configuration does not fit this kernel and operands of `itemsize` bytes, in words; empty if it does."""
    consumers = CONSUMERS.value
    rows = consumers * ROWS_PER_WGMMA
    if config.num_warps != consumers * WARPS_PER_CONSUMER:
        return f"num_warps={config.num_warps}, warpgroup multiplies with {consumers} warpgroups of 4"
    if config.block_m % rows:
        return f"block_m={config.block_m}, {consumers} consumers of 64-row wgmma need a multiple of {rows}"
    size = config.block_m, config.block_n, config.block_k
    if config.is_odd and (size not in ODD_PARTS or config.shared_waves or config.cluster > 1 or itemsize != 2):
        return f"{config}, of odd widths warpgroup has 128x208x64 and 128x104x64, not shared, in no cluster, nor of fp8"
    if config.is_odd and inline_asm is None:
        return f"block_n={config.block_n} needs Triton 3.9 or later for gl.inline_asm, this is {triton.__version__}"
    if config.cluster not in (1, 2) or config.gang_m % config.cluster:
        return f"{config} in gangs of {config.gang_m}, a cluster is 2 tiles of a gang along M"
    if config.cluster > 1 and triton_release() < (3, 8):
        return f"cluster={config.cluster} needs Triton 3.8 or later, whose mbarriers can be of two CTAs"
    if config.subtile not in (1, 2, 4):
        return f"subtile={config.subtile}, warpgroup stores in 1, 2 or 4 parts"
    width = sums_width(config, itemsize)
    if config.shared_waves and config.block_n // config.subtile > width:
        return f"subtile={config.subtile}, of a shared tile it stores at most {width} columns at a time"
    return ""


def sums_width(config: Config, itemsize: int) -> int:
    """The number of columns of a consumer's fp32 sums that fit into the room that a stage has for w."""
    return config.block_n * config.block_k * itemsize // (2 * config.block_m)


def whole_and_shared(config: Config) -> list[Config]:
    """A configuration without a shared wave, and with one where its tile may be shared."""
    configs = [replace(config, shared_waves=0)]
    if not config.is_odd:
        configs.append(replace(config, shared_waves=config.shared_waves or 2))
    return configs


def variants(config: Config) -> list[Config]:
    """The configurations of a tile that are code of their own."""
    configs = whole_and_shared(config)
    in_clusters = []
    if triton_release() >= (3, 8) and not config.is_odd:
        in_clusters = [replace(other, cluster=2, gang_m=2) for other in configs]
    return [*configs, replace(configs[-1], zigzag=True, prefetch=True), *in_clusters]


class Warpgroup(Kernel):
    def example(self, config: Config, dtype: torch.dtype) -> KernelLaunch:
        """A launch for three gangs of one, or of one cluster, which is the same code. Three leave something of a power
        of two of tiles, so that it is shared."""
        three = replace(self, prepare=partial(self.prepare, programs=3 * config.cluster))
        return Kernel.example(three, replace(config, gang_m=config.cluster, gang_n=1), dtype)


matmul = Warpgroup(
    name="warpgroup", jit=warpgroup_kernel, require=require, prepare=prepare,
    variants=variants,
)  # fmt: skip
"""out[M, N] = x[M, K] @ w[N, K].T in bf16, fp16 or fp8, on a Hopper GPU."""

by_block = Warpgroup(
    name="warpgroup_blockwise", jit=warpgroup_kernel, require=partial(require, by_block=True),
    prepare=partial(prepare, by_block=True), by_block=True, variants=whole_and_shared,
)  # fmt: skip
"""The same in fp8 with scales by block."""
