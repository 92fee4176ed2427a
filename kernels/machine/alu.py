"""Arithmetic: instructions that only a lane's own registers take part in, each as a line of Python over NumPy arrays.

A register is an array of 32 lanes, unsigned (or bool, a predicate), as wide as it was declared. `value` turns an
instruction into the source of what its targets get, in the names of `NAMES`. PTX ISA 8.7, sections 9.7.1 to 9.7.4 and
9.7.6 to 9.7.9. An operation, type or rounding that stands here nowhere is refused.

What PTX lets approximate (.approx, .full) is rounded from fp64 alone, and no error is drawn: so every seed, which is an
order of events, gives the same numbers. `instructions` names the errors that PTX allows. Not modelled are the bits of a
NaN, and that ptxas may fuse a mul and an add that name no rounding.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from . import floats, integers
from .memory import LOCAL_WINDOW, SHARED_WINDOW
from .ptx import Instruction, UnknownError

LANES = 32
Read = Callable[[str, str], str]
"""(operand, type) -> the source of its value in that type."""
TYPE = re.compile(r"pred|[busf](?:8|16|32|64)|bf16|tf32|(?:[us]16|f16|bf16|e4m3|e5m2)x2")
CARRY = "CC.CF"  # the register of what is carried (9.7.2)
WIDTHS = {"pred": 1, "bf16": 16, "tf32": 32, "e4m3": 8, "e5m2": 8}


def element(kind: str) -> str:
    """Return the type of a pair's halves, of what is no pair itself."""
    return kind.removesuffix("x2")


@lru_cache
def bits(kind: str) -> int:
    return (WIDTHS.get(element(kind)) or int(element(kind)[1:])) << kind.endswith("x2")


@lru_cache
def numpy_name(kind: str) -> str:
    """In `NAMES`, of a PTX type, of a pair's halves: what is no number of NumPy's is its bits, unsigned."""
    if not TYPE.fullmatch(kind):
        raise UnknownError(f"type .{kind} is unknown")
    letter = {"pred": "b", "tf32": "f"}.get(kind) or (kind[0].replace("s", "i") if kind[0] in "sf" else "u")
    return f"{letter}{(bits(element(kind)) + 7) // 8}"


NAMES = {f"{letter}{n}": np.dtype(f"{letter}{n}") for letter in "uif" for n in (1, 2, 4, 8) if f"{letter}{n}" != "f1"}
NAMES |= {name: function for name, function in vars(np).items() if isinstance(function, np.ufunc)}
NAMES |= floats.FUNCTIONS | integers.FUNCTIONS | {"b1": np.dtype(bool), "where": np.where}
NAMES |= {"LOCAL_WINDOW": LOCAL_WINDOW, "SHARED_WINDOW": SHARED_WINDOW}

