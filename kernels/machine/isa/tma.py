"""Bulk copies, of bytes and of TMA's boxes, which belong to the async proxy (PTX ISA 8.7, 9.7.9.25).

Those to shared memory complete bytes of an mbarrier, and those to global memory belong to a group of their warp. Cache
hints and prefetches change nothing here.
"""

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from ..core.faults import TmaError, UnknownError
from ..core.memory import EMPTY, REGION_BITS
from ..core.order import GLOBAL, SHARED, Agent, Attempt
from ..core.program import effect, family, lanes_of
from ..core.registers import names_in
from ..core.warp import Event
from .atomics import changed
from .floats import narrowed
from .sync import mbarrier_of
from .tensor_map import Part, TensorMap, map_at

INSTRUCTIONS = """
cp.async.bulk.tensor.{1..5}d.shared::{cta,cluster}.global.mbarrier[.multicast::cluster] \
| an event a CTA: boxes of tiled maps, im2col is refused
cp.async.bulk.tensor.{1..5}d.global.shared::cta.bulk_group \
| events, a read and a write: boxes of tiled maps, im2col is refused
cp.async.bulk.shared::{cta,cluster}.global.mbarrier[.multicast::cluster] | an event a CTA: bytes
cp.async.bulk.global.shared::cta.bulk_group | events, a read and a write: bytes
cp.reduce.async.bulk[.tensor.{1..5}d].global.shared::cta.OP.bulk_group | each element at once, relaxed.gpu
cp.async.bulk.shared::cluster.shared::cta.mbarrier | an event
cp.async.bulk.{commit_group,wait_group[.read]}, cp.async.bulk.prefetch | per warp; prefetches do nothing
"""
"""The opcodes that this module models, and how: rows of the table that `--coverage` prints."""


OPERATION = "add|min|max|inc|dec|and|or|xor"
BULK = re.compile(
    r"cp(?P<reduce>\.reduce)?\.async\.bulk(\.tensor\.(?P<dim>[1-5])d)?"
    r"((?P<load>\.shared::(cta|cluster)\.(?P<source>global|shared::cta))(\.tile)?\.mbarrier::complete_tx::bytes"
    r"(?P<multicast>\.multicast::cluster)?"
    rf"|\.global\.shared::cta(\.(?P<by>{OPERATION}))?(\.tile)?\.bulk_group)"
    rf"(?P<hint>\.L2::cache_hint)?(\.(?P<operation>{OPERATION})(\.noftz)?\.(?P<kind>\w+))?"
)
STORED = 16
"""The unit of bytes in which TMA stores a box: where a row ends inside of a unit, the rest of the unit is overwritten
too (triton 11583, and what an H200 did to kernels of ours that stored rows of 5 elements)."""
Find = Callable[[Any, int, int], Part]
"""(warp, lane, number of the access that reads the tensor map) -> the part of a tensor that is copied."""


def _of_tensor(program, inst, text: str) -> Find:
    """A function that finds the part for an operand `[map, {coordinates}]`, which has the innermost coordinate
    first."""
    base, names = text.strip("[] ").split(",", 1)
    map_address = program.get(base, "b64")
    coordinates = [program.get(name, "s32") for name in reversed(names_in(names))]
    whole = 1
    if ".global.shared::cta" in inst.op:
        whole = STORED

    def find(w, lane: int, number: int) -> Part:
        address = int(map_address(w)[lane])
        tensor_map = map_at(w, address, number, inst)
        region = w.cta.machine.memory.region(tensor_map.address, inst)
        start = tensor_map.address % 2**REGION_BITS
        at = [int(get(w)[lane]) for get in coordinates]
        return tensor_map.part(region, start, at, whole)

    return find


def _of_bytes(program, inst, text: str, size_text: str, kind: str, space: str) -> Find:
    """A function that finds the part for an address and a size: it is all of a tensor of so many bytes."""
    where = program.address(text) if space == "global" else program.shared_address(text)
    sizes = program.get(size_text, "u32")

    def find(w, lane: int, number: int) -> Part:
        size = int(sizes(w)[lane])
        at = where(w)[lane : lane + 1]
        if size % 16 or not size:
            raise TmaError(f"a bulk copy of {size} bytes, multiples of 16 are needed")
        region = w.cta.shared
        start = at.item(0)
        if space == "global":
            ((region, _, places),) = w.cta.machine.memory.places(at, size, inst, 16)
            start = places.start
        tensor_map = TensorMap(at.item(0), (size,), (1,), (size,), kind=kind)
        return tensor_map.part(region, start, [0])

    return find


