"""Barriers, fences and mbarriers, which keep threads in step (PTX ISA 8.7, 9.7.13.1, 9.7.13.4 and 9.7.13.15)."""

import re
from itertools import product

import numpy as np

from ..core.cluster import Turn
from ..core.divergence import all_here
from ..core.faults import BarrierError, RaceError, UnknownError
from ..core.order import FOREVER, GENERIC, GLOBAL, SCOPES, SHARED, Agent, Attempt, Clock, Released, Scope, joined
from ..core.program import LANES, Until, effect, family, lanes_of, uniform
from ..core.registers import numpy_name
from .access import chosen, numbers

INSTRUCTIONS = """
bar[.cta].{sync,arrive}, barrier[.cta].{sync,arrive}[.aligned] | of all warps, or of as many as are said
{bar,barrier}[.cta].red.{popc[.aligned].u32,{and,or}[.aligned].pred} | as these, and all lanes get what they vote
griddepcontrol.{wait,launch_dependents} | with launch_pdl, between launches in a row
fence.{acq_rel,sc,acquire,release}.SCOPE, membar.{cta,gl,sys} | with strong accesses, at their scopes
fence.proxy.async[.global,.shared::{cta,cluster}] | orders generic accesses with those of TMA and wgmma
mbarrier.{init,inval,arrive,arrive_drop,expect_tx,complete_tx,pending_count}.b64 | by phase and counts
mbarrier.{test_wait,try_wait}[.parity].b64 | by the scopes of all who arrived; try_wait may give up early
"""
"""The opcodes that this module models, and how: rows of the table that `--coverage` prints."""


@effect("griddepcontrol.wait")
def wait_for_launches(w, inst):
    """9.7.13.12: wait until the launches before this one have ended. Only then does the warp know what they wrote."""
    launch = w.cta.launch
    if not launch.is_free:
        return Until(lambda: launch.is_free, lambda: "the launches before it to end")
    if launch.is_early:
        w.join(w.cta.machine.known_after(launch))
    w.cta.waited = True


@effect("griddepcontrol.launch_dependents")
def let_launches_begin(w, inst):
    w.cta.let()


NAMED = re.compile(
    r"bar(rier)?(\.cta)?\.((sync|arrive)(\.aligned)?|red\.(popc(\.aligned)?\.u32|(and|or)(\.aligned)?\.pred))"
)
VOTES = {"popc": np.count_nonzero, "and": np.all, "or": np.any}
"""What bar.red makes of the lanes' votes."""


@family("bar", "barrier")
def barrier(program, inst):
    """9.7.13.1: one of the 16 barriers of a CTA. A warp that only arrives goes on, and acquires nothing. If it then
    waits there itself, it has come twice: so two warpgroups that take turns let the first one begin. Threads that have
    ended are not waited for: "until reached by all non-exited threads in the block" (CUDA C++ Programming Guide,
    Independent Thread Scheduling)."""
    if not NAMED.fullmatch(inst.op):
        raise UnknownError("a barrier that this machine does not know")
    waits = ".arrive" not in inst.op
    args = inst.args
    count = None
    if ".red." in inst.op:
        count = VOTES[inst.op.partition(".red.")[2].split(".")[0]]
        target, *args, voted = args
        kind = inst.op.rpartition(".")[2]
        vote = program.get(voted, "pred")
        put = program.put(target, kind)
    number, threads = program.given(args, ["u32", "u32?"])

    def arrive(w) -> Turn:
        cta = w.cta
        if not all_here(w):
            raise BarrierError("a barrier that not all lanes of the warp reach")
        which = uniform(w, number(w), "the number of a barrier")
        wanted = uniform(w, threads(w), "the threads of a barrier") if threads else program.warps * LANES
        if which > 15 or wanted % LANES:
            raise BarrierError(f"barrier {which} of {wanted} threads; there are 16, of whole warps")
        turn = cta.named.setdefault(which, Turn(f"barrier {which} of {wanted} threads", wanted, not threads))
        if w in turn.arrived and not waits:
            raise BarrierError(f"arrives again at {turn.describe(cta.warps)}")
        if turn.threads != wanted:
            raise BarrierError(f"{turn.name} is reached as one of {wanted}")
        turn.again += w in turn.arrived
        turn.arrived[w] = w.clock if waits else w.clock.copy()
        if count:
            turn.votes.append(chosen(w, vote(w)))
        finish(cta, which)
        return turn

    def run(w):
        turn = w.joined or arrive(w)
        if waits and turn.clock is None:
            w.joined = turn
            return turn.until_over(w.cta.warps)
        if waits:
            w.join(turn.clock)
        if count:
            put(w, np.full(LANES, count(np.concatenate(turn.votes)), numpy_name(kind)))
        w.joined = None
        w.tick()

    return run


