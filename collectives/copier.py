"""The kernels of the GPU links: a paced copier, a wait for a flag, and a time stamp.

The copier is a few small programs (no shared memory, at most 8192 registers each, so that one fits on an SM beside a
matmul that leaves as many; a vendor's may leave none, and then does without those SMs). All of them copy each slice of
each transfer together, then spin until its time has come; so the traffic is as even as a wire's, and a transfer is
complete at t0 + (its and all earlier bytes) / bandwidth. Times are those of `globaltimer`, nanoseconds that all SMs
share. Each program adds one to a transfer's flag, with release at system scope, when its part is written: the transfer
is here once the flag has grown by the number of programs. Flags are never reset.

Triton's interpreter has no `globaltimer`: with TIMED=False the copier does not pace and the wait is bounded by tries.
"""

# ruff: noqa: N803 (kernel arguments: compile-time constants in capitals, as Triton code has them)

import triton
import triton.language as tl
from triton.language.extra.cuda import globaltimer


@triton.jit
def _nap():
    """Give issue slots to whatever computes on the same SM."""
    tl.inline_asm_elementwise("nanosleep.u32 100; mov.u32 $0, 0;", "=r", [], tl.int32, is_pure=False, pack=1)


@triton.jit
def stamp_kernel(time_ptr):
    """Write the time."""
    tl.store(time_ptr, globaltimer())


@triton.jit(do_not_specialize=["transfers", "slice_rows"])  # one transfer as a constant would take more registers
def copy_kernel(
    transfers_ptr,  # [transfers, 6] int64: addresses of source and target, rows, words (of 4 bytes) in a row, words
    #                 from one row to the next in source and in target
    transfers,
    flags_ptr,  # [transfers] int32
    started_ptr,  # int32: grows by the number of programs once they run
    arrivals_ptr,  # [transfers, programs] int64
    t0_ptr,  # int64
    ns_per_word,
    slice_rows,
    ROWS: tl.constexpr,
    WORDS: tl.constexpr,
    TIMED: tl.constexpr,
):
    program, programs = tl.program_id(0), tl.num_programs(0)
    tl.atomic_add(started_ptr, 1, sem="release", scope="sys")
    if TIMED:
        t0 = tl.load(t0_ptr)
    moved = tl.zeros((), dtype=tl.int64)  # words of all transfers so far
    for index in range(0, transfers):
        about = transfers_ptr + index * 6
        source = tl.load(about).to(tl.pointer_type(tl.int32))
        target = tl.load(about + 1).to(tl.pointer_type(tl.int32))
        rows = tl.load(about + 2)
        words = tl.load(about + 3)
        source_row = tl.load(about + 4)
        target_row = tl.load(about + 5)
        # Rows begin at multiples of 16 bytes, which the host checks: so that words travel four at a time.
        source = tl.multiple_of(source, 16)
        target = tl.multiple_of(target, 16)
        source_row = tl.multiple_of(source_row, 4)
        target_row = tl.multiple_of(target_row, 4)
        words = tl.multiple_of(words, 4)
        for begin in range(0, rows, slice_rows):
            end = min(begin + slice_rows, rows)
            across = tl.cdiv(words, WORDS)
            for block in range(program, tl.cdiv(end - begin, ROWS) * across, programs):
                r = begin + block // across * ROWS + tl.arange(0, ROWS)
                c = block % across * WORDS + tl.arange(0, WORDS)
                inside = (r < end)[:, None] & (c < words)[None, :]
                part = tl.load(source + r[:, None] * source_row + c[None, :], mask=inside)
                tl.store(target + r[:, None] * target_row + c[None, :], part, mask=inside)
            moved += (end - begin) * words
            if TIMED:
                due = t0 + (moved.to(tl.float32) * ns_per_word).to(tl.int64)
                while globaltimer() < due:
                    _nap()
        tl.debug_barrier()  # all threads of the program have stored before one of them raises the flag
        tl.atomic_add(flags_ptr + index, 1, sem="release", scope="sys")
        if TIMED:
            tl.store(arrivals_ptr + index * programs + program, globaltimer())


# They change, and a new variant may not be loaded while one spins.
@triton.jit(do_not_specialize=["wanted", "number", "patience"], do_not_specialize_on_alignment=["flag_ptr"])
def wait_kernel(
    flag_ptr,
    wanted,
    times_ptr,  # [2] int64: from and to
    lost_ptr,  # int32: set to `number` if the flag does not come
    number,
    patience,  # microseconds, or tries where not TIMED
    TIMED: tl.constexpr,
):
    """Return when the flag has reached `wanted`: what comes after on the stream then finds the transfer's data."""
    spent = tl.zeros((), dtype=tl.int64)
    if TIMED:
        began = globaltimer()
        tl.store(times_ptr, began)
    here = tl.atomic_add(flag_ptr, 0, sem="acquire", scope="sys")
    if tl.load(lost_ptr) != 0:
        patience = 0  # another one is lost: this one need not be waited for
    while (here < wanted) & (spent < patience):
        here = tl.atomic_add(flag_ptr, 0, sem="acquire", scope="sys")
        if TIMED:
            spent = (globaltimer() - began) // 1000
        else:
            spent += 1
    if (here < wanted) & (tl.load(lost_ptr) == 0):
        tl.store(lost_ptr, number)
    if TIMED:
        tl.store(times_ptr + 1, globaltimer())
