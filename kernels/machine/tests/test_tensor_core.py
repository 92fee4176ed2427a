"""What mma, wgmma, ldmatrix, stmatrix and movmatrix compute, element by element; when a wgmma may be issued, and what
it leaves be used (PTX ISA 8.7, 9.7.14.5 and 9.7.15). Compiled kernels: test_dots.py."""

import re

import numpy as np
import pytest
import torch

from kernels.machine.core.faults import UnknownError
from kernels.machine.isa import wgmma
from kernels.machine.isa.mma import FORMS

from .small_ptx import holds, run

FILL = "shl.b32 %r901, %t, 4; mul.wide.u32 %d50, %t, 16; add.s64 %d51, %A, %d50;\n" + "".join(
    f"ld.global.v4.b32 {{%r902, %r903, %r904, %r905}}, [%d51+{i}];\n"
    f"st.shared.v4.b32 [%r901+{i}], {{%r902, %r903, %r904, %r905}};\n" for i in range(0, 1 << 14, 2048)
)  # fmt: skip
SWIZZLED, X, W = 1 << 62 | 1024 >> 4 << 32, 0, 1 << 13
PROXY, BAR, FENCE = "fence.proxy.async.shared::cta;", "bar.sync 0;", "wgmma.fence.sync.aligned;"
COMMIT, WAIT = "wgmma.commit_group.sync.aligned;", "wgmma.wait_group.sync.aligned 0;"


def registers(count: int, first: int = 0) -> str:
    return "{" + ", ".join(f"%r{first + i}" for i in range(count)) + "}"


def mma(x=SWIZZLED | X >> 4, w=SWIZZLED | W >> 4, keep: str = "%p1", turns: str = "0, 0", first: int = 0) -> str:
    return (
        f"wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {registers(4, first)}, {x}, {w}, {keep}, 1, 1, {turns};"
    )


