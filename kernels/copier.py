"""The kernels of the GPU links: a paced copier, a pacer of copy engines, a wait for a flag or a counter, a raise of
counters, a stamp.

The copier is a few small programs: no shared memory, 6,144 registers each. So one fits on an SM beside a matmul that
leaves as many (`kernels.inspect`); a vendor's may leave none, and then does without those SMs. All programs copy each
slice of each transfer together, then spin until its time has come; so the traffic is as even as a wire's. A transfer
takes its bytes / bandwidth, from when it may go and the one before has gone: that time is handed on from launch to
launch. A program reads its next part before it stores the one that it has, across slices and transfers, so that the
memory's latency is paid once. Times are those of `globaltimer`, nanoseconds that all SMs share. Each program adds one
to a transfer's flag, with release semantics at system scope, when its part is written: the transfer is here once the
flag has grown by the number of programs. Flags are never reset.

The pacer is one warp. It moves nothing: it lets a stream go on with its copies when their time has come.

A wait is one warp, which reads the flag with acquire semantics. Each thread reads for itself, without shared memory,
and no barrier stands in a loop that only some threads may leave.
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
def _place(start, row_words, rows, words, number, ROWS: tl.constexpr, WORDS: tl.constexpr):
    """Addresses of a part of a matrix, by its number from row to row of parts, and which of them are inside it."""
    across = tl.cdiv(words, WORDS)
    r, c = number // across * ROWS + tl.arange(0, ROWS), number % across * WORDS + tl.arange(0, WORDS)
    return start + r[:, None].to(tl.int64) * row_words + c[None, :], (r < rows)[:, None] & (c < words)[None, :]


@triton.jit
def _until(due):
    while globaltimer() < due:
        _nap()


@triton.jit
def _begin(about, ROWS: tl.constexpr, WORDS: tl.constexpr):
    """The row of the table at `about`, which `copy_kernel` reads, and the words of this program's first part."""
    source = tl.load(about).to(tl.pointer_type(tl.int32))
    target = tl.load(about + 1).to(tl.pointer_type(tl.int32))
    rows, words = tl.load(about + 2).to(tl.int32), tl.load(about + 3).to(tl.int32)  # 64 bits take more registers
    source_row, target_row = tl.load(about + 4), tl.load(about + 5)
    # Rows begin at multiples of 16 bytes, which the host checks: so that words travel four at a time.
    source, target, words = tl.multiple_of(source, 16), tl.multiple_of(target, 16), tl.multiple_of(words, 4)
    source_row, target_row = tl.multiple_of(source_row, 4), tl.multiple_of(target_row, 4)
    at, inside = _place(source, source_row, rows, words, tl.program_id(0), ROWS, WORDS)
    return source, target, rows, words, source_row, target_row, tl.load(at, mask=inside)


