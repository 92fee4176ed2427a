"""Arithmetic against Python's own numbers (PTX ISA 8.7, 9.7.1, 9.7.3, 9.7.6, 9.7.8 and 9.7.9)."""

import re
from itertools import product

import numpy as np
import pytest
from small_ptx import run

REGISTER = {1: "%p", 8: "%h", 16: "%h", 32: "%r", 64: "%d"}
FLOATS = [0.0, -0.0, 1.0, -1.5, 2.5, 3.0e38, 1e-40, np.inf, np.nan, 0.1, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20]


def bits(kind: str) -> int:
    return 1 if kind == "pred" else int(kind[1:])


def valued(x: int, kind: str):
    """What the lowest bits of x mean."""
    w = bits(kind)
    x &= (1 << w) - 1
    if kind[0] == "f":
        return float(np.uint64(x).astype(f"u{w // 8}").view(f"f{w // 8}"))
    return x - (1 << w) if kind[0] == "s" and x >> w - 1 else x


def masked(x, kind: str) -> int:
    """The bits of x."""
    if kind[0] != "f":
        return int(x) & (1 << bits(kind)) - 1
    with np.errstate(all="ignore"):
        return int(np.float64(x).astype(f"f{bits(kind) // 8}").view(f"u{bits(kind) // 8}"))


def edges(kind: str) -> list:
    w = bits(kind)
    integers = [0, 1, 2, 7, w - 1, w, w + 1, 255, 1 << w - 1, (1 << w - 1) - 1, -1, -2, -9, 0x9234_5678_9ABC_DEF1]
    return [0, 1] if w == 1 else [valued(masked(x, kind), kind) for x in (FLOATS if kind[0] == "f" else integers)]