SETS = {
    "I": "u16 s16 u32 s32 u64 s64", "I2": "u16x2 s16x2", "W": "u16 s16 u32 s32", "S": "s16 s32 s64", "B": "b16 b32 b64",
    "F": "f32 f64", "H": "f16 bf16 f16x2 bf16x2",
}  # fmt: skip
# Opcodes, but for what rounds, flushes or saturates floats, and what then stands for @ | types | letters, of the
# result's type and of each operand's | source | what is not exact: ~ correctly rounded; else from fp64, with the error
# that PTX allows (ISA 9.1; ? none named). t: the instruction's type, or the first of two; u: t without a sign (wrapping
# sums and products are those of signed ones); x: t, made twice as wide, w; d: t, made fp64, or rounded from it; c: the
# last type; n: u32; p: a predicate.
ROWS = """
add=+ sub=- mul.lo=*                       | I           | uuu   | {0} @ {1}
add=+                                      | I2          | uuu   | {0} @ {1}
mad.lo                                     | I           | uuuu  | {0} * {1} + {2}
mul.wide                                   | W           | wxx   | {0} * {1}
mad.wide                                   | W           | wxxw  | {0} * {1} + {2}
mul.hi=high_half div=divide rem=remainder  | I           | ttt   | @({0}, {1})
mad.hi                                     | I           | tttt  | high_half({0}, {1}) + {2}
sad                                        | I           | tttt  | {2} + where({0} < {1}, {1} - {0}, {0} - {1})
neg=- abs=abs                              | S F H       | tt    | @({0})
min=minimum max=maximum                    | I I2        | ttt   | @({0}, {1})
popc=bitwise_count                         | b32 b64     | nu    | @({0}).astype(u4)
clz                                        | b32 b64     | nu    | 8 * {0}.itemsize - bit_length({0})
bfind                                      | u32 u64     | nt    | bit_length({0}) - 1
bfind                                      | s32 s64     | nt    | bit_length({0} ^ {0} >> 63) - 1
bfind.shiftamt=bit_length                  | u32 u64     | nt   | where({0}, 8 * {0}.itemsize - @({0}), ~{0}).astype(u4)
brev=reverse                               | b32 b64     | uu    | @({0})
bfe=field                                  | u32 s32 u64 s64 | ttnn  | @({0}, {1}, {2})
bfi=insert                                 | b32 b64     | uuunn | @({0}, {1}, {2}, {3})
dp4a=dot_bytes                             | u32 s32     | ntcn  | @({0}, {1}, {2})
and=& or=| xor=^                           | B pred      | uuu   | {0} @ {1}
not=~                                      | B pred      | uu    | @({0})
mov                                        | I B F pred  | uu    | {0}
shl=shift_left                             | B           | uun   | @({0}, {1})
shr=shift_right                            | I B         | ttn   | @({0}, {1})
shf.l.wrap                                 | b32         | nnnn  | funnel({0}, {1}, {2} & 31)
shf.l.clamp                                | b32         | nnnn  | funnel({0}, {1}, minimum({2}, 32))
shf.r.wrap                                 | b32         | nnnn  | funnel({0}, {1}, 32 - ({2} & 31))
shf.r.clamp                                | b32         | nnnn  | funnel({0}, {1}, 32 - minimum({2}, 32))
prmt=permute                               | b32         | nnnn  | @({0}, {1}, {2})
selp                                       | I B F       | uuup  | where({2}, {0}, {1})
slct                                       | s32 f32     | uuuc  | where({2} >= 0, {0}, {1})
cvta.param cvta.global cvta.to.global cvta.const cvta.to.const | u64 | uu | {0}
cvta.shared cvta.shared::cta cvta.shared::cluster | u64    | uu    | {0} ^ SHARED_WINDOW
cvta.to.shared cvta.to.shared::cta cvta.to.shared::cluster | u64 | uu | {0} ^ SHARED_WINDOW
cvta.local cvta.to.local                   | u64         | uu    | {0} ^ LOCAL_WINDOW
add=+ sub=- mul=*                          | F H         | ttt   | {0} @ {1}                           | ~
div=/                                      | F           | ttt   | {0} @ {1}                           | ~
fma                                        | F           | tttt  | fma({0}, {1}, {2})                  | ~
fma                                        | H           | dddd  | exact_sum({0} * {1}, {2})           | ~
rcp                                        | F           | tt    | 1 / {0}                             | ~
sqrt                                       | F           | tt    | sqrt({0})                           | ~
div.full=/                                 | f32         | ttt   | {0} @ {1}                           | 2 ulp
div.approx=quotient                        | f32         | ttt   | @({0}, {1})                         | 2 ulp
rcp.approx                                 | f32         | tt    | 1 / {0}                             | 1 ulp
sqrt.approx                                | f32         | tt    | sqrt({0})                           | 2^-23 of it
rsqrt.approx                               | f32         | dd    | 1 / sqrt({0})                       | 2^-22.9 of it
rsqrt.approx                               | f64         | tt    | 1 / sqrt({0})                       | ?
rcp.approx.ftz                             | f64         | tt    | upper(flush(1 / upper(flush({0})))) | ?
rsqrt.approx.ftz                           | f64         | tt    | upper(1 / sqrt(upper(flush({0}))))  | ?
sin.approx=sin cos.approx=cos              | f32         | dd    | @({0})                              | 2^-20.5 to 2 pi
lg2.approx=log2                            | f32         | dd    | @({0})                              | 2^-22
ex2.approx=exp2                            | f32         | dd    | @({0})                              | 2 ulp
ex2.approx=exp2                            | f16 f16x2   | dd    | @({0})                              | 2^-9.9 of it
ex2.approx=exp2                            | bf16 bf16x2 | dd    | @({0})                              | 2^-7 of it
tanh.approx=tanh                           | f32         | dd    | @({0})                              | 2^-11 of it
tanh.approx=tanh                           | f16 f16x2   | dd    | @({0})                              | 2^-10.987
tanh.approx=tanh                           | bf16 bf16x2 | dd    | @({0})                              | 2^-8
min=fmin,bitwise_or max=fmax,bitwise_and   | F H         | ttt   | extreme({0}, {1}, @)
min.NaN=minimum,bitwise_or max.NaN=maximum,bitwise_and | f32 H | ttt | extreme({0}, {1}, @)
min.xorsign.abs=fmin max.xorsign.abs=fmax | f32 H | ttt | copysign(@(abs({0}), abs({1})), {0}) * copysign(1, {1})
copysign=copysign                          | F           | ttt   | @({1}, {0})
testp.finite=isfinite testp.infinite=isinf testp.notanumber=isnan | F | pt | @({0})
"""
TABLE: dict[tuple[str, str], tuple[str, str]] = {}
LISTED: list[tuple[list[str], list[str], str, str]] = []
for _row in ROWS.strip().splitlines():
    _opcodes, _kinds, _letters, _source, *_error = (column.strip() for column in re.split(r" \| ", _row))
    _words = dict(opcode.partition("=")[::2] for opcode in _opcodes.split())
    _kinds = " ".join(SETS.get(kind, kind) for kind in _kinds.split()).split()
    LISTED.append(([*_words], _kinds, _letters, "".join(_error)))
    for _opcode, _word in _words.items():
        TABLE |= {(_opcode, kind): (_letters, _source.replace("@", _word)) for kind in _kinds}
