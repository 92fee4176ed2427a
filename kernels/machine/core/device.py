"""The machine: launches on one or several devices, CTAs, warps, and the scheduler that decides what happens next.

A warp is 32 lanes that run together until one of its instructions could be noticed elsewhere; then a seeded scheduler
picks who goes on. What the hardware does in its own time (a TMA load that lands, a wgmma, a cp.async, a bulk store) is
an event that the scheduler delays as it likes. Weights are drawn for each run, so that in some runs a warp starves, in
others loads land at once or stores read at the last moment. All devices share one memory: any may read another's.
"""

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import filterfalse
from typing import Any

import numpy as np

from .cluster import Cluster, Turn, check_end
from .divergence import Group, choose, run_in_lanes
from .faults import FaultError, StuckError, TmaError
from .memory import PARAMETER_BYTES, PARAMETERS, REGION_BITS, GlobalMemory, Shared
from .order import CLUSTER_BITS, GENERIC, GLOBAL, GRANULE, SHARED, Clock, Ledger, Scope, joined
from .pool import Pool
from .program import ALL_LANES, LANE, LANES, NO_LANES, Program, Ready
from .registers import names_in
from .stall import Stall

KINDS = "TMA load", "TMA store", "wgmma", "cp.async"
"""The kinds of events."""
TICK_NS = 10  # globaltimer's advance for an instruction of any warp
TICK_CYCLES = 17  # clock64's


@dataclass(eq=False)
class Event:
    """Something that the hardware does in its own time, once the events that it comes `after` are done."""

    kind: str
    cta: "Cta"
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


@dataclass(eq=False)
class Launch:
    program: Program | None
    """None for a kernel that did not run on the machine, and has ended."""
    shape: tuple[int, int, int]
    """CTAs of its grid along x, y and z."""
    parameters: dict[str, int | bytes]
    """The values of its parameters: numbers, or the bytes of a structure."""
    after: tuple[int, ...] = ()
    """Numbers of launches that must end before it, with all that they do, as on one stream."""
    device: int = 0
    first: int = 0
    """The number of its first cluster."""
    is_early: bool = False
    """A programmatic dependent launch: it begins once each CTA of the last one of `after` lets it, or has ended."""
    waited: bool = True
    """Whether all of its CTAs that have ended, or let others begin, had waited for `after` by then."""
    is_free: bool = False
    """Whether all launches of `after` have ended, with all that they did."""
    symbols: dict[str, int] = field(default_factory=dict)
    """Addresses of its module's variables."""
    addresses: dict[str, int] = field(default_factory=dict)
    """Addresses of its parameters: a tensor map has its own, and others lie in `image`, which begins at PARAMETERS."""
    begun: int = 0
    start: Clock | None = None
    end: Clock | None = None

    def __post_init__(self) -> None:
        self.grid = self.left = math.prod(self.shape)
        image = b""
        for name, value in self.parameters.items():
            image += bytes(-len(image) % PARAMETER_BYTES)
            is_map = isinstance(value, int) and self.program.kernel.parameters[name] > 8
            self.addresses[name] = value if is_map else PARAMETERS + len(image)
            image += value if isinstance(value, bytes) else (value % 2**64).to_bytes(8, "little")
        self.image = np.frombuffer(image, np.uint8)

    @property
    def clusters(self) -> range:
        count = self.grid // self.program.cluster if self.program else 1
        return range(self.first, self.first + count)


