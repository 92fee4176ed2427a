"""Rings of buffers between a warp that loads and warpgroups that multiply, with mbarriers on both sides."""

# ruff: noqa: N803 (kernel arguments: compile-time constants in capitals, as Triton code has them)

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from .exhibit import Exhibit

tma_load = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared  # since Triton 3.9

SIDE = gl.constexpr(64)  # of all tiles
STAGES = gl.constexpr(2)
MISTAKES = (
    "released while it is read", "each tile begins again", "counts one of two", "w is waited for afterwards",
    "no arrival with the bytes",
)  # fmt: skip


@gluon.jit
def load_tiles(x_desc, ring, full, empty, tiles, steps, MISTAKE: gl.constexpr):
    for tile in range(tiles):
        for step in range(steps):
            turn = step if MISTAKE == "each tile begins again" else tile * steps + step
            mbarrier.wait(empty.index(turn % STAGES), turn // STAGES & 1 ^ 1)
            mbarrier.expect(full.index(turn % STAGES), x_desc.block_type.nbytes)
            tma_load(x_desc, [(tile * steps + step) * SIDE, 0], full.index(turn % STAGES), ring.index(turn % STAGES))


@gluon.jit
def multiply_tiles(out_ptr, ring, w, full, empty, tiles, steps, WHO: gl.constexpr, MISTAKE: gl.constexpr):
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, SIDE, 16])
    rows = gl.arange(0, SIDE, layout=gl.SliceLayout(1, layout))[:, None]
    columns = gl.arange(0, SIDE, layout=gl.SliceLayout(0, layout))[None, :]
    for tile in range(tiles):
        acc = gl.zeros([SIDE, SIDE], gl.float32, layout)
        for step in range(steps):
            turn = step if MISTAKE == "each tile begins again" else tile * steps + step
            mbarrier.wait(full.index(turn % STAGES), turn // STAGES & 1)
            acc = warpgroup_mma(ring.index(turn % STAGES), w, acc, is_async=True)
            acc = warpgroup_mma_wait(1 if MISTAKE == "released while it is read" else 0, deps=[acc])
            mbarrier.arrive(empty.index(turn % STAGES))
        acc = warpgroup_mma_wait(0, deps=[acc])
        gl.store(out_ptr + ((WHO * tiles + tile) * SIDE + rows) * SIDE + columns, acc)


@gluon.jit
def ring_kernel(x_desc, w_desc, out_ptr, tiles, steps, MISTAKE: gl.constexpr):
    ring = gl.allocate_shared_memory(gl.bfloat16, [STAGES, SIDE, SIDE], x_desc.layout)
    w = gl.allocate_shared_memory(gl.bfloat16, [SIDE, SIDE], w_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    landed = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(landed, count=2 if MISTAKE == "no arrival with the bytes" else 1)
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=1 if MISTAKE == "counts one of two" else 2)
    mbarrier.expect(landed, w_desc.block_type.nbytes)
    tma_load(w_desc, [0, 0], landed, w)
    if MISTAKE != "w is waited for afterwards":
        mbarrier.wait(landed, 0)
    gl.warp_specialize(
        [
            (multiply_tiles, (out_ptr, ring, w, full, empty, tiles, steps, 0, MISTAKE)),
            (multiply_tiles, (out_ptr, ring, w, full, empty, tiles, steps, 1, MISTAKE)),
            (load_tiles, (x_desc, ring, full, empty, tiles, steps, MISTAKE)),
        ],
        [4, 1],
        [128, 24],
    )
    mbarrier.wait(landed, 0)


def ring(mistake: str):
    def make(mended: bool):
        tiles, steps = 2, 3
        x = torch.randint(-3, 4, (tiles * steps, 64, 64)).to(torch.bfloat16)
        w = torch.randint(-3, 4, (64, 64)).to(torch.bfloat16)
        out = torch.full((2, tiles, 64, 64), torch.nan)
        layout = gl.NVMMASharedLayout.get_default_for([64, 64], gl.bfloat16)
        x_desc, w_desc = (TensorDescriptor.from_tensor(t.reshape(-1, 64), [64, 64], layout) for t in (x, w))
        sizes = dict(tiles=tiles, steps=steps, MISTAKE="" if mended else mistake, num_warps=4)
        expected = (x.float() @ w.float()).reshape(tiles, steps, 64, 64).sum(1).expand_as(out)
        return ring_kernel, (1,), dict(x_desc=x_desc, w_desc=w_desc, out_ptr=out, **sizes), {"out_ptr": expected}

    return make


RELEASED, AGAIN, ONE, LATE, BYTES = MISTAKES
EXHIBITS = [
    Exhibit("released_early", "facebookexperimental/triton 1278", "none reported", ring(RELEASED), "race"),
    Exhibit(
        "phase_begins_again", "tilelang 2674", "H100 PCIe: wrong from the second tile on, or a launch failure",
        ring(AGAIN), "wrong",
    ),
    Exhibit("second_reader", "tilelang 2613", "H100: 21 to 27 of 30 runs wrong", ring(ONE), "race or hang"),
    Exhibit("late_wait", "facebookexperimental/CUTracer 106", "Hopper: passes without delays", ring(LATE), "race"),
    Exhibit("bytes_alone", "tilelang 2566", "H100: hangs", ring(BYTES), "hang"),
]  # fmt: skip