PIECES = dict(
    FILL=FILL, PROXY=PROXY, BAR=BAR, FENCE=FENCE, MMA=mma(), OTHER=mma(first=4), ONE="@%one " + mma(),
    REGISTERS=mma(registers(4, 902), turns="0"), COMMIT=COMMIT, WAIT=WAIT, WAIT1=WAIT.replace("0;", "1;"),
    FAR=mma(w=SWIZZLED | 1 << 14 >> 4), LANES=mma(keep="%one"), MIXED=mma("%d1"),
    USE="st.global.b32 [%d52], %r0;", ADD="add.f32 %r0, %r0, %r0;",
    USE4="st.global.b32 [%d52], %r4;",
    HALVES=mma().replace("f32.bf16.bf16 {%r0, %r1, %r2, %r3}", "f16.f16.f16 {%r0, %r1}"),
    TAKE="mov.b32 {%h0, %h1}, %r0; mov.b16 %h2, %h0;", JOIN="mov.b32 %r0, {%h2, %h1};",
    USE_HALF="st.global.b16 [%d52], %h2;", SWAP="mov.b32 %r0, {%h1, %h0};", WIDEN="cvt.u32.u16 %r50, %h2;",
    NOT="not.b32 %r0, %r0;", XOR="xor.b32 %r0, %r0, %r1;", EQUAL="setp.eq.b32 %p2, %r0, %r1;",
    SHIFT="shr.u32 %r0, %r0, 16;",
    MOVE="mov.b32 %r0, %r0;", DIRTY="st.shared.b32 [%r901], %l;",
)  # fmt: skip
ORDERS = """
ok: FILL PROXY BAR FENCE MMA MMA COMMIT WAIT USE ADD | FILL BAR PROXY FENCE MMA COMMIT WAIT BAR DIRTY
ok: FILL PROXY BAR FENCE MMA COMMIT WAIT DIRTY
ok: FILL PROXY BAR FENCE MMA COMMIT MOVE MMA COMMIT WAIT USE
ok: FILL PROXY BAR FENCE MMA COMMIT FENCE OTHER COMMIT WAIT1 USE WAIT USE4
ok: FILL PROXY BAR FENCE REGISTERS COMMIT FENCE REGISTERS COMMIT WAIT USE
no wgmma.fence: FILL PROXY BAR FENCE REGISTERS COMMIT REGISTERS COMMIT WAIT
accumulator of a wgmma that is not waited for: FILL PROXY BAR FENCE MMA COMMIT WAIT1 ADD WAIT
accumulator of a wgmma that is not waited for: FILL PROXY BAR FENCE MMA COMMIT FENCE OTHER COMMIT WAIT1 USE4 WAIT
accumulator of a wgmma that is not waited for: FILL PROXY BAR FENCE MMA WAIT USE
accumulator of a wgmma that is not waited for: FILL PROXY BAR FENCE MMA NOT | FILL PROXY BAR FENCE MMA XOR
accumulator of a wgmma that is not waited for: FILL PROXY BAR FENCE MMA EQUAL | FILL PROXY BAR FENCE MMA SHIFT
ok: FILL PROXY BAR FENCE HALVES COMMIT TAKE WAIT USE_HALF WIDEN JOIN FENCE HALVES COMMIT WAIT
ok: FILL PROXY BAR FENCE HALVES TAKE JOIN HALVES TAKE COMMIT WAIT USE USE_HALF
accumulator of a wgmma that is not waited for: FILL PROXY BAR FENCE HALVES TAKE USE_HALF
accumulator of a wgmma that is not waited for: FILL PROXY BAR FENCE HALVES TAKE SWAP
accumulator of a wgmma that is not waited for: FILL PROXY BAR FENCE HALVES TAKE WIDEN COMMIT WAIT
no wgmma.fence: FILL PROXY BAR MMA COMMIT WAIT | FILL PROXY BAR FENCE MMA COMMIT OTHER COMMIT WAIT
no wgmma.fence: FILL PROXY BAR FENCE MMA COMMIT WAIT MMA COMMIT WAIT
wrote, with no fence.proxy.async: FILL BAR FENCE MMA COMMIT WAIT | PROXY FILL BAR FENCE MMA COMMIT WAIT
that (.* wrote, with no order|nobody wrote): FILL PROXY FENCE MMA COMMIT WAIT
overwrites shared memory while reader: FILL PROXY BAR FENCE MMA COMMIT FENCE OTHER COMMIT WAIT1 BAR DIRTY WAIT
ends while its wgmma: FILL PROXY BAR FENCE MMA COMMIT | FILL PROXY BAR FENCE MMA WAIT
not all lanes of the warp take part: FILL PROXY BAR FENCE ONE
scale-d of a wgmma differs between the lanes: FILL PROXY BAR FENCE LANES
a matrix descriptor differs between the lanes: FILL PROXY BAR FENCE MIXED
past the end of shared memory: FILL PROXY BAR FENCE FAR
"""


@pytest.mark.parametrize("row", ORDERS.strip().splitlines())
def test_wgmma_is_asynchronous(row):
    """9.7.15.4, 9.7.15.7: registers take a fence before and a wait after, shared memory a proxy fence and a wait."""
    start = "mul.wide.u32 %d52, %t, 4; add.s64 %d52, %B, %d52; mov.pred %p1, 0; cvt.u64.u32 %d1, %l;\n"
    holds(row, PIECES, start, np.zeros(1 << 14, np.uint8), np.zeros(128, np.uint32), threads=128, shared=1 << 14)


@pytest.mark.parametrize(
    "row",
    [
        "ok: FILL PROXY BAR FENCE MMA COMMIT WAIT BAR DIRTY",
        "(overwrites|reads) shared memory .*: FILL PROXY BAR FENCE MMA COMMIT WAIT DIRTY",
    ],
)
def test_a_wait_reaches_no_other_warpgroup(row):
    """9.7.15.7.2: a group is of one warpgroup; `test_wgmma_is_asynchronous` has one."""
    start = "mov.pred %p1, 0; setp.lt.u32 %p2, %w, 4;\n"  # one of them fills
    pieces = PIECES | dict(FILL=FILL.replace("st.shared", "@%p2 st.shared"))
    holds(row, pieces, start, np.zeros(1 << 15, np.uint8), threads=256, shared=1 << 15, seeds=range(8))