SHIFTS = {"shl": ("uuu", "{0} << {1}"), "shr": ("ttt", "{0} >> {1}")}  # by a number that is less than the width
CARRIES = {  # the sum and what it carries; the last operand is what was carried (9.7.2)
    "add": ("uuup", "{0} + {1} + {2}", "carry({0}, {1}, {2})"),
    "sub": ("uuup", "{0} - {1} - {2}", "~carry({0}, ~{1}, ~{2})"),
    "mad.lo": ("uuuup", "{0} * {1} + {2} + {3}", "carry({0} * {1}, {2}, {3})"),
    "mad.hi": ("ttttp", "high_half({0}, {1}) + {2} + {3}", "carry(high_half({0}, {1}), {2}, {3})"),
}
SIGNS = dict(eq="==", ne="!=", neu="!=", lt="<", le="<=", gt=">", ge=">=", lo="<", ls="<=", hi=">", hs=">=")
COMPARISONS = {word: f"{{0}} {sign} {{1}}" for word, sign in SIGNS.items()}
FLOAT_COMPARISONS = COMPARISONS | {  # with a u at the end: true of NaN
    "ne": "({0} < {1}) | ({0} > {1})", "equ": "~(({0} < {1}) | ({0} > {1}))",
    "ltu": "~({0} >= {1})", "leu": "~({0} > {1})", "gtu": "~({0} <= {1})", "geu": "~({0} < {1})",
    "num": "({0} == {0}) & ({1} == {1})", "nan": "({0} != {0}) | ({1} != {1})",
}  # fmt: skip
LOGIC = (  # of lop3: what half of its table makes of the second and the third operand (9.7.8.6)
    "{1} ^ {1}", "~({1} | {2})", "~{1} & {2}", "~{1}", "{1} & ~{2}", "~{2}", "{1} ^ {2}", "~({1} & {2})", "{1} & {2}",
    "~({1} ^ {2})", "{2}", "~{1} | {2}", "{1}", "{1} | ~{2}", "{1} | {2}", "~({1} ^ {1})",
)  # fmt: skip
DIRECTED = {  # fp32 by way of fp64, exact or rounded to odd
    "add": "exact_sum({0}, {1})", "mul": "{0} * {1}", "div": "{0} / {1}",
    "fma": "exact_sum({0} * {1}, {2})", "rcp": "1 / {0}", "sqrt": "sqrt({0})",
}  # fmt: skip
NEGATED = {"add": (0, 1), "fma": (0, 2)}
"""Operands whose negation negates a sum: downwards it is rounded upwards so, which gives a zero its sign."""
OPTIONS = {"ftz": "flush", "sat": "saturated", "relu": "positive"}  # of floats but fp64
INTEGRAL = {"rni": "rint", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}
ROUNDINGS = {"rn", "rna", "rz", "rm", "rp", *INTEGRAL}
Result = tuple[str, str, str]
"""(target, type, source of its value)"""


