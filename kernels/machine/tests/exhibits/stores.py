"""Loads and stores of global memory that meet: between threads of a program, and between programs."""

# ruff: noqa: N803 (kernel arguments: compile-time constants in capitals, as Triton code has them)

import torch
import triton
import triton.language as tl

from .exhibit import Exhibit, whole


@triton.jit
def copy_states(count_ptr, new_ptr, states_ptr, out_ptr, STATES: tl.constexpr, N: tl.constexpr, MENDED: tl.constexpr):
    request, state = tl.program_id(0), tl.program_id(1)
    i = tl.arange(0, N)
    accepted = tl.load(count_ptr + request)
    if state == 0:
        tl.store((new_ptr if MENDED else count_ptr) + request, 1)
    row = request * STATES + state
    tl.store(out_ptr + row * N + i, tl.load(states_ptr + (row * 4 + accepted) * N + i))


def accepted_tokens(mended: bool):
    count, states = torch.tensor([3, 2], dtype=torch.int32), whole(2, 3, 4, 64)
    args = dict(count_ptr=count, new_ptr=count.clone(), states_ptr=states, out_ptr=whole(2, 3, 64), STATES=3, N=64)
    right = torch.stack([states[0, :, 3], states[1, :, 2]])
    return copy_states, (2, 3), args | dict(MENDED=mended), {"out_ptr": right}


@triton.jit
def convolve_and_shift(x_ptr, w_ptr, state_ptr, out_ptr, N: tl.constexpr, MENDED: tl.constexpr):
    """The history is read as [N], three times, and overwritten as [4, N]."""
    state, i, tap = state_ptr + tl.program_id(0) * 3 * N, tl.arange(0, N), tl.arange(0, 4)[:, None]
    x = tl.load(x_ptr + tl.program_id(0) * N + i)
    total = x * tl.load(w_ptr + 3)
    for k in tl.static_range(3):
        total += tl.load(state + k * N + i) * tl.load(w_ptr + k)
    moved = tl.load(state + (tap + 1) * N + i[None, :], mask=tap < 2, other=0)
    entering = tl.load(x_ptr + tl.program_id(0) * N + i[None, :] + 0 * tap)
    if MENDED:
        tl.debug_barrier()
    tl.store(state + tap * N + i[None, :], tl.where(tap == 2, entering, moved), mask=tap < 3)
    tl.store(out_ptr + tl.program_id(0) * N + i, total)


def conv_state(mended: bool):
    x, state, w = whole(2, 128), whole(2, 3, 128), torch.tensor([1, 2, 3, 4], dtype=torch.int32)
    history = torch.cat([state, x[:, None]], 1)
    right = dict(out_ptr=(history * w[:, None]).sum(1), state_ptr=history[:, 1:])
    args = dict(x_ptr=x, w_ptr=w, state_ptr=state, out_ptr=torch.zeros_like(x), N=128, MENDED=mended)
    return convolve_and_shift, (2,), args, right


