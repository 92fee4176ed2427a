"""How chunks move, and how the consumer learns that they are here: the protocol, and the links that need no GPU.

A link makes transfers one after another, in the order it is given, and raises a flag for each. The producer is started
before the consumer, and flags are sequence numbers that only grow: nothing is ever reset, so a flag of the run before
cannot be taken for one of this run. The consumer says with `wait(count)` how many transfers it needs next; a transfer
that never comes is an error that names its chunk, within a bound.

    link.start(transfers)      # the producer begins
    here = link.wait(3)        # the consumer goes on once three have arrived; here >= 3 of them are
    ...                        # or it looks itself, at link.signals()
    link.finish()              # all have arrived
    link.timeline()            # when they did, and when the consumer waited

What is still to be computed is started as not ready, `link.start(transfers, ready=0)`, and `link.ready(count)` lets the
first `count` transfers go. With `apart=True` link and consumer take turns: on a GPU nothing of the link then waits on
an SM for what is computed.

Kinds: `preset` moves nothing, its data is there and its flags are up. `paced` moves real bytes at a bandwidth that is
asked for: here by a thread, on a GPU by a kernel (`collectives.device_links`). A paced link is an emulation, whatever
its bandwidth: nothing measured over it is called NVLink or InfiniBand.
"""

import functools
import itertools
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy
import torch
from torch import Tensor

from kernels.contract import Signals

SLICE_BYTES = 2**20
"""A transfer is cut in slices of at most this, each in its slot of time: traffic as even as a wire's."""

AWAKE_S = 0.0004
"""Before the end of a slice's slot the link's thread no longer sleeps."""

PATIENCE_S = 2.0
"""A transfer that is this much later than it was due will not come."""

PATIENCE_LOOKS = 10_000
"""The same for what counts its looks at a flag, in Triton's interpreter."""

LOOK_S = 0.05
"""A link's thread that waits for a source looks so often whether the run was given up."""


class LinkError(RuntimeError):
    """A transfer did not arrive: the message names its chunk and the ranks it goes from and to."""


