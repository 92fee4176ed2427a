"""Tensor cores: wgmma, asynchronous, and mma.sync (PTX ISA 8.7, 9.7.15 and 9.7.14).

Products are summed in fp32 by NumPy: exact, as on the hardware, where all partial sums are whole numbers below 2^24.
Anything else would need the hardware's own rounding, which nobody documents.
"""

from functools import lru_cache
from operator import itemgetter

import numpy as np

from kernels.machine.alu import LANES, from_bf16, names_in
from kernels.machine.device import Event
from kernels.machine.memory import spread, swizzled
from kernels.machine.order import GRANULE, SHARED, BoundsError, FaultError
from kernels.machine.program import effect, family, uniform
from kernels.machine.ptx import UnknownError


class Pending:
    """A register that a wgmma writes and nobody has waited for: it may be moved and accumulated on, not read."""

    __slots__ = ("index", "sums")
    __array_ufunc__ = None

    def __init__(self, sums: "Sums", index: int):
        self.sums, self.index = sums, index

    def _refuse(self, *args, **more):
        raise FaultError("reads an accumulator of a wgmma that is not waited for")

    view = astype = __array__ = _refuse


class Sums:
    """What a wgmma leaves in its registers, and others behind it that add to the same ones. `group`: of the last."""

    def __init__(self, count: int):
        self.group, self.values = 0, None
        self.registers = tuple(Pending(self, index) for index in range(count))


def floats(kind: str, words: np.ndarray) -> np.ndarray:
    return from_bf16(words) if kind == "bf16" else words.view(np.float16).astype(np.float32)


def fragment_a(kind: str, registers: list[np.ndarray]) -> np.ndarray:
    """[16, 16] of the four registers that hold a warp's rows (figure 148: register 2 k + h has rows q + 8 h and columns
    8 k + 2 t of lane 4 q + t)."""
    x = floats(kind, np.stack(registers).view(np.uint16)).reshape(2, 2, 8, 4, 2)
    return x.transpose(1, 2, 0, 3, 4).reshape(16, 16)


@family("mma", quiet=True)
def mma(program, inst):
    words = inst.op.split(".")
    if (
        words[1:6] != ["sync", "aligned", "m16n8k16", "row", "col"]
        or words[6] != "f32"
        or words[7] not in ("bf16", "f16")
    ):
        raise UnknownError("an mma of another shape or type than m16n8k16 to fp32")
    puts = program.puts(inst.args[0], "f32")
    xs, ys = (program.gets(text, "b32") for text in inst.args[1:3])
    sums = program.gets(inst.args[3], "f32")

    def multiply(w):
        x = fragment_a(words[7], [get(w) for get in xs])
        y = floats(words[7], np.stack([get(w) for get in ys]).view(np.uint16)).reshape(2, 8, 4, 2)  # k, column, t, e
        product = (x @ y.transpose(0, 2, 3, 1).reshape(16, 8)).reshape(2, 8, 4, 2).transpose(0, 3, 1, 2)
        for put, total, part in zip(puts, sums, product.reshape(4, LANES), strict=True):
            put(w, part + total(w))

    return multiply