def evaluate(line: str, kinds: list[str], rows: list[tuple], result: str) -> list[int]:
    """Return the bits that {d} gets from {a}, {b}, {c} in each row, each in a register of its own width."""
    threads = -(-len(rows) // 32) * 32
    given, registers = np.zeros((len(kinds), threads), np.uint64), dict(d=f"{REGISTER[bits(result)]}0")
    body = "mul.wide.u32 %d50, %t, 8; add.s64 %d51, %A, %d50; add.s64 %d52, %B, %d50;\n"
    for i, kind in enumerate(kinds):
        given[i, : len(rows)] = [masked(row[i], kind) for row in rows]
        registers["abc"[i]] = name = f"{REGISTER[bits(kind)]}{i + 1}"
        load = f"ld.global.b{max(bits(kind), 8)} %s, [%%d51+{8 * threads * i}];"
        body += (load % "%h9") + f"setp.ne.u16 {name}, %h9, 0;\n" if kind == "pred" else load % name
    store = "selp.b32 %r9, 1, 0, {d}; st.global.b32 [%d52], %r9;" if result == "pred" else "st.global.b{w} [%d52], {d};"
    body += f"{line.format(**registers)}\n{store.format(w=bits(result), **registers)}"
    out = run(body, given, np.zeros(threads, np.uint64), threads=threads, seeds=[0])[1]
    return [int(x) for x in out[: len(rows)]]


def towards_zero(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def extracted(a: int, start: int, length: int, kind: str) -> int:
    """As the semantics of bfe have it, bit by bit (9.7.1.19)."""
    start, length, top = start & 255, length & 255, bits(kind) - 1
    sign = 0 if kind[0] == "u" or not length else a >> min(start + length - 1, top) & 1
    return sum((a >> start + i & 1 if i < length and start + i <= top else sign) << i for i in range(top + 1))


def least(a, b):
    """Of NaN and a number the number (9.7.3.11)."""
    return a if b != b or a < b else b


def to_bf16(x: float) -> int:
    """The nearer of two neighbours; of both as near the even one. The one beyond the largest counts as 2^128."""
    if x != x:
        return 0x7FFF
    low = masked(abs(x), "f32") >> 16
    near = [min(valued(word << 16, "f32"), 2.0**128) for word in (low, low + 1)]
    return (
        min((abs(abs(x) - y), (low + i) % 2, low + i) for i, y in enumerate(near))[-1] | masked(x, "f32") >> 16 & 0x8000
    )


# What each address takes (sums, products, masks) no kernel of `kernels.machine` would be exact without.
# Instruction; kinds of a, b, c > of d, where K is each of the types that follow, W is twice as wide; what d gets.
TABLE = r"""
mul.f32               f32 f32 > f32     -                      a * b
fma.rn.f32 {d}, {a}, {b}, 0f40000000;   f32 f32 > f32   -      a * b + 2
mul.hi.K              K K > K           s32 u32 s64 u64        a * b >> w
mul.wide.K            K K > W           s16 u16 s32 u32        a * b
mad.lo.K              K K K > K         s32 u32 s64            a * b + c
mad.wide.K            K K W > W         s32 u32                a * b + c
div.K                 K K > K           s32 u32 s64 u64        towards_zero(a, b)
rem.K                 K K > K           s32 u32 s64 u64        a - towards_zero(a, b) * b
min.K                 K K > K           s32 u32 s64 f32        least(a, b)
max.K                 K K > K           s32 s64 f32            -least(-a, -b)
neg.K                 K > K             s16 s32 s64 f32        -a
abs.K                 K > K             s32 s64 f32            abs(a)
not.K                 K > K             b16 b32 b64 pred       ~a
shl.K                 K u32 > K         b16 b32 b64            a << b if b < w else 0
shr.K                 K u32 > K         s16 u32 s32 s64        a >> min(b, 99)
shl.b32 {d}, {a}, 5;   b32 > b32         -                      a << 5
bfe.K                 K u32 u32 > K     u32 s32 u64 s64        extracted(a, b, c, kind)
selp.K                K K pred > K      b16 s32 b64 f32        a if c else b
setp.eq.K             K K > pred        s16 b32 u64 f32        a == b
setp.ne.K             K K > pred        u16 s32 b64            a != b
setp.lt.K             K K > pred        s16 u16 s32 u32 f32    a < b
setp.ge.K             K K > pred        s32 u32 s64 f32        a >= b
setp.hi.u32           u32 u32 > pred    -                      a > b
setp.lt.and.K {d}, {a}, {b}, !{c};   K K pred > pred   s32 u32    a < b and not c
setp.lt.or.K {d}, {a}, {b}, {c};     K K pred > pred   s32 u32    a < b or c
mov.K                 K > K             b16 u32 b64 pred f32   a
mov.pred {d}, -1;                 b32 > pred       -           1
mov.b64 {d}, {{{a}, {b}}};        b32 b32 > b64    -           a | b << 32
@{b} add.s32 {a}, {a}, 5; @!{b} mov.b32 {a}, 9; mov.b32 {d}, {a};  u32 pred > u32   -   a + 5 if b else 9
mov.b32 {{{d}, _}}, {a};          b32 > b16        -           a
cvt.u64.K             K > u64           u32 s32 s16            a
cvt.s32.K             K > s32           s64 s16 s8             a
cvt.s16.s8 {d}, {a};  s8 > u32          -                      a
cvt.s8.s32 {d}, {a};  s32 > u32         -                      valued(a, "s8")
cvt.rn.f32.K          K > f32           s32 u32 s64            a
cvt.rzi.s64.f32       f32 > s64         -                      a if abs(a) < 2**63 else None
cvt.rn.bf16.f32       f32 > b16         -                      to_bf16(a)
cvt.rn.bf16x2.f32     f32 f32 > b32     -                      to_bf16(a) << 16 | to_bf16(b)
cvt.rn.f16.f32        f32 > b16         -                      masked(a, "f16")
cvt.rn.f16x2.f32      f32 f32 > b32     -                      masked(a, "f16") << 16 | masked(b, "f16")
cvt.f32.bf16          b16 > f32         -                      valued(a << 16, "f32")
cvt.f32.f16           b16 > f32         -                      valued(a, "f16")
"""
ROWS = [
    (op, kinds, kind, meant)
    for op, kinds, types, meant in (re.split(r"\s{2,}", row, maxsplit=3) for row in TABLE.strip().splitlines())
    for kind in types.split()
]


@pytest.mark.parametrize(("op", "kinds", "kind", "meant"), ROWS, ids=[f"{row[0]}-{row[2]}" for row in ROWS])
def test_a_line_of_the_table(op, kinds, kind, meant):
    """What is unspecified is left out: division by 0, floats beyond all whole numbers. A NaN is any."""
    wide = f"{kind[0]}{2 * bits(kind)}" if kind[1:].isdigit() else ""
    *given, _, result = (text.replace("K", kind).replace("W", wide) for text in kinds.split())
    line = op if ";" in op else f"{op} {', '.join(['{d}', '{a}', '{b}', '{c}'][: len(given) + 1])};"
    rows = list(product(*(edges(operand) for operand in given[:2])))
    if len(given) == 3:
        rows = [(*row, c) for i, row in enumerate(rows) for c in (edges(given[2]) * 2)[i % 5 :: 5]]
    rows = [row for row in rows if not (op.startswith(("div", "rem")) and row[1] == 0)]
    names = dict(globals(), kind=kind, w=bits(given[0]))
    expected = [eval(meant, names, dict(zip("abc", row, strict=False))) for row in rows]
    rows, expected = zip(*((row, x) for row, x in zip(rows, expected, strict=True) if x is not None), strict=True)
    out = evaluate(line.replace("K", kind), given, rows, result)
    pairs = [(x, masked(y, result)) for x, y in zip(out, expected, strict=True) if result[0] != "f" or y == y]
    assert [x for x, _ in pairs] == [y for _, y in pairs]
    assert all(np.isnan(valued(x, result)) for x, y in zip(out, expected, strict=True) if result[0] == "f" and y != y)
