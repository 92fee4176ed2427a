"""Tensor cores: mma.sync (PTX ISA 8.7, 9.7.14.5.2 to 9.7.14.5.14), and the arithmetic that it shares with wgmma.

NumPy sums the products: those of integers as integers, those of fp64 in fp64, and all others in fp32. The hardware gets
the same where products and partial sums are whole numbers up to 2^24, up to 2^11 in an fp16 accumulator, and up to 2^14
where operands are fp8: then sm_89 and sm_90 keep 14 bits of a sum (arXiv:2511.10909; 2412.19437, 3.3.2). The hardware
rounds sums of other numbers in its own way, which PTX leaves open: their last bits may differ from those here. The
lowest 13 bits of tf32 operands are cut off (9.7.15.5.2).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, product

import numpy as np

from ..core.faults import UnknownError
from ..core.program import family
from ..core.registers import LANES, names_in
from .floats import from_bf16, from_fp8
from .matrices import at_once

E4M3 = from_fp8(np.arange(256), "e4m3").astype(np.float32)
E5M2 = from_fp8(np.arange(256), "e5m2").astype(np.float32)


def nibbles(data: np.ndarray) -> np.ndarray:
    """The two halves of each byte, the lower one first."""
    halves = data.view(np.uint8)
    return np.stack((halves & 15, halves >> 4), -1).reshape(*halves.shape[:-1], -1)


VALUES = {  # the values of elements, from the registers or bytes that hold them
    "bf16": lambda data: from_bf16(data.view(np.uint16)),
    "f16": lambda data: data.view(np.float16).astype(np.float32),
    "tf32": lambda data: (data.view(np.uint32) >> 13 << 13).view(np.float32),
    "e4m3": lambda data: E4M3[data.view(np.uint8)],
    "e5m2": lambda data: E5M2[data.view(np.uint8)],
    "s8": lambda data: data.view(np.int8).astype(np.float32),
    "u8": lambda data: data.view(np.uint8).astype(np.float32),
    "s4": lambda data: (nibbles(data) ^ 8).astype(np.float32) - 8,
    "u4": lambda data: nibbles(data).astype(np.float32),
    "f64": lambda data: data.view(np.float64),
}
SUMS = {"f16": np.float16, "f32": np.float32, "f64": np.float64, "s32": np.int32}

INSTRUCTIONS = """
mma.sync.aligned.{m16n8k8,m16n8k16}.row.col.{f16,f32}.f16.f16.{f16,f32} \
| sums in fp32: as the hardware's for whole numbers
mma.sync.aligned.{m16n8k8,m16n8k16}.row.col.f32.bf16.bf16.f32 \
| sums in fp32: as the hardware's for whole numbers
mma.sync.aligned.{m16n8k4,m16n8k8}.row.col.f32.tf32.tf32.f32 \
| sums in fp32: as the hardware's for whole numbers
mma.sync.aligned.{m16n8k16,m16n8k32}.row.col.{f16,f32}.{e4m3,e5m2}.{e4m3,e5m2}.{f16,f32} \
| sums in fp32: as the hardware's for whole numbers
mma.sync.aligned.{m8n8k16,m16n8k16,m16n8k32}.row.col[.satfinite].s32.{s8,u8}.{s8,u8}.s32 \
| exact
mma.sync.aligned.{m8n8k32,m16n8k32,m16n8k64}.row.col[.satfinite].s32.{s4,u4}.{s4,u4}.s32 \
| exact
mma.sync.aligned.{m8n8k4,m16n8k4,m16n8k8,m16n8k16}.row.col.f64.f64.f64.f64 \
| sums in fp64
"""
"""The opcodes that this module models, and how (9.7.14.1): rows of the table that `--coverage` prints."""


@dataclass(frozen=True)
class Form:
    """The types of A, of B and of the sums, and the number of rows of A that a warp multiplies."""

    x: str
    w: str
    sums: str
    rows: int


def opcodes(rows: str) -> Iterator[str]:
    """
    >>> [*opcodes("wgmma.m64n*k8.{f16,f32}.f16[.satfinite] | exact")]
    ['wgmma.m64k8.f16.f16', 'wgmma.m64k8.f32.f16']
    """
    for row in rows.strip().splitlines():
        text = row.partition(" | ")[0].replace("[.satfinite]", "").replace("n*", "")
        parts = [part.split(",") for part in re.split("[{}]", text)]
        yield from map("".join, product(*parts))


FORMS = {}
"""What opcodes without .satfinite mean."""
for _opcode in opcodes(INSTRUCTIONS):
    *_words, _sums, _x, _w, _before = _opcode.split(".")
    if _sums == _before:
        FORMS[_opcode] = Form(_x, _w, _sums, 8 if "m8n8" in _opcode else 16)


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
