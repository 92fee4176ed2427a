"""cp.async, and TMA: tensors to and from shared memory, in boxes, by the async proxy (PTX ISA 8.7, 9.7.9.25)."""

import numpy as np

from kernels.machine.access import chosen
from kernels.machine.alu import names_in
from kernels.machine.device import Event
from kernels.machine.memory import EMPTY, spread
from kernels.machine.order import GENERIC, GLOBAL, GRANULE, SHARED, FaultError, TmaError
from kernels.machine.program import effect, family
from kernels.machine.sync import lanes_of, mbarrier_at

TENSOR = "cp.async.bulk.tensor.2d"


@effect("cp.async.ca.shared.global", operands="@ @ # u32?", only=lambda inst: int(inst.args[2], 0) in (4, 8, 16))
@effect("cp.async.cg.shared.global", operands="@ @ # u32?", only=lambda inst: int(inst.args[2], 0) == 16)
def copy(w, inst, to, source, size, given):
    """16 bytes or fewer a lane from global to shared memory, zeros behind what there is: a write in the generic proxy,
    known to its own warp once it has waited."""
    cta, memory = w.cta, w.cta.machine.memory
    target, at = chosen(w, to(w)), chosen(w, source(w))
    sizes = chosen(w, given(w)).astype(np.int64) if given else np.full(len(at), size)
    if (sizes > size).any():
        raise FaultError(f"cp.async of {sizes.max()} bytes into {size}")
    number = cta.machine.ledger.note(cta.agent(4, w.number), w.copies.number, (w, inst))
    cta.shared.note_write(cta.shared.granules(target, size, inst), w.clock, GENERIC, number, inst)
    cta.shared.data[spread(target, size)] = EMPTY
    parts = []
    for part in np.unique(sizes[sizes > 0]).tolist():  # most often one
        rows = np.flatnonzero(sizes == part)
        for region, which, offsets in memory.places(at[rows], part, inst, size):
            memory.note_read(region, spread(offsets, part, GRANULE), w.clock, GENERIC, number, inst)
            parts.append((rows[which], region, spread(offsets, part)))

    def land():
        data = np.zeros((len(at), size), np.uint8)
        for rows, region, places in parts:
            data[rows, : places.shape[1]] = region.data[places]
        cta.shared.data[spread(target, size)] = data

    w.copies.open.append(event := Event("cp.async", cta, land))
    cta.machine.events.append(event)


@effect("cp.async.commit_group")
def commit(w, inst):
    w.copies.commit()


@effect("cp.async.wait_group", operands="#")
@effect("cp.async.wait_all")
def wait(w, inst, left=0):
    if inst.op.endswith("_all") and w.copies.open:
        w.copies.commit()
    if ready := w.copies.wait(left):
        return ready
    w.clock[GENERIC, w.cta.agent(4, w.number)] = w.copies.waited


@effect("cp.async.bulk.commit_group")
def commit_stores(w, inst):
    w.stores.commit()


@effect("cp.async.bulk.wait_group", "cp.async.bulk.wait_group.read", operands="#")
def wait_for_stores(w, inst, left):
    if ready := w.stores.wait(left, reads=(reads := inst.op.endswith(".read"))):
        return ready
    for kind in (2,) if reads else (2, 3):
        w.clock[:, w.cta.agent(kind, w.number)] = w.stores.waited


def _box(program, text: str):
    """Of `[map, {column, row}]`: a function of a warp and a lane."""
    base, coordinates = text.strip("[] ").split(",", 1)
    get, (column, row) = program.get(base, "b64"), [program.get(name, "s32") for name in names_in(coordinates)]

    def at(w, lane):
        tensor_map = w.cta.machine.memory.map(int(get(w)[lane]))
        return tensor_map, *tensor_map.inside(int(column(w)[lane]), int(row(w)[lane]))

    return at


def _granules(w, tensor_map, address: int) -> slice:
    if address % 128 or (tensor_map.swizzle == 3 and address % 1024):
        raise TmaError(f"TMA is given shared memory at {address}, which does not fit the swizzle")
    if address < 0 or address + tensor_map.bytes > len(w.cta.shared.data):
        raise TmaError(f"TMA is given shared memory at {address}, the CTA has {len(w.cta.shared.data)} bytes")
    return slice(address // GRANULE, (address + tensor_map.bytes) // GRANULE)


@family(*(f"{TENSOR}.shared::{space}.global.mbarrier::complete_tx::bytes" for space in ("cta", "cluster")))
def tensor_load(program, inst):
    target, box, bar = program.address(inst.args[0]), _box(program, inst.args[1]), program.address(inst.args[2])

    def load(w):
        cta, machine = w.cta, w.cta.machine
        for lane in lanes_of(w):
            (tensor_map, source, part), address = box(w, lane), int(target(w)[lane])
            barrier = mbarrier_at(w, int(bar(w)[lane]))
            g, region = _granules(w, tensor_map, address), tensor_map.region
            # The read is the warp's until somebody waits for the load, and then it is over: as the write.
            number = machine.ledger.note(barrier.agent, barrier.epoch, (w, inst), generic=False)
            machine.memory.note_read(region, source[:, ::GRANULE] // GRANULE, w.clock, GLOBAL, number, inst)
            cta.shared.note_write(g, w.clock, SHARED, number, inst)
            cta.shared.data[address : address + tensor_map.bytes] = EMPTY
            barrier.flying += 1

            def land(tensor_map=tensor_map, source=source, part=part, address=address, barrier=barrier):
                data = np.zeros((tensor_map.box[0], tensor_map.inner), np.uint8)
                data[part] = tensor_map.region.data[source]
                cta.shared.data[tensor_map.place(address)] = data
                barrier.land(tensor_map.bytes)

            machine.events.append(Event("TMA load", cta, land))

    return load


@family(f"{TENSOR}.global.shared::cta.bulk_group")
def tensor_store(program, inst):
    source, box = program.address(inst.args[1]), _box(program, inst.args[0])

    def store(w):
        cta, machine, epoch = w.cta, w.cta.machine, w.stores.number
        for lane in lanes_of(w):
            (tensor_map, target, part), address = box(w, lane), int(source(w)[lane])
            cta.shared.note_read(
                _granules(w, tensor_map, address), w.clock, SHARED, cta.agent(2, w.number), epoch, inst
            )
            number = machine.ledger.note(cta.agent(3, w.number), epoch, (w, inst), generic=False)
            g = target[:, ::GRANULE] // GRANULE
            machine.memory.note_write(tensor_map.region, g, w.clock, GLOBAL, number, inst)
            pieces = []

            def read(tensor_map=tensor_map, address=address, part=part, pieces=pieces):
                pieces.append(cta.shared.data[tensor_map.place(address)][part])

            def write(tensor_map=tensor_map, target=target, pieces=pieces):
                tensor_map.region.data[target] = pieces[0]

            first = Event("TMA store", cta, read)
            event = Event("TMA store", cta, write, first)
            machine.events += [first, event]
            w.stores.open.append(event)
        w.tick()

    return store