@pytest.mark.parametrize(
    ("line", "match"),
    [
        (mma(w=SWIZZLED | 1 << 49), "a matrix descriptor with a base offset"),
        (mma().replace("wgmma.mma_async.", "wgmma.mma_async.sp."), r"wgmma\.mma_async\.sp\."),
        (mma().replace("k16.f32.bf16.bf16", "k256.s32.b1.b1.and.popc"), "of types that this machine does not know"),
        ("mma.sp.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%r1}, {%r2}, {%r3}, {%r4}, %r5, 0;", r"mma\.sp\.sync"),
        ("mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 {%r1}, {%r2}, {%r3}, {%r4};", r"mma\.sync\.aligned\.m8n8k4"),
        ("ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {%r1, %r2}, [%r3];", "another form than m8n8 of 16 bits"),
        ("ldmatrix.sync.aligned.m8n8.x1.b16 {%r1}, [%d3];", "another form than m8n8 of 16 bits"),
    ],
)
def test_what_is_not_modelled_is_refused_by_name(line, match):
    with pytest.raises(UnknownError, match=match):
        run(f"mov.pred %p1, 0; {FENCE} {line}", threads=128, shared=1 << 14)


TORCH = {
    "bf16": torch.bfloat16, "f16": torch.float16, "tf32": torch.float32, "f32": torch.float32, "f64": torch.float64,
    "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "s8": torch.int8, "u8": torch.uint8, "s32": torch.int32,
}  # fmt: skip
LANE, THREAD = np.arange(32)[:, None], np.arange(128)[:, None]


def whole(shape: tuple[int, ...], kind: str, seed: int) -> np.ndarray:
    """From -4 to 4; beside the limit where integers add up."""
    numbers = np.random.default_rng(seed).integers(0 if kind in ("u8", "u4") else -4, 5, shape)
    return numbers + (2**31 - 20 if kind == "s32" else 0)


def encoded(values: np.ndarray, kind: str) -> np.ndarray:
    """Return bytes. What tf32 has in its lowest bits counts for nothing."""
    if kind in ("s4", "u4"):
        return (values[..., ::2] & 15 | (values[..., 1::2] & 15) << 4).astype(np.uint8)
    data = torch.from_numpy(values.astype(np.float64)).to(TORCH[kind]).contiguous().view(torch.uint8).numpy()
    return (data.view(np.uint32) | 0x1FFF).view(np.uint8) if kind == "tf32" else data


def decoded(data: np.ndarray, kind: str) -> np.ndarray:
    return torch.from_numpy(data).view(TORCH[kind]).double().numpy()


def limited(sums: np.ndarray, op: str) -> np.ndarray:
    """Integers saturate, or wrap."""
    if ".s32" not in op:
        return sums
    return sums.clip(-(2**31), 2**31 - 1) if ".satfinite" in op else (sums + 2**31) % 2**32 - 2**31


def moves(kind: str, array: str, first: int, count: int, width: int = 32, thread: str = "%l") -> str:
    """Have each thread load (ld) or store (st) `count` registers of `width` bits, which lie together in an array."""
    text = f"mul.wide.u32 %d90, {thread}, {count * width // 8}; add.s64 %d90, {array}, %d90;\n"
    for i in range(count):
        register, place = f"%{'d' if width == 64 else 'r'}{first + i}", f"[%d90+{i * width // 8}]"
        operands = f"{register}, {place}" if kind == "ld" else f"{place}, {register}"
        text += f"{kind}.global.b{width} {operands};\n"
    return text


