"""The matmul for Hopper at large M, in Gluon: one warp loads, two warpgroups multiply, between them a ring of stages.

out[M, N] = x[M, K] @ w[N, K].T. The producer, one warp, does nothing but start TMA loads. The consumers, two
warpgroups, multiply half of a tile's rows each (64x256 or 128x128 sums: 128 registers of fp32 a thread) and store them.
setmaxnreg moves registers from the producer (24 a thread) to the consumers (240).

    producer                 ring in shared memory             consumers 0 and 1, alike

    wait for empty[s]        |  x, w  |  x, w  |  x, w  |      wait for full[s]
    load into stage s  --->  | s - 1  |   s    | s + 1  |  --> begin wgmma of stage s
      full[s] completes                                        wait until no other is in flight: s - 1 has been read
      when it has landed        ^                              arrive at empty[s - 1], which completes when both have
    s + 1                       |                              s + 1; behind the last step along K:
                                +--- room for the next load      sums --> its own buffers --> out, by TMA

Barriers are those of `kernels.ring`. The producer runs ahead across tiles: while one is rounded and stored, the next
one's stages fill. A tile is stored in `subtile` parts, by two buffers in turn for each consumer: so 128x256x64 gets a
fourth stage (229,592 of 232,448 bytes). Consumers wait for each other nowhere but at the ring.

A last wave that tiles would leave nearly empty is cut along K between gangs of programs (`kernels.stream_k`). The sums
that others have of a tile come through the same ring, by TMA, under the tile's last steps.

What it wins, as its speed over cuBLAS's for up, tp 8, M = 1024 on an H100 (stream_k_trial.txt of 2026-11-26 in
results/reference); README has means over shapes:

    whole tiles                                                        0.952
    gangs of 8x1, which share the last waves                           1.056
    scales by block                                                    untimed
    odd widths, clusters, zigzag, prefetch (kernels.warpgroup_config)  untimed

Branches marked UNTIMED are those of the last line.

128x256 is the tile of choice, by arithmetic: for 64 along K its 64x256x16 instructions read 80 KiB of shared memory and
TMA writes 48, in the 1,024 cycles they take at full rate. That is 128 bytes a cycle, all that an SM has. 256x128 reads
96 KiB for as many sums. But it is no bound: 128x128 asks for 160, which at 128 bytes would be 640 cycles a step, and
takes 606 at up, tp 8, M = 256 on an H100 and 566 on an H200 (by their clocks, less the 14.5 us that a
call takes beside its products: docs/kernel.md).

Loses at small M, where bytes decide, and at 256 rows. Both consumers store at the same time, so that a tile's store is
hidden behind loads alone. With scales by block (`BY_BLOCK`) a stage is one block along K: its products are summed from
zero, and a consumer scales and adds them while the other one's are in the tensor cores. That takes a second set of
sums: 128x128 is all that fits.

Sources: the roles, 2 x 64x256 sums and 240 / 24 registers are those of CUTLASS's cooperative kernel and of fast.cu
(https://github.com/pranjalssh/fast.cu, matmul_12.cuh); one wgmma group in flight is what Triton's own pipeliner leaves;
by block, DeepGEMM has the same roles and tile.
"""

# ruff: noqa: N803 (kernel arguments: sizes and compile-time constants in capitals, as Triton code has them)

