"""Lanes of one warp: what each of them accessed, and what they know of each other (PTX ISA 8.7, 8.9).

For others a warp is one agent. Among its own lanes nothing orders two accesses but what they meet at: bar.warp.sync,
barriers, mbarriers, and a release that the warp acquires again. Neither the order of its instructions nor a shuffle
does. What lanes accessed is only put down, and looked at once an access of the same warp may conflict with it.
"""

from typing import Any, NamedTuple

import numpy as np

from .faults import LanesError, RaceError
from .order import ALL_ROWS, KNOWN, Attempt, Clock
from .registers import LANES

COLLECTIVE = LANES
"""Stands for all lanes, of an access that they make together."""
EACH = np.arange(LANES)
BITS = np.append(1 << EACH, 2**LANES - 1).astype(np.uint32)
"""A mask for each lane, then that of all lanes."""
OTHERS = np.append(~BITS[:LANES], BITS[LANES])


class Entry(NamedTuple):
    """An access: its bytes, [n, size] or a slice; the lane of each of the n, or COLLECTIVE; its epoch."""

    places: Any
    who: np.ndarray
    epoch: int
    strong: bool

    @property
    def span(self) -> tuple[int, int]:
        """The first byte, and the one behind the last."""
        if isinstance(self.places, slice):
            return self.places.start, self.places.stop
        return self.places.min(), self.places.max() + 1

    @property
    def lanes(self) -> np.ndarray:
        """The lane of each byte."""
        if isinstance(self.places, slice):
            size = (self.places.stop - self.places.start) // len(self.who)
        else:
            size = self.places.shape[1]
        return np.repeat(self.who, size)


class Notes:
    """The lanes that last wrote, or read, each byte of a memory, and the epoch, below 0 of a strong access."""

    epochs: np.ndarray
    lanes: np.ndarray | None = None
    """Both have an item for each byte, once they are looked at."""

    def __init__(self, memory: Any, wrote: bool):
        self.memory = memory
        self.wrote = wrote
        self.clear()

    def clear(self) -> None:
        """Forget what all lanes know."""
        self.entries: list[Entry] = []
        self.latest = 0
        self.start = self.stop = None  # all entries since then lie between

    def put(self, entry: Entry) -> None:
        start, stop = entry.span
        self.start = min(self.start, start) if self.latest else start
        self.stop = max(self.stop, stop) if self.latest else stop
        self.entries.append(entry)
        self.latest = entry.epoch

    def settle(self, met: int) -> None:
        """Look at what was accessed since the lanes met."""
        if self.lanes is None:
            size = len(self.memory.data)
            self.epochs = np.zeros(size, np.int32)
            self.lanes = np.zeros(size, np.uint32)
        for entry in self.entries:
            self._settle(entry, met)
        self.entries.clear()

    def _settle(self, entry: Entry, met: int) -> None:
        places = entry.places
        bits = BITS[entry.lanes]
        if not isinstance(places, slice):
            places = places.reshape(-1)
            if self.wrote:  # lanes that store to one place by one instruction
                self.lanes[places] = 0
                np.bitwise_or.at(self.lanes, places, bits)
                bits = self.lanes[places]
            else:  # of lanes that load one element by one instruction, the lowest stands for all
                places = places[::-1]
                bits = bits[::-1]
        if not self.wrote:
            bits = np.where(np.abs(self.epochs[places]) > met, self.lanes[places], 0) | bits
        self.lanes[places] = bits
        self.epochs[places] = -entry.epoch if entry.strong else entry.epoch


