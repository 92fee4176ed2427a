"""Clocks: how long the device took for a call. The one place that knows when a time stamp can lie.

A clock has `timer` (the name saved with every record), `processes` (how many measure each shape, one after another) and
`passes` (how many times each of them comes back to it), `turn(calls)`, which asks for the next call when one has
returned, and returns a time in seconds for each, or None for a sample that the host spoilt by being late, and
`burst(call, calls)`, the seconds that `calls` calls take without a pause. `Clock` has the rest.
"""

import gc
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

from roofline.worker.alone import ALONE
from roofline.worker.bound import os, time


@dataclass(eq=False)
class Call:
    """A function that takes turns, and what clocks and rounds are to know of it."""

    run: Callable[[], object]
    wake: Callable[[], object] | None = None
    """What its threads are woken by, on other operands than the next sample's; else it is `run`."""
    notes: Callable[[], dict] | None = None
    """Called after each turn: {name: value} of the last sample. Raises where that was none."""
    listen: Callable[[float], object] | None = None
    """Called with the seconds of each sample."""
    is_long: bool = False
    """Whether it takes milliseconds: then it does not run once more before each sample, to wake its threads."""
    is_held: bool = True
    """Whether a GPU's stream is held until it is launched. One of more than a thousand launches would fill the stream,
    and wait for its gate: it begins on an idle device, and its sample has the time that its host takes."""

    last_s: float = 0.0
    """What a `CpuClock` measured last."""

    def __call__(self) -> object:
        return self.run()


SM_HZ = 1.98e9
"""What a pre-roll spins by. At a slower clock it only lasts longer."""


class Clock:
    """The defaults of a clock."""

    ranks: Any = ALONE
    """Those that make the calls together."""
    readings: Sequence[dict] = ()
    """For each call of the last turn, what else was read beside the time; empty where nothing was."""

    @staticmethod
    def now() -> float:
        """For time budgets."""
        return time.perf_counter()

    _busy: tuple[Callable[[], object], ...] = ()

    @contextmanager
    def while_busy(self, look: Callable[[], object]) -> Iterator[None]:
        """Have `look` called once a turn, behind the last sample, before the host waits for the device. Who comes last
        looks first."""
        before = self._busy
        self._busy = (look, *before)
        try:
            yield
        finally:
            self._busy = before

    def look_while_busy(self) -> None:
        """Call the looks; each `turn` and `burst` does so before it waits."""
        for look in self._busy:
            look()

    def warm(self, calls: list[Call]) -> None:
        """Called before the first turn of a GPU's warm-up."""


