"""The matmul for few rows, M <= 64, in Gluon: it asks for w before it does anything else.

out[M, N] = x[M, K] @ w[N, K].T, with operands swapped as in `kernels.decode`: rows of w are the 64 rows of a wgmma,
tokens its n of 16, 32 or 64. One warpgroup multiplies what one warp loads into a ring. Sums are stored from registers,
so that the ring has nearly all of shared memory, 192 to 224 KB.

This kernel is about the time of a call beside its reading of w: docs/kernel.md counts it. Tiles are dealt on the host,
so that the first rows of a program are known by one multiplication. Descriptors are fetched first of all, then come the
mbarriers of the EARLY stages, their loads of w, and only then the other mbarriers. The producer goes on with x.

Whole tiles are dealt as `kernels.persistent` deals them. Where those leave too many SMs idle, as `kernels.decode` has
it, the last one or two waves are one run of steps along K, cut evenly: `kernels.stream_k`, with gangs of one. A program
leaves its sums of a tile that others have steps of, too, in a slot of their own, then counts itself in as in
`kernels.decode`. The last to do so adds all slots in the order of programs, and rounds once. So the bits do not depend
on who is last, and nobody waits.

w is read once. From Triton 3.9 on its loads tell L2 to evict its lines first, so that L2 keeps x.

Nobody has timed it. By its instructions it should be half a microsecond a call faster than `kernels.decode`, and lose
where that does. The registry leaves it out unless somebody asks.
"""

# ruff: noqa: N803 (kernel arguments: sizes and compile-time constants in capitals, as Triton code has them)

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from kernels import decode, hopper
from kernels.contract import KernelLaunch, Scales, refuse_fp8
from kernels.decode import Config, Decode, with_split
from kernels.ring import Smem, aggregate, allocate, begin, describe, prefetch_descriptors, require_compiled, tma_load
from kernels.stream_k import Dealt, deal
from kernels.wgmma import wgmma_layout
from kernels.workspace import workspace

try:  # since Triton 3.9
    from triton.experimental.gluon.language.nvidia.ampere import CachePolicy, FractionalEvictionPolicy
except ImportError:
    READ_ONCE = gl.constexpr(None)
else:
    READ_ONCE = gl.constexpr(CachePolicy(l2=FractionalEvictionPolicy("evict_first", 1.0)))

EARLY = gl.constexpr(3)
"""Stages whose w is asked for before the warps specialise: 48 KB at least, where an SM's part of the bandwidth of an
H200 is 36 KB in a microsecond."""


@aggregate
class Shares:
    """Where programs leave their sums of a tile that several have steps of, and count themselves in."""

    sums_ptr: gl.tensor
    counters_ptr: gl.tensor


@gluon.jit
def load_w(w_desc, tile, step, full, ring, pred):
    """Begin to load the rows of w of a tile for a step along K."""
    rows: gl.constexpr = w_desc.block_type.shape[0]
    block_k: gl.constexpr = w_desc.block_type.shape[1]
    if READ_ONCE is None:
        tma_load(w_desc, [tile * rows, step * block_k], full, ring, pred)
    else:
        tma_load(w_desc, [tile * rows, step * block_k], full, ring, pred, cache_policy=READ_ONCE)


@gluon.jit
def produce(x_desc, w_desc, smem, steps, dealt):
    """Fill stage after stage, of all this program's pieces in turn, as soon as it has been read. The EARLY first ones
    lack x alone."""
    program = gl.program_id(0)
    nbytes: gl.constexpr = x_desc.block_type.nbytes + w_desc.block_type.nbytes
    block_k: gl.constexpr = w_desc.block_type.shape[1]
    ring = begin(smem.full.shape[0])
    for number in range(dealt.pieces(program, steps)):
        tile, first, last = dealt.piece(number, program, steps)
        for step in range(first, last):
            mbarrier.wait(smem.empty.index(ring.stage), ring.phase ^ 1)
            is_late = (number > 0) | (step >= first + EARLY)
            full = smem.full.index(ring.stage)
            mbarrier.expect(full, nbytes, is_late)
            load_w(w_desc, tile, step, full, smem.w.index(ring.stage), is_late)
            tma_load(x_desc, [0, step * block_k], full, smem.x.index(ring.stage))
            ring = ring.next()


@gluon.jit
def consume(x_desc, w_desc, out_ptr, out_row, M, N, smem, steps, dealt, shares):
    """Multiply the blocks of every stage. At the end of each tile store it, or share it."""
    program = gl.program_id(0)
    rows: gl.constexpr = w_desc.block_type.shape[0]
    tokens: gl.constexpr = x_desc.block_type.shape[0]
    layout: gl.constexpr = wgmma_layout(tokens)
    m = gl.arange(0, tokens, gl.SliceLayout(0, layout))[None, :]
    n = gl.arange(0, rows, gl.SliceLayout(1, layout))[:, None]
    ring = begin(smem.full.shape[0])
    for number in range(dealt.pieces(program, steps)):
        tile, first, last = dealt.piece(number, program, steps)
        sums = gl.zeros([rows, tokens], gl.float32, layout)
        for step in range(first, last):
            mbarrier.wait(smem.full.index(ring.stage), ring.phase)
            w_part = smem.w.index(ring.stage)
            x_part = smem.x.index(ring.stage).permute((1, 0))
            sums = warpgroup_mma(w_part, x_part, sums, is_async=True)
            sums = warpgroup_mma_wait(1, deps=(sums,))
            # One group is in flight, so that of the stage before has ended.
            mbarrier.arrive(smem.empty.index(ring.before()), pred=step > first)
            ring = ring.next()
        sums = warpgroup_mma_wait(0, deps=(sums,))
        mbarrier.arrive(smem.empty.index(ring.before()))
        is_last = True
        if dealt.SHARED and (first > 0) | (last < steps):
            shared = tile - dealt.whole * dealt.gangs  # counted from the first tile of the run
            head = dealt.gang_of(shared * steps)
            tail = dealt.last_gang(tile, steps)
            # Tile and program both grow along the run, so their sum numbers the shares of tiles, each once.
            slots = shares.sums_ptr + shared.to(gl.int64) * (rows * tokens) + n * tokens + m
            gl.store(slots + program * (rows * tokens), sums)
            gl.barrier()  # the count, by one thread, stands for the stores of all
            count = gl.atomic_add(shares.counters_ptr + shared, 1, sem="acq_rel", scope="gpu")
            is_last = count == tail - head
            if is_last:
                sums = gl.zeros([rows, tokens], gl.float32, layout)
                for peer in range(head, tail + 1):
                    sums += gl.load(slots + peer * (rows * tokens), cache_modifier=".cg")
                gl.store(shares.counters_ptr + shared, 0)
        if is_last:
            at = out_ptr + m.to(gl.int64) * out_row + (tile * rows + n)
            gl.store(at, sums.to(out_ptr.dtype.element_ty), mask=(m < M) & (tile * rows + n < N))


