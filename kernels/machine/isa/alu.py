"""Arithmetic: instructions on a lane's own registers alone, each as a line of Python over NumPy arrays.

`value` turns an instruction into the Python source of its targets' values, in the names of `NAMES`. PTX ISA 8.7,
sections 9.7.1 to 9.7.4 and 9.7.6 to 9.7.9. An operation, type or rounding that is not listed here is refused.

The result of an instruction that PTX lets approximate (.approx, .full) is rounded from fp64 alone. No error is drawn,
so every seed, which is an order of events, gives the same numbers. `instructions` names the errors that PTX allows. The
bits of a NaN are not modelled, nor that ptxas may fuse a mul and an add that name no rounding.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from inspect import getmembers, isfunction
from itertools import product

import numpy as np

from ..core.faults import UnknownError
from ..core.memory import LOCAL_WINDOW, SHARED_WINDOW
from ..core.program import TRANSLATORS
from ..core.ptx import Instruction
from ..core.registers import NAMES, TYPE, bits, element, names_in, numpy_name
from . import floats, integers

Read = Callable[[str, str], str]
"""(operand, type) -> the source of its value in that type."""
CARRY = "CC.CF"  # the carry flag of the condition code register (9.7.2)


def table(text: str) -> dict[str, str]:
    """
    >>> table("add {0} + {1}")
    {'add': '{0} + {1}'}
    """
    return dict(line.split(maxsplit=1) for line in text.strip().splitlines())


NAMES |= {name: function for name, function in vars(np).items() if isinstance(function, np.ufunc)}
NAMES.update(getmembers(floats, isfunction))
NAMES.update(getmembers(integers, isfunction))
NAMES.update(LOCAL_WINDOW=LOCAL_WINDOW, SHARED_WINDOW=SHARED_WINDOW)

SETS = {
    "I": "u16 s16 u32 s32 u64 s64",
    "I2": "u16x2 s16x2",
    "W": "u16 s16 u32 s32",
    "S": "s16 s32 s64",
    "B": "b16 b32 b64",
    "F": "f32 f64",
    "H": "f16 bf16 f16x2 bf16x2",
}
# A row is: opcodes | types | letters | source | error.
# Opcodes stand without the words that round, flush or saturate floats; what is behind an = takes the place of @ in the
# source. The letters are the type of the result and of each operand. t: the instruction's type, or the first of two;
# u: t without a sign (wrapping sums and products are those of signed ones); w: twice as wide as t; x: t, made as wide
# as w; d: t, made fp64, or rounded from it; c: the last type; n: u32; p: a predicate. A row without an error is exact.
# ~: it is correctly rounded. Any other error is what PTX allows (ISA 9.1; ?: it names none); the row is rounded from
# fp64.
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
bmsk.clamp                                 | b32         | nnn   | mask({0}, {1})
bmsk.wrap                                  | b32         | nnn   | mask({0} & 31, {1} & 31)
szext.clamp                                | u32 s32     | ttn   | field({0}, {1} * 0, minimum({1}, 32))
szext.wrap                                 | u32 s32     | ttn   | field({0}, {1} * 0, {1} & 31)
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


def rows() -> Iterator[tuple]:
    """Yield the columns of ROWS: opcodes, types, letters, source and error."""
    for row in ROWS.strip().splitlines():
        opcodes, kinds, letters, source, *error = map(str.strip, row.split(" | "))
        kinds = re.sub("[A-Z]2?", lambda name: SETS[name[0]], kinds)
        yield opcodes.split(), kinds.split(), letters, source, "".join(error)


TABLE = {}
"""Letters and source, by opcode and type."""
for _opcodes, _kinds, _letters, _source, _ in rows():
    for _opcode, _kind in product(_opcodes, _kinds):
        _name, _, _word = _opcode.partition("=")
        TABLE[_name, _kind] = _letters, _source.replace("@", _word)
# Shifts by a constant that is less than the width.
SHIFTS = table("""
shl uuu {0} << {1}
shr ttt {0} >> {1}
""")
# Letters, then the sum | its carry out. The last operand is the carry in (9.7.2).
CARRIES = table("""
add    uuup  {0} + {1} + {2} | carry({0}, {1}, {2})
sub    uuup  {0} - {1} - {2} | ~carry({0}, ~{1}, ~{2})
mad.lo uuuup {0} * {1} + {2} + {3} | carry({0} * {1}, {2}, {3})
mad.hi ttttp high_half({0}, {1}) + {2} + {3} | carry(high_half({0}, {1}), {2}, {3})
""")
COMPARISONS = table("""
eq  {0} == {1}
ne  {0} != {1}
neu {0} != {1}
lt  {0} < {1}
le  {0} <= {1}
gt  {0} > {1}
ge  {0} >= {1}
lo  {0} < {1}
ls  {0} <= {1}
hi  {0} > {1}
hs  {0} >= {1}
""")
# Comparisons with a u at the end hold where an operand is NaN.
FLOAT_COMPARISONS = COMPARISONS | table("""
ne  ({0} < {1}) | ({0} > {1})
equ ~(({0} < {1}) | ({0} > {1}))
ltu ~({0} >= {1})
leu ~({0} > {1})
gtu ~({0} <= {1})
geu ~({0} < {1})
num ({0} == {0}) & ({1} == {1})
nan ({0} != {0}) | ({1} != {1})
""")
# lop3: the function of the second and the third operand, by half of its table, a number of 4 bits (9.7.8.6).
LOGIC = """\
{1} ^ {1}
~({1} | {2})
~{1} & {2}
~{1}
{1} & ~{2}
~{2}
{1} ^ {2}
~({1} & {2})
{1} & {2}
~({1} ^ {2})
{2}
~{1} | {2}
{1}
{1} | ~{2}
{1} | {2}
~({1} ^ {1})""".splitlines()
# Sources in fp64, exact or rounded to odd, for fp32 that is not rounded to the nearest.
DIRECTED = table("""
add  exact_sum({0}, {1})
mul  {0} * {1}
div  {0} / {1}
fma  exact_sum({0} * {1}, {2})
rcp  1 / {0}
sqrt sqrt({0})
""")
NEGATED = {"add": (0, 1), "fma": (0, 2)}
"""Operands whose negation negates the sum. To round a sum down, its negation is rounded up, which gives a zero its
sign."""
OPTIONS = {"ftz": "flush", "sat": "saturated", "relu": "positive"}  # for floats other than fp64
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
        """The type that a letter of ROWS stands for."""
        kind = self.types[0]
        if letter == "u" and kind != "pred":
            return unsigned(kind, bits(kind))
        kinds = {"c": self.types[-1], "w": f"{kind[0]}{2 * bits(kind)}", "n": "u32", "p": "pred"}
        return kinds.get(letter, kind)

    def operands(self, texts: Sequence[str], letters: str) -> list[str]:
        if len(texts) != len(letters):
            raise UnknownError(f"{len(texts)} operands")
        return list(map(self.load, texts, letters))

    def load(self, text: str, letter: str) -> str:
        kind = self.kind(letter)
        source = self.read(text, kind)
        if element(kind) == "bf16":
            source = f"from_bf16({source})"
        if "ftz" in self.options and is_float(kind):
            source = f"flush({source})"
        if letter == "d":
            source += ".astype(f8)"
        elif letter == "x":
            source += f".astype({numpy_name(self.kind('w'))})"
        return f"({source})"

    def store(self, source: str, kind: str) -> str:
        """The source of what a float's register gets, from the source of a value in one of NumPy's types."""
        for option in self.options:
            source = f"{OPTIONS[option]}({source})"
        if element(kind) in ("e4m3", "e5m2"):
            return f"to_fp8({source}, {element(kind)!r})"
        return f"to_bf16({source})" if element(kind) == "bf16" else source


def is_float(kind: str) -> bool:
    return kind[0] == "f" or kind.startswith("bf")


def unsigned(kind: str, width: int) -> str:
    return "u16x2" if kind.endswith("x2") else f"u{width}"


def value(inst: Instruction, read: Read) -> list[Result] | None:
    """All results of an instruction: each target with its type and the source of its value. None where the instruction
    is no arithmetic."""
    opcode, *words = inst.op.split(".")
    target, *given = inst.args or ("",)
    types = [word for word in words if TYPE.fullmatch(word)]
    if not types:
        return None
    if opcode == "mov" and "{" in target + given[0]:
        return _vector(target, given[0], types[0], read)
    stem, rounding, options = opcode, "", []
    is_rounded = opcode == "cvt" or is_float(types[-1])
    for word in words:
        if is_rounded and word in ROUNDINGS:
            rounding = word
        elif is_rounded and word in OPTIONS and (opcode == "cvt" or types[-1] != "f64"):
            options.append(word)
        elif word not in types:
            stem += f".{word}"
    form = Form(stem, types, rounding, options, read)
    if opcode == "cvt":
        return [(target, *_convert(form, given))]
    if opcode in ("setp", "set"):
        return _compare(form, target, given)
    summed = stem.replace(opcode, opcode[:3]).removesuffix(".cc")
    if summed in CARRIES and (opcode[3:] or "cc" in words):
        results = _carry(form, CARRIES[summed], target, [*given, CARRY if opcode.endswith("c") else "0"])
        return results if "cc" in words else results[:1]
    if stem == "lop3":
        halves = int(given.pop(), 0)
        letters, source = "uuuu", f"({LOGIC[halves & 15]}) ^ {{0}} & ({LOGIC[halves & 15 ^ halves >> 4]})"
    elif opcode in SHIFTS and given[1].isdigit() and int(given[1]) < bits(types[0]):
        letters, source = SHIFTS[opcode].split(maxsplit=1)
    elif (stem, types[-1]) in TABLE:
        letters, source = TABLE[stem, types[-1]]
    else:
        return None
    if rounding in ("rz", "rm", "rp"):
        letters = "d" * len(letters)
        source = _directed(stem, types[0], rounding)
    source = source.format(*form.operands(given, letters[1:]))
    if letters[0] in "td" and is_float(types[0]):
        if letters[0] == "d" and element(types[0]) != "bf16":
            source = f"({source}).astype({numpy_name(types[0])})"
        source = form.store(source, types[0])
    return [(target, form.kind(letters[0]), source)]


TRANSLATORS.append(value)


def _carry(form: Form, row: str, target: str, given: Sequence[str]) -> list[Result]:
    """A sum, and its carry."""
    letters, sources = row.split(maxsplit=1)
    total, carries = sources.format(*form.operands(given, letters[1:])).split(" | ")
    return [(target, form.kind(letters[0]), total), (CARRY, "pred", carries)]


def _directed(stem: str, kind: str, mode: str) -> str:
    """The source of an fp32 that is rounded towards zero, down or up."""
    names = ["{0}", "{1}", "{2}"]
    sign = ""
    if stem == "sub":
        stem = "add"
        names[1] = "-{1}"
    if stem not in DIRECTED or kind != "f32":
        raise UnknownError(f"{stem}.{kind} has no rounding .{mode} that this machine knows")
    if mode == "rm" and stem in NEGATED:
        mode, sign = "rp", "-"
        for number in NEGATED[stem]:
            names[number] = f"-{names[number]}"
    return f"{sign}narrowed({DIRECTED[stem].format(*names)}, 'f32', {mode!r})"


def _compare(form: Form, target: str, given: Sequence[str]) -> list[Result]:
    """setp and set. setp writes p, or p|q: the comparison and its complement, or for a pair the comparison of each half
    (9.7.6.2, 9.7.7.2). set writes 1 or all bits where the comparison holds (9.7.6.1, 9.7.7.1)."""
    to, kind = form.types[0], form.types[-1]
    opcode, word, *combined = form.stem.split(".")
    comparisons = FLOAT_COMPARISONS if is_float(kind) else COMPARISONS
    signs = {"and": "&", "or": "|", "xor": "^"}
    if word not in comparisons or not set(combined) <= signs.keys():
        raise UnknownError("a comparison that this machine does not know")
    source = f"({comparisons[word].format(*form.operands(given[:2], 'cc'))})"
    last = f" {signs[combined[0]]} {form.read(given[2], 'pred')}" if combined else ""
    if opcode == "set" and is_float(to):
        name = "f4" if element(to) == "bf16" else numpy_name(to)
        return [(target, to, form.store(f"({source}{last}).astype({name})", to))]
    if opcode == "set":
        to = unsigned(kind, bits(to))
        return [(target, to, f"-({source}{last}).astype({numpy_name(to)})")]
    both = (f"{source}[::2]", f"{source}[1::2]") if kind.endswith("x2") else (source, f"~{source}")
    return [(name, "pred", half + last) for name, half in zip(target.split("|"), both, strict=False)]


def _vector(target: str, given: str, kind: str, read: Read) -> list[Result]:
    """mov between a register and several that make it up, the lowest bits first."""
    is_split = target.startswith("{")
    names = names_in(target if is_split else given)
    whole, part = f"b{bits(kind)}", bits(kind) // len(names)
    if is_split:
        source = read(given, whole)
        return [(name, f"b{part}", f"({source} >> {i * part}).astype(u{part // 8})") for i, name in enumerate(names)]
    parts = []
    for i, name in enumerate(names):
        parts.append(f"({read(name, f'b{part}')}.astype({numpy_name(whole)}) << {i * part})")
    return [(target, whole, " | ".join(parts))]


def _convert(form: Form, given: Sequence[str]) -> tuple[str, str]:
    """cvt: the type and the source of the target's value. Two operands become the halves of a pair (9.7.9.21)."""
    if form.stem not in ("cvt", "cvt.satfinite") or len(form.types) != 2:
        raise UnknownError("a conversion that this machine does not know")
    to, source = form.types
    name, mode = numpy_name(to), form.rounding or "rn"
    others = replace(form, options=[option for option in form.options if option != "ftz"])  # ftz is for fp32 alone
    x, *second = [(form if source == "f32" else others).load(text, "c") for text in given]
    if second:
        x = f"pair({second[0]}, {x})"
    if element(source) in ("e4m3", "e5m2"):
        x = f"from_fp8({x}, {element(source)!r})"
    of_integer = source[0] in "us"
    if of_integer and to[0] in "us":
        return to, f"clipped({x}, {name})" if "sat" in form.options else f"{x}.astype({name})"
    wide = f"odd({x})" if of_integer else f"{x}.astype(f8)"
    if to[0] in "us":
        nan = 0
        if source == "f64" or bits(to) == 64:
            nan = {"u": 1, "s": -1}[to[0]] << bits(to) - 1
        return to, f"to_integer({INTEGRAL[mode]}({wide}), {name}, {nan})"
    if form.stem == "cvt.satfinite":
        x = f"within({x}, {element(to)!r})"
    if mode in INTEGRAL:
        x = f"{INTEGRAL[mode]}({x})"
    elif to == "f64" and mode != "rn":
        raise UnknownError(f"a conversion to fp64 with rounding .{mode}")
    elif to == "tf32" or mode != "rn":
        x = f"narrowed({wide}, {element(to)!r}, {mode!r}).astype({'f2' if element(to) == 'f16' else 'f4'})"
    elif element(to) in ("f16", "f32", "f64"):
        if source != "bf16" or to != "f32":
            x = f"{x}.astype({name})"
    elif source not in ("f32", "bf16"):
        x = wide
    return to, (form if to == "f32" else others).store(x, to)


