"""Links whose transfers a thread of this process brings, and among them the paced one of a CPU.

What a thread cannot do at its time, as where another process has its core, it makes up for: a late slice does not move
those behind it.
"""

import functools
import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy
import torch
from torch import Tensor

from collectives.transfers import PATIENCE_S, SLICE_BYTES, Timeline, Transfers, missing

AWAKE_S = 0.0004
"""Before the end of a slice's slot the link's thread no longer sleeps."""

LOOK_S = 0.05
"""A link's thread that waits for a source looks so often whether the run was given up."""


class WallClock:
    """The time that a paced link keeps. Tests hand it another, so that a busy machine decides nothing there."""

    now = staticmethod(time.perf_counter)

    @staticmethod
    def sleep(seconds: float) -> None:
        """To the point: a thread that sleeps is woken some tenths of a millisecond late on a virtual machine."""
        until = time.perf_counter() + seconds
        time.sleep(max(0.0, seconds - AWAKE_S))
        while time.perf_counter() < until:
            time.sleep(0)  # lets go of Python's lock

    def wait_for(self, change: threading.Condition, here: Callable[[], bool], until_s: float) -> None:
        """Wait, with `change` held, until `here()`, but no longer than until `until_s`."""
        change.wait_for(here, timeout=max(0.0, until_s - self.now()))


@dataclass
class Run:
    """One run of a link, as its consumer and its thread see it. Times are by the link's clock."""

    transfers: Transfers
    t0: float
    ready_s: list[float]
    """When each of the first transfers could go."""
    computed: bool
    """Whether sources are computed while it runs."""
    free_s: float
    """When the wire has moved all before."""
    arrivals_s: list[float] = field(default_factory=list)
    """Seconds after `t0`."""
    failure: BaseException | None = None


