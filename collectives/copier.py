"""The kernels of the GPU links: a paced copier, a wait for a flag, a raise of counters, a stamp.

The copier is a few small programs (no shared memory, 6,144 registers each, so that one fits on an SM beside a matmul
that leaves as many: `kernels.inspect`; a vendor's may leave none, and then does without those SMs). All of them copy
each slice of each transfer together, then spin until its time has come; so the traffic is as even as a wire's, and a
transfer is complete at t0 + (its and all earlier bytes) / bandwidth. What a program copies next is read before it
stores what it has, across slices and transfers, so that the memory's latency is paid once. Times are those of
`globaltimer`, nanoseconds that all SMs share. Each program adds one to a transfer's flag, with
release at system scope, when its part is written: the transfer is here once the flag has grown by the number of
programs. Flags are never reset.

What is still computed has a counter for each transfer: the copier waits until it has grown to what was asked for, with
acquire, before it reads the transfer's source. Each thread looks for itself, without shared memory, and no barrier
stands in a loop that only some may leave.
"""

# ruff: noqa: N803 (kernel arguments: compile-time constants in capitals, as Triton code has them)

import triton
import triton.language as tl
from triton.language.extra.cuda import globaltimer

from kernels.signals import raise_counter


@triton.jit
def _nap():
    """Give issue slots to whatever computes on the same SM."""
    tl.inline_asm_elementwise("nanosleep.u32 100; mov.u32 $0, 0;", "=r", [], tl.int32, is_pure=False, pack=1)


@triton.jit
def stamp_kernel(time_ptr):
    """Write the time."""
    tl.store(time_ptr, globaltimer())


@triton.jit
def _transfer(about):
    """Return a row of the table that `copy_kernel` reads. Counts in 32 bits: 64 take more registers."""
    source = tl.load(about).to(tl.pointer_type(tl.int32))
    target = tl.load(about + 1).to(tl.pointer_type(tl.int32))
    rows, words = tl.load(about + 2).to(tl.int32), tl.load(about + 3).to(tl.int32)
    source_row, target_row = tl.load(about + 4), tl.load(about + 5)
    # Rows begin at multiples of 16 bytes, which the host checks: so that words travel four at a time.
    source, target, words = tl.multiple_of(source, 16), tl.multiple_of(target, 16), tl.multiple_of(words, 4)
    return source, target, rows, words, tl.multiple_of(source_row, 4), tl.multiple_of(target_row, 4)


@triton.jit
def _place(start, row_words, rows, words, row, column, ROWS: tl.constexpr, WORDS: tl.constexpr):
    """Addresses of the part of a matrix that begins at (row, column), and which of them are inside it."""
    r, c = row + tl.arange(0, ROWS), column + tl.arange(0, WORDS)
    return start + r[:, None].to(tl.int64) * row_words + c[None, :], (r < rows)[:, None] & (c < words)[None, :]


@triton.jit
def _until(due):
    while globaltimer() < due:
        _nap()


@triton.jit
def _look(counter_ptr):
    """Return the counter, with acquire. An atomic's result would go through shared memory."""
    look: tl.constexpr = "ld.acquire.sys.global.b32 $0, [$1];"
    return tl.inline_asm_elementwise(look, "=r,l", [counter_ptr], tl.int32, is_pure=False, pack=1)


@triton.jit
def _await(counter_ptr, wanted, lost_ptr, number, patience):
    """Return once the counter is up or given up: the time if that had to be waited for, else 0."""
    spent = tl.zeros((), dtype=tl.int64)
    now = tl.zeros((), dtype=tl.int64)
    began = globaltimer()
    here = _look(counter_ptr)
    if tl.load(lost_ptr, volatile=True) != 0:
        patience = 0  # another one is lost: this one need not be waited for
    while (here < wanted) & (spent < patience):
        _nap()
        now = globaltimer()
        spent = (now - began) // 1000
        here = _look(counter_ptr)
    if (here < wanted) & (patience > 0):
        tl.store(lost_ptr, number)
    return now