from dataclasses import replace
from functools import partial

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from kernels import hopper
from kernels.contract import EXAMPLE_SIZE, Kernel, KernelLaunch, Scales, scale_arguments
from kernels.ring import Smem, aggregate, allocate, begin, prefetch_descriptors, require_compiled, tma_load
from kernels.stream_k import Dealt, Slots, Work, deal
from kernels.warpgroup_config import (
    Config,
    problem_by_block,
    role_arguments,
    slot_arguments,
    variants,
    whole_and_shared,
)
from kernels.wgmma import CONSUMERS, multiply, no_sums, parts_of, promoted, store, store_and_tell, wait


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
            k0 = work.column(super_tile, step, step == first)
            if ZIGZAG and number % 2 == 1:  # UNTIMED (zigzag): L2 still holds what was read last
                k0 = work.column(super_tile, first + last - 1 - step, step == first)
            full = smem.full.index(ring.stage)
            mbarrier.wait(smem.empty.index(ring.stage), ring.phase ^ 1)
            if smem.w_free is not None:  # UNTIMED (clusters): the first CTA waits, which loads w for the other, too
                mbarrier.wait(smem.w_free.index(ring.stage), ring.phase ^ 1)
            # A block that reaches past the matrix is filled with zeros and counts all its bytes. This also arrives.
            mbarrier.expect(full, tensors.x.block_type.nbytes // x_rows * (x_rows + work.block_n))
            for part in gl.static_range(x_parts):  # one; in a cluster one for each consumer
                x_part = smem.x.index(ring.stage * x_parts + part)
                tma_load(tensors.x, [m0 + part * x_rows, k0], full, x_part)
            for part in gl.static_range(work.block_n // w_rows):  # one; in an odd tile three, and the rest
                w_part = smem.w.index(ring.stage).slice(part * w_rows, w_rows)
                tma_load(tensors.w, [n0 + part * w_rows, k0], full, w_part, multicast=smem.w_free is not None)
            if tensors.w_rest is not None:  # UNTIMED (odd widths)
                w_part = smem.w.index(ring.stage).slice(work.block_n - rest, rest)
                tma_load(tensors.w_rest, [n0 + work.block_n - rest, k0], full, w_part)
            ring = ring.next()
        if work.dealt.SHARED and work.owns(first, last, steps):
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
        if work.dealt.SHARED and work.owns(first, last, steps):
            peers = work.peers(super_tile, steps)
        if work.dealt.SHARED and work.leaves(first, last, steps):
            work.leave(super_tile, acc, WHO, tensors.out.block_type.shape[1])
        else:
            ring = finish(work, tensors, smem, ring, acc, peers, m0 + WHO * rows, n0, WHO)
    tma.store_wait(0)  # shared memory must outlive what reads it


@gluon.jit
def release(smem, stage, pred):
    """Say that a consumer has read a stage."""
    mbarrier.arrive(smem.empty.index(stage), pred=pred)
    if smem.w_free is not None:  # UNTIMED (clusters)
        mbarrier.arrive(smem.w_free.index(stage), pred=pred)


@gluon.jit
def finish(work, tensors, smem, ring, acc, peers, m0, n0, WHO: gl.constexpr):
    """Store a consumer's sums of a tile, part by part. Of a tile that `peers` others have steps of, each part as wide
    as they are fetched first gets theirs. Returns the place in the ring behind those."""
    columns: gl.constexpr = tensors.out.block_type.shape[1]
    scales = (None, None, None, None) if tensors.BY_BLOCK else tensors.scales
    wide = acc[:3]  # UNTIMED (odd widths)
    if tensors.out_rest is None:
        wide = parts_of(acc[0], work.slots.sums.block_type.shape[1] if work.dealt.SHARED else columns)
    for number in gl.static_range(len(wide)):
        sums = wide[number]
        if work.dealt.SHARED:
            sums, ring = work.slots.add(sums, work.slots.sums, peers, smem, ring, WHO)
        parts = parts_of(sums, columns)
        for part in gl.static_range(len(parts)):
            store(tensors.out, parts[part], m0, n0, smem, scales, WHO, number * len(parts) + part)
    if tensors.out_rest is not None:  # UNTIMED (odd widths)
        rest = acc[3]
        if work.dealt.SHARED:
            rest, ring = work.slots.add(rest, work.slots.rest, peers, smem, ring, WHO)
        wider: gl.constexpr = columns - rest.shape[1]  # than the rest is
        store(tensors.out_rest, rest, m0, n0 + 3 * wider, smem, scales, WHO, 3)
    return ring


@gluon.jit
def run(
    work, tensors, STAGES: gl.constexpr, BUFFERS: gl.constexpr, ZIGZAG: gl.constexpr, TELLS: gl.constexpr,
    CONSUMER_REGISTERS: gl.constexpr, PRODUCER_REGISTERS: gl.constexpr,
):  # fmt: skip
    """Make the ring, and have the roles do `work`: it says which pieces a program has, and where they lie. Work
    that TELLS of each tile has another role, one warp, which stores what the consumers stage."""
    x_ring = allocate(STAGES * (work.block_m // tensors.x.block_type.shape[0]), tensors.x)
    w_rows: gl.constexpr = triton.next_power_of_2(work.block_n)  # as Gluon allocates
    w_ring = gl.allocate_shared_memory(tensors.w.dtype, [STAGES, w_rows, work.block_k], tensors.w.layout)
    staging = allocate(CONSUMERS * BUFFERS, tensors.out)
    full = mbarrier.allocate_mbarrier(batch=STAGES)
    empty = mbarrier.allocate_mbarrier(batch=STAGES)
    if gl.num_ctas() == 1:
        w_free: gl.constexpr = None
    else:  # UNTIMED (clusters): in the first CTA
        w_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout([[0]]))
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=CONSUMERS)
        if w_free is not None:  # UNTIMED (clusters)
            mbarrier.init(w_free.index(stage), count=CONSUMERS)
    if not TELLS:
        staged: gl.constexpr = None
        freed: gl.constexpr = None
    else:
        staged = mbarrier.allocate_mbarrier(batch=CONSUMERS * BUFFERS)
        freed = mbarrier.allocate_mbarrier(batch=CONSUMERS * BUFFERS)
        for buffer in gl.static_range(CONSUMERS * BUFFERS):
            mbarrier.init(staged.index(buffer), count=1)
            mbarrier.init(freed.index(buffer), count=1)
    fence_async_shared()  # TMA completes barriers through its own proxy; warp_specialize is a barrier for the threads
    smem = Smem(x_ring, w_ring, full, empty, staging, staged, freed, w_free)
    if not TELLS:
        gl.warp_specialize(
            [
                (consume, (work, tensors, smem, 0)),
                (consume, (work, tensors, smem, 1)),
                (produce, (work, tensors, smem, ZIGZAG)),
            ],
            [4, 1],
            [CONSUMER_REGISTERS, PRODUCER_REGISTERS],
        )
    else:
        gl.warp_specialize(
            [
                (consume, (work, tensors, smem, 0)),
                (consume, (work, tensors, smem, 1)),
                (produce, (work, tensors, smem, ZIGZAG)),
                (store_and_tell, (work, tensors, smem)),
            ],
            [4, 1, 1],
            [CONSUMER_REGISTERS, PRODUCER_REGISTERS, PRODUCER_REGISTERS],
        )
    if w_free is not None:  # UNTIMED (clusters)
        gl.barrier(cluster=True)  # the first CTA must outlive what arrives at its mbarriers


# These arguments differ from shape to shape.
@gluon.jit(
    do_not_specialize=["M", "supers_m", "supers_n", "gangs", "gang_m", "gang_n", "whole", "even", "more"],
)
def warpgroup_kernel(
    x_desc, w_desc, out_desc,
    w_rest_desc, out_rest_desc,  # the last part of an odd tile; w_desc and out_desc are then the others
    sums_desc,  # [programs * rows of a tile, columns of a tile] fp32: each program's sums of a tile that another owns
    sums_ptr, slot_flags_ptr,  # those and their flags, int32 (`kernels.stream_k`)
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
    dealt = Dealt(gangs, whole, even, more, SHARED)
    work = Work(
        dealt, K, supers_m, supers_n, gang_m, gang_n, Slots(sums_desc, None, sums_ptr, slot_flags_ptr, BLOCK_N),
        BLOCK_M, BLOCK_N, x_desc.block_type.shape[1], GROUP, ALONG_N,
    )  # fmt: skip
    scales = x_scales_ptr, w_scales_ptr, M, N
    tensors = Tensors(x_desc, w_desc, out_desc, w_rest_desc, out_rest_desc, scales, BY_BLOCK)
    run(work, tensors, STAGES, BUFFERS, ZIGZAG, False, CONSUMER_REGISTERS, PRODUCER_REGISTERS)


def require(
    x: Tensor, w: Tensor, out: Tensor | None = None, scales: Scales | None = None, by_block: bool = False
) -> None:
    """Refuse what `kernels.hopper.require` does; ValueError in Triton's interpreter, which knows no Gluon."""
    name, other = ("warpgroup_blockwise", "blockwise") if by_block else ("warpgroup", "persistent")
    hopper.require(name, x, w, out, scales, by_block=by_block)
    require_compiled(name, other)


def prepare(
    x: Tensor,
    w: Tensor,
    out: Tensor,
    config: Config,
    scales: Scales | None = None,
    by_block: bool = False,
    sms: int | None = None,
) -> KernelLaunch:
    """The launch for checked, non-empty tensors, of one CTA on each SM, or on `sms`. Raises ValueError for a
    configuration that does not fit two consumers, or the shape."""
    roles = role_arguments(x, w, out, config)
    if by_block and (problem := problem_by_block(config)):
        raise ValueError(f"{problem}; change the configuration")
    (m, k), n = x.shape, w.shape[0]
    # From here on all is counted in programs, of which a cluster is one.
    block_m = config.block_m * config.cluster
    gang_m, gang_n = config.gang_m // config.cluster, config.gang_n
    gangs = (sms or hopper.programs(x.device)) // (config.cluster * gang_m * gang_n)
    if not gangs:
        raise ValueError(f"gang {config.gang_m}x{config.gang_n}: this device has fewer SMs; change the configuration")
    supers_m = -(-m // (block_m * gang_m))
    supers_n = -(-n // (config.block_n * gang_n))
    dealt = deal(supers_m * supers_n, -(-k // config.block_k), gangs, config.shared_waves)
    programs = dealt["gangs"] * gang_m * gang_n
    args = roles | scale_arguments(scales) | dict(
        M=m if scales else None, N=n if scales else None, K=k, supers_m=supers_m, supers_n=supers_n,
        gang_m=gang_m, gang_n=gang_n, **dealt, GROUP=config.group_m, ALONG_N=config.raster == "n", BY_BLOCK=by_block,
        ZIGZAG=config.zigzag, PREFETCH=config.prefetch, num_ctas=config.cluster,
    )  # fmt: skip
    shared = slot_arguments(x, config, programs if dealt["SHARED"] else 0)
    del shared["sums_rest_desc"]  # odd tiles are shared by `kernels.flagged` alone
    return KernelLaunch(warpgroup_kernel, (programs,), args | shared)


class Warpgroup(Kernel[Config]):
    def example(self, config: Config, dtype: torch.dtype, rows: int = EXAMPLE_SIZE) -> KernelLaunch:
        """A launch for three gangs of one, or of one cluster, which is the same code. Three leave something of a power
        of two of tiles, so that it is shared."""
        three = replace(self, prepare=partial(self.prepare, sms=3 * config.cluster))
        return Kernel.example(three, replace(config, gang_m=config.cluster, gang_n=1), dtype, rows)


matmul = Warpgroup(
    name="warpgroup", require=require, prepare=prepare,
    variants=variants,
)  # fmt: skip
"""out[M, N] = x[M, K] @ w[N, K].T in bf16, fp16 or fp8, on a Hopper GPU."""

beside_copier = Warpgroup(
    name="warpgroup_beside_copier", require=require, prepare=prepare,
)  # fmt: skip
"""The same by tiles that leave the copier of a link its registers on the SM (`kernels.flagged`)."""

by_block = Warpgroup(
    name="warpgroup_blockwise", require=partial(require, by_block=True),
    prepare=partial(prepare, by_block=True), by_block=True, variants=whole_and_shared,
)  # fmt: skip
"""The same in fp8 with scales by block."""