class CpuClock(Clock):
    """Wall time of the calling thread around each call, with the garbage collector off and threads kept to their cores.

    Three precautions, all about the worker threads of OpenMP and BLAS libraries. They are pinned, each to a core of its
    own: left alone, a scheduler may wake two workers of a library on one core, where each spins through its time slice
    while the other waits (seen on two cores of an AMD EPYC, as 16 ms for a matmul of 0.3 ms). Those that a call has
    just made are, too: they inherit the one core of the thread that made them. Before a sample every
    other thread must sleep, since the workers of the contender before go on spinning and take every other tick from
    those of this one: OpenBLAS's spin for 2**28 cycles, 110 ms at 2.45 GHz, GNU OpenMP's for 7 ms; the root conftest
    asks both for half a millisecond. And then the call runs untimed for `WAKE_S`, which wakes its own workers; but for
    one that is long, or took `LONG_S`, of which that would be the same once more.
    """

    timer = "perf_counter_replay"
    passes, processes = 16, 6
    """On a shared machine the ratio of two libraries moves by some 3 % within seconds, with what its neighbours do:
    on an AMD EPYC the medians of passes of a second each, 4 s apart, were uncorrelated. From process to process it
    moves again, with where the operands came to lie."""
    LONGEST_WAIT_S = 0.25
    WAKE_S = 0.001
    LONG_S = 0.01
    """Waking takes a worker less than a hundredth of it."""

    REPORTED_FRACTION = 0.05
    """`readings` tells where threads of the process waited for a core that others had, for more than this fraction of a
    sample and what wakes it."""
    drops_reported = False
    """Whether such a sample is dropped."""

    def turn(self, calls: list[Call]) -> list[float | None]:
        times = []
        self.readings = []
        with _no_collection(), _pinned() as pin:
            for call in calls:
                began = self.now()
                before = core_times_s()  # not between waking a call and timing it
                self._settle()
                if not call.is_long and call.last_s < self.LONG_S:
                    self._wake(call, pin)
                run = call.run
                start = time.perf_counter()
                run()
                time_s = time.perf_counter() - start
                lost_s = lost_to_others_s(before, core_times_s())
                call.last_s = time_s
                is_reported = lost_s > self.REPORTED_FRACTION * (self.now() - began)
                times.append(None if is_reported and self.drops_reported else time_s)
                self.readings.append({"waited_s": lost_s} if is_reported else {})
            self.look_while_busy()
        return times

    def _wake(self, call: Call, pin: Callable[[], None]) -> None:
        """Wake the threads of `call`."""
        wake = call.wake or call.run
        threads = _other_threads()
        awake = time.perf_counter() + self.WAKE_S
        wake()
        if _other_threads() != threads:
            pin()
        while time.perf_counter() < awake:
            wake()

    def burst(self, call: Call, calls: int) -> float:
        with _no_collection(), _pinned():
            self._settle()
            start = time.perf_counter()
            for _ in range(calls):
                call.run()
            return time.perf_counter() - start

    def _settle(self) -> None:
        """Wait until all other threads sleep. The CPU time of the process would not tell: it is counted by ticks."""
        deadline = time.perf_counter() + self.LONGEST_WAIT_S
        while any(map(_is_running, _other_threads())) and time.perf_counter() < deadline:
            time.sleep(0.0002)


def _other_threads() -> list[int]:
    """The ids of the process's threads but the calling one, in the order of their making. Linux only, none
    elsewhere."""
    if not os.path.isdir("/proc/self/task"):
        return []
    threads = {*map(int, os.listdir("/proc/self/task"))}
    return sorted(threads - {threading.get_native_id()})


class CoreTimes(NamedTuple):
    """For how long a thread ran until now, for how long it could have run and had no core, and which cores it may
    have."""

    ran_s: float
    waited_s: float
    cores: frozenset[int]


def core_times_s() -> dict[int, CoreTimes]:
    """{thread: its times} of this process; none where nobody counts them."""
    times = {}
    for thread in [threading.get_native_id(), *_other_threads()]:
        with suppress(OSError, IndexError), open(f"/proc/self/task/{thread}/schedstat") as stat:
            ran_ns, waited_ns = map(int, stat.read().split()[:2])
            times[thread] = CoreTimes(ran_ns * 1e-9, waited_ns * 1e-9, frozenset(os.sched_getaffinity(thread)))
    return times


def lost_to_others_s(before: dict[int, CoreTimes], after: dict[int, CoreTimes]) -> float:
    """The seconds that threads waited for a core that no thread of this process had meanwhile: a link's thread may
    share one with a worker."""
    nothing = CoreTimes(0.0, 0.0, frozenset())
    lost_s = 0.0
    for thread, times in after.items():
        waited_s = times.waited_s - before.get(thread, nothing).waited_s
        beside_s = 0.0
        for other, theirs in after.items():
            if other != thread and theirs.cores & times.cores:
                beside_s += theirs.ran_s - before.get(other, nothing).ran_s
        lost_s += max(0.0, waited_s - beside_s)
    return lost_s


