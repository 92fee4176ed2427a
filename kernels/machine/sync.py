"""What keeps warps in step: barriers, fences and mbarriers (PTX ISA 8.7, 9.7.13)."""

import numpy as np

from kernels.machine.lanes import whole_warp
from kernels.machine.memory import spread
from kernels.machine.order import FOREVER, GENERIC, GLOBAL, GRANULE, SHARED, BarrierError, RaceError
from kernels.machine.program import LANES, effect, uniform
from kernels.machine.ptx import UnknownError


@effect("bar.warp.sync", operands="*", only=whole_warp)
@effect("fence.mbarrier_init.release.cluster")  # for other CTAs of a cluster: clusters are not modelled
def nothing(w, inst, *given):
    pass


class Named:
    """A barrier with a number."""

    def __init__(self) -> None:
        self.here, self.turn, self.threads = [], 0, 0


@effect("bar.sync", "barrier.sync", "barrier.sync.aligned", "barrier.cta.sync.aligned", operands="u32 u32?")
def barrier(w, inst, number, threads):
    if w.mask is not None:
        raise BarrierError("a barrier that not all lanes of the warp reach")
    which = uniform(w, number(w), "the number of a barrier")
    wanted = uniform(w, threads(w), "the threads of a barrier") if threads else w.program.threads
    if which > 15 or wanted % LANES:
        raise BarrierError(f"barrier {which} of {wanted} threads; there are 16, of whole warps")
    named = w.cta.named.setdefault(which, Named())
    if w.joined is None:
        if named.here and named.threads != wanted:
            raise BarrierError(f"barrier {which} of {named.threads} threads is reached as one of {wanted}")
        named.threads, w.joined = wanted, named.turn
        named.here.append(w)
        if len(named.here) * LANES == wanted:
            clock = np.maximum.reduce([warp.clock for warp in named.here])
            for warp in named.here:
                warp.clock = clock.copy()
                warp.tick()
            named.here, named.turn = [], named.turn + 1
    if named.turn == (turn := w.joined):
        return lambda: named.turn > turn
    w.joined = None


FENCED = {"": (SHARED, GLOBAL), ".global": (GLOBAL,), ".shared::cta": (SHARED,), ".shared::cluster": (SHARED,)}


@effect(*(f"fence.proxy.async{space}" for space in FENCED))
def fence_proxies(w, inst):
    for row in FENCED[inst.op.removeprefix("fence.proxy.async")]:
        np.maximum(w.clock[row], w.clock[GENERIC], out=w.clock[row])
    w.tick()


@effect(*(f"fence.{kind}.{reach}" for kind in ("acq_rel", "sc") for reach in ("cta", "gpu", "sys")))
@effect("membar.cta", "membar.gl", "membar.sys")
def fence(w, inst):
    mine = w.scope(inst.op.split(".")[-1].replace("gl", "gpu"))
    for scope, clock in w.read.items():
        if scope.meets(mine):
            w.join(clock)
    w.released[mine] = w.clock.copy()
    w.tick()


class Mbarrier:
    """9.7.13.15: arrivals that are pending, bytes that are expected, and the phase. Its TMA loads are an agent, their
    epoch is the phase."""

    def __init__(self, count: int, born: tuple[int, int], agent: int, epoch: int, clock: np.ndarray):
        self.count = self.pending = count
        self.bytes = self.phase = self.flying = 0
        self.born, self.agent, self.epoch = born, agent, epoch
        self.clock, self.next = np.zeros_like(clock), np.zeros_like(clock)

    def arrive(self, clock: np.ndarray, count: int) -> None:
        if self.pending < count:
            raise BarrierError(
                f"{count} arrivals at an mbarrier; {self.pending} of {self.count} are left in this phase"
            )
        self.pending -= count
        np.maximum(self.next, clock, out=self.next)
        self._complete()

    def expect_arrival(self) -> None:
        """One more in this phase."""
        self.pending += 1

    def land(self, size: int) -> None:
        """Bytes of a TMA load. Whoever waits knows of them, and of nothing that its issuer did."""
        self.bytes -= size
        self.flying -= size
        self._complete()

    def _complete(self) -> None:
        if not self.pending and not self.bytes:
            if not self.flying:  # else too few bytes were expected
                self.next[:, self.agent] = self.epoch
            self.phase, self.epoch = self.phase + 1, self.epoch + 1
            self.pending, self.clock = self.count, self.next.copy()

    def passed(self, parity: int) -> bool:
        return self.phase & 1 != parity


