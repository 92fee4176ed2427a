"""What is known to have happened before what: vector clocks, and of each byte's last accesses who made them.

An *agent* is something whose accesses are in an order of their own: a warp; what a warp lets the tensor cores, cp.async
or bulk stores do; the TMA loads of one mbarrier; the host. Its *epoch* counts what it has done. A warp's *clock* says
of each agent up to which epoch it knows; barriers, releases and acquires join clocks. A clock has three rows, because
the async proxy (TMA, wgmma) does not see what a generic store left until a proxy fence stands between: what generic
accesses may rely on, what those of the async proxy may rely on in shared memory, and in global memory. A fence copies
the first row over the others, so it counts wherever on the way from writer to reader it stands (PTX ISA 8.7, 8.9.5: a
proxy fence along the causality path).

Two accesses that conflict and are not ordered are a fault whichever came first: most schedules show a missing barrier,
not only the unlucky one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

GENERIC, SHARED, GLOBAL = range(3)
FOREVER = 2**31 - 1
GRANULE = 2
"""Bytes that are told apart."""


class FaultError(Exception):
    """What comes of this the hardware leaves undefined. `kind` is what a verdict calls it.

    Where it is about a byte, `memory` says of what: shared memory, an array of global memory, or None of the address
    itself. `agent` is the one that the access conflicts with.
    """

    kind = "misuse"

    def __init__(self, message: str, memory: Any = None, byte: int | None = None, agent: int | None = None):
        super().__init__(message)
        self.message = message
        self.memory = memory
        self.byte = byte
        self.agent = agent


class RaceError(FaultError):
    """Two accesses conflict, and nothing orders them."""

    kind = "race"


class UninitialisedError(FaultError):
    """Memory is read that nobody wrote."""

    kind = "uninitialised"


class BoundsError(FaultError):
    """An address lies outside of what it is given to, or is not aligned as it must be."""

    kind = "bounds"


class BarrierError(FaultError):
    """A barrier or an mbarrier is used as it must not be."""

    kind = "barrier"


class AssertError(FaultError):
    """The kernel itself says that something is wrong."""

    kind = "assert"


class TmaError(FaultError):
    """TMA is given what it cannot take, or is not waited for."""

    kind = "tma"


SCOPES = ("cta", "cluster", "gpu", "sys")


@dataclass(frozen=True, slots=True)
class Scope:
    """Where a strong access was made, and how far it reaches: one of SCOPES."""

    reach: str
    device: int
    cta: int
    cluster: int
    size: int = 0
    """Bytes of each element of an access."""

    def covers(self, other: "Scope") -> bool:
        if self.reach in ("cta", "cluster"):  # numbers of agents, which no two devices share
            return getattr(self, self.reach) == getattr(other, self.reach)
        return self.reach == "sys" or self.device == other.device

    def meets(self, other: "Scope") -> bool:
        """Return whether each covers the other; else even strong accesses race, as they do where they overlap in part
        (8.7: morally strong)."""
        return self.covers(other) and other.covers(self) and (self.size == other.size or not self.size * other.size)


@dataclass(slots=True)
class Access:
    agent: int
    epoch: int
    by: Any
    instruction: Any
    """Its first with this agent and epoch; None where `by` is no warp."""
    generic: bool
    scope: Scope | None
    """Of a strong access: an atomic, a volatile one, one with semantics."""
    number: int

    def __str__(self) -> str:
        return f"{self.by}, at {self.instruction} or behind it," if self.instruction else str(self.by)


CLUSTER_BITS = 16
"""Of an agent's number: below them, which it is in its cluster, or the host's; above them, which cluster that is."""
IN_CLUSTER = (1 << CLUSTER_BITS) - 1
ALL_ROWS = slice(None)


class Clock:
    """Up to which epoch each agent is known, in each of the rows.

    It is kept by clusters: most know nothing of each other. Clocks share what is in `blocks`, so no block is changed in
    place. Of the clusters that are `ended`, all is known.
    """

    __slots__ = ("blocks", "ended", "width")

    def __init__(self, width: int, blocks: dict[int, np.ndarray] | None = None, ended: frozenset[range] = frozenset()):
        """`width`: agents of a cluster, at most."""
        self.width = width
        self.blocks = blocks or {}
        self.ended = ended

    def copy(self) -> "Clock":
        return Clock(self.width, dict(self.blocks), self.ended)

    def item(self, row: int, agent: int) -> int:
        cluster = agent >> CLUSTER_BITS
        for clusters in self.ended:
            if cluster in clusters:
                return FOREVER
        block = self.blocks.get(cluster)
        return 0 if block is None else block.item(row, agent & IN_CLUSTER)

    def of(self, first: int, count: int, row: int | slice = GENERIC) -> np.ndarray:
        """[count], or of rows [rows, count], epochs of agents that follow each other in a cluster."""
        at = first & IN_CLUSTER
        return self._block(first)[row, at : at + count]

    def put(self, agent: int, epochs: int | np.ndarray, row: int | slice = ALL_ROWS, count: int = 1) -> None:
        """Note what is known of an agent, or of some that follow it."""
        block = self._block(agent).copy()
        at = agent & IN_CLUSTER
        block[row, at : at + count] = epochs
        self.blocks[agent >> CLUSTER_BITS] = block

    def knowing(self, agents: Iterable[int]) -> "Clock":
        """Return one that also knows all that these ever do."""
        clock = self.copy()
        for agent in agents:
            clock.put(agent, FOREVER)
        return clock

    def _block(self, agent: int) -> np.ndarray:
        block = self.blocks.get(agent >> CLUSTER_BITS)
        return np.zeros((3, self.width), np.int32) if block is None else block

    def join(self, other: "Clock") -> None:
        blocks = self.blocks
        for cluster, theirs in other.blocks.items():
            mine = blocks.get(cluster)
            if mine is not theirs:
                blocks[cluster] = theirs if mine is None else np.maximum(mine, theirs)
        if other.ended is not self.ended:
            self.ended |= other.ended

    def fence(self, rows: Sequence[int]) -> None:
        """Let these rows know what generic accesses may rely on."""
        for cluster, block in self.blocks.items():
            self.blocks[cluster] = fenced = block.copy()
            for row in rows:
                np.maximum(block[row], block[GENERIC], out=fenced[row])


def joined(clocks: Iterable[Clock]) -> Clock:
    first, *others = clocks
    total = first.copy()
    for clock in others:
        total.join(clock)
    return total


class Ledger:
    """All accesses of a run, by number; number 0 is no access."""

    def __init__(self) -> None:
        self.accesses = [Access(0, 0, "nobody", None, False, None, 0)]
        self.latest: dict[int, int] = {}

    def note(
        self,
        agent: int,
        epoch: int,
        by: Any,
        instruction: Any = None,
        *,
        generic: bool = True,
        scope: Scope | None = None,
    ) -> int:
        number = self.latest.get(agent, 0)
        last = self.accesses[number]
        if not number or last.epoch != epoch or last.generic != generic or last.scope != scope:
            number = self.latest[agent] = len(self.accesses)
            self.accesses.append(Access(agent, epoch, by, instruction, generic, scope, number))
        return number

    def unordered(self, numbers: np.ndarray, clock: Clock, row: int, scope: Scope | None = None) -> Access | None:
        """Return one of these accesses that `clock` does not know of, if there is one."""
        raw = numbers.tobytes()
        if not raw.strip(b"\0"):  # nobody
            return None
        distinct = [numbers.item(0)]
        if raw != raw[: numbers.itemsize] * numbers.size:  # most often there is one, or few
            flat = numbers.reshape(-1)
            distinct = sorted({*distinct, *flat[1:][flat[1:] != flat[:-1]].tolist()})
        for number in distinct:
            access = self.accesses[number]
            if clock.item(row if access.generic else GENERIC, access.agent) >= access.epoch:
                continue
            if not (scope and access.scope and scope.meets(access.scope)):
                return access
        return None


class Replicas:
    """Who does the same turn of the same store of the same bytes. Layouts replicate tensors over warps and CTAs: of
    these nobody can tell who was last."""

    def __init__(self) -> None:
        self.turns: dict[tuple, int] = {}  # of a store by a warp
        self.agents: dict[tuple, list[int]] = {}

    def before(self, store: int, warp: int, agent: int, content: int) -> list[int]:
        """Return the agents that have done so already, and add `agent`, whose store by this warp it is."""
        turn = self.turns[store, warp] = self.turns.get((store, warp), 0) + 1
        agents = self.agents.setdefault((store, turn, content), [])
        agents.append(agent)
        return agents[:-1]


class Releases:
    """What was released at each address of a memory: whoever reads it with acquire knows it too."""

    def __init__(self) -> None:
        self.at: dict[int, dict[Scope, Clock]] = {}

    def publish(self, address: int, released: dict[Scope, Clock], *, read: bool) -> None:
        """A write there, with what it releases, if anything. One that `read` what it replaces goes on with the release
        pattern, another ends it (8.9.2)."""
        if read and not released:
            return
        kept = dict(self.at.get(address, ())) if read else {}
        for scope, clock in released.items():
            kept[scope] = joined([clock, kept[scope]]) if scope in kept else clock
        self.at[address] = kept