class Warp:
    # Attributes that are the same for all warps at first.
    calls = ()
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

    def __init__(self, cta: "Cta", number: int):
        self.cta = cta
        self.number = number
        self.program = program = cta.program
        self.r = list(program.empty)
        self.pc = 0
        if (number + 1) * LANES > program.threads:
            self.lanes = program.threads % LANES > LANE
        self.local = program.local.copy()
        self.agent = cta.first + number
        self.clock = cta.launch.start.copy()
        self.tick()
        self.groups: dict[str, Groups] = {}
        self.registers = program.kernel.registers_a_thread
        self.weight = 10 ** cta.machine.rng.uniform(-1.5, 1.5)
        self.released: dict[Scope, Clock] = {}  # what strong writes behind fences release, by the fences' scopes
        self.read: dict[Scope, Clock] = {}  # what fences behind relaxed reads acquire, by scope
        self.heard: dict[Any, dict] = {}  # what was released at the last strong read, by its place and kind

    @cached_property
    def inits(self) -> Clock:
        """A clock of the mbarriers whose initialisation a fence has released."""
        return Clock(self.clock.width)

    def group(self, kind: str) -> Groups:
        """The operations of a kind that it has under way: "wgmma", "cp.async" or "bulk stores"."""
        if kind not in self.groups:
            self.groups[kind] = Groups()
        return self.groups[kind]

    def tick(self) -> None:
        """Begin a new epoch: accesses from now on are not covered by earlier releases or fences of the async proxy."""
        self.epoch += 1
        self.clock.put(self.agent, self.epoch, GENERIC)

    def join(self, clock: Clock) -> None:
        self.clock.join(clock)

    def scope(self, reach: str, size: int = 0) -> Scope:
        cta = self.cta
        return Scope(reach, cta.launch.device, cta.first, cta.cluster.ctas[0].first, size)

    def note(self, instruction, scope: Scope | None = None) -> int:
        """Note a generic access by this warp, and return its number."""
        return self.cta.machine.ledger.note(self.agent, self.epoch, self, instruction, scope=scope)

    def __repr__(self) -> str:
        device = f"device {self.cta.launch.device}, " if self.cta.machine.devices > 1 else ""
        return f"{device}{self.program.kernel.name}, CTA {self.cta.number}, warp {self.number}"

    def at(self) -> str:
        places = {self.pc}
        for group in self.others:
            places.add(group.pc)
        return f"{self!r} at " + "; others at ".join(str(self.program.kernel.code[pc]) for pc in sorted(places))