@dataclass(frozen=True)
class Form:
    """An instruction taken apart."""

    stem: str
    """The opcode without types, rounding and options."""
    types: list[str]
    rounding: str
    options: list[str]
    read: Read

    def kind(self, letter: str) -> str:
        """Return the type that a letter of ROWS stands for."""
        kind = self.types[0]
        unsigned = kind if kind == "pred" else "u16x2" if kind.endswith("x2") else f"u{bits(kind)}"
        kinds = dict(c=self.types[-1], u=unsigned, w=f"{kind[0]}{2 * bits(kind)}", n="u32", p="pred")
        return kinds.get(letter, kind)

    def operands(self, texts: Sequence[str], letters: str) -> list[str]:
        if len(texts) != len(letters):
            raise UnknownError(f"{len(texts)} operands")
        return [self.load(text, letter) for text, letter in zip(texts, letters, strict=True)]

    def load(self, text: str, letter: str) -> str:
        source, kind = self.read(text, self.kind(letter)), self.kind(letter)
        source = f"from_bf16({source})" if element(kind) == "bf16" else source
        source = f"flush({source})" if "ftz" in self.options and is_float(kind) and kind != "f64" else source
        wide = "f8" if letter == "d" else numpy_name(self.kind("w")) if letter == "x" else ""
        return f"({source}.astype({wide}))" if wide else f"({source})"

    def store(self, source: str, kind: str) -> str:
        """Return what a float's register gets, of a value in a type of NumPy's."""
        for option in self.options:
            source = f"{OPTIONS[option]}({source})"
        if element(kind) in ("e4m3", "e5m2"):
            return f"to_fp8({source}, {element(kind)!r})"
        return f"to_bf16({source})" if element(kind) == "bf16" else source


def is_float(kind: str) -> bool:
    return kind[0] == "f" or kind.startswith("bf")


def value(inst: Instruction, read: Read) -> list[Result] | None:
    """Return all that the instruction writes; None where it is no arithmetic."""
    opcode, *words = inst.op.split(".")
    target, *given = inst.args or ("",)
    types, words = [w for w in words if TYPE.fullmatch(w)], [w for w in words if not TYPE.fullmatch(w)]
    if not types:
        return None
    if opcode == "mov" and "{" in target + given[0]:
        return _vector(target, given[0], types[0], read)
    rounding, options = "", []
    if opcode == "cvt" or is_float(types[-1]):
        rounding = next((word for word in words if word in ROUNDINGS), "")
        options = [word for word in words if word in OPTIONS and (opcode == "cvt" or types[-1] != "f64")]
    stem = ".".join((opcode, *(word for word in words if word not in (rounding, *options))))
    form = Form(stem, types, rounding, options, read)
    if opcode == "cvt":
        return [(target, *_convert(form, given))]
    if opcode in ("setp", "set"):
        return _compare(form, target, given)
    if (summed := stem.replace(opcode, opcode[:3]).removesuffix(".cc")) in CARRIES and (opcode[3:] or "cc" in words):
        letters, total, carries = CARRIES[summed]
        operands = form.operands([*given, CARRY if opcode.endswith("c") else "0"], letters[1:])
        results = [(target, form.kind(letters[0]), total), (CARRY, "pred", carries)][: 2 if "cc" in words else 1]
        return [(name, kind, source.format(*operands)) for name, kind, source in results]
    if stem == "lop3":
        table = int(given.pop(), 0)
        letters, source = "uuuu", f"({LOGIC[table & 15]}) ^ {{0}} & ({LOGIC[table & 15 ^ table >> 4]})"
    elif opcode in SHIFTS and given[1].isdigit() and int(given[1]) < bits(types[0]):
        letters, source = SHIFTS[opcode]
    elif (stem, types[-1]) in TABLE:
        letters, source = TABLE[stem, types[-1]]
    else:
        return None
    if rounding in ("rz", "rm", "rp"):
        letters, source = "d" * len(letters), _directed(stem, types[0], rounding, len(given))
    source = source.format(*form.operands(given, letters[1:]))
    if letters[0] in "td" and is_float(types[0]):
        is_wide = letters[0] == "d" and element(types[0]) != "bf16"
        source = form.store(f"({source}).astype({numpy_name(types[0])})" if is_wide else source, types[0])
    return [(target, form.kind(letters[0]), source)]


