"""Clusters: addresses of other CTAs' shared memory, and the barrier of all threads (PTX ISA 8.7, 9.7.9.23, 9.7.9.24 and
9.7.13.3)."""

from ..core.cluster import Turn
from ..core.faults import BarrierError
from ..core.order import ALL_ROWS, Agent
from ..core.program import WINDOW_BITS, effect

INSTRUCTIONS = """
barrier.cluster.{arrive[.release,.relaxed],wait[.acquire]}[.aligned] | of all threads that have not ended
fence.mbarrier_init.release.cluster | of the warp's mbarriers, for relaxed arrivals behind it
mapa.shared::cluster.u32, getctarank.shared::cluster.u32 | the upper 8 bits of an address are a rank
"""
"""The opcodes that this module models, and how: rows of the table that `--coverage` prints."""


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
    first = w.cta.agent(Agent.MBARRIER, 0)
    count = w.program.barriers
    w.inits.put(first, w.clock.of(first, count, ALL_ROWS), count=count)
