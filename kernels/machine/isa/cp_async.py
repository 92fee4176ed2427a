"""Accesses to shared memory that the hardware makes in the generic proxy (PTX ISA 8.7).

cp.async copies for a warp (9.7.9.25.3). The bytes of st.async and red.async, an mbarrier expects (9.7.9.12, 9.7.13.8).
"""

import re
from functools import partial

import numpy as np

from ..core.faults import FaultError, UnknownError
from ..core.memory import EMPTY
from ..core.order import KNOWN, UNFENCED, Agent, Attempt, Clock
from ..core.program import effect, family, lanes_of
from ..core.registers import bits
from ..core.warp import Event
from .access import chosen, columns, numbers
from .atomics import CHANGES, changed
from .sync import mbarrier_of, names

INSTRUCTIONS = """
cp.async.{ca,cg}.shared.global, cp.async.{commit_group,wait_group,wait_all} | events of the generic proxy
cp.async.mbarrier.arrive[.noinc].shared.b64 | an event behind the copies so far
st.async[.weak][.shared::cluster].mbarrier::complete_tx::bytes[.v2,.v4].{b,u,s,f}{32,64} | an event a lane
red.async.relaxed.cluster[.shared::cluster].mbarrier::complete_tx::bytes.OP.{u32,s32,u64,b32} | an event a lane
"""
"""The opcodes that this module models, and how: rows of the table that `--coverage` prints."""

HINTS = {"L2::cache_hint", "L2::64B", "L2::128B", "L2::256B"}


@family("cp.async.ca", "cp.async.cg")
def copy(program, inst):
    """A copy of up to 16 bytes for each lane from global to shared memory, filled up with zeros behind the bytes that
    are copied. It writes in the generic proxy, and its own warp knows of the write once it has waited."""
    _, _, way, space, *words = inst.op.split(".")
    if space not in ("shared", "shared::cta") or words[:1] != ["global"] or set(words[1:]) - HINTS:
        raise UnknownError("a space or a modifier that this machine does not know")
    target_text, source_text, size_text, *more = inst.args
    if "L2::cache_hint" in words:
        more.pop()
    size = int(size_text, 0)
    sizes = (4, 8, 16)
    if way == "cg":
        sizes = (16,)
    if size not in sizes or len(more) > 1:
        raise UnknownError("operands that this machine does not know")
    to = program.shared_address(target_text)
    source = program.address(source_text)
    ignored = bool(more) and program.kernel.kinds.get(more[0]) == "pred"
    kind = "u32"
    if ignored:
        kind = "pred"
    given = program.get([*more, size_text][0], kind)

    def run(w):
        cta = w.cta
        memory = cta.machine.memory
        target = chosen(w, to(w))
        at = chosen(w, source(w))
        sizes = chosen(w, given(w)).astype(np.int64)
        if ignored:
            sizes = np.where(sizes, 0, size)
        if (sizes > size).any():
            raise FaultError(f"cp.async of {sizes.max()} bytes into {size}")
        copies = w.group("cp.async")
        number = cta.machine.ledger.note(cta.agent(Agent.CP_ASYNC, w.number), copies.number, w, inst)
        target_places = cta.shared.places(target, size, inst, size)
        attempt = Attempt(w.clock, number, inst)
        cta.shared.note_write(target_places, attempt)
        cta.shared.data[target_places] = EMPTY
        parts = []
        for part in np.unique(sizes[sizes > 0]).tolist():  # most often all have one size
            rows = np.flatnonzero(sizes == part)
            for region, which, places in memory.places(at[rows], part, inst, size):
                region.note_read(places, attempt)
                parts.append((rows[which], region, places, part))

        def land():
            data = np.zeros((len(at), size), np.uint8)
            for rows, region, places, part in parts:
                data[rows, :part] = region.load(places, part)
            cta.shared.store(target_places, data)

        event = Event("cp.async", cta, land)
        copies.open.append(event)
        cta.machine.begin(event)

    return run


@effect("cp.async.commit_group")
def commit(w, inst):
    w.group("cp.async").commit()


@effect("cp.async.wait_group", operands="#")
@effect("cp.async.wait_all")
def wait(w, inst, left=0):
    copies = w.group("cp.async")
    if inst.op.endswith("_all") and copies.open:
        copies.commit()
    ready = copies.wait(left)
    if ready:
        return ready
    w.clock.put(w.cta.agent(Agent.CP_ASYNC, w.number), copies.known, UNFENCED)


@effect(*names("arrive", "arrive.noinc", of="cp.async.mbarrier"), operands="S")
def arrive_behind(w, inst, where):
    """Each lane arrives once its copies so far have landed. With .noinc its arrival is among those that the mbarrier
    expects; without, the mbarrier expects one more."""
    copies = w.group("cp.async")
    clock = Clock(w.clock.width)
    clock.put(w.cta.agent(Agent.CP_ASYNC, w.number), copies.number, UNFENCED)
    before = copies.track()
    for at in numbers(w, where):
        barrier = mbarrier_of(w, w.cta, at)
        if ".noinc" not in inst.op:
            barrier.expect(arrivals=1)
        event = Event("cp.async", w.cta, partial(barrier.arrive, {w.cta.scope: clock}, 1), before)
        w.cta.machine.begin(event)


REMOTE = re.compile(
    r"(st\.async(\.weak)?|red\.async\.relaxed\.cluster)(\.shared::cluster)?\.mbarrier::complete_tx::bytes"
    r"(\.v[24])?(\.(?P<operation>add|min|max|inc|dec|and|or|xor))?\.(?P<kind>[busf](32|64))"
)


@family("st.async", "red.async")
def reach_over(program, inst):
    """Each lane's access is done once the mbarrier has completed its bytes. Like those of TMA, such accesses are of one
    agent for each phase of an mbarrier."""
    match = REMOTE.fullmatch(inst.op)
    operation = match and match["operation"]
    if not match or (operation is None) != inst.op.startswith("st"):
        raise UnknownError("an asynchronous access that this machine does not know")
    kind = match["kind"]
    if operation and kind[0] not in CHANGES[operation][0]:
        raise UnknownError("a reduction of a type that this machine does not know")
    where = program.address(inst.args[0])
    gets = program.gets(inst.args[1], f"b{bits(kind)}")
    bar = program.address(inst.args[2])

    def run(w):
        machine = w.cta.machine
        data = columns(w, gets)
        size = data.shape[1]
        for lane in lanes_of(w).tolist():
            cta, at = w.cta.cluster.locate(int(where(w)[lane]))
            holder, at_bar = w.cta.cluster.locate(int(bar(w)[lane]))
            if holder is not cta:
                raise UnknownError(f"{inst}: an mbarrier of another CTA than where the bytes go")
            mbarrier = mbarrier_of(w, cta, at_bar)
            places = cta.shared.places(np.array([at]), size, inst, size)
            scope = w.scope("cluster", size) if operation else None
            number = machine.ledger.note(mbarrier.agent, mbarrier.epoch, w, inst, scope=scope)
            cta.shared.note_write(places, Attempt(w.clock, number, inst, KNOWN))
            mbarrier.flying += size
            land = partial(_land, mbarrier, places, data[lane : lane + 1], operation, kind)
            machine.begin(Event("st.async", cta, land))

    return run


def _land(mbarrier, places, new: np.ndarray, operation: str | None, kind: str) -> None:
    shared = mbarrier.cta.shared
    if operation:
        new = changed(operation, kind, False, shared.load(places, new.shape[1]), new)
    shared.store(places, new)
    mbarrier.land(new.size)