def braced(words: Sequence[str]) -> str:
    return f"{{{','.join(words)}}}" if len(words) > 1 else words[0]


# Options, and how a row is modelled, by its error.
MODELLED = {
    "": ("", "exact"),
    "~": ("[.rn,.rz,.rm,.rp][.ftz][.sat][.relu]", "correctly rounded; f64 as .rn alone"),
    "?": ("", "from fp64; PTX names no error"),
}


def instructions() -> Iterator[str]:
    """Yield rows for `--coverage`, one for each of ROWS."""
    for opcodes, kinds, letters, _, error in rows():
        rounded = "[.ftz]", f"rounded from fp64; PTX allows an error of {error}"
        options, how = MODELLED.get(error, rounded)
        names = [opcode.partition("=")[0] for opcode in opcodes]
        first = ".{b,u,s,f}{8..64}" if "c" in letters else ""
        yield f"{braced(names)}{options}{first}.{braced(kinds)} | {how}"


INSTRUCTIONS = (
    "\n".join(instructions())
    + f"""
{{add,sub,mad.lo,mad.hi}}.cc.{{u32,s32,u64,s64}}, {{addc,subc,madc.lo,madc.hi}}[.cc].{{u32,s32,u64,s64}} | exact
{{setp,set}}.{braced([*FLOAT_COMPARISONS])}[.and,.or,.xor][.ftz] | exact, of all types
lop3.b32 | exact
cvt[.sat].{{u,s}}{{8..64}}, cvt.{braced([*INTEGRAL])}[.ftz] \
| exact; what is beyond becomes the nearest end, and NaN what 9.7.9.21 has
cvt[.rn,.rz,.rm,.rp][.ftz][.sat][.relu][.satfinite].{{f16,bf16,f32,f64,f16x2,bf16x2}} \
| correctly rounded; f64 as .rn alone
cvt.{{rna,rn,rz}}.tf32.f32, cvt.rn[.satfinite][.relu].{{e4m3x2,e5m2x2,f16x2}} | correctly rounded
"""
)
