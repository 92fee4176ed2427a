"""Programs that stand for others in all orders of events but the first.

Where programs cannot meet, since they have no atomics and no flags and none writes what another reads or writes, an
order of events of all of them is one of each. Those whose warps took the same way through the code may be wrong in the
same orders. So two of them are enough, which each order draws anew; what the others wrote is kept from the first order.
"""

import random
import re
from collections import defaultdict
from functools import partial
from typing import Any

import numpy as np

from .core.machine import Machine
from .core.memory import REGION_BITS, Places
from .core.order import CLUSTER_BITS, IN_CLUSTER, Attempt
from .core.program import Program, Ready, Step
from .core.ptx import Instruction, Kernel
from .core.warp import Warp

MEETS = re.compile(r"atom|red\.|cp\.reduce|membar|griddep|fence\.(acq|sc|rel)|(ld|st)\.(acq|rel|vol|mmio)")
"""Opcodes of what programs may meet by."""
MANY = -1
"""Stands for several programs."""
POLL = 8  # the most instructions of a loop around a wait, which turns as often as an order of events has it


class Recorded(Machine):
    """A machine that notes the way of each warp, and who reads and writes each byte of global memory."""

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.ways: dict[Warp, int] = defaultdict(int)
        self.readers: dict[int, np.ndarray] = {}
        self.writers: dict[int, np.ndarray] = {}
        """By the address where an array begins: the number of the cluster, or MANY, for each byte; 0 for nobody."""
        self.memory.add = partial(self._add_watched, self.memory.add)

    def launch(self, program: Program, *args: Any, **more: Any) -> int:
        self.polls = polls(program.kernel)
        return super().launch(program.watched(self._passed), *args, **more)

    def _passed(self, inst: Instruction, step: Step, warp: Warp) -> Ready | None:
        at = warp.pc
        ready = step.run(warp)
        if ready is None and at not in self.polls:
            self.ways[warp] = hash((self.ways[warp], at))
        return ready

    def _add_watched(self, add: Any, data: np.ndarray) -> int:
        address = add(data)
        region = self.memory.regions[(address >> REGION_BITS) - 1]
        if region.start not in self.readers:
            self.readers[region.start] = np.zeros(len(data), np.int32)
            self.writers[region.start] = np.zeros(len(data), np.int32)
            region.note_read = partial(self._note, region.note_read, self.readers[region.start])
            region.note_write = partial(self._note, region.note_write, self.writers[region.start])
        return address

    def _note(self, note: Any, programs: np.ndarray, places: Places, attempt: Attempt, *more: Any) -> None:
        note(places, attempt, *more)
        program = self.ledger.accesses[attempt.number].agent >> CLUSTER_BITS
        before = programs[places]
        programs[places] = np.where((before == 0) | (before == program), program, MANY)

    def stand_ins(self) -> "StandIns | None":
        """The classes of programs that are alike; None where programs may meet, or no class has more than two."""
        (launch,) = self.launches
        for start, writers in self.writers.items():
            readers = self.readers[start]
            is_shared = (readers != 0) & (readers != writers)
            if (writers == MANY).any() or is_shared[writers != 0].any():
                return None
        ways = defaultdict(list)
        for warp, way in self.ways.items():
            ways[warp.agent >> CLUSTER_BITS].append((warp.agent & IN_CLUSTER, way))
        alike = defaultdict(list)
        for program, of_warps in ways.items():
            alike[tuple(sorted(of_warps))].append(program)
        if any(MEETS.match(inst.op) for inst in launch.program.kernel.code) or len(ways) <= 2 * len(alike):
            return None
        return StandIns([*alike.values()], launch.first, launch.program.cluster, self.writers)


class StandIns:
    def __init__(self, alike: list[list[int]], first: int, size: int, writers: dict[int, np.ndarray]):
        """`alike`: the numbers of the clusters of each class. The first of a launch is `first`, and each has `size`
        CTAs."""
        self.alike = alike
        self.first = first
        self.size = size
        self.writers = writers
        self.results: dict[int, np.ndarray] = {}
        """What the first order left in each array."""

    def __str__(self) -> str:
        return f"{len(self.chosen(0))} of {sum(map(len, self.alike))} programs stand for the others"

    def chosen(self, seed: int) -> list[int]:
        """The clusters that run in an order of events: two of each class."""
        draw = random.Random(seed)
        chosen = []
        for programs in self.alike:
            chosen += draw.sample(programs, min(2, len(programs)))
        return sorted(chosen)

    def ctas(self, chosen: list[int]) -> list[int]:
        return [(number - self.first) * self.size + rank for number in chosen for rank in range(self.size)]

    def keep(self, chosen: list[int], start: int, array: np.ndarray) -> None:
        """Put what the others wrote in the first order into an array that begins at an address."""
        if start in self.writers:
            others = (self.writers[start] != 0) & ~np.isin(self.writers[start], chosen)
            array[others] = self.results[start][others]


def polls(kernel: Kernel) -> set[int]:
    """The numbers of the instructions that only repeat a wait."""
    numbers = set()
    for first, last in kernel.loops():
        inside = range(first, last + 1)
        if len(inside) <= POLL and any(kernel.code[number].op.startswith("mbarrier.t") for number in inside):
            numbers.update(inside)
    return numbers