def _directed(stem: str, kind: str, mode: str, count: int) -> str:
    """Return the source of a float that is not rounded to the nearest."""
    names, sign = [f"{{{number}}}" for number in range(count)], ""
    if stem == "sub":
        stem, names[1] = "add", "-{1}"
    if stem not in DIRECTED or kind not in ("f32", "f64"):
        raise UnknownError(f"{stem}.{kind} has no rounding .{mode} that this machine knows")
    if mode == "rm" and stem in NEGATED:
        mode, sign = "rp", "-"
        names = [f"-{name}" if i in NEGATED[stem] else name for i, name in enumerate(names)]
    if kind == "f64":
        return f"{sign}exactly({mode!r}, {stem!r}, {', '.join(names)})"
    return f"{sign}narrowed({DIRECTED[stem].format(*names)}, 'f32', {mode!r})"


def _compare(form: Form, target: str, given: Sequence[str]) -> list[Result]:
    """setp: p, or p|q: the comparison and its complement, of a pair that of each half (9.7.6.2, 9.7.7.2). set: 1 or all
    bits where it holds (9.7.6.1, 9.7.7.1)."""
    (to, *_, kind), (opcode, word, *combined) = (*form.types, form.types[-1]), form.stem.split(".")
    comparisons, combine = FLOAT_COMPARISONS if is_float(kind) else COMPARISONS, {"and": "&", "or": "|", "xor": "^"}
    if word not in comparisons or not set(combined) <= combine.keys():
        raise UnknownError("a comparison that this machine does not know")
    source = f"({comparisons[word].format(*form.operands(given[:2], 'cc'))})"
    last = f" {combine[combined[0]]} {form.read(given[2], 'pred')}" if combined else ""
    if opcode == "set" and is_float(to):
        name = "f4" if element(to) == "bf16" else numpy_name(to)
        return [(target, to, form.store(f"({source}{last}).astype({name})", to))]
    if opcode == "set":
        to = "u16x2" if kind.endswith("x2") else f"u{bits(to)}"
        return [(target, to, f"-({source}{last}).astype({numpy_name(to)})")]
    both = (f"{source}[::2]", f"{source}[1::2]") if kind.endswith("x2") else (source, f"~{source}")
    return [(name, "pred", half + last) for name, half in zip(target.split("|"), both, strict=False)]


def _vector(target: str, given: str, kind: str, read: Read) -> list[Result]:
    """mov of a register to or from several that make it up, the lowest bits first."""
    names, into = names_in(target if target.startswith("{") else given), target.startswith("{")
    part, wide = bits(kind) // len(names), f"u{bits(kind) // 8}"
    if into:
        whole = read(given, f"b{bits(kind)}")
        return [(name, f"b{part}", f"({whole} >> {i * part}).astype(u{part // 8})") for i, name in enumerate(names)]
    parts = (f"({read(name, f'b{part}')}.astype({wide}) << {i * part})" for i, name in enumerate(names))
    return [(target, f"b{bits(kind)}", " | ".join(parts))]