# Shape of mma; types; of element i of lane 4 q + t: row and column of A, and row of B, whose column is q (9.7.14.5.2 to
# 9.7.14.5.10). A warp's A of wgmma is as that of the longest mma (figures 148, 150 and 152).
FRAGMENTS = """
m8n8k4    f64              q                      t                             t
m8n8k16   s8 u8            q                      4 * t + i                     4 * t + i
m16n8k4   tf32 f64         q + 8 * i              t                             t
m16n8k8   f16 bf16         q + 8 * (i > 1)        2 * t + i % 2                 2 * t + i
m16n8k8   tf32 f64         q + 8 * (i % 2)        t + 4 * (i > 1)               t + 4 * i
m16n8k16  f16 bf16         q + 8 * (i // 2 % 2)   2 * t + i % 2 + 8 * (i > 3)   2 * t + i % 2 + 8 * (i > 1)
m16n8k16  f64              q + 8 * (i % 2)        2 * (i - i % 2) + t           t + 4 * i
m16n8k16  s8 u8 e4m3 e5m2  q + 8 * (i > 3)        4 * t + i % 4                 4 * t + i
m16n8k32  s8 u8 e4m3 e5m2  q + 8 * (i // 4 % 2)   4 * t + i % 4 + 16 * (i > 7)  4 * t + i % 4 + 16 * (i > 3)
m8n8k32   s4 u4            q                      8 * t + i                     8 * t + i
m16n8k32  s4 u4            q + 8 * (i > 7)        8 * t + i % 8                 8 * t + i
m16n8k64  s4 u4            q + 8 * (i // 8 % 2)   8 * t + i % 8 + 32 * (i > 15)  8 * t + i % 8 + 32 * (i > 7)
"""
ROWS = [re.split(r"\s{2,}", row) for row in FRAGMENTS.strip().splitlines()]
A_OF = {kind: row[2:4] for row in ROWS for kind in row[1].split()}
MMAS = [*FORMS]
WGMMAS = [*wgmma.FORMS]


