"""What keeps threads in step: barriers, fences and mbarriers (PTX ISA 8.7, 9.7.13.1, 9.7.13.4 and 9.7.13.15)."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kernels.machine.lanes import whole_warp
from kernels.machine.memory import spread
from kernels.machine.order import FOREVER, GENERIC, GLOBAL, GRANULE, SHARED, BarrierError, RaceError
from kernels.machine.program import LANES, Until, effect, family, uniform
from kernels.machine.ptx import UnknownError


@effect("bar.warp.sync", operands="*", only=whole_warp)
@effect("griddepcontrol.wait", "griddepcontrol.launch_dependents")  # launches come one after another as `after` says
def nothing(w, inst, *given):
    pass


@dataclass(eq=False)
class Turn:
    """One use of a barrier: the warps that have arrived, and what each of them releases and votes."""

    name: str
    threads: int = 0
    operation: str | None = None
    arrived: dict[Any, np.ndarray] = field(default_factory=dict)
    votes: list[np.ndarray] = field(default_factory=list)
    clock: np.ndarray | None = None
    """Of all of them, once the turn is over."""

    def end(self) -> None:
        self.clock = np.maximum.reduce(list(self.arrived.values()))

    def until(self, warps: Iterable[Any]) -> Until:
        """Return the condition that it is over. `warps` are those that may take part."""
        return Until(lambda: self.clock is not None, lambda: self.describe(warps))

    def describe(self, warps: Iterable[Any]) -> str:
        sides: dict[bool, list[str]] = {True: [], False: []}
        for warp in warps:
            if warp.alive:
                sides[warp in self.arrived].append(f"{warp.cta.number}.{warp.number}")
        here, missing = (", ".join(sides[side]) or "none" for side in (True, False))
        return f"{self.name}: of warps (CTA.warp) {here} arrived, {missing} did not"


NAMED = re.compile(r"bar(rier)?(\.cta)?\.(sync|arrive|red(\.(?P<vote>popc|and|or))?)(\.aligned)?(\.u32|\.pred)?")
VOTES = {"popc": np.count_nonzero, "and": np.all, "or": np.any}


@family("bar", "barrier")
def barrier(program, inst):
    """9.7.13.1: one of the 16 of a CTA. Who only arrives goes on, and gets to know nothing."""
    match, texts = NAMED.fullmatch(inst.op), list(inst.args)
    if not match or (".red" in inst.op) != bool(match["vote"]):
        raise UnknownError("a barrier that this machine does not know")
    waits, operation = ".arrive" not in inst.op, match["vote"]
    if operation:
        put, vote = (
            program.put(texts.pop(0), "u32" if operation == "popc" else "pred"),
            program.get(texts.pop(), "pred"),
        )
    number, *threads = (program.get(text, "u32") for text in texts)

    def arrive(w) -> Turn:
        cta = w.cta
        if w.mask is not None:
            raise BarrierError("a barrier that not all lanes of the warp reach")
        which = uniform(w, number(w), "the number of a barrier")
        wanted = uniform(w, threads[0](w), "the threads of a barrier") if threads else program.threads
        if which > 15 or wanted % LANES:
            raise BarrierError(f"barrier {which} of {wanted} threads; there are 16, of whole warps")
        turn = cta.named.setdefault(which, Turn(f"barrier {which} of {wanted} threads", wanted, operation))
        if w in turn.arrived:
            raise BarrierError(f"arrives again at {turn.describe(cta.warps)}")
        if (turn.threads, turn.operation) != (wanted, operation):
            raise BarrierError(f"{turn.name} is reached as one of {wanted}, by {inst.op}")
        turn.arrived[w] = w.clock if waits else w.clock.copy()
        turn.votes += [vote(w)] if operation else []
        if len(turn.arrived) * LANES == wanted:
            turn.end()
            del cta.named[which]
        return turn

    def run(w):
        turn = w.joined or arrive(w)
        if waits and turn.clock is None:
            w.joined = turn
            return turn.until(w.cta.warps)
        if waits:
            w.join(turn.clock)
        w.joined = None
        w.tick()
        if operation:
            put(w, np.full(LANES, VOTES[operation](turn.votes)))

    return run


FENCED = {"": (SHARED, GLOBAL), ".global": (GLOBAL,), ".shared::cta": (SHARED,), ".shared::cluster": (SHARED,)}


@effect(*(f"fence.proxy.async{space}" for space in FENCED))
def fence_proxies(w, inst):
    for row in FENCED[inst.op.removeprefix("fence.proxy.async")]:
        np.maximum(w.clock[row], w.clock[GENERIC], out=w.clock[row])
    w.tick()


SCOPES = ("cta", "cluster", "gpu", "sys")


@effect(*(f"fence.{kind}.{reach}" for kind in ("acq_rel", "sc", "acquire", "release") for reach in SCOPES))
@effect("membar.cta", "membar.gl", "membar.sys")
def fence(w, inst):
    mine = w.scope(inst.op.split(".")[-1].replace("gl", "gpu"))
    for scope, clock in w.read.items() if ".release" not in inst.op else ():
        if scope.meets(mine):
            w.join(clock)
    if ".acquire" not in inst.op:
        w.released[mine] = w.clock.copy()
    w.tick()


MOST = 2**20 - 1
"""Arrivals, and bytes that are expected (9.7.13.15.2)."""


class Mbarrier:
    """9.7.13.15: arrivals that are pending, bytes that are expected, and the phase. Its TMA loads are an agent, their
    epoch is the phase; its initialisation is the epoch before.

    Whoever waits knows what all who arrived knew, whatever their scopes: at another CTA's mbarrier Triton and CUTLASS
    leave the default, which is the CTA.
    """

    def __init__(self, cta, at: int, count: int, agent: int, epoch: int):
        self.cta, self.at, self.agent, self.born, self.epoch = cta, at, agent, epoch, epoch + 1
        self.count = self.pending = count
        self.bytes = self.phase = self.flying = 0
        self.clock, self.next = np.zeros_like(cta.launch.start), np.zeros_like(cta.launch.start)

    @property
    def state(self) -> int:
        return self.phase << 32 | self.pending

    def arrive(self, clock: np.ndarray | None, count: int, *, drop: bool = False, completes: bool = True) -> None:
        """`drop`: from the next phase on they are not expected any more. `clock` is None of a relaxed arrival."""
        if self.pending < count:
            raise self.fault(f"{count} arrivals at an")
        self.pending -= count
        self.count -= count if drop else 0
        if clock is not None:
            np.maximum(self.next, clock, out=self.next)
        if not completes and not self.pending:
            raise self.fault("an arrival with .noComplete is the last at an")
        self._complete()

    def expect(self, *, arrivals: int = 0, size: int = 0) -> None:
        """More of them in this phase."""
        self.pending, self.bytes = self.pending + arrivals, self.bytes + size
        if self.pending > MOST or self.bytes > MOST:
            raise self.fault(f"{MOST} is the most that can be expected, of an")

    def land(self, size: int, *, flew: bool = True) -> None:
        """Bytes of a TMA load. Whoever waits knows of them, and of nothing that its issuer did."""
        self.bytes -= size
        self.flying -= size if flew else 0
        self._complete()

    def _complete(self) -> None:
        if not self.pending and not self.bytes:
            if not self.flying:  # else too few bytes were expected
                self.next[:, self.agent] = self.epoch
            self.phase, self.epoch = self.phase + 1, self.epoch + 1
            self.pending, self.clock = self.count, self.next.copy()

    def fault(self, text: str) -> BarrierError:
        return BarrierError(f"{text} {self.describe()}", self.cta.shared, self.at)

    def describe(self) -> str:
        cta = f" of CTA {self.cta.number}" if len(self.cta.cluster.ctas) > 1 else ""
        text = f"mbarrier at {self.at}{cta}: phase {self.phase}, {self.pending} of {self.count} arrivals pending"
        if self.bytes < 0:
            return f"{text}, {-self.bytes} bytes more landed than expected"
        return text + (f", {self.bytes} bytes expected and {self.flying or 'none'} on their way" if self.bytes else "")


def mbarrier_of(w, cta, address: int) -> Mbarrier:
    """Return the one that was initialised there, and that this warp knows to be.

    No proxy fence is asked for between mbarrier.init and TMA: completing bytes is an operation of the mbarrier, whose
    object nothing else may touch, and all that Triton's own pipelines put between is a barrier of the CTA.
    """
    if address not in cta.barriers:
        raise BarrierError(f"no mbarrier was initialised at {address}", cta.shared, address)
    mbarrier = cta.barriers[address]
    if w.clock[GENERIC, mbarrier.agent] < mbarrier.born:
        message = f"uses the mbarrier at {address}, which another warp may not have initialised yet"
        raise RaceError(message, cta.shared, address)
    return mbarrier


def mbarrier_at(w, address: int) -> Mbarrier:
    """Return that of a shared address, which may be another CTA's: it must not end before it knows of this."""
    mbarrier = mbarrier_of(w, *w.cta.cluster.locate(address))
    if mbarrier.cta is not w.cta:
        mbarrier.cta.reached_by[w.agent] = w.epoch
    return mbarrier


