"""The machine: launches on one or several devices, CTAs, warps, and the scheduler that decides what happens next.

A warp is 32 lanes that run together until one of its instructions could be noticed elsewhere; then a seeded scheduler
picks who goes on. What the hardware does in its own time (a TMA load that lands, a wgmma, a cp.async, a bulk store) is
an event that the scheduler delays as it likes. Weights are drawn for each run, so that in some runs a warp starves, in
others loads land at once or stores read at the last moment. Memory is that of all devices: any may read any other's.
"""

import math
import random
from bisect import bisect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np

from kernels.machine.alu import names_in
from kernels.machine.cluster import Cluster, check_end
from kernels.machine.divergence import choose, run_in_lanes
from kernels.machine.memory import EMPTY, GlobalMemory, Shared, spread
from kernels.machine.order import FOREVER, GENERIC, GRANULE, FaultError, Ledger, Scope, TmaError
from kernels.machine.program import ALL_LANES, LANE, LANES, NO_LANES, Program, Ready
from kernels.machine.stall import Stall
from kernels.machine.sync import Turn

TICK_NS, TICK_CYCLES = 10, 17  # of globaltimer and clock64, an instruction of any warp


class StuckError(FaultError):
    """Nobody can go on, or somebody goes on for ever."""

    kind = "hang"


@dataclass(eq=False)
class Event:
    """Something that the hardware does in its own time, once what is `after` has been done."""

    kind: str
    cta: "Cta | None"
    do: Callable[[], None]
    after: "Event | Several | None" = None
    done: bool = False


@dataclass(eq=False)
class Several:
    """What is after these events is after all of them."""

    events: list[Event]

    @property
    def done(self) -> bool:
        return all(event.done for event in self.events)


class Groups:
    """Operations of one kind that a warp has under way, in the groups that it committed. `number`, from 1 on, is the
    epoch of what is issued now, `known` the last of what was waited for."""

    def __init__(self) -> None:
        self.open: list[Event] = []
        self.closed: list[tuple[list[Event], int]] = []
        self.tracked: set[Event] = set()  # by an mbarrier: nobody has to wait for their groups
        self.number, self.waited, self.known = 1, 0, 0

    @property
    def under_way(self) -> list[Event]:
        """All that no group was waited for."""
        return [event for group, _ in (*self.closed[self.waited :], (self.open, 0)) for event in group]

    def commit(self) -> None:
        self.closed.append((self.open, self.number))
        self.open, self.number = [], self.number + 1

    def track(self) -> Several:
        """Return what is issued so far, for an mbarrier."""
        self.tracked.update(events := self.under_way)
        self.number += 1
        return Several(events)

    def ended(self, upto: int) -> bool:
        """Return whether so many groups were committed and have ended."""
        groups = self.closed[self.waited : upto]
        return len(self.closed) >= upto and all(event.done for group, _ in groups for event in group)

    def wait(self, left: int, *, reads: bool = False) -> Ready | None:
        """None once all groups but `left` have ended (of bulk stores perhaps only their reads), which `known` then
        says; else what has to hold for that."""

        def done(event: Event) -> bool:
            return event.done or (reads and event.after.done)

        upto = max(len(self.closed) - left, self.waited)
        late = [event for group, _ in self.closed[:upto] for event in group if not done(event)]
        if late:
            return lambda: all(map(done, late))
        self.waited, self.known = upto, self.closed[upto - 1][1] if upto else 0
        if not reads:
            self.closed[:upto] = [([], epoch) for _, epoch in self.closed[:upto]]
        return None


@dataclass
class Launch:
    program: Program
    shape: tuple[int, int, int]
    """Of its grid."""
    parameters: dict[str, int]
    after: tuple[int, ...] = ()
    """Numbers of launches that must have ended, with all they did, as on one stream."""
    device: int = 0
    first: int = 0
    """Of its agents."""
    symbols: dict[str, int] = field(default_factory=dict)
    """Addresses of its module's variables."""
    begun: int = 0
    start: np.ndarray | None = None
    end: np.ndarray | None = None

    def __post_init__(self) -> None:
        self.grid = self.left = math.prod(self.shape)


