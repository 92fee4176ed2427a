"""Tell a wait that will never end from a long one (PTX ISA 8.7, 8: nothing promises that others write what is awaited).

A warp that comes to the same instruction with the same registers again has learnt nothing. If all warps that can go on
have done so, nothing lands any more, and memory is what it was, they will repeat themselves for ever.
"""

import zlib
from typing import Any

import numpy as np

PATIENCE = 10_000  # instructions after an event, or after the end of a warp, before `notice` is asked

HURRY = 1000  # the weight of a warp that repeats itself is divided by it, so that the others get their turns


class Stall:
    def __init__(self, machine: Any):
        self.machine = machine
        self.again: set[Any] = set()
        self.moved()

    def moved(self) -> None:
        """Begin anew, since something has landed or ended."""
        self.due = self.machine.executed + PATIENCE
        self.states: dict[Any, set[int]] = {}
        for warp in self.again:
            warp.weight *= HURRY
        self.again.clear()

    def notice(self, warp: Any) -> bool:
        """Look at a warp that is about to go on, and return whether no warp will ever get anywhere."""
        if not self.states:
            self.memory = self._memory()
        seen = [warp.pc]
        for group in warp.others:
            seen.append(group.pc)
        for value in warp.r:
            seen.append(value.tobytes() if isinstance(value, np.ndarray) else id(value))
        state = hash(tuple(seen))
        states = self.states.setdefault(warp, set())
        has_waited = warp.ready is not None  # it is where it was, and no longer waits
        if state not in states or has_waited or warp in self.again:
            states.add(state)
            return False
        self.again.add(warp)
        warp.weight /= HURRY
        if any(other not in self.again and (other.ready is None or other.ready()) for other in self.machine.warps):
            return False
        if self.memory == self._memory():
            return True
        self.moved()
        return False

    def _memory(self) -> int:
        """A checksum of all bytes that warps may wait for."""
        total = 0
        for region in self.machine.memory.regions:
            total = zlib.crc32(region.data, total)
        for cta in self.machine.ctas:
            total = zlib.crc32(cta.shared.data, total)
        return total
