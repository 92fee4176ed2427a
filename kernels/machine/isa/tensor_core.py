"""Tensor cores: mma.sync (PTX ISA 8.7, 9.7.14.5.2 to 9.7.14.5.14), and wgmma, which is asynchronous (9.7.15).

NumPy sums the products: those of integers as integers, those of fp64 in fp64, and all others in fp32. The hardware gets
the same where products and partial sums are whole numbers up to 2^24, up to 2^11 in an fp16 accumulator, and up to 2^14
where operands are fp8: then sm_89 and sm_90 keep 14 bits of a sum (arXiv:2511.10909; 2412.19437, 3.3.2). The hardware
rounds sums of other numbers in its own way, which PTX leaves open: their last bits may differ from those here. The
lowest 13 bits of tf32 operands are cut off (9.7.15.5.2).
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, product
from operator import is_, itemgetter

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from ..core.faults import BoundsError, FaultError, UnknownError
from ..core.memory import each_byte, granules, swizzled
from ..core.order import ALL_ROWS, GRANULE, SHARED, Agent
from ..core.program import check_whole, effect, family, uniform
from ..core.registers import LANES, names_in
from ..core.warp import Event
from .floats import from_bf16, from_fp8
from .matrices import at_once

E4M3 = from_fp8(np.arange(256), "e4m3").astype(np.float32)
E5M2 = from_fp8(np.arange(256), "e5m2").astype(np.float32)
VALUES = {  # the values of elements, from the registers or bytes that hold them
    "bf16": lambda data: from_bf16(data.view(np.uint16)),
    "f16": lambda data: data.view(np.float16).astype(np.float32),
    "tf32": lambda data: (data.view(np.uint32) >> 13 << 13).view(np.float32),
    "e4m3": lambda data: E4M3[data.view(np.uint8)],
    "e5m2": lambda data: E5M2[data.view(np.uint8)],
    "s8": lambda data: data.view(np.int8).astype(np.float32),
    "u8": lambda data: data.view(np.uint8).astype(np.float32),
    "f64": lambda data: data.view(np.float64),
}
UNIT = np.dtype("c16")  # 16 bytes, whatever they mean: NumPy gathers these fastest
SUMS = {"f16": np.float16, "f32": np.float32, "f64": np.float64, "s32": np.int32}

INSTRUCTIONS = """
mma.sync.aligned.{m16n8k8,m16n8k16}.row.col.{f16,f32}.f16.f16.{f16,f32} \
| sums in fp32: as the hardware's for whole numbers
wgmma.mma_async.sync.aligned.m64n*k16.{f16,f32}.f16.f16 \
| sums in fp32: as the hardware's for whole numbers; in its own time
mma.sync.aligned.{m16n8k8,m16n8k16}.row.col.f32.bf16.bf16.f32 \
| sums in fp32: as the hardware's for whole numbers
wgmma.mma_async.sync.aligned.m64n*k16.f32.bf16.bf16 \
| sums in fp32: as the hardware's for whole numbers; in its own time
mma.sync.aligned.{m16n8k4,m16n8k8}.row.col.f32.tf32.tf32.f32 \
| sums in fp32: as the hardware's for whole numbers
wgmma.mma_async.sync.aligned.m64n*k8.f32.tf32.tf32 \
| sums in fp32: as the hardware's for whole numbers; in its own time
mma.sync.aligned.{m16n8k16,m16n8k32}.row.col.{f16,f32}.{e4m3,e5m2}.{e4m3,e5m2}.{f16,f32} \
| sums in fp32: as the hardware's for whole numbers
wgmma.mma_async.sync.aligned.m64n*k32.{f16,f32}.{e4m3,e5m2}.{e4m3,e5m2} \
| sums in fp32: as the hardware's for whole numbers; in its own time
mma.sync.aligned.{m8n8k16,m16n8k16,m16n8k32}.row.col[.satfinite].s32.{s8,u8}.{s8,u8}.s32 \
| exact
wgmma.mma_async.sync.aligned.m64n*k32.s32.{s8,u8}.{s8,u8}[.satfinite] \
| exact; in its own time
mma.sync.aligned.{m8n8k4,m16n8k4,m16n8k8,m16n8k16}.row.col.f64.f64.f64.f64 \
| sums in fp64
wgmma.fence.sync.aligned | where it is missing is a fault
wgmma.commit_group.sync.aligned | groups of a warp
wgmma.wait_group.sync.aligned | for the results of the warp, and the reads of its warpgroup
"""
"""The opcodes that this module models, and how (9.7.14.1, 9.7.15.2): rows of the table that `--coverage` prints."""


@dataclass(frozen=True)
class Form:
    """The types of A, of B and of the sums, and the number of rows of A that a warp multiplies."""

    x: str
    w: str
    sums: str
    rows: int


def opcodes(row: str) -> Iterator[str]:
    """
    >>> [*opcodes("wgmma.m64n*k8.{f16,f32}.f16[.satfinite] | exact")]
    ['wgmma.m64k8.f16.f16', 'wgmma.m64k8.f32.f16']
    """
    text = row.partition(" | ")[0].replace("[.satfinite]", "").replace("n*", "")
    parts = [part.split(",") for part in re.split("[{}]", text)]
    return map("".join, product(*parts))


def forms() -> Iterator[tuple[str, Form]]:
    """Yield opcodes, without .satfinite and the N of wgmma, and what they mean."""
    for opcode in chain.from_iterable(map(opcodes, INSTRUCTIONS.strip().splitlines())):
        words = opcode.split(".")
        if "mma_async" in words:
            total, x, w = words[-3:]
            yield opcode, Form(x, w, total, 16)
        elif words[0] == "mma":
            total, x, w, before = words[-4:]
            if total == before:
                rows = 16
                if words[3].startswith("m8"):
                    rows = 8
                yield opcode, Form(x, w, total, rows)


FORMS = dict(forms())


def fragments(kind: str, words: np.ndarray, rows: int = 8) -> np.ndarray:
    """Operands [n, rows, K] from registers [n, registers, lanes]. Register h + j rows / 8 of lane 4 q + t holds, say, e
    elements of row q + 8 h, from column (4 j + t) e on (figures 53 to 91 of mma, for B by columns; 148 to 152 of
    wgmma)."""
    values = VALUES[kind](words)
    values = values.reshape(len(words), -1, rows // 8, 8, 4, values.shape[-1] // LANES)
    return values.transpose(0, 2, 3, 1, 4, 5).reshape(len(words), rows, -1)


def in_registers(form: Form, sums: np.ndarray) -> np.ndarray:
    """Registers [n, m, registers, values in them] from sums [n rows, 8 m]. Lane 4 q + t has columns 2 t and 2 t + 1 of
    rows q + 8 h; where these are fp16, the two share a register (figures 55 to 92 and 149 to 153)."""
    columns = sums.shape[1] // 8
    parts = sums.reshape(-1, form.rows // 8, 8, columns, 4, 2)  # n h q m t e
    order = (0, 3, 1, 5, 2, 4)
    width = LANES
    if form.sums == "f16":
        order = (0, 3, 1, 2, 4, 5)
        width = 2 * LANES
    return parts.transpose(order).reshape(len(parts), columns, -1, width)


def add(form: Form, parts: np.ndarray, before: np.ndarray | None, saturates: bool) -> np.ndarray:
    """The registers of the sums: the products `parts`, plus what the registers held `before`."""
    kind = SUMS[form.sums]
    if kind is np.int32:
        parts = parts.astype(np.int64)
    if before is not None:
        parts = parts + before.view(kind)
    if saturates:
        parts = parts.clip(-(2**31), 2**31 - 1)
    word = np.uint32
    if kind is np.float64:
        word = np.uint64
    return parts.astype(kind, copy=False).view(word)


@family("mma", quiet=True)
def mma(program, inst):
    form = FORMS.get(inst.op.replace(".satfinite", ""))
    if form is None:
        raise UnknownError("an mma of a shape or of types that this machine does not know")
    saturates = ".satfinite" in inst.op
    _, x_size, w_size, size = (len(names_in(text)) for text in inst.args)

    def prepare(instructions):
        """The registers of all D, A, B and C, with equal A or B once, and which A and B each instruction multiplies."""
        targets = []
        sums = []
        pairs = []
        xs = {}
        ws = {}
        for each in instructions:
            target, x, w, total = (tuple(map(program.register, names_in(text))) for text in each.args)
            targets.extend(target)
            sums.extend(total)
            which_x = xs.setdefault(x, len(xs))
            which_w = ws.setdefault(w, len(ws))
            pairs.append((which_x, which_w))
        return targets, [*chain(*xs)], [*chain(*ws)], sums, tuple(np.transpose(pairs))

    def words(w, registers: list[int], size: int) -> np.ndarray:
        return np.concatenate([w.r[number] for number in registers]).reshape(-1, size, LANES)

    def run(w, targets, xs, ws, sums, pairs):
        x = fragments(form.x, words(w, xs, x_size), form.rows)
        y = fragments(form.w, words(w, ws, w_size))
        before = words(w, sums, size)
        products = x.reshape(-1, x.shape[2]) @ y.reshape(-1, y.shape[2]).T
        parts = in_registers(form, products)[pairs]
        rows = add(form, parts, before, saturates).reshape(-1, LANES)
        for target, row in zip(targets, rows, strict=True):
            w.r[target] = row

    return at_once(program, inst, prepare, run)


class Pending(NDArrayOperatorsMixin):
    """A register that a wgmma writes and nobody has waited for. It may be moved and accumulated on, but not read."""

    __slots__ = ("index", "sums")

    def __init__(self, sums: "Sums", index: int):
        self.sums = sums
        self.index = index

    def value(self) -> np.ndarray:
        return self.sums.values[self.index]

    def _refuse(self, *args, **more):
        raise FaultError("reads an accumulator of a wgmma that is not waited for")

    __getattr__ = __array__ = __array_ufunc__ = _refuse

    def __rshift__(self, by):
        """A half of the register, as mov.b32 {%low, %high} takes it."""
        if not isinstance(by, int):
            self._refuse()
        return Half(self, by, np.uint32)


class Half(Pending):
    """One of the two fp16 sums that share a register. It may be moved, and put into a register with the other again."""

    __slots__ = ("kind", "shift", "whole")

    def __init__(self, whole: Pending, shift: int, kind: type):
        super().__init__(whole.sums, whole.index)
        self.whole = whole
        self.shift = shift
        self.kind = kind

    def value(self) -> np.ndarray:
        if self.kind != np.uint16:
            self._refuse()
        return (super().value() >> self.shift).astype(np.uint16)

    def astype(self, kind):
        return Half(self.whole, self.shift, kind)

    def __lshift__(self, by):
        if by != self.shift:
            self._refuse()
        return self

    def __or__(self, other):
        if type(other) is not Half or other.whole is not self.whole or other.shift == self.shift:
            self._refuse()
        return self.whole

    __rshift__ = Pending._refuse


class Sums:
    """The sums in the registers of a wgmma, and of later ones that add to the same registers. `group`: the last's."""

    def __init__(self, count: int):
        self.group = 0
        self.values = None
        self.registers = tuple(Pending(self, index) for index in range(count))