@triton.jit
def scale_and_rotate(x_ptr, out_ptr, N: tl.constexpr, TAIL: tl.constexpr, MENDED: tl.constexpr):
    row = tl.program_id(0) * N
    i = tl.arange(0, N)
    tl.store(out_ptr + row + i, 2 * tl.load(x_ptr + row + i))
    pair = row + N - TAIL + 2 * tl.arange(0, TAIL // 2)
    even, odd = 2 * tl.load(x_ptr + pair), 2 * tl.load(x_ptr + pair + 1)
    if MENDED:
        tl.debug_barrier()
    tl.store(out_ptr + pair, -odd)
    tl.store(out_ptr + pair + 1, even)


def stored_twice(mended: bool):
    x = whole(2, 512)
    right = 2 * x
    right[:, 256::2], right[:, 257::2] = -2 * x[:, 257::2], 2 * x[:, 256::2]
    args = dict(x_ptr=x, out_ptr=torch.zeros_like(x), N=512, TAIL=256, MENDED=mended)
    return scale_and_rotate, (2,), args, {"out_ptr": right}


@triton.jit
def count_tile(ids_ptr, counts_ptr, tiles, E: tl.constexpr, B: tl.constexpr, MENDED: tl.constexpr):
    tile = tl.program_id(0)
    tl.store(counts_ptr + tl.arange(0, E) * tiles + tile, tl.zeros((E,), tl.int32))
    if MENDED:
        tl.debug_barrier()
    ids = tl.load(ids_ptr + tile * B + tl.arange(0, B))
    tl.atomic_add(counts_ptr + ids * tiles + tile, tl.full((B,), 1, tl.int32))


def zeroed_histogram(mended: bool):
    ids = torch.randint(0, 64, (2, 128), dtype=torch.int32)
    right = torch.stack([torch.bincount(row, minlength=64) for row in ids], 1)
    args = dict(ids_ptr=ids, counts_ptr=whole(64, 2), tiles=2, E=64, B=128, MENDED=mended)
    return count_tile, (2,), args, {"counts_ptr": right}


@triton.jit
def store_and_load(x_ptr, out_ptr, ROWS: tl.constexpr, N: tl.constexpr, B: tl.constexpr, STAGES: tl.constexpr):
    """What was just stored is loaded, which pipelined loops do steps ahead."""
    for row in tl.range(tl.program_id(0), ROWS, tl.num_programs(0), num_stages=STAGES, loop_unroll_factor=1):
        for j0 in tl.range(0, N, B, num_stages=STAGES, loop_unroll_factor=2, flatten=STAGES > 1):
            at = row * N + j0 + tl.arange(0, B)
            tl.store(x_ptr + at, at)
            tl.store(out_ptr + at, tl.load(x_ptr + at) - at)


def flattened(mended: bool):
    x, out = torch.zeros(4, 512, dtype=torch.int32), whole(4, 512)
    args = dict(x_ptr=x, out_ptr=out, ROWS=4, N=512, B=128, STAGES=1 if mended else 2)
    return store_and_load, (2,), args, {"out_ptr": torch.zeros_like(x)}


@triton.jit
def causal_rows(x_ptr, out_ptr, L, M: tl.constexpr, N: tl.constexpr, MENDED: tl.constexpr):
    """Steps of N pass the end of M rows, where zeros begin."""
    rows = tl.program_id(0) * M + tl.arange(0, M)[:, None]
    end = (tl.program_id(0) + 1) * M
    place = out_ptr + rows * L + tl.arange(0, N)[None, :]
    for j0 in range(0, end, N):
        j = j0 + tl.arange(0, N)[None, :]
        x = tl.load(x_ptr + rows * L + j, mask=j < L, other=0)
        tl.store(place, tl.where(j <= rows, x, 0), mask=j < L)
        place += N
    for j0 in range((end + N - 1) // N * N if MENDED else end, L, N):
        tl.store(place, tl.zeros((M, N), tl.int32), mask=j0 + tl.arange(0, N)[None, :] < L)
        place += N


def overshot(mended: bool):
    x = whole(64, 64)
    return (
        causal_rows,
        (4,),
        dict(x_ptr=x, out_ptr=whole(64, 64), L=64, M=16, N=32, MENDED=mended),
        {"out_ptr": x.tril()},
    )


@triton.jit
def double_rows(x_ptr, out_ptr, N: tl.constexpr, MENDED: tl.constexpr):
    i = tl.arange(0, N)
    x_ptr += tl.program_id(0) * N
    if MENDED:
        out_ptr += tl.program_id(0) * N
    tl.store(out_ptr + i, 2 * tl.load(x_ptr + i))


def row_zero(mended: bool):
    x = whole(4, 128)
    return double_rows, (4,), dict(x_ptr=x, out_ptr=whole(4, 128), N=128, MENDED=mended), {"out_ptr": 2 * x}


@triton.jit
def partial_rows(x_ptr, out_ptr, M, ROWS, B: tl.constexpr, N: tl.constexpr):
    """Splits store padded tiles, ROWS rows apart."""
    m, n, split = tl.program_id(0) * B + tl.arange(0, B)[:, None], tl.arange(0, N)[None, :], tl.program_id(1)
    tl.store(out_ptr + (split * ROWS + m) * N + n, tl.load(x_ptr + (split * M + m) * N + n, mask=m < M, other=0))


def splits_overlap(mended: bool):
    x, out = whole(4, 24, 32), torch.zeros(4 * 32, 32, dtype=torch.int32)
    rows = 32 if mended else 24
    right = out.clone()
    for split in range(4):
        right[split * rows : split * rows + 24] = x[split]
    return partial_rows, (2, 4), dict(x_ptr=x, out_ptr=out, M=24, ROWS=rows, B=16, N=32), {"out_ptr": right}


@triton.jit
def reverse_part(x_ptr, tile_ptr, out_ptr, K: tl.constexpr, STEPS: tl.constexpr, WHERE: tl.constexpr):
    """Some threads of two warps pass on what others of them wrote. The barrier between is dropped, or moved up."""
    i = tl.arange(0, 64)
    x = tl.load(x_ptr + i, mask=i < K, other=0)
    for _ in tl.static_range(STEPS):
        if WHERE != "nowhere":
            tl.debug_barrier()
        tl.store(tile_ptr + i, x + 1, mask=i < K)
        if WHERE == "between":
            tl.debug_barrier()
        x = tl.load(tile_ptr + K - 1 - i, mask=i < K, other=0)
    tl.store(out_ptr + i, x, mask=i < K)


def part(steps: int, where: str):
    def make(mended: bool):
        x = whole(48)
        args = dict(x_ptr=x, tile_ptr=whole(48), out_ptr=whole(48), K=48, STEPS=steps, num_warps=2)
        right = (x.flip(0) if steps % 2 else x) + steps
        return reverse_part, (1,), args | dict(WHERE="between" if mended else where), {"out_ptr": right}

    return make


UNKNOWN = "not looked up"
BEFORE_39 = {"3.7": "race", "3.9": "exact"}  # when atomics that release got a barrier before them: triton 10816


@triton.jit
def turn_pairs(q_ptr, cos_ptr, sin_ptr, N: tl.constexpr, MENDED: tl.constexpr):
    """Neighbours are read, and stored as halves of the row: with one warp, too, by other threads than read there."""
    i, row = tl.arange(0, N), q_ptr + tl.program_id(0) * 2 * N
    even, odd = tl.load(row + 2 * i), tl.load(row + 2 * i + 1)
    cos, sin = tl.load(cos_ptr + i), tl.load(sin_ptr + i)
    if MENDED:
        tl.debug_barrier()
    tl.store(row + i, even * cos - odd * sin)
    tl.store(row + N + i, odd * cos + even * sin)


def turned_in_place(mended: bool):
    q, cos, sin = whole(3, 512), whole(256), whole(256)
    even, odd = q[:, ::2].clone(), q[:, 1::2].clone()
    right = torch.cat([even * cos - odd * sin, odd * cos + even * sin], 1)
    args = dict(q_ptr=q, cos_ptr=cos, sin_ptr=sin, N=256, MENDED=mended, num_warps=1)
    return turn_pairs, (3,), args, {"q_ptr": right}


@triton.jit
def double_all(x_ptr, out_ptr, N: tl.constexpr):
    """Each program stores all of it: a race of equal values, which is a note."""
    i = tl.arange(0, N)
    tl.store(out_ptr + i, 2 * tl.load(x_ptr + i))


def same_values(mended: bool):
    x = whole(64)
    return double_all, (3,), dict(x_ptr=x, out_ptr=whole(64), N=64), {"out_ptr": 2 * x}


EXHIBITS = [
    Exhibit("accepted_tokens", "vllm-ascend 13013", "none reported", accepted_tokens, "race"),
    Exhibit("conv_state", "TensorRT-LLM 17522", UNKNOWN, conv_state, "race"),
    Exhibit("stored_twice", "triton 10743", UNKNOWN, stored_twice, "race"),
    Exhibit("zeroed_histogram", "in Liger-Kernel 0.8.5", "none reported", zeroed_histogram, BEFORE_39),
    Exhibit("flattened", "triton 8259", UNKNOWN, flattened, "race"),
    Exhibit("overshot", "mamba 537", UNKNOWN, overshot, "race"),
    Exhibit("turned_in_place", "Megatron-LM 5963", UNKNOWN, turned_in_place, "race"),
    Exhibit("same_values", "TritonBench 10", "none reported", same_values, "exact"),
    Exhibit("row_zero", "Triton-distributed 185", "NaN, garbage", row_zero, "race"),
    Exhibit("splits_overlap", "facebookexperimental/triton 3401", UNKNOWN, splits_overlap, "race"),
    Exhibit("partial_barrier", "tilelang 2556", "H100: differs between runs", part(1, "nowhere"), "race"),
    Exhibit("hoisted_barrier", "tilelang 2612", "H100, L40S: all wrong", part(3, "before"), "race"),
]