def lanes_of(w):
    return range(LANES) if w.mask is None else np.flatnonzero(w.mask)


SPACES = {"shared", "shared::cta", "shared::cluster"}


def words_of(inst, *more: str) -> set[str]:
    """Return the modifiers of an operation on mbarriers, if all are known."""
    words = set(inst.op.split(".")[2:])
    if words - SPACES - {"b64", "cta", "cluster", *more} or not words & SPACES:
        raise UnknownError("a space or a modifier that this machine does not know")
    return words


def granules(at: int) -> np.ndarray:
    return spread(np.array([at]), 8, GRANULE)


@family("mbarrier.init")
def initialise(program, inst):
    words_of(inst)
    where, count = program.shared_address(inst.args[0]), program.get(inst.args[1], "u32")

    def init(w):
        cta, shared = w.cta, w.cta.shared
        for lane in lanes_of(w):
            at, arrivals = int(where(w)[lane]), int(count(w)[lane])
            if at in cta.barriers:
                raise cta.barriers[at].fault("initialises again the")
            if not 1 <= arrivals <= MOST:
                raise BarrierError(f"an mbarrier of {arrivals} arrivals, from 1 to {MOST} are possible", shared, at)
            shared.granules(np.array([at]), 8, inst)
            shared.note_write(granules(at), w.clock, GENERIC, 0, inst)
            # Whatever but an mbarrier operation touches it from now on is not ordered with it (9.7.13.15.3).
            shared.writes[granules(at)] = cta.machine.ledger.note(w.agent, FOREVER, "an mbarrier's owner")
            agent, epoch = cta.loads.get(at, (cta.first + 5 * cta.count + len(cta.loads), 1))
            if agent >= cta.first + program.agents:
                raise UnknownError(f"{inst}: more mbarriers than {program.barriers}")
            cta.loads[at] = agent, epoch
            cta.barriers[at] = Mbarrier(cta, at, arrivals, agent, epoch)
            w.clock[:, agent] = epoch

    return init