def mbarrier_at(w, address: int) -> Mbarrier:
    return mbarrier_of(w, *w.cta.locate(address))


def mbarrier_of(w, cta, address: int) -> Mbarrier:
    """Return the one that was initialised there, and that this warp knows to be.

    No proxy fence is asked for between mbarrier.init and TMA: completing bytes is an operation of the mbarrier, whose
    object nothing else may touch, and all that Triton's own pipelines put between is a barrier of the CTA.
    """
    if address not in cta.barriers:
        raise BarrierError(f"no mbarrier was initialised at {address}", cta.shared, address)
    barrier_at = cta.barriers[address]
    if w.clock[GENERIC, barrier_at.born[0]] < barrier_at.born[1]:
        raise RaceError(f"uses the mbarrier at {address}, which another warp may not have initialised yet")
    return barrier_at


def lanes_of(w):
    return range(LANES) if w.mask is None else np.flatnonzero(w.mask)


def names(*operations: str, of: str = "mbarrier") -> list[str]:
    """Opcodes on mbarriers as Triton's versions spell them."""
    return [f"{of}.{operation}.{space}.b64" for operation in operations for space in ("shared", "shared::cta")]


def granules(at: int) -> np.ndarray:
    return spread(np.array([at]), 8, GRANULE)


@effect(*names("init"), operands="@ u32")
def initialise(w, inst, where, count):
    cta, shared = w.cta, w.cta.shared
    for lane in lanes_of(w):
        at = int(where(w)[lane])
        if at in cta.barriers:
            raise BarrierError(f"the mbarrier at {at} is initialised again")
        shared.granules(np.array([at]), 8, inst)
        shared.note_write(granules(at), w.clock, GENERIC, 0, inst)
        # Whatever but an mbarrier operation touches it from now on is not ordered with it (9.7.13.15.3).
        shared.writes[granules(at)] = cta.machine.ledger.note(w.agent, FOREVER, "an mbarrier's owner")
        agent, epoch = cta.loads.get(at, (cta.first + 5 * cta.count + len(cta.loads), 1))
        if agent >= cta.first + cta.program.agents:
            raise UnknownError("more mbarriers than instructions that initialise them")
        cta.loads[at] = agent, epoch
        cta.barriers[at] = Mbarrier(int(count(w)[lane]), (w.agent, w.epoch), agent, epoch, w.clock)


@effect(*names("inval"), operands="@")
def invalidate(w, inst, where):
    for lane in lanes_of(w):
        barrier_at = mbarrier_at(w, at := int(where(w)[lane]))
        if barrier_at.bytes or barrier_at.pending != barrier_at.count:
            raise BarrierError("an mbarrier is invalidated in the middle of a phase")
        del w.cta.barriers[at]
        w.cta.loads[at] = barrier_at.agent, barrier_at.epoch
        w.cta.shared.writes[granules(at)] = w.note(inst)


@effect(*names("arrive", "arrive.expect_tx"), operands="* @ u32?", only=lambda inst: inst.args[0] == "_")
def arrive(w, inst, state, where, number):
    for lane in lanes_of(w):
        barrier_at, count = mbarrier_at(w, int(where(w)[lane])), int(number(w)[lane]) if number else 1
        if ".expect_tx" in inst.op:
            barrier_at.bytes, count = barrier_at.bytes + count, 1
        barrier_at.arrive(w.clock, count)
    w.tick()


@effect(*names("try_wait.parity", "test_wait.parity"), operands="=pred @ u32")
def wait(w, inst, put, where, parity):
    barrier_at = mbarrier_at(w, uniform(w, where(w), "the mbarrier of a wait"))
    wanted = uniform(w, parity(w), "the parity of a wait")
    if passed := barrier_at.passed(wanted):
        w.join(barrier_at.clock)
    elif "try_wait" in inst.op and w.cta.machine.rng.random() < 0.8:  # else it gives up early, as it may
        return lambda: barrier_at.passed(wanted)
    put(w, np.full(LANES, passed))