def finish(cta, which: int) -> None:
    """End the turn of a barrier, so that the warps that wait at it go on, if it is complete: its number of threads has
    arrived, or all threads that have not ended."""
    turn = cta.named[which]
    come = len(turn.arrived) + turn.again
    if turn.of_all:
        come += sum(not warp.alive and warp not in turn.arrived for warp in cta.warps)
    if come * LANES == turn.threads:
        turn.end()
        del cta.named[which]


FENCED = {
    "fence.proxy.async": (SHARED, GLOBAL),
    "fence.proxy.async.global": (GLOBAL,),
    "fence.proxy.async.shared::cta": (SHARED,),
    "fence.proxy.async.shared::cluster": (SHARED,),
}


@effect(*FENCED)
def fence_proxies(w, inst):
    w.clock.fence(FENCED[inst.op])
    w.tick()


FENCES = ("fence.acq_rel.", "fence.sc.", "fence.acquire.", "fence.release.")


@effect(*map("".join, product(FENCES, SCOPES)))
@effect("membar.cta", "membar.gl", "membar.sys")
def fence(w, inst):
    mine = w.scope(inst.op.split(".")[-1].replace("gl", "gpu"))
    if ".release" not in inst.op:
        for scope, clock in w.read.items():
            if scope.meets(mine):
                w.join(clock)
    if ".acquire" not in inst.op:
        w.released[mine] = w.among.released(w.clock, w.mask).copy()
    w.tick()


MOST = 2**20 - 1
"""The most arrivals, and the most bytes, that an mbarrier may expect (9.7.13.15.2)."""


class Mbarrier:
    """9.7.13.15: the arrivals that are pending, the bytes that are expected, and the phase. The TMA loads of an
    mbarrier are an agent. Their epoch is the phase, and the initialisation is the epoch before.

    What an arrival releases has its scope. A warp that waits knows what all who arrived knew; but where a scope does
    not reach from one CTA to the other, its generic accesses may not rely on theirs. At another CTA's mbarrier Triton
    and CUTLASS leave the default, which is the CTA: right for stages that TMA, or st.async, fills again.
    """

    def __init__(self, cta, at: int, count: int, agent: int, epoch: int):
        self.cta = cta
        self.at = at
        self.agent = agent
        self.born = epoch
        self.epoch = epoch + 1
        self.count = self.pending = count
        self.bytes = self.phase = self.flying = 0
        self.landed = Clock(cta.launch.start.width)
        self.next: Released = {cta.scope: self.landed}  # what is released by the end of the phase
        self.released: Released = {}  # what was by the end of the phase before

    def arrive(self, released: Released, count: int) -> None:
        if self.pending < count:
            raise self.fault(f"{count} arrivals at an")
        self.pending -= count
        for scope, clock in released.items():
            if scope not in self.next:
                self.next[scope] = Clock(clock.width)
            self.next[scope].join(clock)
        self._complete()

    def expect(self, *, arrivals: int = 0, size: int = 0) -> None:
        """Expect more arrivals or more bytes in this phase."""
        self.pending += arrivals
        self.bytes += size
        if self.pending > MOST or self.bytes > MOST:
            raise self.fault(f"more than {MOST} are expected of an")

    def land(self, size: int) -> None:
        """Note that bytes have landed which were flying. A warp that waits then knows of the loads, and of nothing that
        their issuer did."""
        self.bytes -= size
        self.flying -= size
        self._complete()

    def _complete(self) -> None:
        if self.pending or self.bytes:
            return
        if not self.flying:  # else too few bytes were expected
            self.landed.put(self.agent, self.epoch)
        self.phase += 1
        self.epoch += 1
        self.pending = self.count
        self.released = {scope: clock.copy() for scope, clock in self.next.items()}

    def is_as_new(self, count: int) -> bool:
        """Whether initialising it again, for so many arrivals, would change nothing."""
        is_unused = self.phase == self.bytes == self.flying == 0
        return is_unused and self.pending == self.count == count

    def fault(self, text: str) -> BarrierError:
        return BarrierError(f"{text} {self.describe()}", self.cta.shared, self.at)

    def describe(self) -> str:
        cta = f" of CTA {self.cta.number}" if len(self.cta.cluster.ctas) > 1 else ""
        text = f"mbarrier at {self.at}{cta}: phase {self.phase}, {self.pending} of {self.count} arrivals pending"
        if self.bytes < 0:
            text += f", {-self.bytes} bytes more landed than expected"
        if self.bytes > 0:
            text += f", {self.bytes} bytes expected and {self.flying or 'none'} on their way"
        return text