@family("mbarrier.inval")
def invalidate(program, inst):
    words_of(inst)
    where = program.shared_address(inst.args[0])

    def end(w):
        for lane in lanes_of(w):
            mbarrier = mbarrier_of(w, w.cta, at := int(where(w)[lane]))
            if mbarrier.bytes or mbarrier.pending != mbarrier.count:
                raise mbarrier.fault("invalidates in the middle of a phase the")
            del w.cta.barriers[at]
            w.cta.loads[at] = mbarrier.agent, mbarrier.epoch
            w.cta.shared.writes[granules(at)] = w.note(inst)

    return end


@family("mbarrier.arrive", "mbarrier.arrive_drop")
def arrive(program, inst):
    words = words_of(inst, "expect_tx", "noComplete", "release", "relaxed")
    if "shared::cluster" in words and inst.args[0] != "_":
        raise UnknownError("the state of another CTA's mbarrier")
    put, where = program.put(inst.args[0], "b64"), program.address(inst.args[1])
    number = program.get(inst.args[2], "u32") if len(inst.args) > 2 else None
    options = dict(drop="_drop" in inst.op, completes="noComplete" not in words)

    def come(w):
        states = np.zeros(LANES, np.uint64)
        for lane in lanes_of(w):
            mbarrier, count = mbarrier_at(w, int(where(w)[lane])), int(number(w)[lane]) if number else 1
            states[lane] = mbarrier.state
            if "expect_tx" in words:
                mbarrier.expect(size=count)
                count = 1
            mbarrier.arrive(None if "relaxed" in words else w.clock, count, **options)
        w.tick()
        put(w, states)

    return come


@family("mbarrier.expect_tx", "mbarrier.complete_tx")
def count_bytes(program, inst):
    words_of(inst, "relaxed")
    where, number = program.address(inst.args[0]), program.get(inst.args[1], "u32")

    def change(w):
        for lane in lanes_of(w):
            mbarrier, size = mbarrier_at(w, int(where(w)[lane])), int(number(w)[lane])
            if ".expect_tx" in inst.op:
                mbarrier.expect(size=size)
            else:
                mbarrier.land(size, flew=False)
        w.tick()

    return change


@family("mbarrier.try_wait", "mbarrier.test_wait")
def wait(program, inst):
    """For a parity: that of the phase that goes on, or of the one before. For a state: what an arrival returned."""
    words = words_of(inst, "parity", "acquire", "relaxed")
    put, where = program.put(inst.args[0], "pred"), program.address(inst.args[1])
    phase = program.get(inst.args[2], "u32" if "parity" in words else "b64")

    def look(w):
        mbarrier = mbarrier_of(w, *w.cta.cluster.locate(uniform(w, where(w), "the mbarrier of a wait")))
        if mbarrier.cta is not w.cta:
            raise BarrierError("waits at another CTA's mbarrier")
        wanted = uniform(w, phase(w), f"the {'parity' if 'parity' in words else 'state'} of a wait")
        if "parity" not in words and mbarrier.phase - (wanted >> 32) > 1:
            raise mbarrier.fault(f"waits for phase {wanted >> 32} of an")

        def holds() -> bool:
            return mbarrier.phase & 1 != wanted if "parity" in words else mbarrier.phase > wanted >> 32

        if passed := holds():
            w.join(mbarrier.clock) if "relaxed" not in words else None
        elif "try_wait" in inst.op and w.cta.machine.rng.random() < 0.8:  # else it gives up early, as it may
            return Until(holds, mbarrier.describe)
        put(w, np.full(LANES, passed))

    return look


@effect("mbarrier.pending_count.b64", operands="=u32 b64", quiet=True)
def pending_count(w, inst, put, state):
    put(w, state(w).astype(np.uint32))
