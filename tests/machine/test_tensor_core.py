"""wgmma (PTX ISA 8.7, 9.7.15), mma (9.7.14.5.8, 9.7.14.5.14), ldmatrix and stmatrix (9.7.14.5.15 and 16)."""

from itertools import product

import numpy as np
import pytest
from small_ptx import holds, run

T, L = np.arange(128), np.arange(32)
TURNS = list(product((0, 1), repeat=2))


def whole_numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).integers(-4, 5, shape).astype(np.float32)


def halves(x: np.ndarray, kind: str) -> np.ndarray:
    """The bits of whole numbers in 16 bits each."""
    return (x.view(np.uint32) >> 16).astype(np.uint16) if kind == "bf16" else x.astype(np.float16).view(np.uint16)


def canonical(i: int, k: int, mode: int, turned: int, rows: int) -> tuple[int, int, int, int]:
    """Of element (i, k) of an operand with 32 along K: its byte, as in CUTLASS's mma_sm90_desc.hpp; the two offsets of
    its descriptor, and by how much a descriptor of the later half along K starts later. Units are of 16 bytes."""
    wide, (u, inner) = 1 << mode, divmod(i if turned else k, 8)
    if not mode:  # turned: ((1,n),(8,k)):((X,SBO),(1,LBO)), else ((8,n),2):((1,SBO),LBO)
        lead, stride, half = 8, 32, 16
        unit = u * stride + k % 8 + k // 8 * lead if turned else i % 8 + i // 8 * stride + u * lead
    elif turned:  # ((wide,n),(8,k)):((1,LBO),(wide,SBO))
        lead, stride, half = 32 * wide, 8 * wide, 16 * wide
        unit = u % wide + u // wide * lead + k % 8 * wide + k // 8 * stride
    else:  # ((8,n),2):((wide,SBO),1), and where a row has 2 units, the next two behind all rows
        lead, stride, half = 1, 8 * wide, 2 if wide > 2 else 2 * rows
        unit = i % 8 * wide + i // 8 * stride + u % wide + u // wide * wide * rows
    byte = 16 * unit
    return (byte ^ (byte >> 7 & wide - 1) << 4) + 2 * inner, 16 * lead, 16 * stride, 16 * half


def laid_out(x: np.ndarray, kind: str, mode: int, turned: int, start: int) -> tuple[np.ndarray, list[int]]:
    """The bytes of an operand, and descriptors of both of its halves (9.7.15.5.1.2.2)."""
    image, words = np.zeros(1 << 14, np.uint8), halves(x, kind)
    for i, k in np.ndindex(x.shape):
        byte, lead, stride, half = canonical(i, k, mode, turned, len(x))
        image[byte : byte + 2] = words[i, k : k + 1].view(np.uint8)
    layout = (0, 3, 2, 1)[mode] << 62 | stride >> 4 << 32 | lead >> 4 << 16
    return image, [layout | start + j * half >> 4 for j in (0, 1)]


FILL = "shl.b32 %r901, %t, 4; mul.wide.u32 %d50, %t, 16; add.s64 %d51, %A, %d50;\n" + "".join(
    f"ld.global.v4.b32 {{%r902, %r903, %r904, %r905}}, [%d51+{i}];\n"
    f"st.shared.v4.b32 [%r901+{i}], {{%r902, %r903, %r904, %r905}};\n" for i in range(0, 1 << 15, 2048)
)  # fmt: skip
PROXY, BAR, FENCE = "fence.proxy.async.shared::cta;", "bar.sync 0;", "wgmma.fence.sync.aligned;"
COMMIT, WAIT = "wgmma.commit_group.sync.aligned;", "wgmma.wait_group.sync.aligned 0;"
SUMS = "mul.wide.u32 %d52, %t, 4; add.s64 %d52, %B, %d52;\n"


def registers(count: int, first: int = 0) -> str:
    return "{" + ", ".join(f"%r{first + i}" for i in range(count)) + "}"


def mma(n: int, kind: str, x, w, keep: str = "%p1", turns: str = "0, 0", first: int = 0) -> str:
    form = f"wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{kind}.{kind}"
    return f"{form} {registers(n // 2, first)}, {x}, {w}, {keep}, 1, 1, {turns};\n"