# One transfer as a constant would take more registers.
@triton.jit(do_not_specialize=["transfers", "slice_rows", "wanted", "patience"])
def copy_kernel(
    transfers_ptr,  # [transfers, 6] int64: addresses of source and target, rows, words (of 4 bytes) in a row, words
    #                 from one row to the next in source and in target
    transfers,
    flags_ptr,  # [transfers] int32
    started_ptr,  # int32: grows by the number of programs once they run
    arrivals_ptr,  # [transfers, programs] int64
    t0_ptr,  # int64
    ns_per_word,
    slice_rows,  # a multiple of ROWS
    ROWS: tl.constexpr,
    WORDS: tl.constexpr,
    counters_ptr=None,  # [transfers] int32: a transfer may go when its own has grown to `wanted`; None: all may
    wanted=None,
    lost_ptr=None,  # int32: set to the number of a transfer that could not go within `patience`, as in `wait_kernel`
    patience=None,
):
    program, programs = tl.program_id(0), tl.num_programs(0)
    tl.atomic_add(started_ptr, 1, sem="release", scope="sys")
    t0 = tl.load(t0_ptr)
    moved = tl.zeros((), dtype=tl.int64)  # words of all transfers so far
    source, target, rows, words, source_row, target_row = _transfer(transfers_ptr)
    across = tl.cdiv(words, WORDS)
    row, column = program // across * ROWS, program % across * WORDS
    at, inside = _place(source, source_row, rows, words, row, column, ROWS, WORDS)
    if counters_ptr is not None:
        begin = _await(counters_ptr, wanted, lost_ptr, 1, patience)
    part = tl.load(at, mask=inside)
    for index in range(0, transfers):
        begin = t0 if counters_ptr is None else tl.maximum(begin, t0)
        slice_end = slice_rows
        for _ in range(program, tl.cdiv(rows, ROWS) * across, programs):
            past = column + programs % across * WORDS
            wrapped = past >= across * WORDS
            next_column = tl.where(wrapped, past - across * WORDS, past)
            next_row = row + (programs // across + wrapped.to(tl.int32)) * ROWS
            # The next part is on its way while this one is stored, and while it is not yet due.
            at, inside = _place(source, source_row, rows, words, next_row, next_column, ROWS, WORDS)
            following = tl.load(at, mask=inside)
            at, inside = _place(target, target_row, rows, words, row, column, ROWS, WORDS)
            tl.store(at, part, mask=inside)
            part, row, column = following, next_row, next_column
            if row >= slice_end:
                done = tl.minimum(row // slice_rows * slice_rows, rows)
                slice_end = done + slice_rows
                _until(begin + ((moved + done * words.to(tl.int64)).to(tl.float32) * ns_per_word).to(tl.int64))
        moved += rows * words.to(tl.int64)
        # So is the first part of the next transfer; after the last, that one's once more.
        following = tl.minimum(index + 1, transfers - 1)
        source, target, rows, words, source_row, target_row = _transfer(transfers_ptr + following * 6)
        across = tl.cdiv(words, WORDS)
        row, column = program // across * ROWS, program % across * WORDS
        at, inside = _place(source, source_row, rows, words, row, column, ROWS, WORDS)
        if counters_ptr is None:
            part = tl.load(at, mask=inside)
        _until(begin + (moved.to(tl.float32) * ns_per_word).to(tl.int64))
        tl.debug_barrier()  # all threads of the program have stored before one of them raises the flag
        tl.atomic_add(flags_ptr + index, 1, sem="release", scope="sys")
        tl.store(arrivals_ptr + index * programs + program, globaltimer())
        if counters_ptr is not None:
            # What had to be waited for goes by its own time from here on, as if all before had gone just before it.
            free = _await(counters_ptr + following, wanted, lost_ptr, following + 1, patience)
            begin = tl.maximum(begin, free - (moved.to(tl.float32) * ns_per_word).to(tl.int64))
            part = tl.load(at, mask=inside)


# They change, and a new variant may not be loaded while one spins.
@triton.jit(do_not_specialize=["wanted", "number", "patience"], do_not_specialize_on_alignment=["flag_ptr"])
def wait_kernel(
    flag_ptr,
    wanted,
    times_ptr,  # [2] int64: from and to
    lost_ptr,  # int32: set to `number` if the flag does not come
    number,
    patience,  # microseconds
):
    """Return when the flag has reached `wanted`: what comes after on the stream then finds the transfer's data."""
    tl.store(times_ptr, globaltimer())
    _await(flag_ptr, wanted, lost_ptr, number, patience)
    tl.store(times_ptr + 1, globaltimer())


@triton.jit(do_not_specialize=["first", "end", "by"])
def raise_kernel(counters_ptr, times_ptr, first, end, by):
    """Add `by` to the counters from `first` to `end`: what was done on the stream before is found by who waits for
    them."""
    for number in range(first, end):
        raise_counter(counters_ptr + number, times_ptr + number, by)
