"""Counters through which kernels and links tell one another on the device: how they are raised, and waited for.

Flags are sequence numbers that only grow, so nothing is reset between launches. A wait is bounded: `Signals.lost`
(kernels.contract) gets the number of the flag that did not come, all other waits are given up, and the result is void.
Timers and fences are PTX: kernels that wait run compiled, on a GPU or by `kernels.machine`, and not in Triton's
interpreter.

All threads of a program must decide alike. So flags are read by scalar or tensor atomics, whose results Triton hands to
all of them; a plain load or a timer may differ between warps, which then part ways before a barrier and hang.

Sources: waits as acquire loads at system scope are those of Kraken and Triton-distributed. Triton turns an atomic add
of a scalar 0 into a load. The writer's stores and our TMA loads go through different proxies, hence the fence.
"""

# ruff: noqa: N803 (kernel arguments: compile-time constants in capitals, as Triton code has them)

import triton
import triton.language as tl
from triton.language.extra.cuda import globaltimer

LOOKS = tl.constexpr(64)
"""A waiting program reads the time, and whether another has given up, every so many looks at its flag: some 50 us."""

POLLS = tl.constexpr(hasattr(tl, "atomic_poll"))
"""From Triton 3.9 on a single instruction polls a flag, for LONGEST_POLL_NS at most."""

LONGEST_POLL_NS = tl.constexpr(50_000)


@triton.jit
def raise_counter(counter_ptr, time_ptr, by):
    """Add `by` with release semantics, at the scope that other devices read with; `time_ptr` gets the time."""
    tl.atomic_max(time_ptr, globaltimer(), sem="relaxed", scope="gpu")
    tl.atomic_add(counter_ptr, by, sem="release", scope="sys")


@triton.jit
def arrived(flags, chunk, wanted, RANKS: tl.constexpr):
    """The number of chunks that are here without a gap, given that those before position `chunk` are."""
    position = tl.arange(0, triton.next_power_of_2(RANKS))
    relevant = (position >= chunk) & (position > 0) & (position < RANKS)
    nothing = tl.zeros_like(position)
    flag = tl.atomic_add(flags + position, nothing, mask=relevant, sem="acquire", scope="sys")
    return tl.min(tl.where(relevant & (flag < wanted), position, RANKS), axis=0)


@triton.jit
def wait(flags, chunk, wanted, lost_ptr, number, patience, RANKS: tl.constexpr):
    """Wait for the chunk at position `chunk`. Returns how many chunks are here; all of them where the wait is given
    up."""
    here = arrived(flags, chunk, wanted, RANKS)
    lost, looks, began = 0, 0, globaltimer()
    while (here == chunk) & (lost == 0):
        if POLLS:  # ends when the flag equals `wanted`; a flag beyond that is seen behind it
            tl.atomic_poll(flags + chunk, wanted, sem="relaxed", scope="sys", timeout_ns=LONGEST_POLL_NS)
            looks += LOOKS
        else:
            looks += 1
        flag = look(flags + chunk)
        if flag >= wanted:
            here = arrived(flags, chunk, wanted, RANKS)
        elif looks % LOOKS == 0:
            late = (globaltimer() - began) // 1000 > patience
            lost = tl.atomic_cas(lost_ptr, 0, tl.where(late, number, 0), sem="relaxed", scope="sys")
    if lost != 0:
        here = tl.full((), RANKS, dtype=tl.int32)
    fence_proxy()
    return here


@triton.jit
def look(flag_ptr):
    """The flag: whoever finds it up finds what was stored before it was raised."""
    return tl.atomic_add(flag_ptr, 0, sem="acquire", scope="sys")


@triton.jit
def wait_for(flag_ptr, wanted, lost_ptr, number, patience):
    """Wait until a flag is up, by one lane, or until this wait or another is given up. What comes behind may be loaded
    by TMA."""
    flag = look(flag_ptr)
    lost, looks, began = 0, 0, globaltimer()
    while (flag < wanted) & (lost == 0):
        if looks % LOOKS == 0:
            late = (globaltimer() - began) // 1000 > patience
            lost = tl.atomic_cas(lost_ptr, 0, tl.where(late, number, 0), sem="relaxed", scope="sys")
        looks += 1
        flag = look(flag_ptr)
    fence_proxy()


@triton.jit
def fence_proxy():
    """What this thread knows to be stored in global memory may be read by TMA, through another proxy. Triton has no
    name for this fence."""
    tl.inline_asm_elementwise("fence.proxy.async.global; mov.u32 $0, 0;", "=r", [], tl.int32, is_pure=False, pack=1)
