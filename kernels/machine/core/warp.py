"""A warp: its registers, what it knows, and the groups of operations that the hardware does for it in its own time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import filterfalse
from typing import Any

import numpy as np

from .cluster import Turn
from .divergence import Group
from .faults import FaultError
from .lanes import Lanes
from .order import UNFENCED, Agent, Attempt, Clock, Released, Scope
from .program import LANE, LANES, Ready
from .registers import names_in

KINDS = "TMA load", "TMA store", "wgmma", "cp.async", "st.async"
"""The kinds of events."""


@dataclass(eq=False)
class Event:
    """Something that the hardware does in its own time, once the events that it comes `after` are done."""

    kind: str
    cta: Any
    do: Callable[[], None]
    after: Sequence["Event"] = ()
    done: bool = False
    followers: list["Event"] = field(default_factory=list)
    """Events that come after this one."""

    def may_happen(self) -> bool:
        return all(event.done for event in self.after)


class Groups:
    """Operations of one kind that a warp has under way, in the groups that it committed.

    `number`, from 1 on, is the epoch of the operations that it issues now. `known` is the last epoch that it has waited
    for.
    """

    def __init__(self) -> None:
        self.open: list[Event] = []
        self.closed: list[tuple[list[Event], int]] = []
        self.tracked: set[Event] = set()  # tracked by an mbarrier: nobody has to wait for their groups
        self.number = 1
        self.waited = 0
        self.known = 0

    @property
    def under_way(self) -> list[Event]:
        """The operations whose groups nobody has waited for, and those that are in no group yet."""
        events = []
        for group, _ in self.closed[self.waited :]:
            events += group
        return events + self.open

    def commit(self) -> None:
        self.closed.append((self.open, self.number))
        self.open = []
        self.number += 1

    def track(self) -> list[Event]:
        """Have an mbarrier track the operations under way, and return these."""
        events = self.under_way
        self.tracked.update(events)
        self.number += 1
        return events

    def ended(self, upto: int) -> bool:
        """Whether the first `upto` groups were committed and have ended."""
        if len(self.closed) < upto:
            return False
        return all(event.done for group, _ in self.closed[self.waited : upto] for event in group)

    def wait(self, left: int, *, reads: bool = False) -> Ready | None:
        """Wait for all groups but the last `left`: None once they have ended, else the condition for that. `known` is
        then their last epoch. `reads`: it is enough that the reads of bulk stores have ended."""

        def done(event: Event) -> bool:
            return event.done or (reads and event.may_happen())

        upto = max(len(self.closed) - left, self.waited)
        late: list[Event] = []
        for group, _ in self.closed[:upto]:
            late += filterfalse(done, group)
        if late:
            return lambda: all(map(done, late))
        for group, epoch in self.closed[:upto]:
            self.known = epoch
            if not reads:
                group.clear()
        self.waited = upto
        return None


class Warp:
    # Attributes that are the same for all warps at first.
    calls = ()
    way = 0
    """A hash of the effects that it has executed, among them branches, without waits that were in vain."""
    polled = 0
    """What it was before such a wait."""
    epoch = 0
    fenced = False
    alive = True
    ready: Ready | None = None
    """The condition that the warp waits for; None: it can go on."""
    mask: np.ndarray | None = None
    """The active lanes, which execute the current instruction; None: all."""
    lanes: np.ndarray | None = None
    """The lanes of the current group, which goes on; None: all lanes are together."""
    others: Sequence[Group] = ()
    """The groups that are elsewhere."""
    waits: Ready | None = None
    """The condition that the current group waits for."""
    joined: Turn | None = None
    """The turn of a barrier of the CTA at which the warp waits."""
    joined_cluster: Turn | None = None
    """The turn of the cluster's barrier at which the warp has arrived."""
    wgmma_before: Sequence[Event] = ()
    """The warp's last wgmma, if there is one."""
    operands: Sequence[tuple[int, int, np.ndarray]] = ()
    """Operands of wgmma under way that are in registers: the group, the register, and what it held."""

    def __init__(self, cta: Any, number: int):
        self.cta = cta
        self.number = number
        self.program = program = cta.program
        self.r = list(program.empty)
        self.pc = 0
        if (number + 1) * LANES > program.threads:
            self.lanes = program.threads % LANES > LANE
        self.local = program.local.copy()
        self.agent = cta.agent(Agent.WARP, number)
        self.among = Lanes(self.agent)
        self.clock = cta.launch.start.copy()
        self.tick()
        self.groups: dict[str, Groups] = {}
        self.registers = program.kernel.registers_a_thread
        self.weight = 10 ** cta.machine.rng.uniform(-1.5, 1.5)
        self.released: Released = {}  # what strong writes behind fences release, by the fences' scopes
        self.inits = Clock(self.clock.width)  # of the mbarriers whose initialisation a fence has released
        self.read: Released = {}  # what fences behind relaxed reads acquire, by scope
        self.heard: dict[Any, dict] = {}  # what was released at the last strong read, by its place and kind

    def group(self, kind: str) -> Groups:
        """The operations of a kind that it has under way: "wgmma", "cp.async" or "bulk stores"."""
        if kind not in self.groups:
            self.groups[kind] = Groups()
        return self.groups[kind]

    def tick(self) -> None:
        """Begin a new epoch: accesses from now on are not covered by earlier releases or fences of the async proxy."""
        self.epoch += 1
        self.clock.put(self.agent, self.epoch, UNFENCED)

    def join(self, clock: Clock) -> None:
        self.clock.join(clock)
        self.among.hear(clock)

    def scope(self, reach: str, size: int = 0) -> Scope:
        cta = self.cta
        return Scope(reach, cta.launch.device, cta.first, cta.cluster.ctas[0].first, size)

    def attempt(self, instruction, scope: Scope | None = None, stored: np.ndarray | None = None) -> Attempt:
        """Begin a generic access by this warp. `stored`: what it leaves, if it is a plain store."""
        ledger = self.cta.machine.ledger
        if ledger.accept:
            self.tick()  # else an accepted race would order more than its two accesses
        number = ledger.note(self.agent, self.epoch, self, instruction, scope=scope)
        return Attempt(self.clock, number, instruction, stored=stored)

    def __repr__(self) -> str:
        device = f"device {self.cta.launch.device}, " if self.cta.machine.devices > 1 else ""
        return f"{device}{self.program.kernel.name}, CTA {self.cta.number}, warp {self.number}"


def check_operands(warp: Warp, count: int) -> None:
    """Raise FaultError where one of `count` instructions from the warp's pc on, which have just run, wrote a register
    that a wgmma still reads (9.7.15.7.1)."""
    for _, register, value in warp.operands:
        if warp.r[register] is not value:
            code = warp.program.kernel.code
            name = list(warp.program.numbers)[register]
            for at in range(warp.pc, warp.pc + count):
                if name in names_in(code[at].args[0]):
                    warp.pc = at
                    break
            raise FaultError(f"{code[warp.pc]} writes {name}, an operand of a wgmma that nobody has waited for")
