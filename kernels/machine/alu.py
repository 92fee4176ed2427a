"""Arithmetic: instructions that only a lane's own registers take part in, each as a line of Python over NumPy arrays.

A register is an array of 32 lanes, unsigned (or bool, a predicate), as wide as it was declared. `value` turns an
instruction into the source of what its target gets, in the names of `NAMES`. PTX ISA
8.7, sections 9.7.1 to 9.7.9. An operation, type or rounding that stands here nowhere is refused.
"""

from collections.abc import Callable

import numpy as np

from kernels.machine.memory import LOCAL_WINDOW, SHARED_WINDOW
from kernels.machine.ptx import Instruction, UnknownError

LANES = 32
Read = Callable[[str, str], str]
"""(operand, type) -> the source of its value in that type."""


def bits(kind: str) -> int:
    return 1 if kind == "pred" else int(kind[1:])


def numpy_name(kind: str) -> str:
    """In `NAMES`, of a PTX type: b and u are unsigned there."""
    if kind == "pred":
        return "b1"
    if kind[0] not in "busf" or kind[1:] not in ("8", "16", "32", "64"):
        raise UnknownError(f"type .{kind} is unknown")
    return f"{ {'b': 'u', 's': 'i'}.get(kind[0], kind[0]) }{bits(kind) // 8}"


def from_bf16(x):
    return (x.astype(np.uint32) << 16).view(np.float32)


def to_bf16(x):
    """Bits of fp32 rounded to the nearest, ties to even."""
    b = x.view(np.uint32)
    return np.where(np.isnan(x), 0x7FFF, (b + (0x7FFF + (b >> 16 & 1))) >> 16).astype(np.uint16)


def divide(a, b):
    """Towards zero. By zero anything may come out (9.7.1.8); here 0."""
    quotient = a // np.where(b == 0, 1, b).astype(a.dtype)
    return np.where(b == 0, 0, quotient + ((quotient * b != a) & ((a < 0) != (b < 0)))).astype(a.dtype)


def remainder(a, b):
    return a - divide(a, b) * b


def shift_left(a, by):
    """By the width or more: 0 (9.7.8.8)."""
    width = 8 * a.itemsize
    return np.where(by < width, a << np.minimum(by, width - 1).astype(a.dtype), 0).astype(a.dtype)


def shift_right(a, by):
    """By the width or more: 0, or the sign."""
    width = 8 * a.itemsize
    shifted = a >> np.minimum(by, width - 1).astype(a.dtype)
    return shifted if a.dtype.kind == "i" else np.where(by < width, shifted, 0).astype(a.dtype)


def high_half(a, b):
    return (a.astype(object) * b.astype(object) >> 8 * a.itemsize).astype(a.dtype)


def field(a, start, length):
    """bfe: `length` bits from `start`, signed ones extended by the field's highest bit (9.7.1.19)."""
    width = 8 * a.itemsize
    start, length = start.astype(np.int64) & 255, length.astype(np.int64) & 255
    size = np.clip(width - start, 1, np.maximum(length, 1)).astype(object)
    value = a.astype(object) >> np.minimum(start, width - 1) & (1 << size) - 1
    value = value - (value >> size - 1 << size) if a.dtype.kind == "i" else np.where(start < width, value, 0)
    return np.where(length == 0, 0, value).astype(a.dtype)


NAMES = {f"{letter}{n}": np.dtype(f"{letter}{n}") for letter in "uif" for n in (1, 2, 4, 8) if f"{letter}{n}" != "f1"}
NAMES |= dict(b1=np.dtype(bool), where=np.where, minimum=np.fmin, maximum=np.fmax, absolute=np.abs, stack=np.stack)
NAMES |= {f.__name__: f for f in (from_bf16, to_bf16, divide, remainder, shift_left, shift_right, high_half, field)}

# By opcode without its type: the source, then the types of the result and of each operand. t: the instruction's own, u:
# the same without a sign (wrapping sums and products are those of signed ones), w: twice as wide, x: widened to that,
# n: u32, p: a predicate.
INTEGER = {
    "add": ("{0} + {1}", "uuu"), "sub": ("{0} - {1}", "uuu"), "mul.lo": ("{0} * {1}", "uuu"),
    "mad.lo": ("{0} * {1} + {2}", "uuuu"), "mul.wide": ("{0} * {1}", "wxx"), "mad.wide": ("{0} * {1} + {2}", "wxxw"),
    "mul.hi": ("high_half({0}, {1})", "ttt"), "div": ("divide({0}, {1})", "ttt"), "rem": ("remainder({0}, {1})", "ttt"),
    "shl": ("shift_left({0}, {1})", "uun"), "shr": ("shift_right({0}, {1})", "ttn"),
    "bfe": ("field({0}, {1}, {2})", "ttnn"),
    **dict.fromkeys(("cvta.param", "cvta.global", "cvta.to.global"), ("{0}", "uu")),
    **dict.fromkeys(("cvta.shared", "cvta.to.shared", "cvta.shared::cta"), (f"{{0}} ^ {SHARED_WINDOW}", "uu")),
    **dict.fromkeys(("cvta.local", "cvta.to.local"), (f"{{0}} ^ {LOCAL_WINDOW}", "uu")),
}  # fmt: skip
SHIFTS = {"shl": ("{0} << {1}", "uuu"), "shr": ("{0} >> {1}", "ttt")}  # by a number that is less than the width
LOGIC = {
    "and": ("{0} & {1}", "uuu"), "or": ("{0} | {1}", "uuu"), "xor": ("{0} ^ {1}", "uuu"), "not": ("~{0}", "uu"),
    "mov": ("{0}", "uu"),
}  # fmt: skip
FLOAT = {
    "add": ("{0} + {1}", "ttt"), "sub": ("{0} - {1}", "ttt"), "mul": ("{0} * {1}", "ttt"), "mov": ("{0}", "uu"),
    "fma.rn": ("({0}.astype(f8) * {1} + {2}).astype(f4)", "tttt"),  # the product is exact in fp64
}  # fmt: skip
SIGNED = {
    "neg": ("-{0}", "tt"), "abs": ("absolute({0})", "tt"), "min": ("minimum({0}, {1})", "ttt"),
    "max": ("maximum({0}, {1})", "ttt"), "selp": ("where({2}, {0}, {1})", "tttp"),
}  # fmt: skip
for _word, _sign in dict(eq="==", ne="!=", lt="<", le="<=", gt=">", ge=">=", lo="<", ls="<=", hi=">", hs=">=").items():
    SIGNED[f"setp.{_word}"] = f"{{0}} {_sign} {{1}}", "ptt"
    SIGNED[f"setp.{_word}.and"] = f"({{0}} {_sign} {{1}}) & {{2}}", "pttp"
    SIGNED[f"setp.{_word}.or"] = f"({{0}} {_sign} {{1}}) | {{2}}", "pttp"