@functools.cache
def last_core() -> int | None:
    """The last of the cores that the process had when this was first asked; None where it has one core, or cannot
    choose."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return cores[-1] if len(cores) > 1 else None


class Worker(threading.Thread):
    """The thread that moves slices, one for all links of the process: it stays on the last core, and the consumer's
    threads on the others."""

    current: "Worker | None" = None
    last: Run | None = None
    """The run that it was given last."""

    def __init__(self):
        super().__init__(daemon=True, name="paced link")
        self.runs: queue.SimpleQueue[tuple[Threaded, Run]] = queue.SimpleQueue()

    @classmethod
    def give(cls, link: "Threaded", run: Run) -> None:
        """Have the worker do `run` of `link`. One that was left before its end is given up, and so is the worker that
        has it."""
        last = cls.last
        if left := last and len(last.arrivals_s) < len(last.transfers):
            last.failure = last.failure or TimeoutError("another run was started")
        if left or not (cls.current and cls.current.is_alive()):  # a fork has none of its parent's threads
            cls.current = cls()
            cls.current.start()
        cls.last = run
        cls.current.runs.put((link, run))

    def run(self) -> None:
        while self is Worker.current:
            link, run = self.runs.get()
            if (core := last_core()) is not None:
                os.sched_setaffinity(0, {core})  # a clock that deals threads out to cores knows nothing of this
            link.move(run)


class Threaded:
    """A link whose transfers a thread of this process brings, one after another. `rank` is the one that gathers, for
    messages. A subclass says how (`bring`) and by when so many bytes are due (`due_s`)."""

    kind, device = "", "cpu"
    bytes_per_s: float | None = None
    patience_s = PATIENCE_S
    clock = WallClock()

    def __init__(self, rank: int = 0):
        self.rank = rank
        self._run = Run(Transfers(), 0.0, [], False, 0.0)
        self._change = threading.Condition()
        last_core()  # now: a clock will pin the thread that starts the link

    def bring(self, run: Run, index: int) -> None:
        """Bring transfer `index` into its target. It may end earlier where `run.failure` says that nobody waits for
        it."""
        raise NotImplementedError

    def due_s(self, nbytes: int) -> float:
        """The seconds within which so many bytes should be here once they may go."""
        raise NotImplementedError

    def start(self, transfers: Transfers, ready: int | None = None) -> None:
        """Begin to move `transfers`, of which the first `ready` may go (default: all). A run that was left before its
        end, of this link or another, is given up."""
        self._waits: list[tuple[int, float, float]] = []
        t0, ready = self.clock.now(), len(transfers) if ready is None else ready
        self._run = Run(transfers, t0, [t0] * ready, ready < len(transfers), t0)
        Worker.give(self, self._run)

    def ready(self, count: int) -> None:
        """The first `count` transfers may go: their sources hold what is to be moved."""
        with self._change:
            self._run.ready_s += [self.clock.now()] * (count - len(self._run.ready_s))
            self._change.notify_all()

    def wait(self, count: int) -> int:
        """Wait until the first `count` transfers are here. Returns how many are. Raises LinkError if one does not
        come."""
        began = self.clock.now() - self._run.t0
        here = self._await(count)
        self._waits.append((count, began, self.clock.now() - self._run.t0))
        return here

    def finish(self) -> None:
        """The consumer's end; waits for what nobody waited for."""
        self._await(len(self._run.transfers))
        self._end = self.clock.now() - self._run.t0

    def abandon(self) -> None:
        """Give up the run that the consumer has left: the thread waits no longer for what is not ready."""
        with self._change:
            self._run.failure = self._run.failure or TimeoutError("the run was abandoned")
            self._change.notify_all()

    def timeline(self) -> Timeline:
        """The timeline of the last run."""
        run = self._run
        ready_s = [when - run.t0 for when in run.ready_s] if run.computed else []
        return Timeline(run.transfers, list(run.arrivals_s), self._waits, self._end, ready_s)

    def _await(self, count: int) -> int:
        run = self._run
        if count > len(run.ready_s):
            raise missing(self.kind, run.transfers[len(run.ready_s)], self.rank, "it may not go yet, see `ready`")
        due = max([run.t0, *run.ready_s]) + self.due_s(sum(transfer.nbytes for transfer in run.transfers[:count]))
        with self._change:
            self.clock.wait_for(
                self._change, lambda: bool(run.failure) or len(run.arrivals_s) >= count, due + self.patience_s
            )
            here = len(run.arrivals_s)
        if here < count:
            why = f"it raised {run.failure!r}" if run.failure else f"it is {self.patience_s:g} s late"
            run.failure = run.failure or TimeoutError("given up")
            raise missing(self.kind, run.transfers[here], self.rank, why)
        return here

    def move(self, run: Run) -> None:
        """Bring all of `run`, in the worker's thread."""
        try:
            for index in range(len(run.transfers)):
                if len(run.ready_s) <= index:  # without the lock, which the consumer may have just been woken for
                    with self._change:
                        while not (run.failure or len(run.ready_s) > index):
                            self._change.wait(LOOK_S)
                self.bring(run, index)
                with self._change:
                    if run.failure:
                        return
                    run.arrivals_s.append(self.clock.now() - run.t0)
                    self._change.notify_all()
        except Exception as error:
            with self._change:
                run.failure = error.with_traceback(None)  # which refers to what was waited for, and so to a group
                self._change.notify_all()


class PacedThread(Threaded):
    """A thread that copies slices and sleeps until each is due; a late one is made up for.

    Transfer i is here its bytes / `bytes_per_s` after it was ready and the one before was moved.
    """

    kind = "paced"
    bytes_per_s: float

    def __init__(self, bytes_per_s: float, rank: int = 0):
        super().__init__(rank)
        self.bytes_per_s = bytes_per_s

    def due_s(self, nbytes: int) -> float:
        return nbytes / self.bytes_per_s

    def bring(self, run: Run, index: int) -> None:
        if run.failure:
            return
        rate, run.free_s = self.bytes_per_s, max(run.free_s, run.ready_s[index])
        for source, target in run.transfers[index].slices(SLICE_BYTES):
            if run.failure:
                return
            self.copy(index, source, target)
            run.free_s += source.nbytes / rate
            while (left := run.free_s - self.clock.now()) > 0:
                self.clock.sleep(left)

    @staticmethod
    def copy(index: int, source: Tensor, target: Tensor) -> None:
        """Copy a slice of transfer `index`. NumPy copies without Python's lock, and in this thread alone. It does so in
        bytes, since it has no bf16."""
        numpy.copyto(target.view(torch.uint8).numpy(), source.view(torch.uint8).numpy())