def _places(cta, tensor_map: TensorMap, address: int, unit: int) -> slice:
    """The bytes of shared memory that a box at an address takes."""
    shared = cta.shared
    end = address + tensor_map.bytes
    if address % unit or (tensor_map.swizzle == 3 and address % 1024):
        raise TmaError(f"TMA is given shared memory at {address}, which does not fit the swizzle", shared, address)
    if address < 0 or end > len(shared.data):
        problem = f"TMA is given shared memory at {address}, the CTA has {len(shared.data)} bytes"
        raise TmaError(problem, shared, address)
    return slice(address, end)


@family("cp.async.bulk", "cp.reduce.async.bulk")
def bulk(program, inst):
    """A bulk copy. The opcode says whether it is of a tensor, where to, by which reduction, and what it completes."""
    match = BULK.fullmatch(inst.op)
    args = list(inst.args)
    operation = match and (match["by"] or match["operation"])
    if not match or bool(match["reduce"]) != bool(operation) or (match["load"] and operation):
        raise UnknownError("a bulk copy that this machine does not know")
    if match["hint"]:
        args.pop()
    far = 0  # the operand that is in global memory, or another CTA's
    if match["load"]:
        far = 1
    if match["dim"]:
        unit = 128
        find = _of_tensor(program, inst, args[far])
    else:
        unit = 16
        size_text = args.pop(2)
        kind = match["kind"] or "u8"
        space = match["source"] or "global"
        find = _of_bytes(program, inst, args[far], size_text, kind, space)
    if match["load"]:
        target_text, _, *more = args
        return _load(program, inst, find, unit, target_text, *more)
    return _store(inst, find, unit, program.shared_address(args[1]), operation)


def _load(program, inst, find: Find, unit: int, target_text: str, barrier_text: str, mask_text: str | None = None):
    target = program.address(target_text)
    bar = program.address(barrier_text)
    mask = None
    if mask_text:
        mask = program.get(mask_text, "b16")

    def load(w):
        cta = w.cta
        for lane in lanes_of(w):
            receiver, address = cta.cluster.locate(int(target(w)[lane]))
            holder, at = cta.cluster.locate(int(bar(w)[lane]))
            if holder is not receiver:
                raise UnknownError(f"{inst}: an mbarrier of another CTA than where the bytes go")
            ranks = 1 << receiver.rank
            if mask:
                ranks = int(mask(w)[lane])
            for peer in cta.cluster.ctas:
                if ranks >> peer.rank & 1:
                    mbarrier = mbarrier_of(w, peer, at)
                    _load_to(w, peer, address, mbarrier, inst, lane, find, unit)

    return load


def _load_to(w, cta, address: int, mbarrier, inst, lane: int, find: Find, unit: int) -> None:
    shared = cta.shared
    machine = cta.machine
    # Like the write, the read may be under way until somebody has waited for the load.
    number = machine.ledger.note(mbarrier.agent, mbarrier.epoch, w, inst, generic=False)
    part = find(w, lane, number)
    row = SHARED if part.region is w.cta.shared else GLOBAL
    part.region.note_read(part.offsets, Attempt(w.clock, number, inst, row))
    box = part.map
    places = _places(cta, box, address, unit)
    shared.note_write(places, Attempt(w.clock, number, inst, SHARED))
    shared.data[places] = EMPTY
    mbarrier.flying += box.bytes

    def land():
        data = np.zeros(box.extent, np.uint8)
        if any(box.fill):
            fill = np.frombuffer(box.fill, np.uint8)
            data[:] = np.resize(fill, box.extent)
        data[part.inside] = part.region.data[part.offsets]
        if box.kind == "tf32":  # to the nearest, ties to even, as Triton's python/test/gluon/test_core.py has it
            numbers = narrowed(data.view(np.float32).astype(np.float64), "tf32").astype(np.float32)
            data = numbers.view(np.uint8)
        shared.data[box.places(address)] = data
        mbarrier.land(box.bytes)

    machine.begin(Event("TMA load", cta, land))


