"""CTAs that start together, and see each other's shared memory; and the turns of barriers.

The upper 8 bits of a shared address are a CTA's rank, the others an offset in the memory of that CTA. Triton changes
the upper bits to reach another CTA, as CUTLASS does (Sm100MmaPeerBitMask in cute/arch/copy_sm100_tma.hpp).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .faults import BarrierError, BoundsError, RaceError
from .memory import EVERY, Addresses, Places, Shared, Which
from .order import KNOWN, Clock, Replicas, joined
from .program import WINDOW_BITS, Until


@dataclass(eq=False)
class Turn:
    """One use of a barrier: the warps that have arrived, and what each of them releases. It is over once it has a
    `clock`, which joins theirs."""

    name: str
    threads: int = 0
    of_all: bool = False
    """Whether it is complete once all threads that have not ended are there: the instruction names no number."""
    arrived: dict[Any, Clock] = field(default_factory=dict)
    again: int = 0
    """Warps that have come twice."""
    clock: Clock | None = None
    votes: list[np.ndarray] = field(default_factory=list)
    """What the lanes of each warp vote, where the barrier reduces that."""

    def end(self) -> None:
        self.clock = joined(self.arrived.values())

    def until_over(self, warps: Iterable[Any]) -> Until:
        """`warps` are those that may take part."""
        return Until(lambda: self.clock is not None, lambda: self.describe(warps))

    def describe(self, warps: Iterable[Any]) -> str:
        missing = listed(w for w in warps if w.alive and w not in self.arrived)
        return f"{self.name}: of warps (CTA.warp) {listed(self.arrived)} arrived, {missing or 'none'} did not"


def listed(warps: Iterable[Any]) -> str:
    return ", ".join(f"{warp.cta.number}.{warp.number}" for warp in warps)


class Cluster:
    def __init__(self) -> None:
        self.ctas: list[Any] = []
        self.waiting: dict[Any, None] = {}  # warps that wait
        self.turn: Turn | None = None  # the barrier's, if one has begun
        self.replicas = Replicas()

    def locate(self, address: int) -> tuple[Any, int]:
        """The CTA that a shared address belongs to, and the offset in its shared memory.

        Raises BoundsError where the cluster has no such CTA, and BarrierError where the CTA has ended.
        """
        rank, offset = divmod(address, 1 << WINDOW_BITS)
        if not 0 <= rank < len(self.ctas):
            raise BoundsError(f"shared address {address:#x} is of no CTA of the cluster", None, address)
        cta = self.ctas[rank]
        if cta.ended:
            raise BarrierError(f"reaches for shared memory of CTA {cta.number}, which has ended", cta.shared, offset)
        return cta, offset

    def places(self, at: Addresses, size: int, instruction) -> Iterator[tuple[Shared, Which, Places]]:
        """Yield each shared memory that addresses belong to, which of the addresses these are, and where in it the
        `size` bytes at each lie."""
        if len(self.ctas) == 1:
            shared = self.ctas[0].shared
            yield shared, EVERY, shared.places(at, size, instruction, min(size, 16))
            return
        ranks = at >> WINDOW_BITS
        for rank in np.unique(ranks).tolist():
            which = ranks == rank
            cta, _ = self.locate(at[which].item(0))
            offsets = at[which] % (1 << WINDOW_BITS)
            yield cta.shared, which, cta.shared.places(offsets, size, instruction, min(size, 16))

    @property
    def warps(self) -> list[Any]:
        warps = []
        for cta in self.ctas:
            warps += cta.warps
        return warps

    def complete(self) -> None:
        """End the barrier's turn once all warps that have not ended have arrived."""
        if self.turn and all(warp in self.turn.arrived or not warp.alive for warp in self.warps):
            self.turn.end()
            self.turn = None


def check_end(cta) -> None:
    """Raise RaceError if the CTA ends while others of its cluster may still access its memory or its mbarriers."""
    shared = cta.shared
    known = joined([warp.clock for warp in cta.warps])
    others = {}
    for other in cta.cluster.ctas:
        if other is not cta:
            others |= dict.fromkeys(range(other.first, other.first + other.program.agents), other.number)

    def check(agent: int, epoch: int, places: np.ndarray | None = None) -> None:
        if agent in others and known.item(KNOWN, agent) < epoch:
            message = f"{cta.warps[0]!r}: the CTA ends while CTA {others[agent]} may still access its shared memory"
            byte = None if places is None else int(np.argmax(places))
            raise RaceError(message, shared, byte, agent)

    for number in np.unique(shared.writes).tolist():
        access = shared.ledger.accesses[number]
        check(access.agent, access.epoch, shared.writes == number)
    for row, epochs in enumerate(np.abs(shared.reads.T)):
        last = epochs.max(initial=0)
        check(shared.first + row, last, epochs == last)
    for agent, epoch in cta.reached_by.items():
        check(agent, epoch)
