"""A machine that is watched. It notes who accesses one place of memory.

Runs are deterministic. The first run notes nothing; a run that showed something is run again to look closer. This
module models no part of PTX.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from .core.divergence import active
from .core.faults import UninitialisedError
from .core.launch import Cta
from .core.machine import Machine
from .core.memory import REGION_BITS, Noted
from .core.order import Attempt
from .core.ptx import Instruction
from .core.warp import Warp

SHARED_BYTES = 1 << 24  # addresses of shared memory are below it, whatever window they are in
WIDEST = 32  # bytes that a lane accesses at once


@dataclass(frozen=True)
class Touch:
    """An access to the place that is watched."""

    writes: bool
    agent: int
    warp: Warp | None
    """None for the host."""
    inst: Instruction | None
    lanes: tuple[int, ...]
    """The lanes that access it; none where the instruction is one of the whole warp."""


class SeenError(Exception):
    """The run has shown what it was run for."""


class Observed(Machine):
    """A machine that notes each access to a place. `place` is the number of a memory, and a byte of it. A read of the
    place before anybody has written it is no fault: the run goes on up to the write."""

    def __init__(self, *args, place: tuple[int, int] | None):
        super().__init__(*args)
        self.place = place
        self.ledger.bears = False
        self.touches: list[Touch] = []
        self.early: tuple[UninitialisedError, Touch] | None = None
        self.warp: Warp | None = None  # the one that goes on
        self.watched: Noted | None = None
        self.cta: Cta | None = None  # the one whose shared memory is watched
        self.memory.add = partial(self._add_watched, self.memory.add)

    def _advance(self, warp: Warp) -> None:
        self.warp = warp
        super()._advance(warp)
        self.warp = None

    def _begin(self) -> None:
        super()._begin()
        for cta in self.ctas:
            self._watch(cta.shared)
            if cta.shared is self.watched:
                self.cta = cta

    def _add_watched(self, add: Callable, data: np.ndarray) -> int:
        address = add(data)
        self._watch(self.memory.regions[(address >> REGION_BITS) - 1])
        return address

    def _watch(self, memory: Noted) -> None:
        """Note the accesses to a memory if the place is in it."""
        if self.place and memory.number == self.place[0] and memory is not self.watched:
            self.watched = memory
            memory.note_read = partial(self._note, memory.note_read, False)
            memory.note_write = partial(self._note, memory.note_write, True)

    def _note(self, note: Callable, writes: bool, places, attempt: Attempt, *more) -> None:
        where, byte = self.place
        inst = attempt.instruction
        if not is_among(byte, places):
            return note(places, attempt, *more)
        agent = self.ledger.accesses[attempt.number].agent or self.warp.agent
        address = byte
        if where < 0:
            address += -where << REGION_BITS
        lanes = ()
        if isinstance(inst, Instruction):
            lanes = lanes_at(self.warp, inst, address)
        else:
            inst = None
        touch = Touch(writes, agent, self.warp, inst, lanes)
        self.touches.append(touch)
        if writes and self.early:
            raise SeenError
        try:
            note(places, attempt, *more)
            error = self.ledger.early
        except UninitialisedError as fault:
            error = fault
        if error and not self.early:
            self.early = error, touch


def is_among(byte: int, places: slice | np.ndarray) -> bool:
    if isinstance(places, slice):
        return places.start <= byte < places.stop
    return (places == byte).any()


def lanes_at(warp: Warp, inst: Instruction, address: int) -> tuple[int, ...]:
    """The lanes whose accesses have this address, in an instruction that is about to be executed; none where it is one
    of the whole warp."""
    if not re.match(r"(ld|st|atom|red|cp\.async\.c[ag])\.", inst.op):
        return ()
    takes_part = active(warp)
    for text in inst.args:
        if not text.startswith("["):
            continue
        at = warp.program.address(text)(warp)
        if address < SHARED_BYTES:
            at = at % SHARED_BYTES
        nearest = at[takes_part & (at <= address)].max(initial=-WIDEST)
        if address - nearest < WIDEST:
            lanes = np.flatnonzero(takes_part & (at == nearest))
            return tuple(lanes.tolist())
    return ()
