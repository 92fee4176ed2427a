"""wgmma: tensor cores that multiply in their own time, from shared memory (PTX ISA 8.7, 9.7.15)."""

import re
from collections.abc import Callable
from functools import lru_cache
from operator import is_, itemgetter

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from ..core.faults import BoundsError, FaultError, UnknownError
from ..core.memory import each_byte, swizzled
from ..core.order import ALL_ROWS, SHARED, Agent, Attempt
from ..core.program import check_whole, effect, family, uniform
from ..core.registers import names_in
from ..core.warp import Event
from .mma import VALUES, Form, add, fragments, in_registers, opcodes

UNIT = np.dtype("c16")  # 16 bytes, whatever they mean: NumPy gathers these fastest

INSTRUCTIONS = """
wgmma.mma_async.sync.aligned.m64n*k16.{f16,f32}.f16.f16 \
| sums in fp32: as the hardware's for whole numbers; in its own time
wgmma.mma_async.sync.aligned.m64n*k16.f32.bf16.bf16 \
| sums in fp32: as the hardware's for whole numbers; in its own time
wgmma.mma_async.sync.aligned.m64n*k8.f32.tf32.tf32 \
| sums in fp32: as the hardware's for whole numbers; in its own time
wgmma.mma_async.sync.aligned.m64n*k32.{f16,f32}.{e4m3,e5m2}.{e4m3,e5m2} \
| sums in fp32: as the hardware's for whole numbers; in its own time
wgmma.mma_async.sync.aligned.m64n*k32.s32.{s8,u8}.{s8,u8}[.satfinite] \
| exact; in its own time
wgmma.fence.sync.aligned | where it is missing is a fault
wgmma.commit_group.sync.aligned | groups of a warp
wgmma.wait_group.sync.aligned | for the results of the warp, and the reads of its warpgroup
"""
"""The opcodes that this module models, and how (9.7.15.2): rows of the table that `--coverage` prints."""

FORMS = {}
"""What opcodes without .satfinite and N mean."""
for _opcode in opcodes(INSTRUCTIONS):
    if "mma_async" in _opcode:
        *_words, _sums, _x, _w = _opcode.split(".")
        FORMS[_opcode] = Form(_x, _w, _sums, 16)


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

    Returns the numbers of its 16-byte units, their bytes, and the last of these. The units are [rows, 2]. A `turned`
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
    every_byte = each_byte(places.reshape(-1), 16)
    return places // 16, every_byte, int(every_byte.max())


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
        units, places, last = operand_bytes(number, first, rows, turned)
        if last >= len(shared.data):
            raise BoundsError("a matrix descriptor reaches past the end of shared memory")
        reader = w.cta.agent(Agent.WGMMA, w.number)
        read = w.cta.machine.ledger.note(reader, w.group("wgmma").number, w, inst, generic=False)
        shared.note_read(places, Attempt(w.clock, read, inst, SHARED))

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
