"""Loads, stores and atomics of the lanes themselves.

PTX ISA 8.7: 9.7.9.8 (ld), 9.7.9.11 (st), 9.7.13.5 (atom), 9.7.13.6 (red). A warp is one agent: that one lane reads what
another one wrote is taken to be in order.
"""

import operator

import numpy as np

from kernels.machine.alu import LANES, bits, names_in, numpy_name
from kernels.machine.memory import spread
from kernels.machine.order import GENERIC, GRANULE
from kernels.machine.program import family
from kernels.machine.ptx import UnknownError

PLAIN = {
    "global", "shared", "shared::cta", "shared::cluster", "param", "v2", "v4", "v8", "cg", "ca", "cs", "nc", "L1::evict_first",
    "L1::evict_last", "L1::no_allocate",
}  # fmt: skip
SHARED = ("shared", "shared::cta", "shared::cluster")
SEMANTICS = {"relaxed", "acquire", "release", "acq_rel", "volatile", "weak"}
REACHES = {"cta", "gpu", "sys"}


def chosen(w, values: np.ndarray) -> np.ndarray:
    """Of the lanes that take part."""
    return values if w.mask is None else values[w.mask]


def in_lanes(w, rows: np.ndarray) -> np.ndarray:
    """[32, bytes] with what was found for the lanes that take part."""
    if w.mask is None:
        return rows
    everywhere = np.zeros((LANES, rows.shape[1]), np.uint8)
    everywhere[w.mask] = rows
    return everywhere


def read_shared(w, at: np.ndarray, size: int, instruction) -> np.ndarray:
    data = np.zeros((len(at), size), np.uint8)
    for cta, which, offsets in w.cta.cluster.parts(at):
        g = cta.shared.granules(offsets, size, instruction)
        cta.shared.note_read(g, w.clock, GENERIC, w.agent, w.epoch, instruction)
        data[which] = cta.shared.load(offsets, size)
    return data


def write_shared(w, at: np.ndarray, data: np.ndarray, instruction) -> None:
    for cta, which, offsets in w.cta.cluster.parts(at):
        shared, rows = cta.shared, data[which]
        g = shared.granules(offsets, data.shape[1], instruction)
        places = spread(offsets, data.shape[1])
        if shared.data[places].tobytes() == rows.tobytes() and np.count_nonzero(shared.writes[g]) == g.size:
            continue  # the same bytes from several warps: nobody can tell
        shared.note_write(g, w.clock, GENERIC, w.note(instruction), instruction)
        shared.data[places] = rows


@family("ld", "st")
def access(program, inst):
    name, *words, kind = inst.op.split(".")
    space = next(
        (word for word in words if word in ("global", "shared", "shared::cta", "shared::cluster", "param")), None
    )
    if space is None or set(words) - PLAIN - SEMANTICS - REACHES:
        raise UnknownError("a space or a modifier that this machine does not know")
    where_text, registers = (inst.args[1], inst.args[0]) if name == "ld" else inst.args
    size = bits(kind) // 8
    if space == "param":
        put, parameter = program.put(registers, f"b{bits(kind)}"), where_text.strip("[]")
        if parameter not in program.kernel.parameters:
            raise UnknownError(f"parameter {parameter} is unknown")
        dtype = np.dtype(numpy_name(f"u{bits(kind)}"))
        return lambda w: put(w, np.full(LANES, w.cta.launch.parameters[parameter] % 2 ** bits(kind), dtype))
    where, strong = program.address(where_text), next((word for word in words if word in SEMANTICS - {"weak"}), None)
    reach = "sys" if strong == "volatile" else next((word for word in words if word in REACHES), None)
    if strong and (space != "global" or reach is None):
        raise UnknownError("a strong access that is not to global memory, or of no scope")
    if name == "ld":
        puts, store = program.puts(registers, kind), None
        dtype, count = np.dtype(numpy_name(kind)), len(names_in(registers))
    else:
        gets = program.gets(registers, f"b{bits(kind)}")

    def load(w):
        at = chosen(w, where(w))
        if space == "global":
            data = read_global(w, at, size * count, inst, strong, reach)
        else:
            data = read_shared(w, at, size * count, inst)
        words = np.ascontiguousarray(in_lanes(w, data).view(dtype).T)
        for put, word in zip(puts, words, strict=True):
            put(w, word)

    def store(w):
        words = np.ascontiguousarray(np.array([get(w) for get in gets]).T)
        data, at = chosen(w, words.view(np.uint8)), chosen(w, where(w))
        if space == "global":
            write_global(w, at, data, inst, strong, reach)
        else:
            write_shared(w, at, data, inst)

    return load if name == "ld" else store