# Specialised for one transfer, the kernel would take more registers. Addresses are those of parts of a list, at any
# alignment: a new variant may not be loaded while another kernel spins.
@triton.jit(
    do_not_specialize=["transfers", "slice_rows"],
    do_not_specialize_on_alignment=["flags_ptr", "arrivals_ptr", "ready_ptr", "free_ptr"],
)
def copy_kernel(
    transfers_ptr,  # [transfers, 6] int64: addresses of source and target, rows, words (of 4 bytes) in a row, words
    #                 from one row to the next in source and in target
    transfers,
    flags_ptr,  # [transfers] int32
    started_ptr,  # int32: grows by the number of programs once they run
    arrivals_ptr,  # [transfers, programs] int64
    ready_ptr,  # int64: when the transfers could go
    free_ptr,  # [transfers + 1] int64: from when on the wire is free for the first, then behind each of them
    ns_per_word,
    slice_rows,  # a multiple of ROWS
    ROWS: tl.constexpr,
    WORDS: tl.constexpr,
):
    program, programs = tl.program_id(0), tl.num_programs(0)
    tl.atomic_add(started_ptr, 1, sem="release", scope="sys")
    begin = tl.maximum(tl.load(free_ptr), tl.load(ready_ptr))
    moved = tl.zeros((), dtype=tl.int64)  # words of all transfers so far
    source, target, rows, words, source_row, target_row, part = _begin(transfers_ptr, ROWS, WORDS)
    for index in range(0, transfers):
        slice_end, across = slice_rows, tl.cdiv(words, WORDS)
        for number in range(program, tl.cdiv(rows, ROWS) * across, programs):
            # The next part is on its way while this one is stored, and while it is not yet due.
            at, inside = _place(source, source_row, rows, words, number + programs, ROWS, WORDS)
            following = tl.load(at, mask=inside)
            at, inside = _place(target, target_row, rows, words, number, ROWS, WORDS)
            tl.store(at, part, mask=inside)
            part, row = following, (number + programs) // across * ROWS
            if row >= slice_end:
                done = tl.minimum(row // slice_rows * slice_rows, rows)
                slice_end = done + slice_rows
                _until(begin + ((moved + done * words.to(tl.int64)).to(tl.float32) * ns_per_word).to(tl.int64))
        moved += rows * words.to(tl.int64)
        # The first part of the next transfer is on its way, too; behind the last one, its own first part once more.
        about = transfers_ptr + tl.minimum(index + 1, transfers - 1) * 6
        source, target, rows, words, source_row, target_row, part = _begin(about, ROWS, WORDS)
        free = begin + (moved.to(tl.float32) * ns_per_word).to(tl.int64)
        _until(free)
        tl.store(free_ptr + index + 1, free, mask=program == 0)
        tl.debug_barrier()  # all threads of the program have stored before one of them raises the flag
        tl.atomic_add(flags_ptr + index, 1, sem="release", scope="sys")
        tl.store(arrivals_ptr + index * programs + program, globaltimer())


@triton.jit
def _look(flag_ptr):
    """The flag, read with acquire semantics. The result of an atomic would go through shared memory."""
    look: tl.constexpr = "ld.acquire.sys.global.b32 $0, [$1];"
    return tl.inline_asm_elementwise(look, "=r,l", [flag_ptr], tl.int32, is_pure=False, pack=1)


@triton.jit
def _nap_and_note(arrived, transfers, flags_ptr, wanted, arrivals_ptr):
    """Nap, and return how many transfers have arrived, given that the first `arrived` have: one more, whose time is
    noted, where its flag is up by now."""
    number = tl.minimum(arrived, transfers - 1)
    if (arrived < transfers) & (_look(flags_ptr + number) >= wanted):
        tl.store(arrivals_ptr + number, globaltimer())
        arrived += 1
    _nap()
    return arrived


@triton.jit(do_not_specialize=["slices", "transfers", "at_once", "raised", "wanted", "patience"])
def pace_kernel(
    slices_ptr,  # [slices, 3] int64: the transfer of each, and that one's bytes before it, and with it
    slices,
    let_go_ptr,  # [slices, 2] int32: each grows by 1 in a run, when a slice may be copied, and when it may be told
    started_ptr,  # int32: grows by 1 once the pacer runs
    counters_ptr,  # [transfers] int32: a transfer that is not ready at once may go when its own has grown to `raised`
    ready_ptr,  # [transfers] int64: when each could go
    free_ptr,  # int64: from when on the wire is free
    flags_ptr,  # [transfers] int32: a transfer is here when it has grown to `wanted`
    arrivals_ptr,  # [transfers] int64: when this was seen
    transfers,
    at_once,
    raised,
    wanted,
    ns_per_byte,  # of the wire
    patience,  # microseconds for which flags are still looked for once the last slice was due
):
    """Let each slice be copied once the one before is due, and be told when it is due itself. Times are counted from
    when its transfer could go and the one before was due."""
    tl.atomic_add(started_ptr, 1, sem="release", scope="sys")
    arrived = tl.zeros((), dtype=tl.int32)
    due = tl.load(free_ptr)
    begin = due
    for number in range(slices):
        index = tl.load(slices_ptr + 3 * number).to(tl.int32)
        before, behind = tl.load(slices_ptr + 3 * number + 1), tl.load(slices_ptr + 3 * number + 2)
        while (index >= at_once) & (_look(counters_ptr + index) < raised):
            arrived = _nap_and_note(arrived, transfers, flags_ptr, wanted, arrivals_ptr)
        ready = tl.load(ready_ptr + index, volatile=True)
        begin = tl.where(before == 0, tl.maximum(due, ready), begin)
        due = begin + (behind.to(tl.float32) * ns_per_byte).to(tl.int64)
        go = begin + (before.to(tl.float32) * ns_per_byte).to(tl.int64)
        while globaltimer() < go:
            arrived = _nap_and_note(arrived, transfers, flags_ptr, wanted, arrivals_ptr)
        tl.atomic_add(let_go_ptr + 2 * number, 1, sem="release", scope="sys")
        while globaltimer() < due:
            arrived = _nap_and_note(arrived, transfers, flags_ptr, wanted, arrivals_ptr)
        tl.atomic_add(let_go_ptr + 2 * number + 1, 1, sem="release", scope="sys")
    while (arrived < transfers) & ((globaltimer() - due) // 1000 < patience):
        arrived = _nap_and_note(arrived, transfers, flags_ptr, wanted, arrivals_ptr)


# These arguments change, and a new variant may not be loaded while a kernel spins.
@triton.jit(do_not_specialize=["wanted", "number", "patience"], do_not_specialize_on_alignment=["flag_ptr"])
def wait_kernel(
    flag_ptr,  # int32, a flag or a counter
    wanted,
    times_ptr,  # [2] int64: begin and end of the wait
    lost_ptr,  # int32: set to `number` if the flag does not come
    number,
    patience,  # microseconds
):
    """Wait until the flag has reached `wanted`: later work on the stream then finds the data that the flag stands for.
    The wait is given up past `patience`, or at once where another one was."""
    began = globaltimer()
    tl.store(times_ptr, began)
    spent = tl.zeros((), dtype=tl.int64)
    here = _look(flag_ptr)
    if tl.load(lost_ptr, volatile=True) != 0:
        patience = 0
    while (here < wanted) & (spent < patience):
        _nap()
        spent = (globaltimer() - began) // 1000
        here = _look(flag_ptr)
    if (here < wanted) & (patience > 0):
        tl.atomic_cas(lost_ptr, 0, number, sem="relaxed", scope="sys")
    tl.store(times_ptr + 1, globaltimer())


@triton.jit(do_not_specialize=["first", "end", "by"])
def raise_kernel(counters_ptr, times_ptr, first, end, by):
    """Add `by` to the counters from `first` to `end`: whoever waits for them finds all earlier work of the stream
    done."""
    for number in range(first, end):
        raise_counter(counters_ptr + number, times_ptr + number, by)