def _is_running(thread: int) -> bool:
    try:
        with open(f"/proc/self/task/{thread}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] == "R"
    except OSError:  # it ended meanwhile
        return False


@contextmanager
def _no_collection():
    """Keep the garbage collector off, as it was found afterwards: a collection holds the host for milliseconds."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


@contextmanager
def _pinned():
    """Keep the calling thread on the first core and deal the others out to the rest, in the order of their making.

    A library makes its workers together, one fewer than there are cores, so each of them gets a core of its own. The
    calling thread is let go again, or else its future children would inherit its one core; workers stay pinned.
    Gives a function that deals out those that were made meanwhile. Linux only.
    """
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    others = cores[1:]

    def pin() -> None:
        for index, worker in enumerate(_other_threads() if others else []):
            with suppress(OSError):  # it ended meanwhile
                os.sched_setaffinity(worker, {others[index % len(others)]})

    pin()
    if others:
        os.sched_setaffinity(0, {cores[0]})
    try:
        yield pin
    finally:
        if others:
            os.sched_setaffinity(0, cores)


class CudaClock(Clock):
    """Device events around each call on the current stream, with no host synchronisation inside a turn.

    The stream is held before every start event, so that the launches of the work are hidden. With `instruments` a gate
    holds it, which the host opens once the stop event is enqueued: it fits calls of one launch and of thirty alike, and
    the same idle gap is before both. The clock of an SM is read behind the stop event, outside the timed interval, and
    `readings` as `sm_clock_hz`. Without `instruments`, a kernel spins for a time set beforehand, the pre-roll.

    Whether it held is checked: once the stop event is enqueued, the start event must not have happened yet. If it has,
    the sample holds host time and is dropped (None). A gate is as patient as `warm` saw the host need.
    """

    timer = "cuda_event_replay"
    passes, processes = 1, 3
    """A GPU is nobody else's while it is measured: what differs is the process."""
    PREROLL_S = 0.001
    """A host launches thirty kernels in a third of it."""

    def __init__(self):
        import torch

        self._cuda = torch.cuda
        self.instruments = None  # a `kernels.bench.instruments.Instruments`, from whoever knows kernels

    def turn(self, calls: list[Call]) -> list[float | None]:
        with _no_collection():
            events = [self._enqueue(call, slot=slot) for slot, call in enumerate(calls)]
        self.look_while_busy()
        self._synchronize()
        times = []
        for start, stop, late in events:
            times.append(None if late else start.elapsed_time(stop) * 1e-3)
        if self.instruments:
            self.readings = [{"sm_clock_hz": hz} for hz in self.instruments.sm_clocks_hz(len(times))]
        return times

    def warm(self, calls: list[Call]) -> None:
        """Make each call twice, without a gate, and have gates expect what the host took for the second: a call of a
        hundred launches and messages may take it longer than they wait by default."""
        slowest_s = 0.0
        for call in calls:
            for _ in range(2):
                began = self.now()
                call.run()
                host_s = self.now() - began
                self._synchronize()
            slowest_s = max(slowest_s, host_s)
        if self.instruments:
            self.instruments.expect(slowest_s)

    def burst(self, call: Call, calls: int) -> float:
        """The seconds of so many calls, of milliseconds each. A host that is late once costs microseconds of that, and
        is not looked for."""
        with _no_collection():
            start, stop, _ = self._enqueue(call, calls)
        self.look_while_busy()
        self._synchronize()
        return start.elapsed_time(stop) * 1e-3

    def _align(self) -> None:
        """Do what comes between the hold and the start event."""

    def _synchronize(self) -> None:
        self._cuda.synchronize()

    def _enqueue(self, call: Call, calls: int = 1, slot: int | None = None) -> tuple:
        """The events before and after the calls, and whether the first had happened when the last was enqueued. The SM
        clock after them goes to `slot`."""
        start = self._cuda.Event(enable_timing=True)
        stop = self._cuda.Event(enable_timing=True)
        if not call.is_held:
            self._synchronize()
        elif self.instruments:
            self.instruments.close()
        else:
            self._cuda._sleep(int(self.PREROLL_S * SM_HZ))
        self._align()
        start.record()
        for _ in range(calls):
            call.run()
        stop.record()
        late = call.is_held and start.query()
        if self.instruments:
            if slot is not None:
                self.instruments.read_clock(slot)  # before the gate opens, so that it follows the call at once
            self.instruments.open()
        return start, stop, late


def empty_call_s(clock) -> float | None:
    """The median time of a call that does nothing, which every sample carries on top of its work. None if all were
    late."""
    empty = Call(lambda: None)
    times = [time_s for time_s in clock.turn([empty] * 32) if time_s is not None]
    return median(times) if times else None


def for_device(device: str):
    """The clock of `device`: `cpu` or `cuda`."""
    return CudaClock() if device == "cuda" else CpuClock()