def read_global(
    w, at: np.ndarray, size: int, instruction, strong: str | None = None, reach: str | None = None
) -> np.ndarray:
    memory, data = w.cta.machine.memory, np.zeros((len(at), size), np.uint8)
    scope = w.scope(reach) if strong else None
    if strong:
        _acquire(w, at, scope, strong)
    number = w.note(instruction, scope=scope)
    for region, which, offsets in memory.places(at, size, instruction):
        memory.note_read(region, spread(offsets, size, GRANULE), w.clock, GENERIC, number, instruction, scope)
        data[which] = region.data[spread(offsets, size)]
    return data


def write_global(
    w, at: np.ndarray, data: np.ndarray, instruction, strong: str | None = None, reach: str | None = None
) -> None:
    memory, size = w.cta.machine.memory, data.shape[1]
    scope = w.scope(reach) if strong else None
    number = w.note(instruction, scope=scope)
    for region, which, offsets in memory.places(at, size, instruction):
        memory.note_write(region, spread(offsets, size, GRANULE), w.clock, GENERIC, number, instruction, scope)
        region.data[spread(offsets, size)] = data[which]
    if strong:
        _release(w, at, scope, strong, read=False)


def _acquire(w, at: np.ndarray, scope, semantics: str) -> None:
    """What was released there, at a scope that reaches here; behind a relaxed read it takes a fence."""
    for address in np.unique(at).tolist():
        for other, clock in w.cta.machine.releases.at.get(address, {}).items():
            if semantics not in ("acquire", "acq_rel"):
                w.read[other] = np.maximum(clock, w.read.get(other, 0))
            elif scope.meets(other):
                w.join(clock)


def _release(w, at: np.ndarray, scope, semantics: str, *, read: bool) -> None:
    """Publish what this warp knows, or, behind fences, what it knew then, at their scopes."""
    releases = semantics in ("release", "acq_rel")
    for address in np.unique(at).tolist():
        w.cta.machine.releases.publish(address, w.released | {scope: w.clock} if releases else w.released, read=read)
    if releases:
        w.tick()


CHANGE = {
    "add": operator.add, "exch": lambda old, new: new, "min": min, "max": max, "and": operator.and_, "or": operator.or_,
}  # fmt: skip


@family("atom", "red")
def atomic(program, inst):
    name, *words, kind = inst.op.split(".")
    allowed = {"global", *SEMANTICS, *REACHES, *CHANGE, "cas"}
    change = next((word for word in words if word in allowed - SEMANTICS - REACHES - {"global"}), None)
    semantics = next((word for word in words if word in SEMANTICS), "relaxed")
    reach = next((word for word in words if word in REACHES), "gpu")
    if set(words) - allowed or "global" not in words or change is None or kind[0] not in "bus":
        raise UnknownError("an atomic that this machine does not know")
    target, where_text, *given = inst.args if name == "atom" else ("_", *inst.args)
    where, put = program.address(where_text), program.put(target, kind)
    operands, size, dtype = [program.get(text, kind) for text in given], bits(kind) // 8, np.dtype(numpy_name(kind))

    def run(w):
        memory, scope, at = w.cta.machine.memory, w.scope(reach), where(w)
        values, before = [operand(w) for operand in operands], np.zeros(LANES, dtype)
        if name == "atom":  # red acquires nothing (8.11.1)
            _acquire(w, chosen(w, at), scope, semantics)
        number = w.note(inst, scope=scope)
        for lane in range(LANES) if w.mask is None else np.flatnonzero(w.mask):
            ((region, _, (offset,)),) = memory.places(at[lane : lane + 1], size, inst)
            memory.note_write(
                region, slice(offset // GRANULE, (offset + size) // GRANULE), w.clock, GENERIC, number, inst, scope
            )
            cell = region.data[offset : offset + size].view(dtype)
            old, value = cell[0], values[0][lane]
            before[lane] = old
            if change == "cas":
                cell[0] = values[1][lane] if old == value else old
            else:
                cell[0] = CHANGE[change](old, value)
        _release(w, chosen(w, at), scope, semantics, read=True)
        put(w, before)

    return run