def held(lane: np.ndarray, count: int, *formulas: str) -> tuple[np.ndarray, ...]:
    """Return rows and columns, [lanes, count], of the elements that each lane holds."""
    names = dict(q=lane % 32 // 4, t=lane % 4, i=np.arange(count), w=lane // 32)
    return np.broadcast_arrays(*(eval(formula, names) for formula in formulas))


@pytest.mark.parametrize("op", [*MMAS, *(op.replace(".col.", ".col.satfinite.") for op in MMAS if ".s32." in op)])
def test_mma_multiplies_fragments(op):
    """Three: another A, then another B, which adds to the first one's sums."""
    shape, total, x_kind, w_kind = (op.split(".")[i] for i in (3, -1, -3, -2))
    m, k = (int(text) for text in re.fullmatch(r"m(\d+)n8k(\d+)", shape).groups())
    ((*_, row, column, w_row),) = (row for row in ROWS if row[0] == shape and x_kind in row[1].split())
    places = {
        "x": held(LANE, m * k // 32, row, column), "w": held(LANE, k // 4, w_row, "q"),
        "c": held(LANE, m // 4, "q + 8 * (i > 1)", "2 * t + i % 2"),
    }  # fmt: skip
    xs, ws, c = (whole((2, m, k), x_kind, 1), whole((2, k, 8), w_kind, 2), whole((m, 8), total, 3))
    given = [encoded(np.concatenate([x[places["x"]] for x in xs], 1), x_kind)]
    given += [encoded(np.concatenate([w[places["w"]] for w in ws], 1), w_kind), encoded(c[places["c"]], total)]
    width = 64 if total == "f64" else 32
    x_count, w_count, count = (array.size // 32 * 8 // width for array in given)
    x0, w0, c0, d0, d1 = 0, x_count, x_count + w_count, 40, 60

    def registers(first: int, size: int) -> str:
        return "{" + ", ".join(f"%{'d' if width == 64 else 'r'}{first + i}" for i in range(size)) + "}"

    def multiply(d: int, x: int, w: int, c: int) -> str:
        x, w = registers(x0 + x * x_count // 2, x_count // 2), registers(w0 + w * w_count // 2, w_count // 2)
        return f"{op} {registers(d, count)}, {x}, {w}, {registers(c, count)};\n"

    body = moves("ld", "%A", x0, x_count, width) + moves("ld", "%B", w0, w_count, width)
    body += moves("ld", "%C", c0, count, width) + multiply(d0, 0, 0, c0) + multiply(d1, 1, 0, c0)
    body += multiply(d0, 0, 1, d0) + moves("st", "%D", d0, count, width) + moves("st", "%E", d1, count, width)
    out = run(body, *given, np.zeros_like(given[2]), np.zeros_like(given[2]), seeds=[0])[3:]
    sums = [limited(x @ ws[0] + c, op) for x in xs]
    for expected, data in zip((limited(xs[0] @ ws[1] + sums[0], op), sums[1]), out, strict=True):
        assert (decoded(data, total) == expected[places["c"]]).all()


# Which side is contiguous, and units of 16 bytes in the swizzle: where element (mn, k) lies, T of them in 16 bytes, in
# the notation of the table of canonical layouts (9.7.15.5.1.2.1.3); LBO and SBO in bytes, as multiples of 16 w.
LAYOUTS = """
MN 1  mn % T + mn // T * SBO + k % 8 * T + k // 8 * LBO                                         64  8
MN 2  mn % T + mn // T % w * T + mn // (w * T) * LBO + k % 8 * w * T + k // 8 * SBO             16  8
MN 4  mn % T + mn // T % w * T + mn // (w * T) * LBO + k % 8 * w * T + k // 8 * SBO             16  8
MN 8  mn % T + mn // T % w * T + mn // (w * T) * LBO + k % 8 * w * T + k // 8 * SBO             16  8
K 1   mn % 8 * T + mn // 8 * SBO + k % T + k // T * LBO                                         8  16
K 2   mn % 8 * w * T + mn // 8 * SBO + k % T + k // T * T                                       1  8
K 4   mn % 8 * w * T + mn // 8 * SBO + k % T + k // T * T                                       1  16
K 8   mn % 8 * w * T + mn // 8 * SBO + k % T + k // T * T                                       1  8
"""
LAYOUTS = {row[0]: row[1:] for row in (re.split(r"\s{2,}", line) for line in LAYOUTS.strip().splitlines())}


def placed(shared: np.ndarray, start: int, values: np.ndarray, kind: str, layout: str) -> int:
    """Put an operand, [rows, K], into shared memory. Return its descriptor (9.7.15.5.1.2.2)."""
    formula, *strides = LAYOUTS[layout]
    size, width = TORCH[kind].itemsize, int(layout.split()[1])
    unit, (lead, stride) = 16 // size, (int(text) * 16 * width for text in strides)
    names = dict(mn=np.arange(len(values))[:, None], k=np.arange(values.shape[1]), T=unit, w=width)
    at = start + eval(formula, names | dict(LBO=lead // size, SBO=stride // size)) * size
    at ^= (at >> 7 & width - 1) << 4
    assert len(np.unique(at)) == at.size
    for byte in range(size):
        shared[at + byte] = encoded(values, kind).reshape(*values.shape, size)[:, :, byte]
    base = 7 << 49 if width == 1 else 0  # means nothing there
    return start >> 4 | lead >> 4 << 16 | stride >> 4 << 32 | base | {1: 0, 2: 3, 4: 2, 8: 1}[width] << 62


@pytest.mark.parametrize("op", [*WGMMAS, *(f"{op}.satfinite" for op in WGMMAS if ".s32." in op)])
def test_wgmma_multiplies_in_every_layout(op):
    """A is in registers or in shared memory; sums are added to or not; either operand is negated, or none."""
    total, x_kind, w_kind = op.removesuffix(".satfinite").split(".")[-3:]
    k, rest, integers = 32 // TORCH[x_kind].itemsize, op.split(".m64")[1], total == "s32"
    layouts = [layout for layout in LAYOUTS if layout.startswith("K") or k == 16]
    places = held(THREAD, 64 * k // 128, f"16 * w + {A_OF[x_kind][0]}", A_OF[x_kind][1])
    for number, x_layout in enumerate(["registers", *layouts]):
        n = [8, 24, 16, 32][number % 2 + 2 * integers]
        w_layout = layouts[(3 * number + 1) % len(layouts)]
        scales = [(1, 1), (-1, 1), (1, -1), (-1, -1)][number % 4 if not integers else 0]
        x, w, c = whole((64, k), x_kind, number), whole((n, k), w_kind, 99), whole((64, n), total, 98)
        shared = np.zeros(1 << 14, np.uint8)
        w_at, x_at = placed(shared, W, w, w_kind, w_layout), "{%r800, %r801, %r802, %r803}"
        if x_layout != "registers":
            x_at = str(placed(shared, X, x, x_kind, x_layout))
        turns = [int(layout.startswith("MN")) for layout in (x_layout, w_layout) if layout != "registers"]
        tail = ", ".join(map(str, [*([] if integers else scales), *(turns if k == 16 else [])]))
        sums = held(THREAD, n // 2, "16 * w + q + 8 * (i // 2 % 2)", "8 * (i // 4) + 2 * t + i % 2")
        before, count = encoded(c[sums], total), n // 2 * TORCH[total].itemsize // 4
        body = FILL + moves("ld", "%B", 0, count, thread="%t") + moves("ld", "%C", 800, 4, thread="%t")
        body += f"{PROXY} {BAR} {FENCE} "
        expected, products = c.astype(float), scales[0] * scales[1] * (x @ w.T)
        for step, keeps in enumerate([number % 3 > 0, number % 2]):
            body += f"mov.pred %p{step}, {int(keeps)}; "
            body += f"wgmma.mma_async.sync.aligned.m64n{n}{rest} {registers(count)}, "
            body += ", ".join(filter(None, [x_at, str(w_at), f"%p{step}", tail])) + ";\n"
            expected = limited(products + expected * keeps, op)
        body += f"{COMMIT} {WAIT}" + moves("st", "%B", 0, count, thread="%t")
        given = shared, before, encoded(x[places], x_kind)
        out = decoded(run(body, *given, threads=128, shared=1 << 14, seeds=[number])[1], total)
        assert (out == expected[sums]).all(), (x_layout, w_layout, n)


def elements(rows: np.ndarray, turned: bool) -> np.ndarray:
    """Return which elements, of 16 bits, each lane has of matrices with these rows, 8 each: [32, matrices, 2] (figures
    104 and 107)."""
    row, column = held(LANE, 2, *(("2 * t + i", "q") if turned else ("q", "2 * t + i")))
    return (rows.reshape(-1, 8)[:, row] * 8 + column).transpose(1, 0, 2)


@pytest.mark.parametrize("turned", ["", ".trans"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_matrices_are_moved(count, turned):
    """Two loads, which may be done at once, and a store to other places; shared memory begins and ends as array A."""
    random, form = np.random.default_rng(count), f"x{count}{turned}.shared.b16"
    places, target = random.permutation(64).reshape(2, 32), random.permutation(64)[:32]
    data, words = (random.integers(0, 1 << 16, size, np.uint16) for size in (512, (32, count, 2)))
    body = moves("ld", "%A", 100, 8) + moves("ld", "%B", 80, 3) + moves("ld", "%C", 20, count)
    shared = [f"[%r90+{4 * i}], %r{100 + i};\n" for i in range(8)]
    body += "shl.b32 %r90, %l, 5;\n" + "".join(f"st.shared.b32 {text}" for text in shared)
    body += f"bar.sync 0; ldmatrix.sync.aligned.m8n8.{form} {registers(count, 40)}, [%r80+0];\n"
    body += f"ldmatrix.sync.aligned.m8n8.{form} {registers(count, 50)}, [%r81];\n"
    body += f"bar.sync 0; stmatrix.sync.aligned.m8n8.{form} [%r82], {registers(count, 20)}; bar.sync 0;\n"
    body += "".join("ld.shared.b32 {1}, {0};\n".format(*text.strip(";\n").split(", ")) for text in shared)
    body += moves("st", "%A", 100, 8) + moves("st", "%C", 40, count) + moves("st", "%D", 50, count)
    given = data, 16 * np.stack([*places, target], 1).astype(np.uint32), words, np.zeros_like(words)
    stored, _, *loaded = run(body, *given, shared=1024, seeds=[0])
    for actual, where in zip(loaded, places, strict=True):
        assert (actual == data[elements(where[: 8 * count], bool(turned))]).all()
    data[elements(target[: 8 * count], bool(turned))] = words
    assert (stored == data).all()


def test_a_matrix_is_turned():
    """Figures 109 and 110."""
    data = np.arange(64, dtype=np.uint16)
    body = moves("ld", "%A", 1, 1, 32) + "movmatrix.sync.aligned.m8n8.trans.b16 %r2, %r1;" + moves("st", "%A", 2, 1, 32)
    assert (run(body, data, seeds=[0])[0].reshape(8, 8) == data.reshape(8, 8).T).all()


LOAD, MULTIPLY = "ldmatrix.sync.aligned.m8n8.x1.shared.b16", "mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32"
NEIGHBOURS = dict(
    PUT="mov.b32 %r1, 64; shl.b32 %r2, %l, 2; st.shared.b32 [%r2], %r1; st.shared.b32 [%r2+128], 5; bar.sync 0;",
    GET=f"{LOAD} {{%r3}}, [%r2];", NEXT=f"{LOAD} {{%r4}}, [%r3];", FAR=f"{LOAD} {{%r5}}, [%r2+512];",
    NEVER="setp.ne.u32 %p1, %l, %l;", SKIPPED=f"@%p1 {LOAD} {{%r4}}, [%r2+128];", TAKEN=f"@!%p1 {LOAD} {{%r4}}, [%r2];",
    TICK="mov.u64 %d1, %clock64;", TOCK="mov.u64 %d2, %clock64; sub.s64 %d2, %d2, %d1; st.global.b32 [%A], %d2;",
    SOME=f"@%one {LOAD} {{%r3}}, [%r2];", SHOW="st.global.b32 [%A], %r4;", ROW="mul.lo.u32 %r2, %l, 16;",
    MULTIPLY=f"{MULTIPLY} {{%r20, %r21, %r22, %r23}}, {{%r2, %r2}}, {{%r2}}, {{%r2, %r2, %r2, %r2}};",
    SOME_MULTIPLY=f"@%one {MULTIPLY} {{%r20, %r21, %r22, %r23}}, {{%r2, %r2}}, {{%r2}}, {{%r2, %r2, %r2, %r2}};",
)  # fmt: skip
NEIGHBOURS_ROWS = r"""
64: PUT ROW GET NEXT SHOW
64: PUT ROW NEVER TAKEN SKIPPED SHOW | PUT ROW NEVER GET TAKEN GET SKIPPED SHOW
68: PUT ROW TICK GET GET TOCK
ok: PUT ROW GET GET MULTIPLY MULTIPLY
PTX line \d+: ldmatrix\S+ \{%r5\}, \[%r2\+512\]\S* .*nobody wrote: PUT ROW GET FAR NEXT | PUT ROW FAR GET
not all lanes of the warp take part in it: PUT ROW SOME | PUT SOME_MULTIPLY
"""


@pytest.mark.parametrize("row", NEIGHBOURS_ROWS.strip().splitlines())
def test_what_is_done_at_once_is_as_one_by_one(row):
    """A load takes its address from the one before it; a fault is that of its own instruction."""
    holds(row, NEIGHBOURS, "", np.zeros(1, np.uint32), threads=32, shared=1024, seeds=[0])