def _convert(form: Form, given: Sequence[str]) -> tuple[str, str]:
    """cvt: the type and the source of what the target gets; of two operands the halves of a pair (9.7.9.21)."""
    if form.stem not in ("cvt", "cvt.satfinite") or len(form.types) != 2:
        raise UnknownError("a conversion that this machine does not know")
    (to, source), mode, name = form.types, form.rounding or "rn", numpy_name(form.types[0])
    others = replace(form, options=[option for option in form.options if option != "ftz"])  # ftz is for fp32 alone
    values = [(form if source == "f32" else others).load(text, "c") for text in given]
    x = f"pair({values[1]}, {values[0]})" if len(values) == 2 else values[0]
    if element(source) in ("e4m3", "e5m2"):
        x = f"from_fp8({x}, {element(source)!r})"
    of_integer, bottom = source[0] in "us", {"u": 1, "s": -1}.get(to[0], 0) << bits(to) - 1
    wide = f"odd({x})" if of_integer else f"{x}.astype(f8)"
    if of_integer and bottom:
        return to, f"clipped({x}, {name})" if "sat" in form.options else f"{x}.astype({name})"
    if bottom:
        nan = bottom if source == "f64" or bits(to) == 64 else 0
        return to, f"to_integer({INTEGRAL[mode]}({wide}), {name}, {nan})"
    if form.stem == "cvt.satfinite":
        x = f"within({x}, {element(to)!r})"
    if mode in INTEGRAL:
        x = f"{INTEGRAL[mode]}({x})"
    elif to == "f64" and mode != "rn":
        x = f"exactly({mode!r}, 'cvt', {x})"
    elif to == "tf32" or mode != "rn":
        x = f"narrowed({wide}, {element(to)!r}, {mode!r}).astype({'f2' if element(to) == 'f16' else 'f4'})"
    elif element(to) in ("f16", "f32", "f64"):
        x = x if source == "bf16" and to == "f32" else f"{x}.astype({name})"
    elif source not in ("f32", "bf16"):
        x = wide
    return to, (form if to == "f32" else others).store(x, to)


def names_in(vector: str) -> list[str]:
    """
    >>> names_in("{%r1, %r2}"), names_in("%r1")
    (['%r1', '%r2'], ['%r1'])
    """
    return [name.strip() for name in vector.strip("{} ").split(",")]


def braced(words: Sequence[str]) -> str:
    return f"{{{','.join(words)}}}" if len(words) > 1 else words[0]


def instructions() -> Iterator[str]:
    """Yield the rows of what ROWS lists."""
    for opcodes, kinds, letters, error in LISTED:
        options, how = "[.ftz]", f"rounded from fp64; PTX allows an error of {error}"
        if error == "":
            options, how = "", "exact"
        elif error == "~":
            options, how = "[.rn,.rz,.rm,.rp][.ftz][.sat][.relu]", "correctly rounded"
        elif error == "?":
            options, how = "", "from fp64; PTX names no error"
        first = ".{b,u,s,f}{8..64}" if "c" in letters else ""
        yield f"{braced(opcodes)}{options}{first}.{braced(kinds)} | {how}"


INSTRUCTIONS = (
    "\n".join(instructions())
    + f"""
{{add,sub,mad.lo,mad.hi}}.cc.{{u32,s32,u64,s64}}, {{addc,subc,madc.lo,madc.hi}}[.cc].{{u32,s32,u64,s64}} | exact
{{setp,set}}.{braced([*FLOAT_COMPARISONS])}[.and,.or,.xor][.ftz] | exact, of all types
lop3.b32 | exact
cvt[.sat].{{u,s}}{{8..64}}, cvt.{braced([*INTEGRAL])}[.ftz] \
| exact; what is beyond becomes the nearest end, and NaN what 9.7.9.21 has
cvt[.rn,.rz,.rm,.rp][.ftz][.sat][.relu][.satfinite].{{f16,bf16,f32,f64,f16x2,bf16x2}} | correctly rounded
cvt.{{rna,rn,rz}}.tf32.f32, cvt.rn[.satfinite][.relu].{{e4m3x2,e5m2x2,f16x2}} | correctly rounded
"""
)