class Warp:
    def __init__(self, cta: "Cta", number: int):
        self.cta, self.number, self.program = cta, number, cta.program
        self.r = list(cta.program.empty)
        self.thread = LANE + np.uint32(number * LANES)
        self.pc, self.alive, self.mask = 0, True, None
        # Of the group of lanes that goes on, and the groups that are elsewhere. None: all lanes are together.
        self.lanes: np.ndarray | None = None
        self.calls, self.waits, self.others = (), None, []
        self.local = np.full((LANES, cta.program.kernel.local_bytes), EMPTY, np.uint8)
        self.ready: Ready | None = None
        self.joined: Turn | None = None  # of a barrier of the CTA, at which it waits
        self.joined_cluster: Turn | None = None  # of the cluster's barrier, at which it has arrived
        self.agent = cta.first + number
        self.clock = cta.launch.start.copy()
        self.tick()
        self.wgmma, self.stores, self.copies = Groups(), Groups(), Groups()
        self.fenced, self.last_wgmma = False, None
        self.operands: list[tuple[int, int, np.ndarray]] = []  # of wgmma under way: group, register and what it held
        self.registers = cta.program.kernel.registers_a_thread
        self.weight = 10 ** cta.machine.rng.uniform(-1.5, 1.5)
        self.released: dict[Scope, np.ndarray] = {}  # by fences: what strong writes behind them release
        self.inits = np.zeros_like(self.clock)  # of mbarriers, as a fence released them
        self.read: dict[Scope, np.ndarray] = {}  # by relaxed reads: what fences behind them acquire

    @property
    def epoch(self) -> int:
        return self.clock.item(GENERIC, self.agent)

    def tick(self) -> None:
        """What follows is not covered by what was released, or fenced for the async proxy, before."""
        self.clock[GENERIC, self.agent] += 1

    def join(self, clock: np.ndarray) -> None:
        np.maximum(self.clock, clock, out=self.clock)

    def scope(self, reach: str, size: int = 0) -> Scope:
        return Scope(reach, self.cta.launch.device, self.cta.first, self.cta.cluster.ctas[0].first, size)

    def note(self, instruction, **more) -> int:
        """Return the number of a generic access by this warp."""
        return self.cta.machine.ledger.note(self.agent, self.epoch, (self, instruction), **more)

    def __repr__(self) -> str:
        device = f"device {self.cta.launch.device}, " if self.cta.machine.devices > 1 else ""
        return f"{device}{self.program.kernel.name}, CTA {self.cta.number}, warp {self.number}"

    def at(self) -> str:
        places = sorted({self.pc, *(group.pc for group in self.others)})
        return f"{self!r} at " + "; others at ".join(str(self.program.kernel.code[pc]) for pc in places)


class Cta:
    def __init__(self, machine: "Machine", launch: Launch, cluster: Cluster):
        self.machine, self.launch, self.program, self.number = machine, launch, launch.program, launch.begun
        self.cluster, self.rank, self.ended = cluster, len(cluster.ctas), False
        cluster.ctas.append(self)
        x, y, _ = launch.shape
        self.place = self.number % x, self.number // x % y, self.number // (x * y)
        self.first, self.count = launch.first + self.number * self.program.agents, self.program.warps
        size = self.program.cluster
        readers = 3 * self.count if size == 1 else size * self.program.agents
        self.shared = Shared(self.program.shared_bytes, cluster.ctas[0].first, readers, machine.ledger)
        self.shared.number = self.first
        self.reached_by: dict[int, int] = {}  # at which epochs warps of other CTAs last used its mbarriers
        self.barriers: dict = {}  # mbarriers by address
        self.loads: dict[int, tuple[int, int]] = {}  # by address of an mbarrier: the agent and epoch of its TMA loads
        # Agents that loaded from the same addresses, by the load's line and their hash; of the latest load, by that.
        self.loads_by: dict[Any, set[int]] = {}
        self.named: dict[int, Turn] = {}  # of its barriers, by number: the turn that goes on
        self.spare_registers = 0
        self.warps = [Warp(self, number) for number in range(self.count)]

    def agent(self, kind: int, warp: int) -> int:
        """Of a warp: 1 its wgmma, 2 and 3 the reads and the writes of its bulk stores, 4 its cp.async."""
        return self.first + kind * self.count + warp


