"""Tell a wait that will never end from a long one (PTX ISA 8.7, 8: nothing promises that others write what is awaited).

A warp that comes to the same instruction with the same registers again has learnt nothing. If all warps that can go on
have done so, nothing lands any more, and memory is what it was, they will repeat themselves for ever.

A warp is compared with one earlier state of its own, its mark, which is renewed after 1, 2, 4, ... looks. So sooner or
later the mark lies within what repeats, and is old enough (R. P. Brent, BIT 20, 1980). A register gets another array,
and no array is changed in place. So a mark needs no copies, and most registers are the same object as in it.
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
        # {warp: where it was, its registers then, for how many looks this mark stays, and the next one}
        self.marks: dict[Any, tuple] = {}
        for warp in self.again:
            warp.weight *= HURRY
        self.again.clear()

    def notice(self, warp: Any) -> bool:
        """Look at a warp that is about to go on, and return whether no warp will ever get anywhere."""
        if warp.ready is not None or warp in self.again:  # it is where it was, and no longer waits
            return False
        if not self.marks:
            self.memory = self._memory()
        place = [warp.pc, *[group.pc for group in warp.others]]
        was_at, registers, looks, more = self.marks.get(warp, ([], [], 0, 1))
        if place != was_at or not all(map(_alike, warp.r, registers)):
            mark = was_at, registers, looks - 1, more
            self.marks[warp] = mark if looks else (place, [*warp.r], more, 2 * more)
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


def _alike(value: Any, before: Any) -> bool:
    return value is before or (type(value) is type(before) is np.ndarray and value.tobytes() == before.tobytes())