def mbarrier_of(w, cta, address: int) -> Mbarrier:
    """The mbarrier that was initialised at an address of a CTA. Raises BarrierError where there is none, and RaceError
    where this warp does not know of the initialisation.

    No proxy fence is asked for between mbarrier.init and TMA: completing bytes is an operation of the mbarrier, whose
    object nothing else may touch, and all that Triton's own pipelines put between is a barrier of the CTA.
    """
    if address not in cta.barriers:
        raise BarrierError(f"no mbarrier was initialised at {address}", cta.shared, address)
    mbarrier = cta.barriers[address]
    if w.clock.item(GENERIC, mbarrier.agent) < mbarrier.born:
        message = f"uses the mbarrier at {address}, which another warp may not have initialised yet"
        raise RaceError(message, cta.shared, address)
    return mbarrier


def mbarrier_at(w, address: int) -> Mbarrier:
    """The mbarrier at a shared address. If it is another CTA's, that CTA must not end before it knows of this use."""
    mbarrier = mbarrier_of(w, *w.cta.cluster.locate(address))
    if mbarrier.cta is not w.cta:
        mbarrier.cta.reached_by[w.agent] = w.epoch
    return mbarrier


def names(*operations: str, of: str = "mbarrier", order: str = "", spaces=("shared", "shared::cta")) -> list[str]:
    """The opcodes of operations on mbarriers, with and without semantics, which are `order` (release or acquire) or
    relaxed."""
    orders = [""]
    if order:
        orders += [f".{order}.cta", f".{order}.cluster", ".relaxed.cta", ".relaxed.cluster"]
    return [f"{of}.{operation}{kind}.{space}.b64" for operation, kind, space in product(operations, orders, spaces)]


ANYWHERE = ("shared", "shared::cta", "shared::cluster")


def reach(inst) -> str:
    """How far the semantics of an operation on an mbarrier reach: by default to the CTA."""
    return "cluster" if ".cluster." in inst.op else "cta"


@effect(*names("init"), operands="S u32")
def initialise(w, inst, where, count):
    cta = w.cta
    shared = cta.shared
    for at, arrivals in zip(numbers(w, where), numbers(w, count), strict=True):
        if at in cta.barriers:  # PTX leaves it undefined, yet Triton 3.7.1 specialises warps so: before anybody uses it
            if not mbarrier_of(w, cta, at).is_as_new(arrivals):
                raise cta.barriers[at].fault("initialises again the")
            continue
        if not 1 <= arrivals <= MOST:
            raise BarrierError(f"an mbarrier of {arrivals} arrivals, from 1 to {MOST} are possible", shared, at)
        places = shared.places(np.array([at]), 8, inst, 8)
        shared.note_write(places, Attempt(w.clock, 0, inst))
        # From now on no access is ordered with it, other than an mbarrier operation (9.7.13.15.3).
        number = cta.machine.ledger.note(w.agent, FOREVER, "an mbarrier's owner")
        shared.writes[places] = number
        unused = cta.agent(Agent.MBARRIER, len(cta.loads))
        agent, epoch = cta.loads.get(at, (unused, 1))
        if agent >= cta.first + cta.program.agents:
            raise UnknownError(f"{inst}: more mbarriers than {cta.program.barriers}")
        cta.loads[at] = agent, epoch
        cta.barriers[at] = Mbarrier(cta, at, arrivals, agent, epoch)
        w.clock.put(agent, epoch)