def gathered(sums: np.ndarray) -> np.ndarray:
    """Return the tile [64, n] that the registers of 128 threads hold (figure 149)."""
    tile = np.full((64, 2 * len(sums)), np.nan, np.float32)
    for r, values in enumerate(sums):
        tile[16 * (T // 32) + T % 32 // 4 + 8 * (r // 2 % 2), r // 4 * 8 + T % 4 * 2 + r % 2] = values
    return tile


@pytest.mark.parametrize("mode", range(4))
@pytest.mark.parametrize(("x_turned", "w_turned"), [*TURNS, (None, 0), (None, 1)])
def test_wgmma(mode, x_turned, w_turned):
    """Three in a row, each 16 along K; the second one begins anew. None: x from registers (figure 148)."""
    n, kind = ((8, 256, 64, 24)[mode] if x_turned else (128, 16, 40, 72)[mode]), ["bf16", "f16"][mode % 2]
    x, w = whole_numbers(64, 32), whole_numbers(n, 32)
    x_image, xs = laid_out(x, kind, mode, x_turned or 0, 0)
    w_image, ws = laid_out(w, kind, mode, w_turned, 1 << 14)
    loads, turns = "", f"{x_turned}, {w_turned}"
    fragments = np.zeros((8, 128, 2), np.uint16)
    if x_turned is None:
        xs, turns = [registers(4, 910 + 4 * j) for j in (0, 1)], f"{w_turned}"
        for r, e in product(range(8), range(2)):
            fragments[r, :, e] = halves(x, kind)[16 * (T // 32) + T % 32 // 4 + 8 * (r % 2), r // 2 * 8 + T % 4 * 2 + e]
            loads += f"ld.global.b32 %r{910 + r}, [%d53+{512 * r}];\n" * (1 - e)
    body = f"""{FILL} {SUMS} mul.wide.u32 %d53, %t, 4; add.s64 %d53, %C, %d53; {loads} mov.pred %p1, 0;
    mov.pred %p2, -1; {PROXY} {BAR} {FENCE} {mma(n, kind, xs[1], ws[1], "%p2", turns)}
    {mma(n, kind, xs[0], ws[0], "%p1", turns)} {mma(n, kind, xs[1], ws[1], "%p2", turns)} {COMMIT} {WAIT}""" + "".join(
        f"st.global.b32 [%d52+{512 * r}], %r{r};\n" for r in range(n // 2)
    )
    images, sums = np.concatenate([x_image, w_image]), np.zeros((n // 2, 128), np.float32)
    out = run(body, images, sums, fragments, threads=128, shared=1 << 15, seeds=[0, 1])[1]
    assert (gathered(out) == x @ w.T).all()


IMAGE = np.concatenate([laid_out(whole_numbers(rows, 32), "bf16", 3, 0, 0)[0] for rows in (64, 8)])
(X, _), (W, _) = (laid_out(whole_numbers(8, 32), "bf16", 3, 0, start)[1] for start in (0, 1 << 14))
PIECES = dict(
    FILL=FILL, PROXY=PROXY, BAR=BAR, FENCE=FENCE, MMA=mma(8, "bf16", X, W), OTHER=mma(8, "bf16", X, W, first=4),
    ONE="@%one " + mma(8, "bf16", X, W), COMMIT=COMMIT, WAIT=WAIT, WAIT1=WAIT.replace("0;", "1;"),
    FAR=mma(8, "bf16", X, W + (1 << 10)), LANES=mma(8, "bf16", X, W, keep="%one"), MIXED=mma(8, "bf16", "%d1", W),
    USE="st.global.b32 [%d52], %r0;", ADD="add.f32 %r0, %r0, %r0;", USE4="st.global.b32 [%d52], %r4;",
    MOVE="mov.b32 %r0, %r0;", DIRTY="st.shared.b32 [%r901], %l;",
)  # fmt: skip
ORDERS = """
ok: FILL PROXY BAR FENCE MMA MMA COMMIT WAIT USE ADD | FILL BAR PROXY FENCE MMA COMMIT WAIT BAR DIRTY
ok: FILL PROXY BAR FENCE MMA COMMIT MOVE MMA COMMIT WAIT USE
ok: FILL PROXY BAR FENCE MMA COMMIT FENCE OTHER COMMIT WAIT1 USE WAIT USE4
accumulator of a wgmma that is not waited for: FILL PROXY BAR FENCE MMA COMMIT USE WAIT
accumulator of a wgmma that is not waited for: FILL PROXY BAR FENCE MMA COMMIT WAIT1 ADD WAIT
accumulator of a wgmma that is not waited for: FILL PROXY BAR FENCE MMA COMMIT FENCE OTHER COMMIT WAIT1 USE4 WAIT
accumulator of a wgmma that is not waited for: FILL PROXY BAR FENCE MMA WAIT USE
no wgmma.fence: FILL PROXY BAR MMA COMMIT WAIT | FILL PROXY BAR FENCE MMA COMMIT OTHER COMMIT WAIT
no wgmma.fence: FILL PROXY BAR FENCE MMA COMMIT WAIT MMA COMMIT WAIT
wrote, with no fence.proxy.async: FILL BAR FENCE MMA COMMIT WAIT | PROXY FILL BAR FENCE MMA COMMIT WAIT
that (.* wrote, with no order|nobody wrote): FILL PROXY FENCE MMA COMMIT WAIT
overwrites shared memory while reader: FILL PROXY BAR FENCE MMA COMMIT BAR DIRTY WAIT
overwrites shared memory while reader: FILL PROXY BAR FENCE MMA COMMIT FENCE OTHER COMMIT WAIT1 BAR DIRTY WAIT
(overwrites shared memory while reader|reads shared memory that .* wrote): FILL PROXY BAR FENCE MMA COMMIT WAIT DIRTY
ends while its wgmma: FILL PROXY BAR FENCE MMA COMMIT | FILL PROXY BAR FENCE MMA WAIT
not all lanes take part in: FILL PROXY BAR FENCE ONE
scale-d of a wgmma differs between the lanes: FILL PROXY BAR FENCE LANES
a matrix descriptor differs between the lanes: FILL PROXY BAR FENCE MIXED
past the end of shared memory: FILL PROXY BAR FENCE FAR
"""


@pytest.mark.parametrize("row", ORDERS.strip().splitlines())
def test_wgmma_is_asynchronous(row):
    """9.7.15.4, 9.7.15.7: registers take a fence before and a wait after, shared memory a proxy fence and a wait."""
    start = f"{SUMS} mov.pred %p1, 0; cvt.u64.u32 %d1, %l;"
    holds(row, PIECES, start, IMAGE, np.zeros(128, np.uint32), threads=128, shared=1 << 15)


@pytest.mark.parametrize("kind", ["bf16", "f16"])
def test_mma(kind):
    """9.7.14.5.8."""
    x, w, c = whole_numbers(16, 16), whole_numbers(8, 16), whole_numbers(16, 8)
    given, sums = np.zeros((6, 32, 2), np.uint16), np.zeros((4, 32), np.float32)
    for r, e in product(range(4), range(2)):
        given[r, :, e] = halves(x, kind)[L // 4 + 8 * (r % 2), r // 2 * 8 + L % 4 * 2 + e]
        if r < 2:
            given[4 + r, :, e] = halves(w, kind)[L // 4, 8 * r + L % 4 * 2 + e]
            sums[2 * r + e] = c[L // 4 + 8 * r, L % 4 * 2 + e]
    body = "mul.wide.u32 %d50, %l, 4; add.s64 %d51, %A, %d50; add.s64 %d52, %B, %d50;\n"
    body += "".join(f"ld.global.b32 %r{r}, [%d51+{128 * r}];\n" for r in range(6))
    body += "".join(f"ld.global.b32 %r{6 + r}, [%d52+{128 * r}];\n" for r in range(4))
    operands = ", ".join(registers(*part) for part in ((4, 6), (4,), (2, 4), (4, 6)))
    body += f"mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32 {operands};\n"
    _, out = run(body + "".join(f"st.global.b32 [%d52+{128 * r}], %r{6 + r};\n" for r in range(4)), given, sums)
    total = x @ w.T + c
    assert all((out[2 * h + e] == total[L // 4 + 8 * h, L % 4 * 2 + e]).all() for h in (0, 1) for e in (0, 1))


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("turned", ["", ".trans"])
def test_ldmatrix_and_stmatrix(count, turned):
    """Lane i has the address of row i; lane 4 q + t holds elements 2 t and 2 t + 1 of row q, or of column q."""
    matrices = np.arange(64 * count, dtype=np.uint16).reshape(count, 8, 8)
    order = np.random.default_rng(count).permutation(8 * count)
    image = np.zeros((8 * count, 8), np.uint16)
    image[order] = matrices.reshape(-1, 8)
    fragments = np.stack([m.T if turned else m for m in matrices]).reshape(count, 32, 2)
    lanes, names = f"setp.lt.u32 %p1, %l, {8 * count};", registers(count)
    body = f"""{lanes} mul.wide.u32 %d50, %l, 16; add.s64 %d51, %A, %d50; shl.b32 %r50, %l, 4; mov.u32 %r54, 0;
    @%p1 ld.global.v4.b32 {{%r60, %r61, %r62, %r63}}, [%d51]; mul.wide.u32 %d52, %l, 4; add.s64 %d53, %B, %d52;
    add.s64 %d54, %C, %d52; @%p1 ld.global.b32 %r54, [%d54];\n"""
    fill = "@%p1 st.shared.v4.b32 [%r50], {%r60, %r61, %r62, %r63};\n"
    load = f"ldmatrix.sync.aligned.m8n8.x{count}{turned}.shared.b16 {names}, [%r54];\n"
    load += "".join(f"st.global.b32 [%d53+{128 * r}], %r{r};\n" for r in range(count))
    out = run(body + fill + load, image, np.zeros_like(fragments), order.astype(np.uint32) * 16, shared=512)[1]
    assert (out == fragments).all()
    store = "".join(f"ld.global.b32 %r{r}, [%d53+{128 * r}];\n" for r in range(count))
    store += f"stmatrix.sync.aligned.m8n8.x{count}{turned}.shared.b16 [%r54], {names};\n"
    store += "@%p1 ld.shared.v4.b32 {%r60, %r61, %r62, %r63}, [%r50];"
    store += "@%p1 st.global.v4.b32 [%d51], {%r60, %r61, %r62, %r63};"
    out = run(body + store, np.zeros_like(image), fragments, order.astype(np.uint32) * 16, shared=512)[0]
    assert (out == image).all()
