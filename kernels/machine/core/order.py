"""Which accesses happened before which: vector clocks, and a ledger of the accesses that memory remembers.

An *agent* makes accesses in an order of its own. It is a warp; a warp's operations of the tensor cores, of cp.async, or
of bulk stores; the TMA loads of one mbarrier; or the host. Its *epoch* counts what it has done. A warp's *clock* has,
for each agent, the epoch up to which the warp knows what the agent did. Barriers, releases and acquires join clocks.

A clock has rows, because the async proxy (TMA, wgmma) does not see what a generic store left until a proxy fence
stands between. They are what generic accesses may rely on; what is known at all; what accesses of the async proxy may
rely on in shared memory, and in global memory. A fence copies what is known over the last two, so it counts wherever it
stands on the way from writer to reader (PTX ISA 8.7, 8.9.5: a proxy fence along the causality path). More is known than
generic accesses may rely on where CTAs meet at an mbarrier with a scope that does not reach from one to the other.

Two accesses that conflict and are not ordered are a fault whichever came first: most schedules show a missing barrier,
not only the unlucky one.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from .faults import FaultError, LanesError

GENERIC, KNOWN, SHARED, GLOBAL = range(4)
UNFENCED = slice(GENERIC, SHARED)
FOREVER = 2**31 - 1


Agent = IntEnum("Agent", "WARP WGMMA BULK_READS BULK_WRITES CP_ASYNC MBARRIER", start=0)
"""The kinds of agents of a CTA, in the order of their numbers. A warp has one of each but the last. Those before
BULK_WRITES read the CTA's shared memory."""
EQUAL, ACCEPTED = "equal", "accepted"
"""Why a race is no fault."""
SCOPES = ("cta", "cluster", "gpu", "sys")


@dataclass(frozen=True, slots=True)
class Scope:
    """The scope of a strong access or a fence: how far it reaches, one of SCOPES, and where it was made."""

    reach: str
    device: int
    cta: int
    cluster: int
    size: int = 0
    """Bytes of each element of an access; 0 where any size will do."""

    def rank(self) -> int:
        return SCOPES.index(self.reach)

    def covers(self, other: "Scope") -> bool:
        if self.reach in ("cta", "cluster"):  # numbers of agents, which no two devices share
            return getattr(self, self.reach) == getattr(other, self.reach)
        return self.reach == "sys" or self.device == other.device

    def meets(self, other: "Scope") -> bool:
        """Whether each scope covers the other, and the sizes agree: then two strong accesses are morally strong (8.7).
        Otherwise even strong accesses race, as they do where they overlap in part."""
        return self.covers(other) and other.covers(self) and (self.size == other.size or not self.size * other.size)


@dataclass(slots=True)
class Access:
    agent: int
    epoch: int
    by: Any
    instruction: Any
    """The first instruction with this agent and epoch; None where `by` is no warp."""
    generic: bool
    scope: Scope | None
    """The scope of a strong access, which is an atomic, volatile, or has semantics; None for a weak one."""
    number: int

    @property
    def is_plain(self) -> bool:
        """Whether lanes of a warp make it, without semantics: not the hardware for them, and no atomic."""
        return self.generic and not self.scope and getattr(self.by, "agent", None) == self.agent

    def __str__(self) -> str:
        return f"{self.by}, at {self.instruction} or behind it," if self.instruction else str(self.by)


CLUSTER_BITS = 16
"""Bits of an agent's number that tell the agents of one cluster, or of the host, apart. Those above them are the
cluster's number."""
IN_CLUSTER = (1 << CLUSTER_BITS) - 1
ALL_ROWS = slice(None)


class Clock:
    """The epoch up to which each agent is known, in each of the rows.

    It has a block for each cluster of which anything is known, since most know nothing of each other. Clocks share
    blocks, so no block is changed in place. All is known of the clusters in `ended`.
    """

    __slots__ = ("blocks", "ended", "lanes", "width")

    def __init__(self, width: int, blocks: dict[int, np.ndarray] | None = None, ended: frozenset[range] = frozenset()):
        """`width`: the most agents that a cluster has."""
        self.width = width
        self.blocks = blocks or {}
        self.ended = ended
        self.lanes: dict[int, np.ndarray] = {}
        """By a warp's agent the epoch up to which each of its lanes is known, [32]: of some it is later than of all."""

    def copy(self) -> "Clock":
        clock = Clock(self.width, dict(self.blocks), self.ended)
        clock.lanes.update(self.lanes)
        return clock

    def item(self, row: int, agent: int) -> int:
        cluster = agent >> CLUSTER_BITS
        for clusters in self.ended:
            if cluster in clusters:
                return FOREVER
        block = self.blocks.get(cluster)
        return 0 if block is None else block.item(row, agent & IN_CLUSTER)

    def of(self, first: int, count: int, row: int | slice = GENERIC) -> np.ndarray:
        """The epochs of `count` agents of a cluster, from `first` on: [count], or [rows, count] for a slice of rows."""
        at = first & IN_CLUSTER
        return self._block(first)[row, at : at + count]

    def put(self, agent: int, epochs: int | np.ndarray, row: int | slice = ALL_ROWS, count: int = 1) -> None:
        """Note the epochs up to which `count` agents of a cluster are known, from `agent` on."""
        block = self._block(agent).copy()
        at = agent & IN_CLUSTER
        block[row, at : at + count] = epochs
        self.blocks[agent >> CLUSTER_BITS] = block

    def learn(self, agent: int, epoch: int) -> None:
        """Know at least as much of an agent as up to an epoch."""
        self.put(agent, np.maximum(self.of(agent, 1, ALL_ROWS), epoch))

    def knowing(self, agents: Iterable[int]) -> "Clock":
        """A clock that also knows all that these agents ever do."""
        clock = self.copy()
        for agent in agents:
            clock.put(agent, FOREVER)
        return clock

    def _block(self, agent: int) -> np.ndarray:
        block = self.blocks.get(agent >> CLUSTER_BITS)
        return np.zeros((4, self.width), np.int32) if block is None else block

    def join(self, other: "Clock", unreached: np.ndarray | None = None) -> None:
        """Also know what another clock knows. `unreached`: agents of a cluster on which generic accesses still may not
        rely."""
        blocks = self.blocks
        for cluster, theirs in other.blocks.items():
            mine = blocks.get(cluster)
            if unreached is not None:
                theirs = theirs.copy()
                theirs[GENERIC, unreached] = 0
            if mine is not theirs:
                blocks[cluster] = theirs if mine is None else np.maximum(mine, theirs)
        for agent, epochs in other.lanes.items():
            self.lanes[agent] = np.maximum(epochs, self.lanes.get(agent, 0))
        if other.ended is not self.ended:
            self.ended |= other.ended

    def fence(self, rows: Sequence[int]) -> None:
        """Let these rows cover what generic accesses may rely on."""
        for cluster, block in self.blocks.items():
            self.blocks[cluster] = fenced = block.copy()
            for row in rows:
                np.maximum(block[row], block[KNOWN], out=fenced[row])