@lru_cache(maxsize=4096)
def operand_bytes(descriptor: int, first: int, rows: int, turned: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return where in shared memory the rows from `first` of an operand lie that is 16 long along K, and its granules:
    [rows, 32] bytes, or [16, 2 rows] of one that lies with K along its rows (9.7.15.5.1, and the canonical layouts of
    CUTLASS's mma_sm90_desc.hpp)."""
    start, lead, stride = ((descriptor >> shift & 0x3FFF) << 4 for shift in (0, 16, 32))
    if descriptor >> 49 & 7 or not descriptor >> 62:
        raise UnknownError("a matrix descriptor with a base offset, or of no swizzle")
    mode = {1: 3, 2: 2, 3: 1}[descriptor >> 62]
    if turned:
        k, unit, wide = np.arange(16)[:, None], np.arange(first // 8, (first + rows) // 8), 1 << mode
        at = start + unit % wide * 16 + unit // wide * lead + k % 8 * (16 * wide) + k // 8 * stride
    else:
        row, unit = np.arange(first, first + rows)[:, None], np.arange(2)
        at = start + row // 8 * stride + row % 8 * (16 << mode) + unit * 16
    places = swizzled(at, mode).reshape(-1)
    return spread(places, 16).reshape(len(at), -1), spread(places, 16, GRANULE)


@effect("wgmma.fence.sync.aligned")
def fence(w, inst):
    w.fenced = True


@effect("wgmma.commit_group.sync.aligned")
def commit(w, inst):
    w.wgmma.commit()
    w.fenced = False


@effect("wgmma.wait_group.sync.aligned", operands="#")
def wait(w, inst, left):
    """A wgmma is one operation of a warpgroup's four warps, and groups are made "per warpgroup" (9.7.15.7.2). Once a
    group is complete, so are the reads of all four; what else the other three do, the wait does not tell."""
    if ready := w.wgmma.wait(left):
        return ready
    first, upto = w.number // 4 * 4, w.wgmma.waited
    mates = [mate.wgmma for mate in w.cta.warps[first : first + 4]]
    if not all(mate.ended(upto) for mate in mates):
        return lambda: all(mate.ended(upto) for mate in mates)
    known = w.clock[:, w.cta.agent(1, first) : w.cta.agent(1, first) + len(mates)]
    np.maximum(known, upto, out=known)
    for i, register in enumerate(w.r):
        if type(register) is Pending and register.sums.group <= w.wgmma.waited:
            w.r[i] = register.sums.values[register.index]


@family("wgmma")
def wgmma(program, inst):
    words = inst.op.split(".")
    kind = words[-1]
    if words[1:4] != ["mma_async", "sync", "aligned"] or words[5:] not in (
        ["f32", "bf16", "bf16"],
        ["f32", "f16", "f16"],
    ):
        raise UnknownError("a wgmma of another type than bf16 or fp16 to fp32")
    columns = int(words[4].split("n")[1].split("k")[0])
    registers = [program.register(name) for name in names_in(inst.args[0])]
    taken = itemgetter(*registers)
    x_registers = program.gets(inst.args[1], "b32") if inst.args[1].startswith("{") else None
    x_descriptor = None if x_registers else program.get(inst.args[1], "b64")
    w_descriptor, keep = program.get(inst.args[2], "b64"), program.get(inst.args[3], "pred")
    if inst.args[4:6] != ("1", "1"):
        raise UnknownError("a wgmma that negates an operand")
    *x_turned, w_turned = (text == "1" for text in inst.args[6:])

    def multiply(w):
        if w.mask is not None:
            raise FaultError("a wgmma that not all lanes take part in")
        cta, before = w.cta, taken(w.r)
        sums = before[0].sums if type(before[0]) is Pending else None
        again = sums is not None and sums.registers == before
        # In flight they may be added to at once; whatever else wrote them, a fence has to follow (9.7.15.7.1).
        if not w.fenced and (x_registers or any(type(register) is not Pending for register in before)):
            raise FaultError("wgmma with no wgmma.fence behind what wrote its registers")
        number, keeps = w.wgmma.number, uniform(w, keep(w), "scale-d of a wgmma")
        w_places, w_granules = operand_bytes(uniform(w, w_descriptor(w), "a matrix descriptor"), 0, columns, w_turned)
        used = [(w_places, w_granules)]
        if x_registers:
            x_values = [get(w) for get in x_registers]
        else:
            first = 16 * (w.number % 4)
            used.append(operand_bytes(uniform(w, x_descriptor(w), "a matrix descriptor"), first, 16, x_turned[0]))
        for _, g in used:
            if g.max() >= len(cta.shared.writes):
                raise BoundsError("a matrix descriptor reaches past the end of shared memory")
            cta.shared.note_read(g, w.clock, SHARED, cta.agent(1, w.number), number, inst)
        if not again:
            sums = Sums(len(registers))
            for i, register in zip(registers, sums.registers, strict=True):
                w.r[i] = register
        sums.group = number

        def fetch(places: np.ndarray, turned: bool) -> np.ndarray:
            rows = floats(kind, cta.shared.data[places].view(np.uint16))
            return rows.T if turned else rows

        def run():
            x = fragment_a(kind, x_values) if x_registers else fetch(used[1][0], x_turned[0])
            product = (x @ fetch(w_places, w_turned).T).reshape(2, 8, columns // 8, 4, 2)
            product = product.transpose(2, 0, 4, 1, 3).reshape(columns // 2, LANES)
            if keeps and again:
                product += sums.values.view(np.float32)
            elif keeps:
                values = [r.sums.values[r.index] if type(r) is Pending else r for r in before]
                product += np.stack(values).view(np.float32)
            sums.values = product.view(np.uint32)

        event = w.last_wgmma = Event("wgmma", cta, run, w.last_wgmma)
        cta.machine.events.append(event)
        w.wgmma.open.append(event)

    return multiply
