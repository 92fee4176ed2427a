"""Atomics and reductions by the lanes of a warp (PTX ISA 8.7, 9.7.13.5 and 9.7.13.6)."""

import re
from functools import lru_cache

import numpy as np

from ..core.faults import BoundsError, UnknownError
from ..core.memory import Rows, each_byte, starts
from ..core.program import family
from ..core.registers import LANES, bits, element, numpy_name
from .access import Strong, begin, columns, end, parts, qualified, spaces
from .floats import from_bf16, to_bf16

INSTRUCTIONS = """
{atom,red}[semantics][scope][.{global,shared,shared::cta,shared::cluster}].{add,min,max,and,or,xor,exch,cas,inc,dec} \
| exact; lanes in an order that a seed decides
{atom,red}...add[.noftz][.v2,.v4,.v8].{f16,bf16,f16x2,bf16x2,f32,f64} | each rounded to nearest even
"""
"""The opcodes that this module models, and how: rows of the table that `--coverage` prints."""


def _flushed(x: np.ndarray) -> np.ndarray:
    return np.where(np.abs(x) < np.finfo(x.dtype).tiny, np.copysign(x.dtype.type(0), x), x)


CHANGES = {  # the first letters of the types that it takes, and the new value from the old one and the operands
    "add": ("usf", np.add),
    "min": ("us", np.minimum),
    "max": ("us", np.maximum),
    "and": ("b", np.bitwise_and),
    "or": ("b", np.bitwise_or),
    "xor": ("b", np.bitwise_xor),
    "exch": ("b", lambda old, new: new),
    "cas": ("b", lambda old, compared, new: np.where(old == compared, new, old)),
    "inc": ("u", lambda old, last: np.where(old >= last, 0, old + 1)),
    "dec": ("u", lambda old, last: np.where((old == 0) | (old > last), last, old - 1)),
}


ATOMIC = re.compile(r"[bus](16|32|64)|f(32|64)|b?f16(x2)?")
"""Types of atomics."""


def changed(operation: str, kind: str, flushes: bool, *rows: Rows) -> Rows:
    """The bytes that an atomic or a reduction leaves in each element. `rows`: the old bytes, then each operand's."""
    into = np.asarray
    out = np.asarray
    if flushes:
        into = _flushed
        out = _flushed
    if kind.startswith("bf"):
        into = from_bf16
        out = to_bf16
    dtype = numpy_name(kind)
    values = [into(np.ascontiguousarray(row).view(dtype)) for row in rows]
    _, change = CHANGES[operation]
    after = out(change(*values))
    return np.ascontiguousarray(after.astype(dtype)).view(np.uint8)


@lru_cache
def _order(lane: int) -> np.ndarray:
    """All lanes, in an order of its own for each `lane` that a machine may draw."""
    return (np.arange(LANES) * (2 * lane + 1) + lane) % LANES


@family("atom", "red")
def atomic(program, inst):
    """Lanes with the same address take turns in the machine's order, since PTX promises none."""
    name, *words = inst.op.split(".")
    kind = next(filter(ATOMIC.fullmatch, words), "")
    space, semantics, reach = qualified(inst, kind, "noftz", *CHANGES)
    operation = next((word for word in words if word in CHANGES), None)
    letter = kind[:1]
    if "f" in kind:
        letter = "f"
    if operation is None or letter not in CHANGES[operation][0]:
        raise UnknownError("an atomic that this machine does not know")
    width = bits(kind)
    target, where_text, *texts = inst.args if name == "atom" else ("_", *inst.args)
    count = 2 if operation == "cas" else 1
    operands = [program.gets(text, f"b{width}") for text in texts[:count]]
    where = program.address(where_text)
    puts = program.puts(target, f"b{width}")
    size = len(operands[0]) * width // 8
    strong = Strong(semantics or "relaxed", reach or "gpu", bits(element(kind)) // 8)

    def run(w):
        lanes = _order(w.cta.machine.lane)
        if w.mask is not None:
            lanes = lanes[w.mask[lanes]]
        values = [columns(w, gets) for gets in operands]
        before = np.zeros((LANES, size), np.uint8)
        for part, which, at in parts(w, space, where(w)[lanes]):
            if part == "local":
                raise BoundsError("an atomic on local memory", None, at.item(0))
            for region, among, places in spaces(w, part).places(at, size, inst):
                here = lanes[which][among]
                # red acquires nothing (8.11.1).
                attempt = begin(w, region, places, inst, strong, reads=name == "atom")
                if part == "shared" or (region.empty is not None and operation != "exch"):
                    region.note_read(places, attempt)
                region.note_write(places, attempt)
                region.check_covered(places, inst)
                w.among.access(region, places, here, attempt, writes=True)
                flushes = kind == "f32" and part == "global"
                offsets = np.array(starts(places, size))
                left = range(len(here))
                while left:
                    first: dict[int, int] = {}  # the next lane at each address
                    for i in left:
                        first.setdefault(offsets.item(i), i)
                    now = list(first.values())
                    left = [i for i in left if i not in now]
                    at_once = each_byte(offsets[now], size)
                    before[here[now]] = old = region.data[at_once]
                    given = [rows[here[now]] for rows in values]
                    region.data[at_once] = changed(operation, kind, flushes, old, *given)
                if operation == "cas":  # a compare-and-swap that fails writes nothing
                    succeeds = (before[here] == values[0][here]).all(axis=1)
                    places = each_byte(offsets[succeeds], size)
                end(w, region, places, strong, read=True)
        words = np.ascontiguousarray(before.view(f"u{width // 8}").T)
        for put, word in zip(puts, words, strict=False):
            put(w, word)

    return run