@effect(*names("inval"), operands="S")
def invalidate(w, inst, where):
    for at in numbers(w, where):
        mbarrier = mbarrier_of(w, w.cta, at)
        if mbarrier.bytes or mbarrier.pending != mbarrier.count:
            raise mbarrier.fault("invalidates in the middle of a phase the")
        del w.cta.barriers[at]
        w.cta.loads[at] = mbarrier.agent, mbarrier.epoch
        w.cta.shared.writes[at : at + 8] = w.attempt(inst).number


ARRIVALS = map("".join, product(("arrive", "arrive_drop"), ("", ".expect_tx", ".noComplete")))


@effect(*names(*ARRIVALS, order="release", spaces=ANYWHERE), operands="=b64 @ u32?")
def arrive(w, inst, put, where, number):
    """The state that an arrival returns is the phase, and how many arrivals were pending before it."""
    arrivals = w.cta.machine.arrivals
    arrivals[inst] = arrivals.get(inst, True) and all_here(w)
    states = np.zeros(LANES, np.uint64)
    mine = w.scope(reach(inst))
    released = {mine: w.among.released(w.clock, w.mask)}
    if ".relaxed" in inst.op:  # what fences before it have released, as far as both scopes reach
        released = {
            min(mine, fenced, key=Scope.rank): w.among.released(clock, w.mask) for fenced, clock in w.released.items()
        }
    for lane in lanes_of(w):
        mbarrier = mbarrier_at(w, int(where(w)[lane]))
        count = int(number(w)[lane]) if number else 1
        states[lane] = mbarrier.phase << 32 | mbarrier.pending
        if ".expect_tx" in inst.op:
            mbarrier.expect(size=count)
            count = 1
        if ".noComplete" in inst.op and mbarrier.pending == count:
            raise mbarrier.fault("is the last to arrive, with .noComplete, at an")
        if "_drop" in inst.op:
            mbarrier.count -= count
        mbarrier.arrive(released, count)
    w.tick()
    put(w, states)


@effect(*names("expect_tx", "complete_tx", order="relaxed", spaces=ANYWHERE), operands="@ u32")
def change_bytes(w, inst, where, number):
    for at, size in zip(numbers(w, where), numbers(w, number), strict=True):
        mbarrier = mbarrier_at(w, at)
        if "expect_tx" in inst.op:
            mbarrier.expect(size=size)
        else:
            mbarrier.flying += size
            mbarrier.land(size)
    w.tick()


@effect(*names("try_wait.parity", "test_wait.parity", order="acquire"), operands="=pred S u32 u32?")
@effect(*names("try_wait", "test_wait", order="acquire"), operands="=pred S b64 u32?")
def wait(w, inst, put, where, phase, hint):
    """Wait for a phase to end. A parity stands for the current phase or the one before it, a state for its own."""
    mbarrier = mbarrier_of(w, w.cta, uniform(w, where(w), "the mbarrier of a wait"))
    by_parity = ".parity" in inst.op
    wanted = uniform(w, phase(w) if by_parity else phase(w) >> 32, "the phase of a wait")
    if not by_parity and mbarrier.phase - wanted > 1:
        raise mbarrier.fault(f"waits for phase {wanted} of an")

    def holds() -> bool:
        return mbarrier.phase & 1 != wanted if by_parity else mbarrier.phase > wanted

    passed = holds()
    if not passed:
        w.polled = w.polled or w.way
    elif w.polled:
        w.way = w.polled
        w.polled = 0
    if passed:
        acquire(w, inst, mbarrier.released)
    elif "try_wait" in inst.op and w.cta.machine.rng.random() < 0.8:  # else it gives up early, as it may
        return Until(holds, mbarrier.describe)
    put(w, np.full(LANES, passed))


def acquire(w, inst, released: Released) -> None:
    mine = w.scope(reach(inst))
    for scope, clock in released.items():
        is_heard = scope.meets(mine)
        if ".relaxed" not in inst.op:
            w.clock.join(clock, None if is_heard else w.cta.unreached)
            w.among.hear(clock)
        elif is_heard:  # it is left to a fence behind the wait
            w.read[scope] = joined([clock, w.read.get(scope, clock)])


@effect("mbarrier.pending_count.b64", operands="=u32 b64", quiet=True)
def pending_count(w, inst, put, state):
    put(w, state(w).astype(np.uint32))
