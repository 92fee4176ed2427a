"""The machine: launches on one or several devices, and the scheduler that decides what happens next.

A warp is 32 lanes that run together until one of its instructions could be noticed elsewhere; then a seeded scheduler
picks who goes on. What the hardware does in its own time (a TMA load that lands, a wgmma, a cp.async, a bulk store) is
an event that the scheduler delays as it likes. Weights are drawn for each run, so that in some runs a warp starves, in
others loads land at once or stores read at the last moment. All devices share one memory: any may read another's.
"""

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from .cluster import Cluster, check_end
from .divergence import choose, run_in_lanes
from .faults import FaultError, StuckError, TmaError
from .launch import Cta, Launch
from .memory import EMPTY, REGION_BITS, GlobalMemory
from .order import CLUSTER_BITS, GLOBAL, SHARED, Attempt, Clock, Ledger, joined
from .pool import Pool
from .program import ALL_LANES, LANES, NO_LANES, Program
from .ptx import Instruction
from .stall import Stall
from .warp import KINDS, Event, Warp, check_operands

TICK_NS = 10  # globaltimer's advance for an instruction of any warp
TICK_CYCLES = 17  # clock64's


class Machine:
    """Devices with their memory, the launches on them, and the scheduler.

    `slots`: CTAs that a device holds at a time; None: as many as there are. `budget`: instructions after which a run
    that does not end is given up.
    """

    def __init__(self, seed: int = 0, slots: int | None = None, budget: int = 3_000_000):
        self.rng = random.Random(seed)
        self.slots = slots
        self.budget = budget
        self.fill = EMPTY  # each byte of shared memory that nobody has written
        self.sms = 132  # multiprocessors of a device, as an H100 has
        self.ledger = Ledger()
        self.memory = GlobalMemory(self.ledger)
        self.launches: list[Launch] = []
        self.symbols: dict[tuple[Program, int], dict[str, int]] = {}  # addresses of a module's variables, by device
        self.problems: list[str] = []  # in the code of the launches, found without running it
        self.arrivals: dict[Instruction, bool] = {}
        """Arrivals at mbarriers that were executed: whether by all lanes of each warp, each for itself."""
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
        region.note_write(slice(start, start + size), Attempt(Clock(1), number, launch))
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
        self.weights = {kind: 10 ** self.rng.uniform(-2, 2) for kind in KINDS[:4]}
        self.weights[KINDS[4]] = self.weights[KINDS[0]]  # seeds keep their orders of events
        # A host thread's weight, as a part of that of all others: what waits for it must not starve.
        self.host_weight = 10 ** self.rng.uniform(-3, 0)
        self._begin()
        try:
            with np.errstate(all="ignore"):
                while self._turn():
                    pass
        except Exception:
            if self.ledger.early:  # which may have led to it
                raise self.ledger.early from None
            raise
        if fault := self.ledger.early or self.ledger.borne:
            raise fault

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
            raise StuckError("nobody can go on")
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
            raise StuckError("all that can go on repeat themselves, and nothing changes any more")
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
            if launch.begun == len(launch.numbers) or not (launch.is_free or launch.is_early):
                continue
            if not launch.begun and launch.after:
                last = self.launches[launch.after[-1]]
                if not launch.is_early:
                    launch.start = self.known_after(launch)
                elif last.begun < len(last.numbers) or any(cta.launch is last and not cta.lets for cta in self.ctas):
                    continue
                elif last.waited and last.after:
                    launch.start = self.known_after(last)
            here = self.held[launch.device]
            room, size = (self.slots or launch.grid + here) - here, launch.program.cluster
            for _ in range(min(len(launch.numbers) - launch.begun, room) // size):
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
        for kind in ("TMA load", "cp.async", "st.async"):
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
                at = warp.pc
                ready = step.run(warp)
                if ready is not None:
                    if warp.lanes is None:
                        warp.ready = ready
                        return
                    warp.waits = ready
                    continue
                if warp.operands:
                    check_operands(warp, 1)
                warp.way = hash((warp.way, at))
                warp.pc += 1
                if warp.alive and self.executed > self.budget:
                    raise StuckError(f"more than {self.budget} instructions: it hangs, or takes a larger budget")
                if not warp.alive or (step.visible and self.rng.random() >= self.calm):
                    return
        except (FaultError, ArithmeticError, TypeError, ValueError, AttributeError, IndexError, KeyError) as error:
            at = warp.program.fault_at(warp.pc, error)
            if isinstance(error, FaultError):
                error.args = (f"{warp!r}, {at}: {str(error).removeprefix(f'{at} ')}",)
            else:
                error.add_note(f"{warp!r}, {at}")
            raise
