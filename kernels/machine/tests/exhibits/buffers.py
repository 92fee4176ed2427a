"""A buffer in shared memory that is written again, or read, before its turn."""

# ruff: noqa: N803 (kernel arguments: compile-time constants in capitals, as Triton code has them)

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from .exhibit import Exhibit, whole
from .fences import SIDE, layout_of, places, tma_load, tma_store

copy_line = async_copy.async_load if hasattr(async_copy, "async_load") else async_copy.async_copy_global_to_shared
LINE = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))
TILE = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0]))
PLAIN = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))


@gluon.jit
def add_share(x_ptr, total, turn, done, WHO: gl.constexpr, MENDED: gl.constexpr):
    share = gl.sum(gl.load(x_ptr + WHO * 128 + gl.arange(0, 128, LINE)), 0)
    if MENDED and WHO == 1:
        mbarrier.wait(turn, 0)
    total.store(total.load(LINE) + share)
    if WHO == 0:
        mbarrier.arrive(turn)
    mbarrier.arrive(done)


@gluon.jit
def add_shares(x_ptr, out_ptr, MENDED: gl.constexpr):
    total = gl.allocate_shared_memory(gl.int32, [128], PLAIN)
    turn = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    done = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(turn, count=1)
    mbarrier.init(done, count=2)
    total.store(gl.zeros([128], gl.int32, LINE))
    gl.warp_specialize(
        [(add_share, (x_ptr, total, turn, done, 0, MENDED)), (add_share, (x_ptr, total, turn, done, 1, MENDED))],
        [4],
        [64],
    )
    mbarrier.wait(done, 0)
    gl.store(out_ptr + gl.arange(0, 128, LINE), total.load(LINE))


def added_in_shared(mended: bool):
    x = whole(256)
    return (
        add_shares,
        (1,),
        dict(x_ptr=x, out_ptr=whole(128), MENDED=mended, num_warps=4),
        {"out_ptr": x.sum().expand(128)},
    )


@gluon.jit
def load_tiles(x_desc, slot, full, empty, tiles):
    for tile in range(tiles):
        mbarrier.wait(empty, tile & 1 ^ 1)
        mbarrier.expect(full, x_desc.block_type.nbytes)
        tma_load(x_desc, [tile * SIDE, 0], full, slot)


@gluon.jit
def double_tiles(out_desc, slot, full, empty, tiles, MENDED: gl.constexpr):
    for tile in range(tiles):
        mbarrier.wait(full, tile & 1)
        slot.store(slot.load(TILE) * 2)
        fence_async_shared()
        tma_store(out_desc, [tile * SIDE, 0], slot)
        if MENDED:
            tma.store_wait(0)
        mbarrier.arrive(empty)
    tma.store_wait(0)