TABLES = {
    "pred": LOGIC,
    "f32": {
        operation: how for operation, how in (FLOAT | SIGNED).items() if not operation.startswith("setp.ne")
    },  # NaN would differ
    **{f"{sign}{n}": INTEGER | LOGIC | SIGNED for sign in "bus" for n in (16, 32, 64)},
}
CONVERT = {  # those that change more than NumPy's type
    "rn.bf16.f32": ("to_bf16({0})", "b16"), "f32.bf16": ("from_bf16({0})", "f32"), "f32.f16": ("{0}.astype(f4)", "f32"),
    "rn.f16.f32": ("{0}.astype(f2)", "f16"),
    "rn.bf16x2.f32": ("to_bf16({0}).astype(u4) << 16 | to_bf16({1})", "b32"),
    "rn.f16x2.f32": ("{0}.astype(f2).view(u2).astype(u4) << 16 | {1}.astype(f2).view(u2)", "b32"),
}  # fmt: skip


def value(inst: Instruction, read: Read) -> list[tuple[str, str, str]] | None:
    """Return (target, type, source of its value) of all that the instruction writes; None where it is no arithmetic."""
    operation, _, kind = inst.op.rpartition(".")
    target, *given = inst.args or ("",)
    if operation == "mov" and "{" in target + given[0]:
        return _vector(target, given[0], kind, read)
    if operation.startswith("cvt."):
        form = inst.op.removeprefix("cvt.")
        template, result = CONVERT.get(form) or _convert(*form.split("."))
        kinds = ["b16" if kind == "bf16" else kind] * len(given)
    elif operation in TABLES.get(kind, ()):
        template, letters = TABLES[kind][operation]
        if operation in SHIFTS and given[1].isdigit() and int(given[1]) < bits(kind):
            template, letters = SHIFTS[operation]
        wide = f"{kind[0]}{2 * bits(kind)}"
        types = dict(t=kind, u=kind if kind == "pred" else f"u{bits(kind)}", w=wide, x=kind, n="u32", p="pred")
        result, *kinds = (types[letter] for letter in letters)
        if "x" in letters:
            template = template.replace("{0} * {1}", "{{0}}.astype({0}) * {{1}}.astype({0})".format(numpy_name(wide)))
    else:
        return None
    return [(target, result, template.format(*(f"({read(text, k)})" for text, k in zip(given, kinds, strict=True))))]


def _vector(target: str, given: str, kind: str, read: Read) -> list[tuple[str, str, str]]:
    """mov of a register to or from several that make it up, the lowest bits first."""
    names, into = names_in(target if target.startswith("{") else given), target.startswith("{")
    part, wide = bits(kind) // len(names), f"u{bits(kind) // 8}"
    if into:
        whole = read(given, f"b{bits(kind)}")
        return [(name, f"b{part}", f"({whole} >> {i * part}).astype(u{part // 8})") for i, name in enumerate(names)]
    parts = (f"({read(name, f'b{part}')}.astype({wide}) << {i * part})" for i, name in enumerate(names))
    return [(target, f"b{bits(kind)}", " | ".join(parts))]


def _convert(*words: str) -> tuple[str, str]:
    """cvt between integers, and between them and fp32 as long as no value is out of range."""
    *rounding, to, source = words
    floats = [kind for kind in (to, source) if kind[0] == "f"]
    if rounding not in ([], ["rn"], ["rzi"]) or bool(rounding) != bool(floats) or floats not in ([], ["f32"]):
        raise UnknownError("a conversion that this machine does not know")
    return f"{{0}}.astype({numpy_name(to)})", to


def names_in(vector: str) -> list[str]:
    """
    >>> names_in("{%r1, %r2}"), names_in("%r1")
    (['%r1', '%r2'], ['%r1'])
    """
    return [name.strip() for name in vector.strip("{} ").split(",")]