Released = dict[Scope, Clock]
"""What is released, or acquired, by the scope of that."""


def joined(clocks: Iterable[Clock]) -> Clock:
    first, *others = clocks
    total = first.copy()
    for clock in others:
        total.join(clock)
    return total


class Attempt(NamedTuple):
    """An access that is about to be made: what its agent knows, and the access's number in the ledger."""

    clock: Clock
    number: int
    instruction: Any
    row: int = GENERIC
    """The row of the clock that it goes by."""
    stored: np.ndarray | None = None
    """[n, size]: the bytes that a plain store by the lanes of a warp leaves; None for any other access."""


class Ledger:
    """All accesses of a run, by number; number 0 is no access."""

    def __init__(self) -> None:
        self.accesses = [Access(0, 0, "nobody", None, False, None, 0)]
        self.latest: dict[int, int] = {}
        self.borne: FaultError | None = None
        """The first of faults that are raised at the end of a run alone, since others matter more, or since they may be
        consequences of `early`."""
        self.bears = True
        """Whether faults wait for the end of the run, as where it is judged."""
        self.early: FaultError | None = None
        """The first read of shared memory that nobody has written, which may not matter."""
        self.strict = True
        """Whether stores of equal bytes race like any other."""
        self.accept: Sequence[str] = ()
        """The places of accesses whose races are only counted."""
        self.told: Counter[tuple[str, str]] = Counter()
        """How many races are no fault, by why, EQUAL or ACCEPTED, and the place of an access."""

    def accepts(self, fault: FaultError, attempt: Attempt, epoch: int, is_equal: bool = False) -> bool:
        """Whether a race with what `fault.agent` did in this epoch is accepted: then the two are ordered from now on.
        `is_equal`: both store the same bytes, which is only noted. Raises any other fault, or bears it."""
        if is_equal and not self.strict:
            self.told[EQUAL, attempt.instruction.place] += 1
            return False
        places = {getattr(attempt.instruction, "place", "")}
        for access in self.accesses if self.accept else ():
            if (access.agent, access.epoch) == (fault.agent, epoch):
                places.add(getattr(access.instruction, "place", ""))
        for place in places.intersection(self.accept):
            self.told[ACCEPTED, place] += 1
            return True
        if not self.bears or not (self.early or isinstance(fault, LanesError)):
            raise fault
        self.borne = self.borne or fault
        return False

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

    def unordered(self, numbers: np.ndarray, clock: Clock, row: int, scope: Scope | None = None) -> Iterator[Access]:
        """Yield these accesses that `clock` does not cover, and that are not morally strong with `scope`."""
        raw = numbers.tobytes()
        if not raw.strip(b"\0"):  # nobody
            return
        distinct = [numbers.item(0)]
        if raw != raw[: numbers.itemsize] * numbers.size:  # most often there is one, or few
            flat = numbers.reshape(-1)
            distinct = sorted({*distinct, *flat[1:][flat[1:] != flat[:-1]].tolist()})
        for number in distinct:
            access = self.accesses[number]
            if clock.item(row if access.generic else GENERIC, access.agent) >= access.epoch:
                continue
            if not (scope and access.scope and scope.meets(access.scope)):
                yield access


class Replicas:
    """Agents that store the same bytes in the same turn of the same store. Layouts replicate tensors over warps and
    CTAs, and nobody can tell which of these agents was last."""

    def __init__(self) -> None:
        self.turns: dict[tuple, int] = {}  # how often a warp has executed a store
        self.agents: dict[tuple, list[int]] = {}

    def before(self, store: int, warp: int, agent: int, content: int) -> list[int]:
        """The agents that have stored the same already. Adds `agent`, for which `warp` stores now."""
        turn = self.turns[store, warp] = self.turns.get((store, warp), 0) + 1
        agents = self.agents.setdefault((store, turn, content), [])
        agents.append(agent)
        return agents[:-1]
