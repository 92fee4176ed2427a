"""Arithmetic against Python's own integers and fractions (PTX ISA 8.7, 9.7.1 to 9.7.4 and 9.7.6 to 9.7.9)."""

import math
import re
from fractions import Fraction
from functools import lru_cache
from itertools import product

import numpy as np
import pytest
import torch

from .small_ptx import run

REGISTER = {1: "%p", 8: "%h", 16: "%h", 32: "%r", 64: "%d"}
STORED = {"f16": "f2", "f32": "f4", "f64": "f8"}
TENSORS = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
# Bits of the fraction, least exponent, bits of the largest number.
FORMATS = {
    "f16": (10, -14, 0x7BFF), "bf16": (7, -126, 0x7F7F), "tf32": (10, -126, 0x7F7FE000 >> 13), "e4m3": (3, -6, 0x7E),
    "e5m2": (2, -14, 0x7B), "f32": (23, -126, 0x7F7FFFFF), "f64": (52, -1022, 0x7FEFFFFFFFFFFFFF),
}  # fmt: skip
INTEGERS = [0, 1, 2, 7, 31, 32, 33, 63, 64, 65, 255, -1, -2, -9, 0x9234_5678_9ABC_DEF1, 2**62 + 2**54 + 1]
# Zeros, ordinary numbers, factors whose product is between two numbers; then halves, ends of formats and of integers,
# and what is beyond them.
FLOATS = [
    0.0, -0.0, 1.0, -1.5, 2.5, 0.1, math.inf, -math.inf, math.nan, 3.0e38, 1e-40, -1e-40, 1 + 2**-8, 1 + 3 * 2**-8,
    1 + 2**-8 + 2**-20, 1 + 2**-5, 1 + 2**-6, 1 + 2**-12, -1 - 2**-12, 1 + 2**-27, 2.0**-24, 2.0**-100, -(2.0**-149),
    0.5, -0.5, 1.5, -127.5, 448.0, 465.0, -57344.0, 61441.0, 65504.0, 65519.9, 65520.0, -2.0**31, 2.0**31, 2.0**32,
    -2.0**63, 2.0**63, 2.0**64, -1e30, 2.0**126.5, 2.0**127, 1e300, -1e300, 3 * 2.0**-17, 2.0**-9, 2.0**-10, 2.0**-126,
    2.0**-127, 5e-324,
]  # fmt: skip
PAIRED = slice(0, 23)


def bits(kind: str) -> int:
    return {"pred": 1, "bf16": 16, "tf32": 32, "e4m3": 8, "e5m2": 8}.get(kind) or int(kind[1:])


def valued(x: int, kind: str):
    """What the lowest bits of x mean."""
    w = bits(kind)
    x &= (1 << w) - 1
    if kind in TENSORS:
        return torch.tensor([x], dtype=torch.uint8).view(TENSORS[kind]).double().item()
    if kind in ("bf16", "tf32"):
        x, kind = x << 32 - w, "f32"
    if kind[0] == "f":
        return float(np.uint64(x).astype(f"u{w // 8}" if kind != "f32" else "u4").view(STORED[kind]))
    return x - (1 << w) if kind[0] == "s" and x >> w - 1 else x


def fit(x, kind: str, mode: str = "rn", *, finite: bool = False) -> int:
    """The bits of a number of this kind: of both neighbours of x the one that the mode says, of both as near the even
    one (rna: the farther from 0). What is beyond the largest is infinite; with `finite` it is the largest."""
    fraction, least, largest = FORMATS[kind]
    sign, top = x < 0 or (x == 0 and math.copysign(1, x) < 0), 1 << bits(kind) - 1
    if x != x:
        return top - 1
    end = largest if finite else largest + (1 if mode in ("rn", "rna", "rp" if not sign else "rm") else 0)
    if x in (math.inf, -math.inf):
        count = largest if finite else largest + 1
    else:
        n, d = map(abs, x.as_integer_ratio())
        exponent = n.bit_length() - d.bit_length()
        exponent = max(exponent - (n << max(-exponent, 0) < d << max(exponent, 0)), least) if n else least
        shift = fraction - exponent
        n, d = n << max(shift, 0), d << max(-shift, 0)
        whole, rest = divmod(n, d)
        nearest = 2 * rest > d or (2 * rest == d and (mode == "rna" or whole % 2))
        up = rest and {"rz": False, "rm": sign, "rp": not sign}.get(mode, nearest)
        count = min((exponent - least << fraction) + whole + bool(up), end)
    return top * sign | count << (13 if kind == "tf32" else 0)


def both(a, b, kind: str, mode: str = "rn", *, finite: bool = False) -> int:
    return fit(a, kind, mode, finite=finite) << bits(kind) | fit(b, kind, mode, finite=finite)


