"""Kernels that wait for arrival flags, some of them wrongly: `python tests/kernels/planted_waits.py` compiles them with
no GPU and prints {name: TTGIR} as JSON. What `kernels.inspect.load_order` says of each is in test_load_order.py."""

import json

import torch
import triton
import triton.language as tl

from kernels.contract import KernelLaunch
from kernels.inspect.cubin import compile_launch
from kernels.persistent import describe

BLOCK = tl.constexpr(128)  # rows and columns of a tile
BLOCK_K = tl.constexpr(64)
STEPS = tl.constexpr(8)  # along K in a chunk
CHUNKS, TILES = 4, 32


@triton.jit
def wait(flag_ptr):
    while tl.atomic_add(flag_ptr, 0, sem="acquire", scope="sys") == 0:
        pass


@triton.jit
def here_after_wait(flags_ptr, chunk, chunk_to):
    """How many chunks are here once `chunk` is."""
    here = chunk
    while here == chunk:
        while (here < chunk_to) & (tl.atomic_add(flags_ptr + here, 0, sem="acquire", scope="sys") != 0):
            here += 1
    return here


@triton.jit
def step(x_desc, w_desc, acc, tile, k):
    x = x_desc.load([tile * BLOCK, k * BLOCK_K])
    w = w_desc.load([0, k * BLOCK_K])
    return tl.dot(x, w.T, acc)


@triton.jit
def store(out_desc, acc, tile):
    out_desc.store([tile * BLOCK, 0], acc.to(out_desc.dtype))


@triton.jit
def flat(x_desc, w_desc, out_desc, flags_ptr, tiles, chunks):
    """One loop over K that waits where a chunk begins: the pipeliner loads ahead of the wait."""
    tile = tl.program_id(0)
    acc = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for k in range(0, chunks * STEPS):
        if k % STEPS == 0:
            wait(flags_ptr + k // STEPS)
        acc = step(x_desc, w_desc, acc, tile, k)
    store(out_desc, acc, tile)


@triton.jit
def nested(x_desc, w_desc, out_desc, flags_ptr, tiles, chunks, when: tl.constexpr):
    """A loop over K in one over chunks, each with its wait before, after, or never."""
    tile = tl.program_id(0)
    acc = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for chunk in range(0, chunks):
        if when == "before":
            wait(flags_ptr + chunk)
        for k in range(chunk * STEPS, chunk * STEPS + STEPS):
            acc = step(x_desc, w_desc, acc, tile, k)
        if when == "after":
            wait(flags_ptr + chunk)
    store(out_desc, acc, tile)


@triton.jit
def visits(x_desc, w_desc, out_desc, flags_ptr, tiles, chunks):
    """Persistent: tile after tile, and in each a wait says how many chunks the inner loop may take."""
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        acc = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
        chunk = 0
        while chunk < chunks:
            here = here_after_wait(flags_ptr, chunk, chunks)
            for k in range(chunk * STEPS, here * STEPS):
                acc = step(x_desc, w_desc, acc, tile, k)
            chunk = here
        store(out_desc, acc, tile)


@triton.jit
def first_only(x_desc, w_desc, out_desc, flags_ptr, tiles, chunks):
    """Each tile waits for its first chunk and takes them all."""
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        acc = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
        wait(flags_ptr)
        for chunk in range(0, chunks):
            for k in range(chunk * STEPS, chunk * STEPS + STEPS):
                acc = step(x_desc, w_desc, acc, tile, k)
        store(out_desc, acc, tile)


KERNELS = {
    "flat": (flat, {}),
    "nested": (nested, {"when": "before"}),
    "no_wait": (nested, {"when": "never"}),
    "wait_after": (nested, {"when": "after"}),
    "visits": (visits, {}),
    "first_only": (first_only, {}),
}


def launch(kernel, more: dict) -> KernelLaunch:
    columns = CHUNKS * STEPS.value * BLOCK_K.value
    x, w, out = (torch.empty((TILES * BLOCK.value, columns), dtype=torch.bfloat16) for _ in range(3))
    args = dict(
        x_desc=describe(x, (BLOCK.value, BLOCK_K.value)), w_desc=describe(w, (BLOCK.value, BLOCK_K.value)),
        out_desc=describe(out, (BLOCK.value, BLOCK.value)), flags_ptr=torch.zeros(CHUNKS, dtype=torch.int32),
        tiles=TILES, chunks=CHUNKS, num_warps=4, num_stages=3,
    )  # fmt: skip
    return KernelLaunch(kernel, (TILES,), args | more)


if __name__ == "__main__":
    print(json.dumps({name: compile_launch(launch(*made), 90).ttgir for name, made in KERNELS.items()}))
