"""A Hopper SM made of NumPy, on which `kernels.warpgroup` runs as plain Python: Gluon has no interpreter of its own.

What runs is the kernel's own source, with stand-ins for the names it takes from Gluon. Each partition of
`warp_specialize` is a thread, of which one runs at a time. Whatever the hardware does in its own time is an event: a
TMA load that lands, a wgmma that reads its operands, a TMA store that reads its buffer. Before every operation a seeded
scheduler picks who goes on, with weights drawn for each run, so that in some runs a partition starves, in others loads
land at once or stores read at the last moment. A wrong protocol then shows as a deadlock (`StuckError`), as a rule that
was broken (`BrokenError`), or as a wrong product.

Modelled: phases, arrivals and bytes of mbarriers; waits by parity; operations that read and write shared memory after
they were issued; wgmma groups in order, and bulk groups of stores; the fence between the proxies; shared memory that is
gone with its program. Not modelled: threads within a partition (`ring_order` looks for their barriers in the PTX),
registers, swizzles, time.
"""

import inspect
import random
import threading
from collections import deque
from types import SimpleNamespace

import numpy as np
import triton.language as tl
from gluon_memory import Barrier, BrokenError, Descriptor, Memory, StuckError, Values

from kernels import persistent, warpgroup

JITTED = ("following", "preceding", "produce", "consume", "store_parts", "warpgroup_kernel")


class Abandoned(BaseException):
    """Ends the threads of a run that failed."""


def source() -> str:
    """The kernel and the functions it calls, as text, without their decorators."""
    functions = [persistent.tile_corner.fn, *(getattr(warpgroup, name).fn for name in JITTED)]
    texts = (inspect.getsource(function) for function in functions)
    return "\n\n".join(text[text.index("def ") :] for text in texts)


class Partition:
    """A thread that runs only while it holds the baton."""

    def __init__(self, machine, name, function, args):
        self.machine, self.name = machine, name
        self.baton = threading.Semaphore(0)
        self.ready, self.alive, self.error = (lambda: True), True, None
        self.groups, self.stores, self.unfenced = deque(), [], []
        self.thread = threading.Thread(target=self._run, args=(function, args), daemon=True)
        self.thread.start()

    def _run(self, function, args):
        self.machine.local.partition = self
        self.baton.acquire()
        try:
            if not self.machine.over:
                function(*args)
            if self.groups or not all(self.stores):
                raise BrokenError(f"{self.name} ends while its wgmma or stores still read shared memory")
        except Abandoned:
            pass
        except BaseException as error:  # raised again where the partition was resumed
            self.error = error
        self.alive = False
        self.machine.baton.release()

    def pause(self, ready):
        """Give the baton away; come back when chosen, which is once `ready()` holds."""
        self.ready = ready
        self.machine.baton.release()
        self.baton.acquire()
        if self.machine.over:
            raise Abandoned

    def resume(self):
        self.baton.release()
        self.machine.baton.acquire()
        if self.error:
            raise self.error


