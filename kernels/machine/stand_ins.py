"""Programs that stand for others in all orders of events but the first.

Where programs cannot meet, since they have no atomics and no flags and none writes what another reads or writes, an
order of events of all of them is one of each. Those whose warps took the same way through the code may be wrong in the
same orders. So two of them are enough, which each order draws anew; what the others wrote is kept from the first order.
"""

import random
import re
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from .core.launch import Launch
from .core.machine import Machine
from .core.memory import OfBytes
from .core.order import CLUSTER_BITS

MEETS = re.compile(r"atom|red\.|cp\.reduce|membar|griddep|fence\.(acq|sc|rel)|(ld|st)\S*\.(acq|rel|vol|mmio)")
"""Opcodes of what programs may meet by."""


@dataclass
class StandIns:
    launch: Launch
    alike: list[list[int]]
    """The numbers of the clusters of each class."""
    writers: OfBytes
    """The cluster that has written each."""
    results: OfBytes
    """What the first order left."""

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
        size = self.launch.program.cluster
        return [(number - self.launch.first) * size + rank for number in chosen for rank in range(size)]

    def keep(self, chosen: list[int], start: int, array: np.ndarray) -> None:
        """Put what the others wrote in the first order into an array that begins at an address."""
        if start in self.writers:
            others = (self.writers[start] != 0) & ~np.isin(self.writers[start], chosen)
            array[others] = self.results[start][others]


def stand_ins(machine: Machine) -> StandIns | None:
    """The classes of programs that are alike after a run, whose readers were noted. None where programs may meet, or no
    class has more than two."""
    launch = machine.launches[-1]
    ledger = machine.ledger
    if ledger.told or any(MEETS.match(inst.op) for inst in launch.program.kernel.code):
        return None
    programs = np.array([access.agent >> CLUSTER_BITS for access in ledger.accesses])
    writers = {}
    results = {}
    for region in machine.memory.regions:
        results[region.start] = region.data.copy()
        written = writers[region.start] = programs[region.writes]
        is_read = (region.readers != 0) & (region.readers != written)
        if is_read[written != 0].any():
            return None
    alike = defaultdict(list)
    for program, ways in launch.ways.items():
        alike[tuple(sorted(ways))].append(program)
    if len(launch.ways) <= 2 * len(alike):
        return None
    return StandIns(launch, [*alike.values()], writers, results)
