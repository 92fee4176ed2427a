"""Devices that write into each other's memory and tell by flags: all-gather.

Peers are known by their addresses, as symmetric memory has them: a table of one int64 a device. A flag is a word in the
memory of the device that waits for it. Whoever waits takes it down again, so a next launch finds all flags as before.
"""

# ruff: noqa: N803 (kernel arguments: sizes and compile-time constants in capitals, as Triton code has them)

import torch
import triton
import triton.language as tl

from . import Addresses, Trial, trial, whole
from .orders import counters

RANKS = 3


@triton.jit
def at_peer(table_ptr, peer, DTYPE: tl.constexpr):
    return tl.load(table_ptr + peer).to(tl.pointer_type(DTYPE))


@triton.jit
def raise_flag(flags_ptrs, peer, number):
    """Tell a peer of everything that all threads have written."""
    tl.debug_barrier()  # one thread releases what all have stored
    tl.atomic_xchg(at_peer(flags_ptrs, peer, tl.int32) + number, 1, sem="release", scope="sys")


@triton.jit
def take_flag(flag_ptr):
    """Wait for it. One thread acquires: what it read reaches the others through a barrier."""
    while tl.atomic_cas(flag_ptr, 1, 0, sem="acquire", scope="sys") == 0:
        pass


@triton.jit
def all_gather_kernel(
    chunk_ptr, gathered_ptr, flags_ptr, out_ptr, rank, gathered_ptrs, flags_ptrs,
    RANKS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Write the own chunk everywhere, the next device first. Double what has come, the device before first.

    Nobody may write here again before all devices have ended.
    """
    program, place, length = tl.program_id(0), tl.arange(0, CHUNK), tl.num_programs(0) * CHUNK
    chunk = tl.load(chunk_ptr + program * CHUNK + place)
    for turn in range(1, RANKS + 1):
        peer = (rank + turn) % RANKS
        tl.store(at_peer(gathered_ptrs, peer, tl.float32) + rank * length + program * CHUNK + place, chunk)
        raise_flag(flags_ptrs, peer, program * RANKS + rank)
    for turn in range(1, RANKS + 1):
        source = (rank + RANKS - turn) % RANKS
        take_flag(flags_ptr + program * RANKS + source)
        at = source * length + program * CHUNK + place
        tl.store(out_ptr + at, 2 * tl.load(gathered_ptr + at))


@trial
def all_gather() -> list[Trial]:
    chunks = [whole(2 * 256, seed=rank) for rank in range(RANKS)]
    gathered, flags = [torch.empty(RANKS * 512) for _ in chunks], [counters(2 * RANKS) for _ in chunks]
    shared = dict(gathered_ptrs=Addresses(gathered), flags_ptrs=Addresses(flags), RANKS=RANKS, CHUNK=256, num_warps=4)
    return [
        Trial(
            all_gather_kernel,
            (2,),
            shared
            | dict(chunk_ptr=chunk, gathered_ptr=here, flags_ptr=its_flags, out_ptr=torch.empty_like(here), rank=rank),
            dict(out_ptr=2 * torch.cat(chunks)),
        )
        for rank, (chunk, here, its_flags) in enumerate(zip(chunks, gathered, flags, strict=True))
    ]
