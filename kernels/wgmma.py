"""A warpgroup's sums, from zero to memory: the wgmma group that adds the products of a stage, and how sums are parted,
scaled, rounded and stored.

Gluon has instructions whose width is a power of two. An odd one is written as PTX, which Gluon takes since Triton 3.9,
over sums that are three tensors of one width and a rest: Gluon's tensors are powers of two wide.
"""

# ruff: noqa: N803 (kernel arguments: compile-time constants in capitals, as Triton code has them)

from typing import Any

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from kernels.ring import as_block, tma_store

inline_asm: Any = getattr(gl, "inline_asm", None)
"""UNTIMED (odd widths): a function of Gluon; None before Triton 3.9."""

CONSUMERS = gl.constexpr(2)
"""Warpgroups of a program that multiply: their sums fill the registers of an SM."""


@gluon.constexpr_function
def wgmma_layout(columns, ctas=(), dtype=gl.bfloat16):
    """The layout in which a warpgroup's threads hold the sums of one wgmma over 32 bytes of `dtype`. `ctas` says how
    the CTAs of a cluster part it."""
    return gl.NVMMADistributedLayout([3, 0], [4, 1], [16, columns, 256 // dtype.primitive_bitwidth], [*ctas])


@gluon.jit
def no_sums(rows: gl.constexpr, columns: gl.constexpr, wide: gl.constexpr, ctas: gl.constexpr, dtype: gl.constexpr):
    """A consumer's sums, all 0: one tensor in a tuple, or an odd tile's three of `wide` columns and the rest."""
    sums = gl.zeros([rows, wide], gl.float32, wgmma_layout(wide, ctas, dtype))
    if columns == wide:
        return (sums,)
    else:  # UNTIMED (odd widths)
        rest: gl.constexpr = columns % wide
        return sums, sums, sums, gl.zeros([rows, rest], gl.float32, wgmma_layout(rest))


@gluon.jit
def multiply(x, w, acc, columns: gl.constexpr):
    """Begin to add the products of a stage to the sums: one wgmma group."""
    if len(acc) == 1:
        return (warpgroup_mma(x, w.permute((1, 0)), acc[0], is_async=True),)
    else:  # UNTIMED (odd widths)
        first, second, third, rest = acc
        return inline_asm(
            wgmma_text(columns, x.dtype), wgmma_constraints(columns), (first, second, third, rest, x, w),
            (first.type, second.type, third.type, rest.type),
        )  # fmt: skip


@gluon.jit
def promoted(x, w, acc, scales, m0, n0, step, steps):
    """The sums plus the products of a stage, which is a block along K, times its scales."""
    x_scales_ptr, w_scales_ptr, rows, _ = scales
    m = m0 + gl.arange(0, acc.shape[0], gl.SliceLayout(1, acc.type.layout))
    x_scales = gl.load(x_scales_ptr + step.to(gl.int64) * rows + m, mask=m < rows, other=0.0)
    w_scale = gl.load(w_scales_ptr + n0 // x.shape[1] * steps + step)
    sums = warpgroup_mma(x, w.permute((1, 0)), gl.zeros_like(acc), use_acc=False, is_async=True)
    sums = warpgroup_mma_wait(0, deps=(sums,))
    return acc + sums * (x_scales * w_scale)[:, None]


@gluon.jit
def wait(pending: gl.constexpr, acc):
    """Wait until at most `pending` wgmma groups are in flight."""
    if len(acc) == 1:
        return (warpgroup_mma_wait(pending, deps=acc),)
    else:
        return warpgroup_mma_wait(pending, deps=acc)


@gluon.jit
def parts_of(acc, COLUMNS: gl.constexpr):
    """Sums in parts of so many columns. A thread holds both columns of each pair that is parted, so nothing moves."""
    if acc.shape[1] == COLUMNS:
        return (acc,)
    else:
        left, right = acc.reshape((acc.shape[0], 2, acc.shape[1] // 2)).permute((0, 2, 1)).split()
        return parts_of(left, COLUMNS) + parts_of(right, COLUMNS)


@gluon.jit
def scaled(acc, scales, m0, n0, layout: gl.constexpr):
    """Sums of fp8, in `layout`, times the scales of their rows of x and of w."""
    x_scales_ptr, w_scales_ptr, rows, columns = scales
    m = m0 + gl.arange(0, acc.shape[0], gl.SliceLayout(1, layout))
    n = n0 + gl.arange(0, acc.shape[1], gl.SliceLayout(0, layout))
    x_scales = gl.load(x_scales_ptr + m, mask=m < rows, other=0.0)
    w_scales = gl.load(w_scales_ptr + n, mask=n < columns, other=0.0)
    return gl.convert_layout(acc, layout) * x_scales[:, None] * w_scales[None, :]


@gluon.jit
def store(out, acc, m0, n0, smem, scales, WHO: gl.constexpr, PART: gl.constexpr):
    """Round part PART of a tile's columns, and store it by the descriptor `out`, or have it stored. Parts lie side by
    side, all as wide as this one, and use the buffers of consumer WHO in turn. `scales` are those of fp8 by row, or
    None four times."""
    columns: gl.constexpr = acc.shape[1]
    layout: gl.constexpr = wgmma_layout(columns, smem.staging.layout.cga_layout)
    if scales[0] is not None:
        acc = scaled(acc, scales, m0, n0 + PART * columns, layout)
    buffers: gl.constexpr = smem.staging.shape[0] // CONSUMERS
    place: gl.constexpr = WHO * buffers + PART % buffers
    buffer = as_block(smem.staging.index(place), out)
    rounded = acc.to(out.dtype)
    if smem.staged is None:
        tma.store_wait(buffers - 1)  # the store that used this buffer last has read it
    else:
        mbarrier.wait(smem.freed.index(place), PART // buffers % 2 ^ 1)  # a tile uses it an even number of times
    buffer.store(gl.convert_layout(rounded, layout))
    fence_async_shared()  # TMA reads through another proxy than these stores wrote
    if smem.staged is None:
        tma_store(out, [m0, n0 + PART * columns], buffer)
    else:
        mbarrier.arrive(smem.staged.index(place))


@gluon.jit
def store_and_tell(work, tensors, smem):
    """Store part after part of both consumers as they are staged. Once all of a tile lies in memory, tell of it: a role
    of one warp."""
    columns: gl.constexpr = tensors.out.block_type.shape[1]
    rows: gl.constexpr = work.block_m // CONSUMERS
    buffers: gl.constexpr = smem.staging.shape[0] // CONSUMERS
    parts: gl.constexpr = gl.cdiv(work.block_n, columns)
    steps = gl.cdiv(work.K, work.block_k)
    program, member = work.place()
    for number in range(work.dealt.pieces(program, steps)):
        tile, _first, _last = work.dealt.piece(number, program, steps)
        m0, n0 = work.corner(tile, member)
        for part in gl.static_range(parts):
            out = tensors.out_rest if (part + 1) * columns > work.block_n else tensors.out  # of an odd tile
            for who in gl.static_range(CONSUMERS):
                place = who * buffers + part % buffers
                mbarrier.wait(smem.staged.index(place), part // buffers % 2)
                tma_store(out, [m0 + who * rows, n0 + part * columns], as_block(smem.staging.index(place), out))
            tma.store_wait(0)  # both have been read
            for who in gl.static_range(CONSUMERS):
                mbarrier.arrive(smem.freed.index(who * buffers + part % buffers))
        stored: gl.constexpr = "cp.async.bulk.wait_group 0; mov.u32 $0, 0;"
        gl.inline_asm_elementwise(stored, "=r", [], gl.int32, is_pure=False, pack=1)
        gl.barrier()  # one thread tells, another may have stored
        work.tell(tile)


@gluon.constexpr_function
def wgmma_text(columns, dtype):
    """The PTX of one wgmma group over 64 along K. Both blocks lie in swizzled rows of 128 bytes. `high` is the upper
    half of both matrix descriptors: that swizzle, and 1024 bytes from eight rows to the next eight. `x` and `w` are the
    lower halves, with addresses in units of 16 bytes."""
    sums = ", ".join(f"${number}" for number in range(columns // 2))
    kind = {"bf16": "bf16", "fp16": "f16"}[str(dtype)]
    lines = ["{ .reg .b64 left, right; .reg .b32 x, w, high;", "mov.b32 high, 0x40000040;"]
    for name, operand in (("x", columns), ("w", columns + 1)):
        lines.append(f"bfe.u32 {name}, ${operand}, 4, 14; or.b32 {name}, {name}, 0x10000;")
    lines.append("wgmma.fence.sync.aligned;")
    for _ in range(4):
        lines.append("mov.b64 left, {x, high}; mov.b64 right, {w, high};")
        lines.append(
            f"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{kind}.{kind} {{{sums}}}, left, right, 1, 1, 1, 0, 0;"
        )
        lines.append("add.u32 x, x, 2; add.u32 w, w, 2;")  # 16 along K are 32 bytes
    return "\n".join([*lines, "wgmma.commit_group.sync.aligned; }"])


@gluon.constexpr_function
def wgmma_constraints(columns):
    """LLVM's constraints of `wgmma_text`: the sums stay in their registers, two addresses follow."""
    count = columns // 2
    return ",".join(["=f"] * count + [*map(str, range(count)), "r", "r"])