@lru_cache(maxsize=4096)
def operand_bytes(descriptor: int, first: int, rows: int, turned: bool) -> tuple[np.ndarray, np.ndarray, int]:
    """The places in shared memory of an operand's rows, from `first` on. An operand is 32 bytes long along K.

    Returns the numbers of its 16-byte units, their granules, and the last of these. The units are [rows, 2]. A `turned`
    operand has 2-byte elements and lies with K along its rows: its units are [16, rows / 8]. (9.7.15.5.1.2, and the
    canonical layouts of CUTLASS's mma_sm90_desc.hpp.)
    """
    start = (descriptor & 0x3FFF) << 4
    lead = (descriptor >> 16 & 0x3FFF) << 4
    stride = (descriptor >> 32 & 0x3FFF) << 4
    mode = (0, 3, 2, 1)[descriptor >> 62]
    if mode and descriptor >> 49 & 7:  # without a swizzle it says nothing
        raise UnknownError("a matrix descriptor with a base offset")
    if turned:
        if not mode:
            lead, stride = stride, lead
        wide = 1 << mode
        k = np.arange(16)[:, None]
        unit = np.arange(first // 8, (first + rows) // 8)
        along_rows = unit % wide * 16 + unit // wide * lead
        along_k = k % 8 * (16 * wide) + k // 8 * stride
    else:
        row = np.arange(first, first + rows)[:, None]
        if mode:
            lead = 16
        along_rows = row // 8 * stride + row % 8 * (16 << mode)
        along_k = np.arange(2) * lead
    places = swizzled(start + along_rows + along_k, mode)
    g = granules(each_byte(places.reshape(-1), 16), 16)
    return places // 16, g, int(g.max())


@effect("wgmma.fence.sync.aligned")
def fence(w, inst):
    w.fenced = True


@effect("wgmma.commit_group.sync.aligned")
def commit(w, inst):
    w.group("wgmma").commit()
    w.fenced = False


@effect("wgmma.wait_group.sync.aligned", operands="#")
def wait(w, inst, left):
    """A wgmma is one operation of a warpgroup's four warps, and groups are made "per warpgroup" (9.7.15.7.2). Once a
    group is complete, so are the reads of all four. The wait orders nothing else that the other three do."""
    group = w.group("wgmma")
    ready = group.wait(left)
    if ready:
        return ready
    upto = group.waited
    first = w.number // 4 * 4
    mates = [mate.group("wgmma") for mate in w.cta.warps[first : first + 4]]

    def have_ended() -> bool:
        return all(mate.ended(upto) for mate in mates)

    if not have_ended():
        return have_ended
    agent = w.cta.agent(Agent.WGMMA, first)
    known = np.maximum(w.clock.of(agent, len(mates), ALL_ROWS), upto)
    w.clock.put(agent, known, count=len(mates))
    w.operands = [operand for operand in w.operands if operand[0] > upto]
    for i, register in enumerate(w.r):
        if isinstance(register, Pending) and register.sums.group <= upto:
            w.r[i] = register.value()


@family("wgmma")
def wgmma(program, inst):
    form = FORMS.get(re.sub(r"\.satfinite|(?<=\.m64)n\d+", "", inst.op))
    if form is None:
        raise UnknownError("a wgmma of a shape or of types that this machine does not know")
    target, x_operand, w_operand, scale, *options = inst.args
    registers = list(map(program.register, names_in(target)))
    taken = itemgetter(*registers)
    columns = 2 * len(registers)
    if form.sums == "f16":
        columns *= 2
    saturates = ".satfinite" in inst.op
    x_registers = []
    if x_operand.startswith("{"):
        x_registers = list(map(program.register, names_in(x_operand)))
    else:
        x_descriptor = program.get(x_operand, "b64")
    w_descriptor = program.get(w_operand, "b64")
    keep = program.get(scale, "pred")
    scales = options[:2]  # integers have neither these nor turns, and only elements of 16 bits are turned
    turns = options[2:]
    negates = scales.count("-1") == 1
    x_turned = len(turns) == 2 and turns[0] == "1"
    w_turned = turns[-1:] == ["1"]

    def located(w, kind: str, descriptor, first: int, rows: int, turned: bool) -> Callable[[], np.ndarray]:
        """A function that fetches an operand from shared memory, for the wgmma to call in its own time."""
        shared = w.cta.shared
        number = uniform(w, descriptor(w), "a matrix descriptor")
        units, g, last = operand_bytes(number, first, rows, turned)
        if last >= len(shared.data) // GRANULE:
            raise BoundsError("a matrix descriptor reaches past the end of shared memory")
        shared.note_read(g, w.clock, SHARED, w.cta.agent(Agent.WGMMA, w.number), w.group("wgmma").number, inst)

        def fetch():
            whole = shared.data[: len(shared.data) & -16].view(UNIT)
            values = VALUES[kind](whole.take(units).view(np.uint8))
            if turned:
                return values.T
            return values

        return fetch

    def multiply(w):
        check_whole(w)
        group = w.group("wgmma")
        before = taken(w.r)
        sums = None
        if type(before[0]) is Pending:
            sums = before[0].sums
        again = sums is not None and len(sums.registers) == len(before) and all(map(is_, sums.registers, before))
        # Sums in flight may be added to at once. Behind any other write of these registers a fence is needed
        # (9.7.15.7.1).
        if not w.fenced and (x_registers or set(map(type, before)) != {Pending}):
            raise FaultError("wgmma with no wgmma.fence behind what wrote its registers")
        keeps = uniform(w, keep(w), "scale-d of a wgmma")
        fetch_w = located(w, form.w, w_descriptor, 0, columns, w_turned)
        if x_registers:
            x_words = np.stack([w.r[register] for register in x_registers])[None]
            held = [(group.number, register, w.r[register]) for register in x_registers]
            w.operands = [*w.operands, *held]
        else:
            fetch_x = located(w, form.x, x_descriptor, 16 * (w.number % 4), 16, x_turned)
        if not again:
            sums = Sums(len(registers))
            for i, register in zip(registers, sums.registers, strict=True):
                w.r[i] = register
        sums.group = group.number

        def run():
            x = fragments(form.x, x_words, 16)[0] if x_registers else fetch_x()
            if negates:
                x = -x
            products = x @ fetch_w().T
            added = None
            if keeps and again:
                added = sums.values
            elif keeps:
                added = np.stack([r.value() if type(r) is Pending else r for r in before])
            parts = in_registers(form, products).reshape(len(registers), -1)
            sums.values = add(form, parts, added, saturates)

        event = Event("wgmma", w.cta, run, w.wgmma_before)
        w.wgmma_before = [event]
        w.cta.machine.begin(event)
        group.open.append(event)

    return multiply