class Lanes:
    """What the lanes of a warp accessed, and what they know of each other's accesses.

    `met`: the epoch up to which all know all. `shuffled`: the last one behind whose accesses there is a shuffle.
    """

    def __init__(self, agent: int):
        self.agent = agent
        self.met = 0
        self.shuffled = 0
        self.latest = 0  # the epoch of the last access
        self.each = np.zeros(LANES, np.int32)  # of each lane's last one
        self.parted = False  # whether lanes have released what others of them may not know
        self.knows: np.ndarray | None = None
        """[32, 32]: the epoch up to which each lane knows each; None where only all lanes have met."""
        self.reads: dict[Any, Notes] = {}
        self.writes: dict[Any, Notes] = {}

    def meet(self, lanes: np.ndarray, epoch: int) -> None:
        """Let these lanes, [32], know all that each of them knows up to an epoch."""
        if lanes.all():
            self.met = epoch
            return
        if self.knows is None:
            self.knows = np.zeros((LANES, LANES), np.int32)
        self.knows[lanes] = np.maximum(self.knows[lanes].max(0), np.where(lanes, epoch, 0))

    def shuffle(self, warp) -> None:
        """Tell apart what is accessed before and behind a shuffle or a vote."""
        if self.latest == warp.epoch:
            self.shuffled = warp.epoch
            warp.tick()

    def hear(self, clock: Clock) -> None:
        """Know what the warp released itself, and acquires again."""
        self.met = max(self.met, clock.item(KNOWN, self.agent))

    def released(self, clock: Clock, lanes: np.ndarray | None) -> Clock:
        """What some lanes, [32], or all, release of the warp's clock: what others accessed only if they know of it."""
        if lanes is None or self.latest <= self.met:
            return clock
        known = np.full(LANES, self.met)
        if self.knows is not None:
            known = np.maximum(known, self.knows[lanes].max(0))
        missed = ~lanes & (self.each > known)
        if not missed.any():
            return clock
        self.parted = True
        released = clock.copy()
        released.put(self.agent, np.minimum(clock.of(self.agent, 1, ALL_ROWS), known[missed].min()))
        released.lanes[self.agent] = np.where(lanes, clock.item(KNOWN, self.agent), known)
        return released

    def beyond(self, lanes: np.ndarray, memory, places: np.ndarray, *, wrote: bool) -> np.ndarray:
        """Those of some bytes that other lanes than these, [32], last wrote, or read."""
        noted = self.writes if wrote else self.reads
        if memory not in noted:
            return places if wrote else places[:0]
        notes = noted[memory]
        notes.settle(self.met)
        held = notes.lanes[places]
        return places[held & BITS[:LANES][~lanes].sum(dtype=np.uint32) != 0]

    def late(self, epoch: int) -> np.ndarray:
        """[33]: for each lane, then for all lanes together, the others whose accesses of an epoch it does not know."""
        if self.knows is None:
            return OTHERS
        unknown = (self.knows < epoch) * BITS[:LANES]
        late = OTHERS.copy()
        late[:LANES] &= unknown.sum(1, dtype=np.uint32)
        late[LANES] = np.bitwise_or.reduce(late[:LANES])
        return late

    def access(self, memory, places, who: np.ndarray, attempt: Attempt, *, writes: bool) -> None:
        """Note an access by lanes. Raises RaceError where another lane accessed these bytes, and the two have not met
        since; where there was a shuffle or a vote, the ledger bears LanesError."""
        access = memory.ledger.accesses[attempt.number]
        self.latest = access.epoch
        self.each[... if who[0] == COLLECTIVE else who] = access.epoch
        entry = Entry(places, who, access.epoch, access.scope is not None)
        self._check(self.writes.get(memory), entry, attempt, "overwrites" if writes else "reads")
        if writes:
            self._check(self.reads.get(memory), entry, attempt, "overwrites")
        if not writes and not isinstance(places, slice) and who[0] != who[-1] and (places == places[0]).all():
            return  # a scalar, which the warp loads as one
        noted = self.writes if writes else self.reads
        if memory not in noted:
            noted[memory] = Notes(memory, writes)
        noted[memory].put(entry)

    def _check(self, notes: Notes | None, entry: Entry, attempt: Attempt, does: str) -> None:
        if notes is None:
            return
        if notes.latest <= self.met and not self.parted:
            notes.clear()
        start, stop = entry.span
        if notes.latest > self.met and start < notes.stop and notes.start < stop:
            self._compare(notes, entry, attempt, does)

    def _compare(self, notes: Notes, entry: Entry, attempt: Attempt, does: str) -> None:
        notes.settle(self.met)
        signed = notes.epochs[entry.places].reshape(-1)
        if entry.strong:
            signed = np.maximum(signed, 0)  # strong accesses conflict with none of their kind
        epochs = np.abs(signed)
        who = entry.lanes
        held = notes.lanes[entry.places].reshape(-1)
        late = np.zeros(len(who), np.uint32)
        for epoch in set(epochs[epochs > self.met].tolist()):
            late = np.where(epochs == epoch, held & self.late(epoch)[who], late)
        if notes.wrote:  # of lanes that stored the same by one instruction, each knows its own
            late[held & BITS[who] == BITS[who]] = 0
        if not late.any():
            return
        hit = late != 0
        first = int(np.argmax(hit))
        memory = notes.memory
        places = np.arange(len(memory.data))[entry.places].reshape(-1)
        did = "wrote" if notes.wrote else "read"
        text = f"{attempt.instruction} {does} {memory.name} that another lane of the warp {did}, with no order between"
        kind = RaceError
        if epochs[first] <= self.shuffled:
            kind = LanesError
            text += " but a shuffle or a vote"
        fault = kind(text, memory, places.item(first), self.agent)
        is_equal = notes.wrote and (signed[hit] > 0).all() and memory.holds(places[hit], attempt.stored, hit)
        if memory.ledger.accepts(fault, attempt, epochs[first], is_equal):
            self.met = epochs[first]