class Machine:
    """One program of `programs`. `run(text, ...)` runs the kernel whose source is `text` on it."""

    def __init__(self, program, programs, rng):
        self.program, self.programs, self.rng = program, programs, rng
        self.baton, self.local, self.over = threading.Semaphore(0), threading.local(), False
        self.partitions, self.events = [], []
        self.fenced = False  # barriers, once they are initialised, for TMA
        self.weights = [10 ** rng.uniform(-3, 3) for _ in range(4)]  # of the events, and of each partition

    def run(self, text, *args):
        names = self._names()
        exec(compile(text, "kernels/warpgroup.py", "exec"), names)
        names["warpgroup_kernel"](*args)

    def step(self, ready=lambda: True):
        """Let others go first. Returns the partition that calls; before the fork, one that stands for the program."""
        partition = getattr(self.local, "partition", None)
        if partition is None:
            return SimpleNamespace(name=None, unfenced=[])
        partition.pause(ready)
        return partition

    def fork(self, functions_and_args, warps, registers):
        if len(warps) != len(functions_and_args) - 1 or len(registers) != len(warps):
            raise BrokenError("warp_specialize needs warps and registers for every partition but the first")
        for number, (function, args) in enumerate(functions_and_args):
            self.partitions.append(Partition(self, f"partition {number}", function, args))
        try:
            while any(partition.alive for partition in self.partitions):
                self._advance()
            if self.events:
                raise BrokenError("the program ends while loads are on their way")
        finally:
            self.over = True
            for partition in self.partitions:
                partition.baton.release()
                partition.thread.join()

    def _advance(self):
        # A wgmma only after those before it in its partition.
        late = [group for partition in self.partitions for group in list(partition.groups)[:1]]
        choices = [(self.weights[0], event) for event in [*self.events, *late]]
        for number, partition in enumerate(self.partitions):
            if partition.alive and partition.ready():
                choices.append((self.weights[1 + number], partition.resume))
        if not choices:
            raise StuckError("every partition waits, and nothing is on its way")
        weights, actions = zip(*choices, strict=True)
        action = self.rng.choices(actions, weights)[0]
        if action in self.events:
            self.events.remove(action)
        action()

    # What the kernel takes from Gluon.

    def _names(self):
        gl = SimpleNamespace(
            constexpr=int, float32=None, int64="barriers", static_range=range, NVMMADistributedLayout=lambda *_: None,
            cdiv=lambda a, b: -(-a // b), where=lambda which, a, b: a if which else b,
            program_id=lambda axis: self.program, num_programs=lambda axis: self.programs,
            zeros=self._zeros, convert_layout=lambda values, layout: values,
            allocate_shared_memory=self._allocate, warp_specialize=self.fork,
        )  # fmt: skip
        mbarrier = SimpleNamespace(
            MBarrierLayout=lambda: None, init=lambda barrier, count: barrier.init(count),
            wait=lambda barrier, phase: self.step(lambda: barrier.has_completed(phase)),
            expect=self._expect, arrive=self._arrive,
        )  # fmt: skip
        tma = SimpleNamespace(
            async_copy_global_to_shared=self._load, async_copy_shared_to_global=self._store, store_wait=self._store_wait
        )
        return dict(
            gl=gl, tl=tl, mbarrier=mbarrier, tma=tma, fence_async_shared=self._fence,
            warpgroup_mma=self._mma, warpgroup_mma_wait=self._mma_wait,
            CONSUMERS=2, CONSUMER_REGISTERS=240, PRODUCER_REGISTERS=24,
        )  # fmt: skip

    def _allocate(self, dtype, shape, layout):
        if dtype == "barriers":
            return Memory(self, np.array([[Barrier()] for _ in range(shape[0])]))
        return Memory(self, np.full(shape, np.nan))

    def _zeros(self, shape, dtype, layout):
        return Values(np.zeros(shape), self.step().groups)

    def _expect(self, barrier, expected):
        self.step()
        barrier.bytes += expected
        barrier.arrive(1)

    def _arrive(self, barrier, count=1, pred=True):
        self.step()
        if pred:
            barrier.arrive(count)

    def _load(self, descriptor, corner, barrier, target):
        self.step()
        if not self.fenced:
            raise BrokenError("TMA is given a barrier whose start its proxy may not see")

        def land():
            descriptor.read_into(corner, target.array)
            barrier.move_bytes(-descriptor.block_type.nbytes)

        self.events.append(land)

    def _mma(self, a, b, acc, is_async):
        groups = self.step().groups

        def multiply():
            acc.array += a.array @ b.array
            groups.popleft()

        groups.append(multiply)
        return acc

    def _mma_wait(self, pending, deps):
        partition = self.local.partition
        self.step(lambda: len(partition.groups) <= pending)
        return deps[0]

    def _fence(self):
        partition = self.step()
        self.fenced |= partition.name is None
        for array, value in partition.unfenced:
            array[...] = value
        partition.unfenced.clear()

    def _store(self, descriptor, corner, source):
        stores = self.step().stores
        number = len(stores)
        stores.append(False)

        def read():
            descriptor.write_from(corner, source.array)
            stores[number] = True

        self.events.append(read)

    def _store_wait(self, pending):
        stores = self.local.partition.stores
        self.step(lambda: all(stores[: len(stores) - pending]))


def matmul(text, x, w, tile, stages, parts, *, programs=1, group=2, along_n=False, seed=0):
    """x @ w.T by the kernel whose source is `text`; `out` is NaN where nothing was written."""
    (m, k), n = x.shape, w.shape[0]
    out = np.full((m, n), np.nan)
    block_m, block_n, block_k = tile
    rng = random.Random(seed)
    for program in range(programs):
        x_desc, w_desc = Descriptor(x, (block_m, block_k)), Descriptor(w, (block_n, block_k))
        out_desc = Descriptor(out, (block_m // 2, block_n // parts))
        machine = Machine(program, programs, rng)
        machine.run(text, x_desc, w_desc, out_desc, m, n, k, stages, min(2, parts), group, along_n)
    return out