class Machine:
    """`slots`: CTAs that a device holds at a time, None as many as there are. `budget`: instructions until a run that
    does not end is given up."""

    def __init__(self, seed: int = 0, slots: int | None = None, budget: int = 3_000_000):
        self.rng = random.Random(seed)
        self.slots, self.budget = slots, budget
        self.ledger = Ledger()
        self.memory = GlobalMemory(self.ledger)
        self.launches: list[Launch] = []
        self.symbols: dict[tuple[Program, int], dict[str, int]] = {}  # addresses of the variables of modules, by device
        self.problems: list[str] = []  # of their code, found without running it
        self.printed: list[str] = []  # by the kernels
        self.hosts: list[tuple[Host, Iterator]] = []
        self.events: list[Event] = []
        self.ctas: list[Cta] = []
        self.warps: list[Warp] = []  # of all these, that have not ended
        self.executed, self.agents, self.devices = 0, 1, 1
        self.stall = Stall(self)
        self.lane = self.rng.randrange(LANES)  # that elect.sync picks
        self.calm = self.rng.choice((0.0, 0.5, 0.9))  # the chance that a warp goes on after it did something visible

    @property
    def time_ns(self) -> int:
        return self.executed * TICK_NS

    @property
    def cycles(self) -> int:
        return self.executed * TICK_CYCLES

    def launch(
        self,
        program: Program,
        shape: Sequence[int],
        parameters: Sequence[int],
        after: Sequence[int] = (),
        device: int = 0,
    ) -> int:
        """Returns its number. Launches run at the same time, but `after` others. `parameters` are in the kernel's
        order."""
        given = dict(zip(program.kernel.parameters, parameters, strict=True))
        launch = Launch(program, (*shape, 1, 1)[:3], given, tuple(after), device, self.agents)
        if launch.shape[0] % program.cluster or 0 < (self.slots or launch.grid) < program.cluster:
            raise ValueError(f"a grid of {launch.shape} in {self.slots} slots, for clusters of {program.cluster} CTAs")
        if (program, device) not in self.symbols:
            variables = program.kernel.globals.items()
            self.symbols[program, device] = {
                name: self.memory.add(np.frombuffer(data, np.uint8).copy()) for name, data in variables
            }
        launch.symbols = self.symbols[program, device]
        self.launches.append(launch)
        self.agents += launch.grid * program.agents
        self.devices = max(self.devices, device + 1)
        return len(self.launches) - 1

    def host(self, steps: Callable[["Host"], Iterator]) -> None:
        """Add a thread of the host: a generator that yields between its steps."""
        host = Host(self, self.agents)
        self.agents += 1
        self.hosts.append((host, steps(host)))

    def run(self) -> None:
        """Until all launches have ended. Raises FaultError."""
        empty = np.zeros((3, self.agents), np.int32)
        for host, _ in self.hosts:
            host.clock = empty.copy()
            host.clock[GENERIC, host.agent] = 1
        for launch in self.launches:
            launch.start, launch.end = empty, empty.copy()
        weights = {kind: 10 ** self.rng.uniform(-2, 2) for kind in ("TMA load", "TMA store", "wgmma", "cp.async")}
        weights["host"] = 10 ** self.rng.uniform(-3, 0)  # of what all others have: who waits for it must not starve
        self._begin()
        with np.errstate(all="ignore"):
            while self._turn(weights):
                pass

    def _turn(self, weights: dict) -> bool:
        """Let somebody go on; False once all is done."""
        if not self.warps and not self.events and not any(launch.left for launch in self.launches):
            return False
        choices: list = [warp for warp in self.warps if warp.ready is None or warp.ready()]
        chances = [warp.weight for warp in choices]
        events = [event for event in self.events if event.after is None or event.after.done]
        choices += events
        chances += [weights[event.kind] for event in events]
        if not choices:
            waiting = "\n".join(warp.at() for warp in self.warps)
            raise StuckError(f"nobody can go on:\n{waiting}")
        if self.hosts:
            chances += [weights["host"] * sum(chances)] * len(self.hosts)
            choices += self.hosts
        upto = list(accumulate(chances))
        chosen = choices[bisect(upto, self.rng.random() * upto[-1], 0, len(upto) - 1)]
        if isinstance(chosen, Event):
            self.events.remove(chosen)
            chosen.do()
            chosen.done = True
            self.stall.moved()
            self._begin()
        elif isinstance(chosen, Warp):
            if self.executed > self.stall.due and not self.hosts and not self.events and self.stall.notice(chosen):
                waiting = "\n".join(warp.at() for warp in self.warps)
                raise StuckError(f"all that can go on repeat themselves, and nothing changes any more:\n{waiting}")
            self._advance(chosen)
            if not chosen.alive:
                self.stall.moved()
                self.warps.remove(chosen)
                chosen.cta.cluster.complete()
                self._retire()
                self._begin()
        elif next(chosen[1], chosen) is chosen:
            self.hosts.remove(chosen)
        return True

    def _begin(self) -> None:
        """Start the CTAs there is room for."""
        for launch in self.launches:
            if launch.begun == launch.grid or any(self.launches[i].left for i in launch.after):
                continue
            if not launch.begun and launch.after:
                if any(event.cta.launch is self.launches[i] for event in self.events for i in launch.after):
                    continue
                launch.start = np.maximum.reduce([self.launches[i].end for i in launch.after])
                launch.start[:] = launch.start[GENERIC]  # a launch's end is seen by all proxies of the next
            here = sum(cta.launch.device == launch.device for cta in self.ctas)
            room, size = (self.slots or launch.grid + here) - here, launch.program.cluster
            for _ in range(min(launch.grid - launch.begun, room) // size):
                cluster = Cluster()
                for _ in range(size):
                    self.ctas.append(cta := Cta(self, launch, cluster))
                    self.warps += cta.warps
                    launch.begun += 1

    def _retire(self) -> None:
        for cta in [cta for cta in self.ctas if not any(warp.alive for warp in cta.warps)]:
            for event in self.events:
                if event.cta is cta and event.kind in ("TMA load", "cp.async"):
                    raise TmaError(f"{cta.warps[0]!r}: the CTA ends while a {event.kind} is on its way")
            if cta.program.cluster > 1:
                check_end(cta)
            cta.ended = True
            self.ctas.remove(cta)
            launch = cta.launch
            launch.left -= 1
            for warp in cta.warps:
                np.maximum(launch.end, warp.clock, out=launch.end)
            launch.end[:, cta.first : cta.first + cta.program.agents] = FOREVER

    def _advance(self, warp: Warp) -> None:
        """Run a warp until it waits or has done something that others may notice."""
        program, steps, warp.ready = warp.program, warp.program.steps, None
        try:
            while True:
                if warp.lanes is not None and not choose(warp):
                    return
                step = steps[warp.pc]
                self.executed += step.count or 1
                if step.count:
                    step.run(warp) if warp.lanes is None else run_in_lanes(warp, step)
                    if warp.operands:
                        check_operands(warp, step.count)
                    warp.pc += step.count
                    continue
                warp.mask = warp.lanes
                if step.guard:
                    mask = step.guard(warp)
                    if warp.lanes is not None:
                        mask = mask & warp.lanes
                    if (lanes := mask.tobytes()) != ALL_LANES:
                        if lanes == NO_LANES:
                            warp.pc += 1
                            continue
                        warp.mask = mask
                if (ready := step.run(warp)) is not None:
                    if warp.lanes is None:
                        warp.ready = ready
                        return
                    warp.waits = ready
                    continue
                if warp.operands:
                    check_operands(warp, 1)
                warp.pc += 1
                if warp.alive and self.executed > self.budget:
                    raise StuckError(f"more than {self.budget} instructions")
                if not warp.alive or (step.visible and self.rng.random() >= self.calm):
                    return
        except (FaultError, ArithmeticError, TypeError, ValueError, AttributeError, IndexError) as error:
            at = (
                program.fault_at(warp.pc, error)
                if steps[warp.pc] and steps[warp.pc].count
                else program.kernel.code[warp.pc]
            )
            if isinstance(error, FaultError):
                error.args = (f"{warp!r}, {at}: {str(error).removeprefix(f'{at} ')}",)
            else:
                error.add_note(f"{warp!r}, {at}")
            raise


def check_operands(warp: Warp, count: int) -> None:
    """Raise FaultError where one of the next `count` instructions, which have run, wrote registers that a wgmma reads
    in its own time (9.7.15.7.1)."""
    for _, register, value in warp.operands:
        if warp.r[register] is not value:
            kernel, names = warp.program.kernel, warp.program.numbers
            (name,) = (name for name, number in names.items() if number == register)
            writers = [at for at in range(warp.pc, warp.pc + count) if name in names_in(kernel.code[at].args[0])]
            warp.pc = writers[0] if writers else warp.pc
            raise FaultError(f"{kernel.code[warp.pc]} writes {name}, an operand of a wgmma that nobody has waited for")


@dataclass(eq=False)
class Host:
    """A thread of the host, whose writes to memory that the devices see are ordered by flags it raises."""

    machine: Machine
    agent: int
    clock: np.ndarray = field(default=None, repr=False)

    def write(self, at: np.ndarray, data: np.ndarray, *, release: bool = False) -> None:
        """`data`, [n, size], at so many addresses; as a flag, with release at system scope."""
        memory, size = self.machine.memory, data.shape[1]
        scope = Scope("sys", -1, -1, -1) if release else None
        number = self.machine.ledger.note(self.agent, int(self.clock[GENERIC, self.agent]), self, scope=scope)
        for region, which, offsets in memory.places(at, size, self):
            memory.note_write(region, spread(offsets, size, GRANULE), self.clock, GENERIC, number, self)
            region.data[spread(offsets, size)] = data[which]
            for offset in offsets.tolist() if release else ():
                region.releases.publish(offset, {scope: self.clock}, read=False)
        self.clock[GENERIC, self.agent] += release

    def __repr__(self) -> str:
        return "the host"