def masked(x, kind: str) -> int:
    """The bits of x."""
    return fit(x, kind) if kind in FORMATS else int(x) & (1 << bits(kind)) - 1


@lru_cache
def edges(kind: str) -> list:
    w = bits(kind)
    integers = [*INTEGERS, w - 1, w, w + 1, 1 << w - 1, (1 << w - 1) - 1]
    return [0, 1] if w == 1 else [valued(masked(x, kind), kind) for x in (FLOATS if kind in FORMATS else integers)]


def evaluate(line: str, kinds: list[str], rows: list[tuple], result: str) -> list[int]:
    """Return the bits that {d} gets from {a}, {b}, {c}, {e} in each row, each in a register of its own width."""
    threads = -(-len(rows) // 32) * 32
    given, registers = np.zeros((len(kinds), threads), np.uint64), dict(d=f"{REGISTER[bits(result)]}0")
    body = "mul.wide.u32 %d50, %t, 8; add.s64 %d51, %A, %d50; add.s64 %d52, %B, %d50;\n"
    for i, kind in enumerate(kinds):
        values = [row[i] for row in rows]
        if kind in STORED:
            given[i, : len(rows)] = np.array(values).astype(STORED[kind]).view(f"u{bits(kind) // 8}")
        else:
            given[i, : len(rows)] = [masked(x, kind) for x in values]
        registers["abce"[i]] = name = f"{REGISTER[bits(kind)]}{i + 1}"
        load = f"ld.global.b{max(bits(kind), 8)} %s, [%%d51+{8 * threads * i}];"
        body += (load % "%h9") + f"setp.ne.u16 {name}, %h9, 0;\n" if kind == "pred" else load % name
    store = "selp.b32 %r9, 1, 0, {d}; st.global.b32 [%d52], %r9;" if result == "pred" else "st.global.b{w} [%d52], {d};"
    body += f"{line.format(**registers)}\n{store.format(w=bits(result), **registers)}"
    out = run(body, given, np.zeros(threads, np.uint64), threads=threads, seeds=[0])[1]
    return [int(x) for x in out[: len(rows)]]


def total(mode: str, *terms):
    """A sum of products, as a fraction, or as a float what is none: infinities, NaN, zeros with the sign that IEEE 754
    (6.3) gives them."""
    factors = [term if isinstance(term, tuple) else (term,) for term in terms]
    products = [math.prod(term) for term in factors]
    if not all(map(math.isfinite, (x for term in factors for x in term))):
        return sum(products)
    signs = {math.copysign(1, x) for x in products}
    return sum(math.prod(map(Fraction, term)) for term in factors) or math.copysign(
        0, signs.pop() if len(signs) == 1 else -(mode == "rm")
    )


def quotient(a, b):
    if math.isfinite(a) and math.isfinite(b) and a and b:
        return Fraction(a) / Fraction(b)
    with np.errstate(all="ignore"):
        return float(np.float64(a) / np.float64(b))


def root(a):
    """With a bit behind all others where it is not exact."""
    if not 0 < a < math.inf:
        return a if a == 0 or a > 0 else math.nan
    scaled = int(Fraction(a) * 4**600)
    whole = math.isqrt(scaled)
    return Fraction(2 * whole + (whole**2 != scaled), 2**601)


def flushed(x: int, kind: str) -> int:
    """The bits of a number, or of a zero with its sign."""
    sign = 1 << bits(kind) - 1
    return (
        x & sign if kind in FORMATS and abs(valued(x, kind)) < {"f16": 2.0**-14, "f64": 0}.get(kind, 2.0**-126) else x
    )


def extreme(choose, a, b, *, nan=False):
    """Of NaN and a number the number; -0 is below 0 (9.7.3.11)."""
    if nan and (a != a or b != b):
        return math.nan
    return b if a != a else a if b != b else choose(a, b, key=lambda x: (x, math.copysign(1, x)))


def sign(x) -> float:
    return math.copysign(1, x)


def sat(x):
    return min(x, 1) if x > 0 else 0.0


def relu(x):
    return x if x > 0 or x != x else 0.0


def clipped(x: int, kind: str) -> int:
    top = 1 << bits(kind) - (kind[0] == "s")
    return min(max(x, -top if kind[0] == "s" else 0), top - 1)


def integral(x: float, mode: str):
    if not math.isfinite(x):
        return x
    return {"rni": round, "rzi": math.trunc, "rmi": math.floor, "rpi": math.ceil}[mode](Fraction(x)) or math.copysign(
        0, x
    )


def as_integer(x: float, mode: str, kind: str, source: str) -> int:
    """The ends for what is beyond; what NaN gives is in 9.7.9.21."""
    if x != x:
        return 1 << bits(kind) - 1 if source == "f64" or bits(kind) == 64 else 0
    return clipped(int(integral(min(max(x, -1e30), 1e30), mode)), kind)


def towards_zero(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def extracted(a: int, start: int, length: int, kind: str) -> int:
    """As the semantics of bfe have it, bit by bit (9.7.1.19)."""
    start, length, top = start & 255, length & 255, bits(kind) - 1
    sign = 0 if kind[0] == "u" or not length else a >> min(start + length - 1, top) & 1
    return sum((a >> start + i & 1 if i < length and start + i <= top else sign) << i for i in range(top + 1))


def inserted(a: int, b: int, start: int, length: int, w: int) -> int:
    """As the semantics of bfi have it (9.7.1.20)."""
    for i in range(min(length & 255, w - (start & 255))):
        b = b & ~(1 << (start & 255) + i) | (a >> i & 1) << (start & 255) + i
    return b


def ones_in(start: int, length: int) -> int:
    return sum(1 << i for i in range(32) if start <= i < start + length)


def carried(a: int, b: int) -> int:
    return a % 2**32 + b >> 32


def highest(a: int, kind: str) -> int:
    return (~a if a < 0 else a).bit_length() - 1


def permuted(a: int, b: int, selector: int) -> int:
    source, out = a | b << 32, 0
    for i in range(4):
        chosen = selector >> 4 * i & 15
        byte = source >> 8 * (chosen & 7) & 255
        out |= ((255 if byte >> 7 else 0) if chosen & 8 else byte) << 8 * i
    return out


def looked_up(table: int, a: int, b: int, c: int) -> int:
    return sum((table >> (4 * (a >> i & 1) + 2 * (b >> i & 1) + (c >> i & 1)) & 1) << i for i in range(32))


def dotted(a: int, b: int, c: int, first: str, second: str) -> int:
    return c + sum(valued(a >> 8 * i, f"{first}8") * valued(b >> 8 * i, f"{second}8") for i in range(4))


def compared(word: str, a, b) -> bool:
    if a != a or b != b:
        return word[-1] == "u" or word == "nan"
    names = dict(eq=a == b, ne=a != b, lt=a < b, le=a <= b, gt=a > b, ge=a >= b, num=True, nan=False)
    return names[word.removesuffix("u") if word not in ("num", "nan") else word]


# What each address takes (sums, products, masks) no kernel of `kernels.machine` would be exact without.
# Instruction; kinds of a, b, c, e > of d, where K is each of the types that follow, W is twice as wide; what d gets.
TABLE = r"""
add.K                 K K > K           u16 s32 u64            a + b
sub.K                 K K > K           s16 u32 s64            a - b
mul.lo.K              K K > K           s16 u32 s64            a * b
mul.hi.K              K K > K           s16 u16 s32 u32 s64 u64    a * b >> w
mul.wide.K            K K > W           s16 u16 s32 u32        a * b
mad.lo.K              K K K > K         s16 s32 u32 s64        a * b + c
mad.hi.K              K K K > K         s32 u64                (a * b >> w) + c
mad.wide.K            K K W > W         s32 u32 s16 u16        a * b + c
sad.K                 K K K > K         s16 s32 u32 u64        abs(a - b) + c
div.K                 K K > K           s16 s32 u32 s64 u64    towards_zero(a, b)
rem.K                 K K > K           s16 s32 u32 s64 u64    a - towards_zero(a, b) * b
min.K                 K K > K           s16 s32 u32 s64 u64    min(a, b)
max.K                 K K > K           u16 s32 s64            max(a, b)
neg.K                 K > K             s16 s32 s64            -a
abs.K                 K > K             s16 s32 s64            abs(a)
popc.K                K > u32           b32 b64                a.bit_count()
clz.K                 K > u32           b32 b64                w - a.bit_length()
bfind.K               K > u32           u32 s32 u64 s64        highest(a, kind)
bfind.shiftamt.K      K > u32           u32 u64                w - a.bit_length() if a else -1
brev.K                K > K             b32 b64                int(f"{a:0{w}b}"[::-1], 2)
bfe.K                 K u32 u32 > K     u32 s32 u64 s64        extracted(a, b, c, kind)
bfi.K                 K K u32 u32 > K   b32 b64                inserted(a, b, c, e, w)
bmsk.clamp.b32        b32 b32 > b32     -                      ones_in(a, b)
bmsk.wrap.b32         b32 b32 > b32     -                      ones_in(a % 32, b % 32)
szext.clamp.K         K u32 > K         u32 s32                extracted(a, 0, min(b, 32), kind)
szext.wrap.K          K u32 > K         u32 s32                extracted(a, 0, b % 32, kind)
dp4a.u32.u32          u32 u32 u32 > u32   -                      dotted(a, b, c, "u", "u")
dp4a.s32.s32          u32 u32 u32 > u32   -                      dotted(a, b, c, "s", "s")
dp4a.u32.s32          u32 u32 u32 > u32   -                      dotted(a, b, c, "u", "s")
add.cc.K {d}, {a}, {b}; addc.K {d}, 0, 0;    K K > K   u32 s64    ((a % 2**w) + (b % 2**w)) >> w
add.cc.K %r8, {a}, {b}; addc.cc.K %r8, {a}, {c}; addc.K {d}, 0, 0;   K K K > K   u32   a + c + (a + b >> w) >> w
sub.cc.K {d}, {a}, {b}; subc.K {d}, 0, 0;    K K > K   u32 u64    -(a < b)
sub.cc.K %r8, {a}, {b}; subc.cc.K %r8, {a}, {c}; subc.K {d}, 0, 0;   K K K > K   u32   -(a < c + (a < b))
mad.lo.cc.K %r8, {a}, {b}, {c}; madc.hi.K {d}, {a}, {b}, 5;   K K K > K   u32   (a * b >> w) + 5 + carried(a * b, c)
mad.hi.cc.K %r8, {a}, {b}, {c}; madc.lo.cc.K {d}, {a}, {b}, {c};  K K K > K   u32   a * b + c + carried(a * b >> w, c)
mad.lo.cc.K %r8, {a}, {b}, {c}; addc.K {d}, {c}, {a};   K K K > K   u32   c + a + carried(a * b, c)
and.K                 K K > K           b16 b32 b64 pred       a & b
or.K                  K K > K           b16 b32 b64 pred       a | b
xor.K                 K K > K           b16 b32 b64 pred       a ^ b
not.K                 K > K             b16 b32 b64 pred       ~a
shl.K                 K u32 > K         b16 b32 b64            a << b if b < w else 0
shr.K                 K u32 > K         s16 u16 u32 s32 s64 u64    a >> min(b, 99)
shl.b32 {d}, {a}, 5;   b32 > b32         -                      a << 5
shf.l.wrap.b32        b32 b32 u32 > b32   -                      (b << 32 | a) << (c & 31) >> 32
shf.l.clamp.b32       b32 b32 u32 > b32   -                      (b << 32 | a) << min(c, 32) >> 32
shf.r.wrap.b32        b32 b32 u32 > b32   -                      (b << 32 | a) >> (c & 31)
shf.r.clamp.b32       b32 b32 u32 > b32   -                      (b << 32 | a) >> min(c, 32)
prmt.b32              b32 b32 u32 > b32   -                      permuted(a, b, c)
prmt.b32 {d}, {a}, {b}, 0x5410;   b32 b32 > b32   -             a & 0xFFFF | b << 16
selp.K                K K pred > K      b16 s32 b64            a if c else b
selp.K                K K pred > K      f32 f64                a if c else b
slct.b32.K            b32 b32 K > b32   s32 f32                a if c >= 0 else b
setp.eq.K             K K > pred        s16 b16 b32 u64        a == b
setp.ne.K             K K > pred        u16 s32 b64            a != b
setp.lt.K             K K > pred        s16 u16 s32 u32        a < b
setp.ge.K             K K > pred        s32 u32 s64            a >= b
setp.hi.u32           u32 u32 > pred    -                      a > b
setp.lt.and.K {d}, {a}, {b}, !{c};   K K pred > pred   s32 u32    a < b and not c
setp.lt.or.K {d}, {a}, {b}, {c};     K K pred > pred   s32 u32    a < b or c
setp.lt.xor.K {d}, {a}, {b}, {c};    K K pred > pred   s32 f32    (a < b) != c
setp.lt.K %p8|{d}, {a}, {b};         K K > pred        s32 f32    not a < b
setp.lt.and.K %p8|{c}, {a}, {b}, {c}; and.pred {d}, {c}, {c};   K K pred > pred   s32   not a < b and c
@{c} setp.lt.K {c}|{d}, {a}, {b}; and.pred {d}, {d}, !{c};      K K pred > pred   s32   c and not a < b
mov.K                 K > K             b16 u32 b64 pred f32 f64   a
mov.pred {d}, -1;                 b32 > pred       -           1
mov.f64 {d}, 0dC00921FB54442D18;  b32 > f64        -           -math.pi
mov.b64 {d}, {{{a}, {b}}};        b32 b32 > b64    -           a | b << 32
mov.b32 {d}, {{{a}, {b}}};        b16 b16 > b32    -           a | b << 16
mov.b32 {{%h7, {d}}}, {a};        b32 > b16        -           a >> 16
@{b} add.s32 {a}, {a}, 5; @!{b} mov.b32 {a}, 9; mov.b32 {d}, {a};  u32 pred > u32   -   a + 5 if b else 9
mov.b32 {{{d}, _}}, {a};          b32 > b16        -           a
add.K                 K K > K           f32 f64 f16 bf16       total("rn", a, b)
sub.K                 K K > K           f32 f64 f16 bf16       total("rn", a, -b)
mul.K                 K K > K           f32 f64 f16 bf16       total("rn", (a, b))
fma.rn.K              K K K > K         f32 f64 f16 bf16       total("rn", (a, b), c)
fma.rn.f32 {d}, {a}, {b}, 0f40000000;   f32 f32 > f32   -      total("rn", (a, b), 2.0)
div.rn.K              K K > K           f32 f64                quotient(a, b)
rcp.rn.K              K > K             f32 f64                quotient(1.0, a)
sqrt.rn.K             K > K             f32 f64                root(a)
add.rz.K              K K > K           f32                    total("rz", a, b)
sub.rm.K              K K > K           f32                    total("rm", a, -b)
mul.rp.K              K K > K           f32                    total("rp", (a, b))
mul.rm.K              K K > K           f32                    total("rm", (a, b))
fma.rz.K              K K K > K         f32                    total("rz", (a, b), c)
fma.rm.K              K K K > K         f32                    total("rm", (a, b), c)
fma.rp.K              K K K > K         f32                    total("rp", (a, b), c)
div.rz.K              K K > K           f32                    quotient(a, b)
div.rm.K              K K > K           f32                    quotient(a, b)
rcp.rp.K              K > K             f32                    quotient(1.0, a)
sqrt.rz.K             K > K             f32                    root(a)
sqrt.rp.K             K > K             f32                    root(a)
add.ftz.K             K K > K           f32 f16                total("rn", a, b)
mul.rn.ftz.K          K K > K           f32 f16                total("rn", (a, b))
fma.rm.ftz.K          K K K > K         f32                    total("rm", (a, b), c)
add.sat.K             K K > K           f32 f16                sat(total("rn", a, b))
fma.rn.relu.K         K K K > K         f16 bf16               relu(total("rn", (a, b), c))
div.full.f32          f32 f32 > f32     -                      quotient(a, b)
rcp.approx.ftz.f32    f32 > f32         -                      quotient(1.0, a)
sqrt.approx.f32       f32 > f32         -                      root(a)
neg.K                 K > K             f32 f64 f16 bf16       -a
abs.K                 K > K             f32 f64 f16 bf16       abs(a)
min.K                 K K > K           f32 f64 f16 bf16       extreme(min, a, b)
max.K                 K K > K           f32 f64 f16 bf16       extreme(max, a, b)
min.NaN.K             K K > K           f32 f16 bf16           extreme(min, a, b, nan=True)
max.NaN.K             K K > K           f32 f16 bf16           extreme(max, a, b, nan=True)
max.ftz.f32           f32 f32 > f32     -                      extreme(max, a, b)
min.xorsign.abs.K     K K > K           f32 f16                math.copysign(extreme(min, abs(a), abs(b)), b) * sign(a)
copysign.K            K K > K           f32 f64                math.copysign(b, a)
testp.finite.K        K > pred          f32 f64                math.isfinite(a)
testp.infinite.K      K > pred          f32 f64                math.isinf(a)
testp.notanumber.f32  f32 > pred        -                      a != a
setp.K.f32            f32 f32 > pred    eq ne lt le gt ge equ neu ltu leu gtu geu num nan    compared(kind, a, b)
setp.neu.K            K K > pred        f64 f16 bf16           compared("neu", a, b)
setp.gt.ftz.f32       f32 f32 > pred    -                      a > b
cvt.u64.K             K > u64           u32 s32 s16            a
cvt.s32.K             K > s32           s64 s16 s8             a
cvt.s16.s8 {d}, {a};  s8 > u32          -                      a
cvt.s8.s32 {d}, {a};  s32 > u32         -                      valued(a, "s8")
cvt.sat.u8.K          K > u8            s32 u64 s16            clipped(a, "u8")
cvt.sat.s16.K         K > s16           s32 u32 s64            clipped(a, "s16")
cvt.rn.f32.K          K > f32           s32 u32 s64 u64 s16    a
cvt.rn.f64.K          K > f64           s32 u32 s64 u64        a
cvt.rn.f16.K          K > f16           s32 u64 s16            a
cvt.rn.bf16.K         K > bf16          s16 s32 u32 s64 u64    a
cvt.rz.f32.K          K > f32           s32 s64 u64            a
cvt.rm.f32.K          K > f32           s32 s64                a
cvt.rzi.s64.K         K > s64           f32 f64 f16            as_integer(a, "rzi", "s64", kind)
cvt.rni.s32.K         K > s32           f32 f64 bf16           as_integer(a, "rni", "s32", kind)
cvt.rmi.u32.K         K > u32           f32 f64                as_integer(a, "rmi", "u32", kind)
cvt.rpi.ftz.u64.f32   f32 > u64         -                      as_integer(a, "rpi", "u64", "f32")
cvt.rzi.u16.K         K > u16           f32 f64 f16            as_integer(a, "rzi", "u16", kind)
cvt.rni.K.K           K > K             f32 f64 f16            integral(a, "rni")
cvt.rmi.K.K           K > K             f32 f64 bf16           integral(a, "rmi")
cvt.ftz.sat.f32.f32   f32 > f32         -                      sat(a)
cvt.rn.f32.f64        f64 > f32         -                      a
cvt.rm.ftz.f32.f64    f64 > f32         -                      a
cvt.rz.f32.f64        f64 > f32         -                      a
cvt.f64.K             K > f64           f32 f16 bf16           a
cvt.f32.K             K > f32           f16 bf16               a
cvt.rn.f16.K          K > f16           f32 f64 bf16           a
cvt.rz.f16.f32        f32 > f16         -                      a
cvt.rn.ftz.f16.f32    f32 > f16         -                      a
cvt.ftz.f32.f16       f16 > f32         -                      a
cvt.rn.bf16.K         K > bf16          f32 f64 f16            a
cvt.rz.bf16.f32       f32 > bf16        -                      a
cvt.rna.tf32.f32      f32 > tf32        -                      a
cvt.rn.Kx2.f32        f32 f32 > b32     f16 bf16               both(a, b, kind)
cvt.rz.bf16x2.f32     f32 f32 > b32     -                      both(a, b, "bf16", "rz")
cvt.rn.satfinite.f16x2.f32          f32 f32 > b32   -          both(a, b, "f16", finite=True)
cvt.rn.relu.bf16x2.f32              f32 f32 > b32   -          both(relu(a), relu(b), "bf16")
cvt.rn.satfinite.Kx2.f32            f32 f32 > b16   e4m3 e5m2  both(a, b, kind, finite=True)
cvt.rn.satfinite.relu.e4m3x2.f32    f32 f32 > b16   -          both(relu(a), relu(b), "e4m3", finite=True)
cvt.rn.satfinite.Kx2.f16x2   b32 > b16  e4m3 e5m2   both(valued(a >> 16, "f16"), valued(a, "f16"), kind, finite=True)
"""
ROWS = [
    (op, kinds, kind, meant)
    for op, kinds, types, meant in (re.split(r"\s{2,}", row, maxsplit=3) for row in TABLE.strip().splitlines())
    for kind in types.split()
]


@pytest.mark.parametrize(("op", "kinds", "kind", "meant"), ROWS, ids=[f"{row[0]}-{row[2]}" for row in ROWS])
def test_a_line_of_the_table(op, kinds, kind, meant):
    """What is unspecified is left out: division by 0. A NaN is any."""
    wide = f"{kind[0]}{2 * bits(kind)}" if kind[1:].isdigit() and kinds.find("W") >= 0 else ""
    *given, _, result = (text.replace("K", kind).replace("W", wide) for text in kinds.split())
    line = op if ";" in op else f"{op} {', '.join(['{d}', '{a}', '{b}', '{c}', '{e}'][: len(given) + 1])};"
    chosen = [edges(operand)[slice(None) if len(given) == 1 else PAIRED] for operand in given]
    rows = list(product(*chosen[:2]))
    for more in chosen[2:]:
        rows = [(*row, x) for i, row in enumerate(rows) for x in (more * 2)[i % 7 :: 7]]
    rows = [row for row in rows if not (given[0][0] in "us" and op.startswith(("div", "rem")) and row[1] == 0)]
    taken, flushes = rows, () if ".ftz" not in op else ("f32",) if op.startswith("cvt") else ("f32", "f16")
    if set(flushes) & set(given):
        taken = [[valued(flushed(masked(x, k), k), k) for x, k in zip(row, given, strict=True)] for row in rows]
    names = dict(globals(), kind=kind, w=bits(given[0]))
    meaning = compile(meant, op, "eval")
    values = [eval(meaning, names, dict(zip("abce", row, strict=False))) for row in taken]
    mode = (re.findall(r"\.(rz|rm|rp|rna)\b", op) or ["rn"])[0]
    expected = [fit(x, result, mode) if result in FORMATS else masked(x, result) for x in values]
    if result in flushes:
        expected = [flushed(x, result) for x in expected]
    out = evaluate(line.replace("K", kind), given, rows, result)
    wrong = [
        (row, hex(x), hex(y))
        for row, x, y in zip(rows, out, expected, strict=True)
        if x != y and not (result in FORMATS and math.isnan(valued(x, result)) and math.isnan(valued(y, result)))
    ]
    assert not wrong


# Of registers that hold two halves, as the same operation has it of each.
PAIRS = """
add.K: u16 s16 f16 bf16 | sub.K: f16 bf16 | mul.K: f16 bf16 | fma.rn.K: f16 bf16 | neg.K: bf16 | abs.K: f16 bf16
min.K: u16 s16 f16 bf16 | max.K: s16 u16 f16 | max.NaN.K: f16 bf16 | ex2.approx.K: f16 | tanh.approx.K: f16 bf16
setp.lt.K: f16 bf16 | setp.neu.and.K: f16
"""
COUNT = {"fma": 3, "neg": 1, "abs": 1, "ex2": 1, "tanh": 1}


@pytest.mark.parametrize("case", [case for row in PAIRS.strip().splitlines() for case in row.split(" | ")])
def test_pairs(case):
    op, kinds = case.split(": ")
    count, more = COUNT.get(op.split(".")[0], 2), ", {c}" * (".and" in op)
    operands, last = ", ".join(["{a}", "{b}", "{c}"][:count]) + more, ["pred"] if more else []

    def of(kind: str, target: str, rows: list[tuple], result: str) -> list[int]:
        given = [(*row[:count], number % 2) for number, row in enumerate(rows)]
        line = f"{op.replace('K', kind)} {target}, {operands};"
        return evaluate(line, [f"b{32 if kind.endswith('x2') else 16}"] * count + last, given, result)

    for kind in kinds.split():
        values = [masked(x, kind) for x in edges(kind)[PAIRED]]
        low = [(x, y, values[i * 7 % len(values)]) for i, (x, y) in enumerate(product(values, repeat=2))]
        high = low[6:] + low[:6]
        whole = [tuple(x | y << 16 for x, y in zip(*rows, strict=True)) for rows in zip(low, high, strict=True)]
        if op.startswith("setp"):
            halves = [of(f"{kind}x2", target, whole, "pred") for target in ("{d}|%p8", "%p8|{d}")]
            assert halves == [of(kind, "{d}", rows, "pred") for rows in (low, high)]
        else:
            halves = [of(kind, "{d}", rows, "b16") for rows in (low, high)]
            assert of(f"{kind}x2", "{d}", whole, "b32") == [x | y << 16 for x, y in zip(*halves, strict=True)]


def test_lop3_has_the_table_that_its_number_is():
    """0xF0, 0xCC and 0xAA have all cases of three bits: what an operation makes of them is its number (9.7.8.6)."""
    body = "mov.b32 %r1, 0xF0; mov.b32 %r2, 0xCC; mov.b32 %r3, 0xAA;\n"
    body += "".join(f"lop3.b32 %r4, %r1, %r2, %r3, {i}; st.global.b8 [%A+{i}], %r4;" for i in range(256))
    assert run(body, np.zeros(256, np.uint8), seeds=[0])[0].tolist() == list(range(256))


@pytest.mark.parametrize("kind", TENSORS)
def test_fp8_to_fp16(kind):
    rows = [(x << 8 | 255 - x,) for x in range(256)]
    out = evaluate(f"cvt.rn.f16x2.{kind}x2 {{d}}, {{a}};", ["b16"], rows, "b32")
    halves = [(valued(bits >> 16, "f16"), valued(bits, "f16")) for bits in out]
    np.testing.assert_equal(halves, [(valued(x, kind), valued(255 - x, kind)) for x in range(256)])


def test_sets():
    rows = list(product(edges("f16")[PAIRED], repeat=2))
    one, bits_ = fit(1.0, "f16"), 0xFFFF
    assert evaluate("set.gtu.f16.f16 {d}, {a}, {b};", ["f16"] * 2, rows, "f16") == [
        compared("gtu", *row) * one for row in rows
    ]
    assert evaluate("set.nan.s32.f16 {d}, {a}, {b};", ["f16"] * 2, rows, "b32") == [
        compared("nan", *row) * 0xFFFFFFFF for row in rows
    ]
    packed = [(masked(a, "f16") | 0x3C00 << 16, masked(b, "f16") | 0x7E00 << 16) for a, b in rows]
    for kind, yes in dict(f16x2=one, u32=bits_).items():
        out = evaluate(f"set.num.{kind}.f16x2 {{d}}, {{a}}, {{b}};", ["b32"] * 2, packed, "b32")
        assert out == [compared("num", *row) * yes for row in rows]


# Instruction; function; the error that PTX allows of it: in units of the last place, or of the value, or 0 with what is
# behind the comma; the range where it does.
APPROXIMATE = """
ex2.approx.ftz.f32      2.0**x                    2 * 2**-23, 0       -126 126
ex2.approx.f16          2.0**x                    2**-9.9, 0          -14 15
ex2.approx.ftz.bf16     2.0**x                    2**-7, 0            -126 126
lg2.approx.f32          math.log2(x)              2**-22, 2**-22      1e-44 3e38
sin.approx.f32          math.sin(x)               0, 2**-20.5         -6.28 6.28
cos.approx.ftz.f32      math.cos(x)               0, 2**-20.5         -6.28 6.28
tanh.approx.f32         math.tanh(x)              2**-11, 0           -3e38 3e38
tanh.approx.f16         math.tanh(x)              0, 2**-10.987       -65504 65504
tanh.approx.bf16        math.tanh(x)              0, 2**-8            -3e38 3e38
rsqrt.approx.ftz.f32    x ** -0.5                 2**-22.9, 0         2e-38 3e38
rsqrt.approx.f64        x ** -0.5                 2**-51, 0           1e-300 1e300
rcp.approx.ftz.f64      1 / x                     2**-19, 0           1e-300 1e300
rsqrt.approx.ftz.f64    x ** -0.5                 2**-19, 0           1e-300 1e300
"""
# At the ends, with the signs of zeros and infinities (the tables of 9.7.3 and 9.7.4).
ENDS = """
ex2.approx.ftz.f32: -inf 0.0 | -0.0 1.0 | inf inf | nan nan | 1e-40 1.0 | -127.5 0.0
ex2.approx.f32: -127.5 4.154e-39 | -200.0 0.0
lg2.approx.ftz.f32: -inf nan | -1.0 nan | -0.0 -inf | 0.0 -inf | inf inf | 1e-40 -inf
sin.approx.f32: inf nan | -0.0 -0.0
cos.approx.f32: -inf nan | -0.0 1.0
tanh.approx.f32: inf 1.0 | -inf -1.0 | -0.0 -0.0
rsqrt.approx.ftz.f32: -inf nan | -0.0 -inf | 0.0 inf | inf 0.0 | -1.0 nan | 1e-40 inf
rcp.approx.f32: -inf -0.0 | -0.0 -inf | inf 0.0
rcp.approx.ftz.f64: -inf -0.0 | -0.0 -inf | inf 0.0 | 5e-324 inf | -5e-324 -inf | 1e308 0.0
rsqrt.approx.ftz.f64: -inf nan | -0.0 -inf | inf 0.0 | 5e-324 inf | -5e-324 -inf
div.approx.f32 {d}, 0f7F800000, {a};: 1e38 nan | 3.0 inf
div.approx.f32 {d}, 0fC0000000, {a};: 1e38 -0.0 | 4.0 -0.5 | -inf 0.0
"""


def kind_of(op: str) -> str:
    return re.findall(r"\.(b?f\d+)", op)[-1]


@pytest.mark.parametrize("row", APPROXIMATE.strip().splitlines(), ids=lambda row: row.split()[0])
def test_what_is_approximate_is_as_near_as_ptx_has_it(row):
    op, function, errors, ends = re.split(r"\s{2,}", row)
    kind, (low, high), (relative, absolute) = kind_of(op), map(float, ends.split()), eval(errors)
    inputs = [
        x for x in [*edges(kind), *(valued(masked(x / 7, kind), kind) for x in range(-45, 45))] if low <= x <= high
    ]
    out = evaluate(f"{op} {{d}}, {{a}};", [kind], [(x,) for x in inputs], kind)
    for x, y in zip(inputs, out, strict=True):
        exact = eval(function, dict(math=math, x=x))
        assert abs(valued(y, kind) - exact) <= max(relative * abs(exact), absolute) + (
            2**-25 if kind == "f16" else 0
        ), x
    if op.endswith("ftz.f64"):
        assert not any(y & 0xFFFFFFFF for y in out)


@pytest.mark.parametrize("row", ENDS.strip().splitlines(), ids=lambda row: row.split(":")[0])
def test_what_is_approximate_at_the_ends(row):
    op, cases = row.rsplit(": ", 1)
    inputs, wanted = zip(*(map(float, case.split()) for case in cases.split(" | ")), strict=True)
    out = evaluate(op if ";" in op else f"{op} {{d}}, {{a}};", [kind_of(op)], [(x,) for x in inputs], kind_of(op))
    values = [valued(y, kind_of(op)) for y in out]
    np.testing.assert_allclose(values, wanted, rtol=1e-3)
    assert all(math.copysign(1, x) == math.copysign(1, y) for x, y in zip(values, wanted, strict=True) if y == y)