NUMBERS = {"u32", "s32", "u64", "f16", "bf16"}
BITS = {"u32", "s32", "u64", "s64", "b32", "b64"}
REDUCED = {
    "add": NUMBERS | {"f32", "f64"},
    "min": NUMBERS | {"s64"},
    "max": NUMBERS | {"s64"},
    "inc": {"u32"},
    "dec": {"u32"},
    "and": BITS,
    "or": BITS,
    "xor": BITS,
}
"""The types of elements that each reduction takes (9.7.9.25.4.2 and 9.7.9.25.5.3)."""


def _store(inst, find: Find, unit: int, source: Callable, operation: str | None):
    def store(w):
        ledger = w.cta.machine.ledger
        reader = w.cta.agent(Agent.BULK_READS, w.number)
        epoch = w.group("bulk stores").number
        stored = set()
        for lane in lanes_of(w):
            address = int(source(w)[lane])
            number = ledger.note(reader, epoch, w, inst, generic=False)
            part = find(w, lane, number)
            copied = address, part.region.number, part.offsets.tobytes()
            if copied in stored and not operation:  # all lanes store the same, as in CUTLASS's DSL: nobody can tell
                continue
            stored.add(copied)
            if operation and part.map.kind not in REDUCED[operation]:
                raise TmaError(f"{operation} of elements of type {part.map.kind}")
            if part.map.kind == "tf32":
                raise UnknownError(f"{inst}: a store by a tensor map of tf32")
            places = _places(w.cta, part.map, address, unit)
            w.cta.shared.note_read(places, Attempt(w.clock, number, inst, SHARED))
            _store_part(w, part, address, inst, operation)
        w.tick()

    return store


def _store_part(w, part: Part, address: int, inst, operation: str | None) -> None:
    cta = w.cta
    machine = cta.machine
    data = part.region.data
    stores = w.group("bulk stores")

    def piece() -> np.ndarray:
        return cta.shared.data[part.map.places(address)][part.inside]

    writer = cta.agent(Agent.BULK_WRITES, w.number)
    scope = None
    if operation:
        scope = w.scope("gpu")  # each of its operations is relaxed, at that scope
    number = machine.ledger.note(writer, stores.number, w, inst, generic=False, scope=scope)
    clock = w.clock
    if len(cta.cluster.ctas) > 1 and not operation:
        content = hash((part.offsets.tobytes(), piece().tobytes()))
        others = cta.cluster.replicas.before(inst.line, w.agent, writer, content)
        clock = clock.knowing(others)
    part.region.check_covered(part.offsets, inst)
    attempt = Attempt(clock, number, inst, GLOBAL)
    if operation and part.region.empty is not None:
        part.region.note_read(part.offsets, attempt)
    part.region.note_write(part.offsets, attempt)
    pieces = []

    def write():
        (new,) = pieces
        if operation:
            old = data[part.offsets]
            new = changed(operation, part.map.kind, False, old, new)
        data[part.offsets] = new

    def read():
        pieces.append(piece())

    first = Event("TMA store", cta, read)
    event = Event("TMA store", cta, write, [first])
    machine.begin(first)
    machine.begin(event)
    stores.open.append(event)


@effect("cp.async.bulk.commit_group")
def commit_stores(w, inst):
    w.group("bulk stores").commit()


@effect("cp.async.bulk.wait_group", "cp.async.bulk.wait_group.read", operands="#")
def wait_for_stores(w, inst, left):
    stores = w.group("bulk stores")
    reads = inst.op.endswith(".read")
    ready = stores.wait(left, reads=reads)
    if ready:
        return ready
    kinds = (Agent.BULK_READS, Agent.BULK_WRITES)
    if reads:
        kinds = (Agent.BULK_READS,)
    for kind in kinds:
        w.clock.put(w.cta.agent(kind, w.number), stores.known)