# These arguments differ from shape to shape.
@gluon.jit(do_not_specialize=["M", "whole", "even", "more"])
def decode_ring_kernel(
    x_desc, w_desc, out_ptr,
    sums_ptr,  # [shared tiles + programs - 1, rows of a tile, tokens] fp32
    counters_ptr,  # [shared tiles] int32
    M, N, K, out_row, whole, even, more, STAGES: gl.constexpr, SHARED: gl.constexpr,
):  # fmt: skip
    prefetch_descriptors("decode_ring_kernel", 2)
    x_ring = allocate(STAGES, x_desc)
    w_ring = allocate(STAGES, w_desc)
    full = mbarrier.allocate_mbarrier(batch=STAGES)
    empty = mbarrier.allocate_mbarrier(batch=STAGES)
    steps = gl.cdiv(K, w_desc.block_type.shape[1])
    dealt = Dealt(gl.num_programs(0), whole, even, more, SHARED)
    tile, first, last = dealt.piece(0, gl.program_id(0), steps)
    nbytes: gl.constexpr = x_desc.block_type.nbytes + w_desc.block_type.nbytes
    for stage in gl.static_range(EARLY):
        mbarrier.init(full.index(stage), count=1)
    fence_async_shared()  # TMA completes barriers through its own proxy
    for stage in gl.static_range(EARLY):
        mbarrier.expect(full.index(stage), nbytes, first + stage < last)
    for stage in gl.static_range(EARLY):
        load_w(w_desc, tile, first + stage, full.index(stage), w_ring.index(stage), first + stage < last)
    for stage in gl.static_range(EARLY, STAGES):
        mbarrier.init(full.index(stage), count=1)
    for stage in gl.static_range(STAGES):
        mbarrier.init(empty.index(stage), count=1)
    fence_async_shared()
    smem = Smem(x_ring, w_ring, full, empty, None, None, None, None)
    shares = Shares(sums_ptr, counters_ptr)
    gl.warp_specialize(
        [
            (consume, (x_desc, w_desc, out_ptr, out_row, M, N, smem, steps, dealt, shares)),
            (produce, (x_desc, w_desc, smem, steps, dealt)),
        ],
        [1],
    )


def require(x: Tensor, w: Tensor, out: Tensor | None = None, scales: Scales | None = None) -> None:
    """Refuse what `kernels.decode.require` does; TypeError for fp8; ValueError in Triton's interpreter, which knows no
    Gluon."""
    decode.require(x, w, out, scales)
    refuse_fp8("decode_ring", x)
    require_compiled("decode_ring", "decode")


def prepare(x: Tensor, w: Tensor, out: Tensor, config: Config, scales: None = None) -> KernelLaunch:
    """The launch for checked, non-empty tensors, which are not fp8. Raises ValueError for a configuration that does not
    fit one warpgroup, or the shape."""
    if config.num_warps != 4 or config.block_n % 64 or config.num_stages < EARLY.value or config.split > 2:
        raise ValueError(
            f"{config}: decode_ring takes 4 warps, blocks of 64 rows of w, {EARLY.value} stages or more and a split of "
            "0 to 2; change the configuration"
        )
    args = decode.operand_arguments(x, w, out, config, describe)
    tiles, steps = -(-len(w) // config.block_n), -(-x.shape[1] // config.block_k)
    programs = hopper.programs(x.device)
    dealt = deal(tiles, steps, programs, shared_waves=2 if with_split(config, w).split == 2 else 0)
    shared_tiles, slots = 0, 0
    if dealt["SHARED"]:
        shared_tiles = tiles - dealt["whole"] * programs
        slots = shared_tiles + programs - 1
    kept = workspace(x.device, slots * config.block_n * config.block_m, shared_tiles)
    grid = (dealt.pop("gangs"),)
    args |= dealt | dict(sums_ptr=kept.partials, counters_ptr=kept.counters)
    args |= dict(STAGES=config.num_stages, num_warps=config.num_warps)
    return KernelLaunch(decode_ring_kernel, grid, args)


matmul = Decode(
    name="decode_ring", require=require, prepare=prepare,
    variants=decode.matmul.variants,
)  # fmt: skip
"""out[M, N] = x[M, K] @ w[N, K].T for M <= 64, in bf16 or fp16, on a Hopper GPU."""
