"""Clusters: CTAs that start together, see each other's shared memory, and have a barrier of all their threads.

PTX ISA 8.7: 9.7.9.23 (mapa), 9.7.9.24 (getctarank), 9.7.13.3 (barrier.cluster). The upper 8 bits of a shared address
are a CTA's rank, the others an offset in the memory of that CTA. Triton changes the upper bits to reach another CTA, as
CUTLASS does (Sm100MmaPeerBitMask in cute/arch/copy_sm100_tma.hpp).
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..core.faults import BarrierError, BoundsError, RaceError
from ..core.memory import EVERY, Addresses, Places, Shared, Which
from ..core.order import ALL_ROWS, GENERIC, Replicas, joined
from ..core.program import WINDOW_BITS, effect
from .sync import Turn

INSTRUCTIONS = """
barrier.cluster.{arrive[.release,.relaxed],wait[.acquire]}[.aligned] | of all threads that have not ended
fence.mbarrier_init.release.cluster | of the warp's mbarriers, for relaxed arrivals behind it
mapa.shared::cluster.u32, getctarank.shared::cluster.u32 | the upper 8 bits of an address are a rank
"""
"""The opcodes that this module models, and how: rows of the table that `--coverage` prints."""


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
            yield shared, EVERY, shared.places(at, size, instruction)
            return
        ranks = at >> WINDOW_BITS
        for rank in np.unique(ranks).tolist():
            which = ranks == rank
            cta, _ = self.locate(at[which].item(0))
            yield cta.shared, which, cta.shared.places(at[which] % (1 << WINDOW_BITS), size, instruction)

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
        if agent in others and known.item(GENERIC, agent) < epoch:
            message = f"{cta.warps[0]!r}: the CTA ends while CTA {others[agent]} may still access its shared memory"
            byte = None if places is None else shared.first_byte(np.arange(len(places)), places)
            raise RaceError(message, shared, byte, agent)

    for number in np.unique(shared.writes).tolist():
        access = shared.ledger.accesses[number]
        check(access.agent, access.epoch, shared.writes == number)
    for row, epochs in enumerate(np.abs(shared.reads)):
        last = epochs.max(initial=0)
        check(shared.first + row, last, epochs == last)
    for agent, epoch in cta.reached_by.items():
        check(agent, epoch)


@effect("mapa.shared::cluster.u32", operands="=b32 b32 b32", quiet=True)
def map_address(w, inst, put, address, rank):
    put(w, address(w) % (1 << WINDOW_BITS) | rank(w) << WINDOW_BITS)


@effect("getctarank.shared::cluster.u32", operands="=b32 b32", quiet=True)
def rank_of(w, inst, put, address):
    put(w, address(w) >> WINDOW_BITS)


@effect(*map("barrier.cluster.arrive{}".format, ("", ".release", ".relaxed")))
@effect(*map("barrier.cluster.arrive{}.aligned".format, ("", ".release", ".relaxed")))
def arrive(w, inst):
    """A relaxed arrival releases only what fences before it have released."""
    cluster = w.cta.cluster
    turn = cluster.turn = cluster.turn or Turn("the barrier of the cluster")
    if w.mask is not None:
        raise BarrierError("a barrier that not all lanes of the warp reach")
    if w.joined_cluster:
        raise BarrierError(f"arrives again, with no wait between, at {w.joined_cluster.describe(cluster.warps)}")
    clock = w.clock.copy()
    if "relaxed" in inst.op:
        clock = w.inits.copy()
        for scope, released in w.released.items():
            if scope.reach != "cta":
                clock.join(released)
    w.joined_cluster = turn
    turn.arrived[w] = clock
    w.tick()
    cluster.complete()


@effect(*map("barrier.cluster.wait{}".format, ("", ".acquire", ".aligned", ".acquire.aligned")))
def wait(w, inst):
    turn = w.joined_cluster
    if turn is None:
        raise BarrierError("waits at the barrier of the cluster, where it has not arrived")
    if turn.clock is None:
        return turn.until_over(w.cta.cluster.warps)
    w.join(turn.clock)
    w.joined_cluster = None


@effect("fence.mbarrier_init.release.cluster")
def fence_inits(w, inst):
    """9.7.13.4: the fence covers only mbarrier.init by this warp, and no other access."""
    first = w.cta.first + 5 * w.cta.count
    count = w.program.barriers
    w.inits.put(first, w.clock.of(first, count, ALL_ROWS), count=count)