@dataclass(frozen=True)
class Transfer:
    """`source[rows, columns]` is copied to `target`; rows are contiguous. It is of the rank `chunk`'s shard; where the
    shard goes in several pieces, this is the one of row block `block`."""

    chunk: int
    block: int
    source: Tensor
    target: Tensor

    @property
    def nbytes(self) -> int:
        return self.source.numel() * self.source.element_size()

    @functools.cached_property
    def slices(self) -> list[tuple[numpy.ndarray, numpy.ndarray]]:
        """Return (source, target) of each slice, as arrays of plain words."""
        row_bytes = self.nbytes // max(1, len(self.source))
        rows = max(1, SLICE_BYTES // max(1, row_bytes))
        pairs = zip(_words(self.source).split(rows), _words(self.target).split(rows), strict=True)
        return [(source.numpy(), target.numpy()) for source, target in pairs]


class Gather(list[Transfer]):
    """The transfers to one rank, in their order. `own` is what that rank sends to each of the others meanwhile: its
    shard, a piece for each row block. A link between shards of one process does not look at it."""

    def __init__(self, transfers: Iterable[Transfer], own: Iterable[Tensor]):
        super().__init__(transfers)
        self.own = [piece for piece in own if len(piece)]

    def outgoing(self, rank: int, ranks: int) -> list[tuple[Tensor, int, int]]:
        """Return (what, to which rank, block) of all that `rank` of `ranks` sends, those first who want it first."""
        steps = range(1, ranks)
        return [(piece, (rank - step) % ranks, block) for block, piece in enumerate(self.own) for step in steps]


class Scatter(list[Transfer]):
    """Transfers each of whose sources is this rank's part for another rank, and whose target takes the part that comes
    from `chunk` meanwhile. In one process the two are the same: there each rank is the measured one, turned by its
    number."""

    def outgoing(self, rank: int, ranks: int) -> list[tuple[Tensor, int, int]]:
        """As of a `Gather`: to a rank that lies as far before this one as the sender lies behind it."""
        return [(transfer.source, (2 * rank - transfer.chunk) % ranks, transfer.block) for transfer in self]


class InTurn(list[Transfer]):
    """A gather and a scatter, one after the other in either order, their blocks other ones."""

    def __init__(self, *parts: Gather | Scatter):
        super().__init__(itertools.chain(*parts))
        self.parts = parts

    def outgoing(self, rank: int, ranks: int) -> list[tuple[Tensor, int, int]]:
        """As of each of them."""
        return [piece for part in self.parts for piece in part.outgoing(rank, ranks)]


def _words(tensor: Tensor) -> Tensor:
    """Return the same memory as integers: NumPy has no bf16."""
    return tensor.view({1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()])


def missing(kind: str, transfer: Transfer, rank: int, why: str) -> LinkError:
    """Return the error of a link of `kind` to `rank` on which `transfer` did not arrive."""
    return LinkError(
        f"the {kind} link is dead: chunk {transfer.chunk} (row block {transfer.block}), which rank {transfer.chunk} "
        f"sends to rank {rank}, has not arrived: {why}"
    )


@dataclass
class Timeline:
    """What happened on a link from its start to the consumer's end, in seconds after the start."""

    transfers: Sequence[Transfer]
    arrivals_s: list[float]
    waits: list[tuple[int, float, float]]
    """(count, from, to): the consumer waited for the first `count` transfers. Between two waits it computed."""
    end_s: float
    ready_s: list[float] = field(default_factory=list)
    """When each transfer could go; empty where all could from the start."""

    def as_dict(self) -> dict:
        """Plain values, times to the nanosecond."""
        ready = {"ready_s": [round(time, 9) for time in self.ready_s]} if self.ready_s else {}
        ready |= {"in_turn": True} if isinstance(self.transfers, InTurn) else {}
        return ready | {
            "transfers": [(transfer.chunk, transfer.block) for transfer in self.transfers],
            "arrivals_s": [round(time, 9) for time in self.arrivals_s],
            "waits": [(count, round(start, 9), round(end, 9)) for count, start, end in self.waits],
            "end_s": round(self.end_s, 9),
        }


class Preset:
    """Nothing moves and all flags are up: what waiting for chunks costs where none is ever late. `fill(transfers)`
    brings the data, once, before anything is timed."""

    kind, bytes_per_s = "preset", None

    @staticmethod
    def fill(transfers: Sequence[Transfer]) -> None:
        for transfer in transfers:
            transfer.target.copy_(transfer.source)

    def start(
        self, transfers: Sequence[Transfer], ready: int | None = None, raised: int = 1, apart: bool = False
    ) -> None:
        self._transfers, self._t0, self._waits = transfers, time.perf_counter(), []

    def ready(self, count: int) -> None:
        pass

    def signals(self, count: int | None = None) -> Signals:
        flags = torch.zeros(len(self._transfers), dtype=torch.int32, device=self._transfers[0].target.device)
        return Signals(flags, 0, flags.new_zeros(1), 1)

    @property
    def counters(self) -> tuple[Tensor, Tensor]:
        flags = self.signals().flags
        return flags, flags.long()

    def wait(self, count: int) -> int:
        now = time.perf_counter() - self._t0
        self._waits.append((count, now, now))
        return len(self._transfers)

    def finish(self) -> None:
        self._end = time.perf_counter() - self._t0

    def timeline(self) -> Timeline:
        return Timeline(self._transfers, [0.0] * len(self._transfers), self._waits, self._end)


class WarmUp(Preset):
    """Takes an arm through the launches of a link that brings just what is waited for. Each kernel is loaded then: that
    may wait for the device, where over a link another one spins until what was to be launched next has run."""

    def wait(self, count: int) -> int:
        super().wait(count)
        return count


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
class _Job:
    """One run of a paced link."""

    run: Callable[["_Job"], None]
    sequence: int
    transfers: Sequence[Transfer]
    t0: float
    ready_s: list[float]
    """When each of the first transfers could go, by the clock that `t0` is by."""
    free_s: float = 0.0
    """When the wire has moved all before."""
    computed: bool = False
    """Whether sources are computed while it runs."""
    arrivals_s: list[float] = field(default_factory=list)
    failure: BaseException | None = None


@functools.cache
def last_core() -> int | None:
    """Return the last of the process's cores, when this was asked for first; None where it has one, or cannot
    choose."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return cores[-1] if len(cores) > 1 else None


class _Worker(threading.Thread):
    """The thread that moves slices, one for all links of the process: it stays on the last core, and the consumer's
    threads on the others."""

    def __init__(self):
        super().__init__(daemon=True, name="paced link")
        self.jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()

    def run(self) -> None:
        while self is Threaded._worker:
            job = self.jobs.get()
            if (core := last_core()) is not None:
                os.sched_setaffinity(0, {core})  # a clock that deals threads out to cores knows nothing of this
            job.run(job)


class Threaded:
    """A link whose transfers a thread of this process brings, one after another. `rank` is the one that gathers, for
    messages. A subclass says how (`_begin`, `_bring`) and by when each is due (`_due_s`)."""

    kind, device = "", "cpu"
    bytes_per_s: float | None = None
    clock = WallClock()
    _worker: _Worker | None = None
    _last: _Job | None = None
    """What the worker was given last."""

    def __init__(self, rank: int = 0):
        self.rank = rank
        self._change = threading.Condition()
        self._flags = numpy.zeros(0, numpy.int32)
        self._lost = torch.zeros(1, dtype=torch.int32)
        self._sequence = 0
        self._job: _Job | None = None
        last_core()  # now: a clock will pin the thread that starts the link

    @staticmethod
    def _give(job: _Job) -> None:
        """Have the worker do `job`. One that was left before its end is given up, and so is the worker that has it."""
        last = Threaded._last
        if left := last and len(last.arrivals_s) < len(last.transfers):
            last.failure = last.failure or TimeoutError("another run was started")
        if left or not (Threaded._worker and Threaded._worker.is_alive()):  # a fork has none of its parent's threads
            Threaded._worker = _Worker()
            Threaded._worker.start()
        Threaded._last = job
        Threaded._worker.jobs.put(job)

    def start(self, transfers: Sequence[Transfer], ready: int | None = None, apart: bool = False) -> None:
        """Begin to move `transfers`, of which the first `ready` may go (default: all). A run that was left before its
        end, of this link or another, is given up."""
        self._sequence += 1
        self._lost.zero_()
        if len(self._flags) < len(transfers):
            self._flags = numpy.zeros(len(transfers), numpy.int32)
        self._waits: list[tuple[int, float, float]] = []
        self._begin(transfers)
        t0, ready = self.clock.now(), len(transfers) if ready is None else ready
        self._job = _Job(self._run, self._sequence, transfers, t0, [t0] * ready, t0, computed=ready < len(transfers))
        self._give(self._job)

    def ready(self, count: int) -> None:
        """The first `count` transfers may go: their sources hold what is to be moved."""
        with self._change:
            self._job.ready_s += [self.clock.now()] * (count - len(self._job.ready_s))
            self._change.notify_all()

    def wait(self, count: int) -> int:
        """Return once the first `count` transfers are here: how many are. Raises LinkError if that does not come."""
        began = self.clock.now() - self._job.t0
        here = self._await(count)
        self._waits.append((count, began, self.clock.now() - self._job.t0))
        return here

    def signals(self) -> Signals:
        """Of this run, for a consumer that looks at the flags itself."""
        return Signals(torch.from_numpy(self._flags), self._sequence, self._lost, PATIENCE_LOOKS)

    def finish(self) -> None:
        """The consumer's end; waits for what nobody waited for."""
        self._await(len(self._job.transfers))
        if lost := int(self._lost):
            raise missing(self.kind, self._job.transfers[lost - 1], self.rank, "its flag was given up")
        self._end = self.clock.now() - self._job.t0

    def timeline(self) -> Timeline:
        """Of the last run."""
        job = self._job
        ready_s = [when - job.t0 for when in job.ready_s] if job.computed else []
        return Timeline(job.transfers, list(job.arrivals_s), self._waits, self._end, ready_s)

    def _await(self, count: int) -> int:
        job = self._job
        if count > len(job.ready_s):
            raise missing(self.kind, job.transfers[len(job.ready_s)], self.rank, "it may not go yet, see `ready`")
        due = max([job.t0, *job.ready_s]) + self._due_s(sum(transfer.nbytes for transfer in job.transfers[:count]))

        def arrived() -> bool:
            return job.failure is not None or not count or self._flags[count - 1] >= job.sequence

        with self._change:
            self.clock.wait_for(self._change, arrived, due + PATIENCE_S)
            here = len(job.arrivals_s)
        if here < count:
            why = f"it raised {job.failure!r}" if job.failure else f"it is {PATIENCE_S:g} s late"
            job.failure = job.failure or TimeoutError("given up")
            raise missing(self.kind, job.transfers[here], self.rank, why)
        return here

    def _run(self, job: _Job) -> None:
        """What the worker does for this link."""
        try:
            for index in range(len(job.transfers)):
                if len(job.ready_s) <= index:  # without the lock, which the consumer may have just been woken for
                    with self._change:
                        while not (job.failure or len(job.ready_s) > index):
                            self._change.wait(LOOK_S)
                self._bring(job, index)
                with self._change:
                    if job.failure:
                        return
                    self._flags[index] = job.sequence
                    job.arrivals_s.append(self.clock.now() - job.t0)
                    self._change.notify_all()
        except Exception as error:
            with self._change:
                job.failure = error.with_traceback(None)  # which refers to what was waited for, and so to a group
                self._change.notify_all()

    def _begin(self, transfers: Sequence[Transfer]) -> None:
        """What comes before the clock starts."""

    def _bring(self, job: _Job, index: int) -> None:
        """Return once transfer `index` is in its target, or `job.failure` says that nobody waits for it."""
        raise NotImplementedError

    def _due_s(self, nbytes: int) -> float:
        """Seconds from the start by which so many bytes should be here."""
        raise NotImplementedError


class PacedThread(Threaded):
    """A thread that copies slices and sleeps until each is due; a late one is made up for.

    Transfer i is here its bytes / `bytes_per_s` after it was ready and the one before was moved.
    """

    kind = "paced"

    def __init__(self, bytes_per_s: float, rank: int = 0):
        super().__init__(rank)
        self.bytes_per_s = bytes_per_s

    def _due_s(self, nbytes: int) -> float:
        return nbytes / self.bytes_per_s

    def _bring(self, job: _Job, index: int) -> None:
        if job.failure:
            return
        rate, job.free_s = self.bytes_per_s, max(job.free_s, job.ready_s[index])
        for source, target in job.transfers[index].slices:
            if job.failure:
                return
            self._move(index, source, target)
            job.free_s += source.nbytes / rate
            while (left := job.free_s - self.clock.now()) > 0:
                self.clock.sleep(left)

    @staticmethod
    def _move(index: int, source: numpy.ndarray, target: numpy.ndarray) -> None:
        """Copy a slice of transfer `index`. NumPy copies without Python's lock, and in this thread alone."""
        numpy.copyto(target, source)
