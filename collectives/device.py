"""Links of a GPU, on a stream of their own: what all have alike, and `paced`, by the copier kernel.

The host only enqueues. The consumer's wait is a kernel of one program that spins on a transfer's flag, on the
consumer's own stream: whatever comes after it finds the data. A flag that does not come ends its spin within a bound
and is told, as a LinkError, when the timeline is read: until then the sample is no result.

Warm up before timing: a module that is loaded while a kernel spins may wait for that kernel, and so may an allocation.
"""

import ctypes
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from collectives.transfers import PATIENCE_S, SLICE_BYTES, LinkError, Timeline, Transfer, Transfers, missing
from kernels import copier
from kernels.contract import KernelLaunch, Signals

PROGRAMS, WARPS, REGISTERS = 32, 4, 48
"""The fewest programs of the copier, its warps, and the registers of a thread."""
ROWS, WORDS = 4, 512
"""A program has two parts of 8 KB in flight."""
PROGRAM_BYTES_PER_S = 9.4e9
"""What a program surely keeps up with: on an H200 16 of them moved 235 MB in 1.25 ms, 11.7e9 each
(results/reference/nvidia-h200-2026-11-26/copier_programs.txt)."""

SLOW_BYTES_PER_S = 1e9
"""Slower than any link whose bandwidth is not ours to choose."""

CARVEOUT, WAIT_VALUE_GEQ = 9, 0
"""CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, in percent, and CU_STREAM_WAIT_VALUE_GEQ (cuda.h)."""

NOTHING = torch.empty(0)


@dataclass
class Route:
    """A list of n transfers, prepared once for all runs over it. `table[n, 6]` is as `copier.copy_kernel` has it.

    int32: `flags[n]` grow by the same in each run, and so does `started[1]`, as soon as a launch of the copier runs; of
    what is computed while the link runs, a transfer goes when its own of the `counters[n]` has grown to `wanted`.

    int64, times of the globaltimer: `arrivals[n, programs of the copier]`; `free[n + 1]`, of the start, and when the
    wire has moved each transfer by its pace; `computed_ns[n]`, when each counter was raised last; `times[2n + 6]`, of
    the end, the begin and the end of each wait, and the link's own.
    """

    transfers: Transfers
    table: Tensor
    flags: Tensor
    started: Tensor
    counters: Tensor
    arrivals: Tensor
    free: Tensor
    computed_ns: Tensor
    times: Tensor
    runs: int = 0
    launched: int = 0
    wanted: int = 0
    copies: list[list[tuple[Tensor, Tensor]]] = field(default_factory=list)
    """For each transfer the copies by engines, as (source, target)."""
    events: Sequence[torch.cuda.Event] = ()
    """Where arrivals are events: that of the start, and one for each transfer."""
    slices: Tensor = NOTHING
    let_go: Tensor = NOTHING
    """As `copier.pace_kernel` has these, where that lets copy engines go on."""