class Cta:
    def __init__(self, machine: "Machine", launch: Launch, cluster: Cluster):
        self.machine = machine
        self.launch = launch
        self.program = program = launch.program
        self.number = launch.begun
        self.cluster = cluster
        self.rank = len(cluster.ctas)
        self.ended = False
        cluster.ctas.append(self)
        x, y, _ = launch.shape
        self.place = self.number % x, self.number // x % y, self.number // (x * y)
        self.count = program.warps
        self.first = (launch.first + self.number // program.cluster << CLUSTER_BITS) + self.rank * program.agents
        readers = 3 * self.count if program.cluster == 1 else program.cluster * program.agents
        self.shared = Shared(machine.ledger, program.shared_bytes, self.first, cluster.ctas[0].first, readers)
        self.under_way = dict.fromkeys(KINDS, 0)  # how many events of each kind
        self.reached_by: dict[int, int] = {}  # warps of other CTAs, and the epoch when each last used its mbarriers
        self.barriers: dict = {}  # mbarriers by address
        self.loads: dict[int, tuple[int, int]] = {}  # agent and epoch of an mbarrier's TMA loads, by its address
        # Agents that loaded from the same addresses, by the load's line and the addresses. For the latest load they are
        # there by the addresses alone, too.
        self.loads_by: dict[Any, tuple[int, ...]] = {}
        self.named: dict[int, Turn] = {}  # the current turns of its barriers, by number
        self.spare_registers = 0
        self.waited = not launch.after  # whether it has waited for the launches before it
        self.lets = False  # whether it lets the launches behind it begin
        self.warps = [Warp(self, number) for number in range(self.count)]

    def end(self) -> None:
        """Release the memory that nobody looks at any more."""
        self.ended = True
        self.shared.end()
        self.loads_by.clear()
        for warp in self.warps:
            warp.r = warp.local = warp.clock = None

    def let(self) -> None:
        """Let the launches behind its own begin, as far as this CTA is concerned."""
        if not self.lets:
            self.lets = True
            self.launch.waited &= self.waited
            self.machine._begin()

    def agent(self, kind: int, warp: int) -> int:
        """The agent that is a warp's operations of this kind: 1 for its wgmma, 2 and 3 for the reads and the writes of
        its bulk stores, 4 for its cp.async."""
        return self.first + kind * self.count + warp


class Machine:
    """Devices with their memory, the launches on them, and the scheduler.

    `slots`: CTAs that a device holds at a time; None: as many as there are. `budget`: instructions after which a run
    that does not end is given up.
    """

    def __init__(self, seed: int = 0, slots: int | None = None, budget: int = 3_000_000):
        self.rng = random.Random(seed)
        self.slots = slots
        self.budget = budget
        self.ledger = Ledger()
        self.memory = GlobalMemory(self.ledger)
        self.launches: list[Launch] = []
        self.symbols: dict[tuple[Program, int], dict[str, int]] = {}  # addresses of a module's variables, by device
        self.problems: list[str] = []  # in the code of the launches, found without running it
        self.printed: list[str] = []  # what the kernels print
        self.hosts: list[Any] = []
        """Threads of the host. Each has `begin(width)`, and `steps`, a generator that yields between two steps."""
        self.events: dict[Event, None] = {}  # under way
        self.ctas: dict[Cta, None] = {}
        self.warps: dict[Warp, None] = {}  # those of the CTAs that have not ended
        self.able = Pool()  # warps and events, any of which may be next
        self.held: Counter = Counter()  # how many CTAs each device holds
        self.executed = 0
        self.devices = 1
        self.clusters = 1  # the number of the next; each thread of the host has one, too
        self.stall = Stall(self)
        self.lane = self.rng.randrange(LANES)  # the one that elect.sync picks
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
        parameters: Sequence[int | bytes],
        after: Sequence[int] = (),
        device: int = 0,
        is_early: bool = False,
    ) -> int:
        """Add a launch, and return its number. Launches run at the same time, except for those that it comes `after`.
        `parameters` are in the kernel's order.

        Raises ValueError where the grid or the slots do not fit the kernel's clusters.
        """
        given = dict(zip(program.kernel.parameters, parameters, strict=True))
        launch = Launch(program, (*shape, 1, 1)[:3], given, tuple(after), device, self.clusters, is_early)
        if launch.shape[0] % program.cluster or 0 < (self.slots or launch.grid) < program.cluster:
            raise ValueError(f"a grid of {launch.shape} in {self.slots} slots, for clusters of {program.cluster} CTAs")
        if (program, device) not in self.symbols:
            symbols = self.symbols[program, device] = {}
            for name, data in program.kernel.globals.items():
                symbols[name] = self.memory.add(np.frombuffer(data, np.uint8).copy())
        launch.symbols = self.symbols[program, device]
        self.launches.append(launch)
        self.clusters = launch.clusters.stop
        self.devices = max(self.devices, device + 1)
        return len(self.launches) - 1

    def written(self, address: int, size: int) -> int:
        """The number of a launch that has ended and wrote these bytes, for others that come `after` it."""
        launch = Launch(None, (0, 1, 1), {}, first=self.clusters)
        self.clusters += 1
        number = self.ledger.note(launch.first << CLUSTER_BITS, 1, "a kernel of torch's")
        region, start = self.memory.region(address, launch), address % (1 << REGION_BITS)
        granules = slice(start // GRANULE, -(-(start + size) // GRANULE))
        self.memory.note_write(region, granules, Clock(1), GENERIC, number, launch)
        self.launches.append(launch)
        return len(self.launches) - 1

    def run(self) -> None:
        """Run until all launches have ended. Raises FaultError."""
        width = 1
        for launch in self.launches:
            if launch.program:
                width = max(width, launch.program.cluster * launch.program.agents)
        for host in self.hosts:
            host.begin(width)
        for launch in self.launches:
            launch.start = Clock(width)
            launch.end = Clock(width, ended=frozenset([launch.clusters]))
        self.weights = {kind: 10 ** self.rng.uniform(-2, 2) for kind in KINDS}
        # A host thread's weight, as a part of that of all others: what waits for it must not starve.
        self.host_weight = 10 ** self.rng.uniform(-3, 0)
        self._begin()
        with np.errstate(all="ignore"):
            while self._turn():
                pass

    def begin(self, event: Event) -> None:
        """Begin an event: the hardware may do it once the events that it comes after are done."""
        self.events[event] = None
        event.cta.under_way[event.kind] += 1
        if event.may_happen():
            self.able.put(event, self.weights[event.kind])
        for before in event.after:
            before.followers.append(event)

    def _turn(self) -> bool:
        """Let a warp, an event or the host go on; False once all is done."""
        if not self.warps and not self.events and not any(launch.left for launch in self.launches):
            return False
        total = self.able.total
        if not total:
            raise self._stuck("nobody can go on")
        at = self.rng.random() * (1 + self.host_weight * len(self.hosts))
        if at >= 1:
            host = self.hosts[min(int((at - 1) / self.host_weight), len(self.hosts) - 1)]
            if next(host.steps, host) is host:
                self.hosts.remove(host)
            return True
        chosen = self.able.draw(at * total)
        if isinstance(chosen, Event):
            self._happen(chosen)
        elif chosen.ready is None or chosen.ready():
            self._go_on(chosen)
        else:  # another warp was faster
            self._wait(chosen)
        return True

    def _stuck(self, text: str) -> StuckError:
        waiting = "\n".join(warp.at() for warp in self.warps)
        return StuckError(f"{text}:\n{waiting}")

    def _happen(self, event: Event) -> None:
        del self.events[event]
        self.able.remove(event)
        event.do()
        event.done = True
        event.after = ()
        event.do = None
        event.cta.under_way[event.kind] -= 1
        for follower in event.followers:
            if follower.may_happen():
                self.able.put(follower, self.weights[follower.kind])
        self.stall.moved()
        self._wake(event.cta.cluster)
        self._begin()

    def _go_on(self, warp: Warp) -> None:
        if self.executed > self.stall.due and not self.hosts and not self.events and self.stall.notice(warp):
            raise self._stuck("all that can go on repeat themselves, and nothing changes any more")
        self._advance(warp)
        cluster = warp.cta.cluster
        if not warp.alive:
            self.stall.moved()
            del self.warps[warp]
            self.able.remove(warp)
            cluster.complete()
            has_room = self._retire(warp.cta)
        elif warp.ready:
            self._wait(warp)
        else:
            self.able.put(warp, warp.weight)  # which may have changed
        self._wake(cluster)
        if not warp.alive and has_room:
            self._begin()

    def _wait(self, warp: Warp) -> None:
        self.able.remove(warp)
        warp.cta.cluster.waiting[warp] = None

    def _wake(self, cluster: Cluster) -> None:
        """Let the warps go on whose conditions hold after what a warp or an event of their cluster has just done. They
        wait for nothing else."""
        for warp in list(cluster.waiting):
            if warp.ready():
                del cluster.waiting[warp]
                self.able.put(warp, warp.weight)

    def _begin(self) -> None:
        """Start the CTAs that there is room for."""
        for launch in self.launches:
            if not launch.is_free and self._is_free(launch):
                launch.is_free = True
                for cta in self.ctas:
                    if cta.launch is launch:
                        self._wake(cta.cluster)
            if launch.begun == launch.grid or not (launch.is_free or launch.is_early):
                continue
            if not launch.begun and launch.after:
                last = self.launches[launch.after[-1]]
                if not launch.is_early:
                    launch.start = self.known_after(launch)
                elif last.begun < last.grid or any(cta.launch is last and not cta.lets for cta in self.ctas):
                    continue
                elif last.waited and last.after:
                    launch.start = self.known_after(last)
            here = self.held[launch.device]
            room, size = (self.slots or launch.grid + here) - here, launch.program.cluster
            for _ in range(min(launch.grid - launch.begun, room) // size):
                cluster = Cluster()
                for _ in range(size):
                    self.ctas[cta := Cta(self, launch, cluster)] = None
                    self.held[launch.device] += 1
                    launch.begun += 1
                    for warp in cta.warps:
                        self.warps[warp] = None
                        self.able.put(warp, warp.weight)

    def _is_free(self, launch: Launch) -> bool:
        before = [self.launches[number] for number in launch.after]
        if any(other.left for other in before):
            return False
        return not any(event.cta.launch in before for event in self.events)

    def known_after(self, launch: Launch) -> Clock:
        """The clock of a launch once all launches that it comes after have ended."""
        clock = joined([self.launches[number].end for number in launch.after])
        clock.fence((SHARED, GLOBAL))  # all proxies of the next launch see the end of one
        return clock

    def _retire(self, cta: Cta) -> bool:
        """End a CTA once all its warps have ended, and return whether it ended."""
        for warp in cta.warps:
            if warp.alive:
                return False
        for kind in ("TMA load", "cp.async"):
            if cta.under_way[kind]:
                raise TmaError(f"{cta.warps[0]!r}: the CTA ends while a {kind} is on its way")
        if cta.program.cluster > 1:
            check_end(cta)
        launch = cta.launch
        if len(self.launches) > 1:
            launch.end = joined([launch.end, *(warp.clock for warp in cta.warps)])
            for cluster in launch.end.blocks.keys() & launch.clusters:
                del launch.end.blocks[cluster]
        launch.left -= 1
        launch.waited &= cta.waited
        del self.ctas[cta]
        self.held[launch.device] -= 1
        cta.end()
        return True

    def _advance(self, warp: Warp) -> None:
        """Run a warp until it waits or has done something that others may notice."""
        steps = warp.program.steps
        warp.ready = None
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
                    lanes = mask.tobytes()
                    if lanes != ALL_LANES:
                        if lanes == NO_LANES:
                            warp.pc += 1
                            continue
                        warp.mask = mask
                ready = step.run(warp)
                if ready is not None:
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
        except (FaultError, ArithmeticError, TypeError, ValueError, AttributeError, IndexError, KeyError) as error:
            at = warp.program.fault_at(warp.pc, error)
            if isinstance(error, FaultError):
                error.args = (f"{warp!r}, {at}: {str(error).removeprefix(f'{at} ')}",)
            else:
                error.add_note(f"{warp!r}, {at}")
            raise


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