@gluon.jit
def double(x_desc, out_desc, tiles, MENDED: gl.constexpr):
    """A slot is an input, then what the output is stored from."""
    slot = gl.allocate_shared_memory(gl.bfloat16, [SIDE, SIDE], x_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(full, count=1)
    mbarrier.init(empty, count=1)
    gl.warp_specialize(
        [
            (double_tiles, (out_desc, slot, full, empty, tiles, MENDED)),
            (load_tiles, (x_desc, slot, full, empty, tiles)),
        ],
        [1],
        [24],
    )


def tiles_of(count: int) -> torch.Tensor:
    return torch.randint(-9, 10, (count * 64, 64)).to(torch.bfloat16)


def descriptor(tensor: torch.Tensor) -> TensorDescriptor:
    return TensorDescriptor.from_tensor(tensor, [64, 64], layout_of(tensor[:64]))


def drained_late(mended: bool):
    x = tiles_of(3)
    args = dict(x_desc=descriptor(x), out_desc=descriptor(torch.zeros_like(x)), tiles=3, MENDED=mended, num_warps=4)
    return double, (1,), args, {"out_desc": 2 * x}


@gluon.jit
def store_one(x_ptr, out_desc, tile, MENDED: gl.constexpr):
    buffer = gl.allocate_shared_memory(gl.bfloat16, [SIDE, SIDE], out_desc.layout)
    buffer.store(gl.load(x_ptr + tile * SIDE * SIDE + places(TILE)))
    fence_async_shared()
    tma_store(out_desc, [tile * SIDE, 0], buffer)
    if MENDED:
        tma.store_wait(0)


@gluon.jit
def store_both(x_ptr, out_desc, MENDED: gl.constexpr):
    """The allocator gives the bytes of the first buffer to the second."""
    store_one(x_ptr, out_desc, 0, MENDED)
    store_one(x_ptr, out_desc, 1, MENDED)
    tma.store_wait(0)


def source_reused(mended: bool):
    x = tiles_of(2)
    args = dict(x_ptr=x, out_desc=descriptor(torch.zeros_like(x)), MENDED=mended, num_warps=4)
    return store_both, (1,), args, {"out_desc": x}


@gluon.jit
def add_tiles(x_desc, out_ptr, TILES: gl.constexpr, MENDED: gl.constexpr):
    """Each tile has an mbarrier of its own, which is in its first phase, whatever the tile's number."""
    ring = gl.allocate_shared_memory(gl.bfloat16, [TILES, SIDE, SIDE], x_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [TILES, 1], mbarrier.MBarrierLayout())
    for tile in gl.static_range(TILES):
        mbarrier.init(full.index(tile), count=1)
    total = gl.zeros([SIDE, SIDE], gl.float32, TILE)
    for tile in range(TILES):
        mbarrier.expect(full.index(tile), x_desc.block_type.nbytes)
        tma_load(x_desc, [tile * SIDE, 0], full.index(tile), ring.index(tile))
        mbarrier.wait(full.index(tile), 0 if MENDED else tile & 1)
        total += ring.index(tile).load(TILE).to(gl.float32)
    for tile in gl.static_range(TILES):
        mbarrier.wait(full.index(tile), 0)
    gl.store(out_ptr + places(TILE), total)


def parity_of_the_loop(mended: bool):
    x = tiles_of(4)
    args = dict(x_desc=descriptor(x), out_ptr=torch.zeros(64, 64), TILES=4, MENDED=mended, num_warps=4)
    return add_tiles, (1,), args, {"out_ptr": x.float().reshape(4, 64, 64).sum(0)}


@gluon.jit
def add_rows(x_ptr, out_ptr, steps, SLOTS: gl.constexpr, N: gl.constexpr, MISTAKE: gl.constexpr):
    """Copies are as many steps ahead as there are slots, less the one that is read."""
    other: gl.constexpr = gl.BlockedLayout([4], [32], [4], [0])
    i = gl.arange(0, N, LINE)
    ring = gl.allocate_shared_memory(gl.int32, [SLOTS, N], PLAIN)
    for ahead in gl.static_range(SLOTS):
        copy_line(ring.index(ahead), x_ptr + ahead * N + i)
        async_copy.commit_group()
    total = gl.zeros([N], gl.int32, other)
    for step in range(steps):
        slot = ring.index(step % SLOTS)
        async_copy.wait_group(SLOTS if MISTAKE == "waits for one too few" else SLOTS - 1)
        more = x_ptr + (step + SLOTS) * N + i
        rest = i < N * (step + SLOTS < steps).to(gl.int32)
        if MISTAKE == "copies first":
            copy_line(slot, more, mask=rest)
            async_copy.commit_group()
        total += slot.load(other)
        if MISTAKE != "copies first":
            copy_line(slot, more, mask=rest)
            async_copy.commit_group()
    async_copy.wait_group(0)
    gl.store(out_ptr + gl.arange(0, N, other), total)


def copied_ahead(mistake: str, slots: int):
    def make(mended: bool):
        x = whole(6, 512)
        args = dict(x_ptr=x, out_ptr=whole(512), steps=6, SLOTS=slots, N=512, MISTAKE="" if mended else mistake)
        return add_rows, (1,), args | dict(num_warps=4), {"out_ptr": x.sum(0)}

    return make


UNKNOWN = "not looked up"
EXHIBITS = [
    Exhibit("added_in_shared", "FLA 889", UNKNOWN, added_in_shared, "race"),
    Exhibit("drained_late", "mKernel 18", "wrong at large sizes", drained_late, "race"),
    Exhibit("source_reused", "FlagTree 1166", "none reported", source_reused, "race"),
    Exhibit("parity_of_the_loop", "tilelang 2927", "H200: wrong", parity_of_the_loop, "race or hang"),
    Exhibit("overfilled_ring", "aiter 4537", UNKNOWN, copied_ahead("waits for one too few", 3), "race"),
    Exhibit("copied_first", "tilelang 2668", "L40S: wrong", copied_ahead("copies first", 1), "race"),
]