def describe(transfer: Transfer) -> list[int]:
    """The row of a route's table for `transfer`. Raises ValueError where a row of the source or the target does not
    begin at a multiple of 16 bytes, which the copier's loads need."""
    source, target = transfer.source, transfer.target
    size = source.element_size()
    rows, columns = source.shape
    words = [source.data_ptr(), target.data_ptr(), *(size * n for n in (columns, source.stride(0), target.stride(0)))]
    if any(number % 16 for number in words):
        raise ValueError(
            f"chunk {transfer.chunk} has rows of {size * columns} bytes at strides of {words[3]} and {words[4]}: the "
            "link needs multiples of 16 bytes; take a wider model, or fewer ranks where x is sharded by columns"
        )
    return [*words[:2], rows, *(number // 4 for number in words[2:])]


def copy_launch(route: Route, first: int, end: int, bytes_per_s: float) -> KernelLaunch:
    """A launch of the copier over the transfers of `route` from `first` to before `end`, which may go by now."""
    row_bytes = max(transfer.row_bytes for transfer in route.transfers)
    args = dict(
        transfers_ptr=route.table[first:], transfers=end - first, flags_ptr=route.flags[first:],
        started_ptr=route.started, arrivals_ptr=route.arrivals[first:], ready_ptr=route.computed_ns[first:],
        free_ptr=route.free[first:], ns_per_word=4e9 / bytes_per_s,
        slice_rows=ROWS * max(1, SLICE_BYTES // row_bytes // ROWS), ROWS=ROWS, WORDS=WORDS,
        num_warps=WARPS, maxnreg=REGISTERS,
    )  # fmt: skip
    return KernelLaunch(copier.copy_kernel, (route.arrivals.shape[1],), args)


def stamp_launch(time: Tensor) -> KernelLaunch:
    return KernelLaunch(copier.stamp_kernel, (1,), dict(time_ptr=time, num_warps=1))


def wait_launch(signals: Signals, number: int, times: Tensor) -> KernelLaunch:
    """A wait for the flag `number` of `signals`, counted from 1. `times[:2]` get its begin and its end."""
    args = dict(
        flag_ptr=signals.flags[number - 1 :], wanted=signals.wanted, times_ptr=times, lost_ptr=signals.lost,
        number=number, patience=signals.patience, num_warps=1,
    )  # fmt: skip
    return KernelLaunch(copier.wait_kernel, (1,), args)


def raise_launch(route: Route, first: int, end: int, by: int) -> KernelLaunch:
    """A kernel that raises counters[first:end] of `route`."""
    args = dict(counters_ptr=route.counters, times_ptr=route.computed_ns, first=first, end=end, by=by, num_warps=1)
    return KernelLaunch(copier.raise_kernel, (1,), args)


class DeviceLink:
    """What all of them do alike: flags, waits, times. A subclass says how transfers are moved (`move`)."""

    kind, device = "", "cuda"
    bytes_per_s: float | None = None
    programs = 1
    """The programs that bring a transfer: its flag grows by so much in a run."""
    patience_s = PATIENCE_S
    _last: Route | None = None
    """The route of the last run; None before the first, and where that was abandoned."""

    def __init__(self, rank: int):
        self.rank = rank
        self._stream = torch.cuda.Stream(priority=-1)
        self._never_waits = torch.cuda.Stream(priority=0)  # torch has other streams for another priority
        self._lost = torch.zeros(1, dtype=torch.int32, device=self.device)
        self._routes: dict[int, Route] = {}

    @property
    def _route(self) -> Route:
        """The route of the last run. Raises LinkError where there was no run, or it was abandoned."""
        if self._last is None:
            raise LinkError(f"the {self.kind} link has no timeline: its run was abandoned, or none was started")
        return self._last

    def launch(self, launch: KernelLaunch) -> None:
        """Launch it on the current stream. No kernel may take shared memory from the matmul beside it on an SM, not
        even a wait or a stamp."""
        leave_shared_memory(launch.run(self._lost.device).function)

    def start(self, transfers: Transfers, ready: int | None = None, raised: int = 1) -> None:
        """Begin to move `transfers` once the current stream has come to here. The list is prepared once: keep it.

        With `ready`, the first so many may go; each of the others once its counter has grown by `raised`, which
        `ready()` has it do, or a kernel that raises `counters()` itself.
        """
        count = len(transfers)
        if id(transfers) not in self._routes:
            route = self._routes[id(transfers)] = self.prepared(transfers)
            self.load(route)
        self._last = self._routes[id(transfers)]
        self._waits: list[int] = []
        self._ready = self._at_once = count if ready is None else ready
        self._raised = raised if self._ready < count else 0
        self._route.runs += 1
        self._route.wanted += self._raised
        self.before()
        self._stream.wait_stream(torch.cuda.current_stream())
        if self._ready:
            with torch.cuda.stream(self._stream):
                self.move(self._route, 0, self._ready)
            self.began()
        with torch.cuda.stream(self._stream):
            for index in range(self._ready, count):
                wait_value(self._route.counters[index:], self._route.wanted)
                self.move(self._route, index, index + 1)

    def load(self, route: Route) -> None:
        """Load every kernel of the link before a stream waits: a module that is loaded meanwhile waits for that."""
        up = Signals(route.flags, 0, self._lost, 0)
        for times in (route.times[-2:], route.times[1:]):  # addresses that align differently: two binaries
            self.launch(wait_launch(up, 1, times))
        self.launch(raise_launch(route, 0, 0, 0))
        self.launch(stamp_launch(route.free))

    def ready(self, count: int) -> None:
        """Once the current stream has come to here, the first `count` transfers may go."""
        if count > self._ready:
            self.launch(raise_launch(self._route, self._ready, count, self._raised))
            self._ready = count

    def counters(self) -> tuple[Tensor, Tensor]:
        """The counters of all that is not ready, and their times as in `Route`, for a kernel that raises them
        itself."""
        first, self._ready = self._ready, len(self._route.transfers)
        return self._route.counters[first:], self._route.computed_ns[first:]

    def wait(self, count: int) -> int:
        """Have the current stream wait until the first `count` transfers are here."""
        if count:
            self._waits.append(count)
            self.launch(wait_launch(self.signals(count), count, self._route.times[2 * len(self._waits) - 1 :]))
        return count

    def signals(self, count: int | None = None) -> Signals:
        """The signals of the first `count` transfers of this run, or of all, for a kernel that looks at the flags
        itself."""
        return self._signals(self._route.flags, self._route.runs * self.programs, count)

    def _signals(self, flags: Tensor, wanted: int, count: int | None) -> Signals:
        nbytes = sum(transfer.nbytes for transfer in self._route.transfers[:count])
        due_s = nbytes / (self.bytes_per_s or SLOW_BYTES_PER_S) + self.patience_s
        return Signals(flags, wanted, self._lost, int(due_s * 1e6))

    def finish(self) -> None:
        """The consumer's end; its stream goes on after the link's."""
        self.launch(stamp_launch(self._route.times))
        torch.cuda.current_stream().wait_stream(self._stream)
        self.after()

    def abandon(self) -> None:
        """End the run that the consumer has left: all transfers go, whether or not they were computed, and what they
        brought is void. Waits for the device. The next run prepares its transfers anew.

        Counters are written, not added to: what was launched may still raise some. No kernel does that: it could be
        loaded here, and wait.
        """
        route, self._last = self._last, None
        if route:
            with torch.cuda.stream(self._never_waits):
                for index in range(len(route.counters)):
                    write_value(route.counters[index:], route.wanted)
        torch.cuda.synchronize()
        self._routes.clear()
        self._lost.zero_()

    def timeline(self) -> Timeline:
        """The timeline of the last run. Waits for the device. Raises LinkError for a transfer that did not come, and
        what `_route` raises."""
        torch.cuda.synchronize()
        route = self._route
        lost = int(self._lost.item())
        self._lost.zero_()
        if lost:  # who waits for several waits at the last one's flag: the first that is not up is missing
            wanted = route.runs * self.programs
            first = next((number for number, flag in enumerate(route.flags.tolist()) if flag < wanted), lost - 1)
            raise missing(self.kind, route.transfers[first], self.rank, f"it is {self.patience_s:g} s late")
        t0 = int(route.free[0])
        end, *times = route.times.tolist()
        spans = zip(self._waits, times[::2], times[1::2], strict=False)
        waits = [(count, (began - t0) * 1e-9, (ended - t0) * 1e-9) for count, began, ended in spans]
        ready_s = []
        if self._raised:
            computed_s = [(ns - t0) * 1e-9 for ns in route.computed_ns.tolist()[self._at_once :]]
            ready_s = [0.0] * self._at_once + computed_s
        return Timeline(route.transfers, self.arrivals_s(t0), waits, (end - t0) * 1e-9, ready_s)

    def prepared(self, transfers: Transfers) -> Route:
        """The route of `transfers`. A subclass may put others in their place."""
        table = torch.tensor([describe(transfer) for transfer in transfers], dtype=torch.int64, device=self.device)
        n = len(table)
        numbers = [torch.zeros(size, dtype=torch.int32, device=self.device) for size in (n, 1, n)]
        shapes = (n, self.programs), n + 1, n, 2 * n + 6
        times = [torch.zeros(shape, dtype=torch.int64, device=self.device) for shape in shapes]
        return Route(transfers, table, *numbers, *times)

    def move(self, route: Route, first: int, end: int) -> None:
        """Enqueue the transfers of `route` from `first` to before `end` on the link's stream, the current one."""
        raise NotImplementedError

    def wait_for_begin(self) -> None:
        """Have the current stream wait until the last launch of what moves or paces transfers runs."""
        started = self._signals(self._route.started, self._route.launched * self.programs, 0)
        self.launch(wait_launch(started, 1, self._route.times[-2:]))

    def arrivals_s(self, t0: int) -> list[float]:
        """When each transfer of the last run arrived, in seconds after `t0`, a time of the globaltimer."""
        return [(last - t0) * 1e-9 for last in self._route.arrivals.amax(dim=1).tolist()]

    def before(self) -> None:
        """Enqueue what comes before a run on the current stream: a stamp of the time."""
        self.launch(stamp_launch(self._route.free))

    def began(self) -> None:
        """Enqueue on the current stream what follows the transfers that went at once."""

    def after(self) -> None:
        """Enqueue on the current stream what follows the last transfer."""


def programs_for(bytes_per_s: float) -> int:
    """The number of the copier's programs that a link of this bandwidth needs.

    >>> programs_for(50e9), programs_for(450e9)
    (32, 48)
    """
    return max(PROGRAMS, math.ceil(bytes_per_s / PROGRAM_BYTES_PER_S))


class PacedCopier(DeviceLink):
    """Copies between buffers of the device at `bytes_per_s`, by so many programs: more of them have more in flight, and
    take from more SMs.

    The consumer's stream goes on when the copier runs: a matmul that fills every SM could keep it out until its end.
    What is still computed is copied by a launch of its own, behind its counter. Its pace counts from when that was
    raised, so that a late launch is made up for.
    """

    kind = "paced"
    bytes_per_s: float

    def __init__(self, bytes_per_s: float, rank: int = 0, programs: int = PROGRAMS):
        super().__init__(rank)
        self.bytes_per_s, self.programs = bytes_per_s, programs

    def load(self, route: Route) -> None:
        super().load(route)
        route.launched += 1  # it counts itself in, and has nothing to move
        no_rows = route.table.new_tensor([[0, 0, 0, 4, 4, 4]])  # a source may be written by another stream now
        self.launch(copy_launch(replace(route, table=no_rows), 0, 0, self.bytes_per_s))

    def move(self, route: Route, first: int, end: int) -> None:
        route.launched += 1
        self.launch(copy_launch(route, first, end, self.bytes_per_s))

    def began(self) -> None:
        self.wait_for_begin()


def example() -> KernelLaunch:
    """A launch of the copier over one transfer, to be compiled: it is never run."""
    link = object.__new__(PacedCopier)  # without streams
    link.device = "cpu"
    matrix = torch.empty((ROWS, WORDS), dtype=torch.int32)
    return copy_launch(link.prepared(Transfers([Transfer(1, 0, matrix, matrix)])), 0, 1, SLOW_BYTES_PER_S)


def wait_value(counter: Tensor, wanted: int) -> None:
    """Have the current stream wait until the int32 `counter` has grown to `wanted`. That takes no SM, which a matmul
    could want, and has no bound: who is to raise it must. (CUDA driver API, stream memory operations; the comparison is
    cyclic, so a counter may wrap around.)"""
    address = ctypes.c_uint64(counter.data_ptr())
    call_driver("cuStreamWaitValue32_v2", current_stream(), address, ctypes.c_uint32(wanted), WAIT_VALUE_GEQ)


def write_value(flag: Tensor, value: int) -> None:
    """Have the current stream write `value` to the int32 `flag`, once what comes before it is done."""
    address = ctypes.c_uint64(flag.data_ptr())
    call_driver("cuStreamWriteValue32_v2", current_stream(), address, ctypes.c_uint32(value), 0)


def current_stream() -> ctypes.c_void_p:
    return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)


@functools.cache
def leave_shared_memory(function: int) -> None:
    """From its next launch on, have an SM that runs `function` keep all it can as shared memory. The first kernel on an
    SM sets the split with L1, and one that needs none would keep a matmul out until its end (CUDA's programming guide,
    shared memory carve-out)."""
    call_driver("cuFuncSetAttribute", ctypes.c_void_p(function), CARVEOUT, 100)


@functools.cache
def driver() -> ctypes.CDLL:
    """The driver's library, which keeps each function that was called. To open it anew takes longer than a call."""
    return ctypes.CDLL("libcuda.so.1")


def call_driver(name: str, *arguments) -> None:
    """By ctypes: cuda-bindings need not be there, the driver's library is, wherever a kernel was loaded. Raises
    RuntimeError where it refuses."""
    if error := getattr(driver(), name)(*arguments):
        raise RuntimeError(f"CUDA error {error}: {name} was refused")


def driver_has(name: str) -> bool:
    return hasattr(driver(), name)
