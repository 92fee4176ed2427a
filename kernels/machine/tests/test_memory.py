"""Loads, stores, atomics (PTX ISA 8.7, 9.7.9.8, 9.7.9.11, 9.7.13.5, 9.7.13.6), and which are in order (8.7 to 8.9)."""

import operator
import re
from itertools import accumulate

import numpy as np
import pytest
import torch

from kernels.machine.core.machine import Machine

from .small_ptx import FLAGS, holds, run, until, words


@pytest.mark.parametrize("kind", ["b8", "v4.b16", "v4.b32", "v2.b64"])
def test_lanes_that_take_part_copy_vectors(kind):
    count, width = int(kind[1]) if kind[0] == "v" else 1, int(kind.rpartition("b")[2])
    names = ", ".join(f"%{ {8: 'h', 16: 'h', 32: 'r', 64: 'd'}[width] }{i}" for i in range(count))
    clear, size = "".join(f"mov.b{width} {name}, 7; " for name in names.split(", ")), count * width // 8
    clear, names = clear.replace("b8", "b16"), f"{{{names}}}" if count > 1 else names
    body = f"""mul.lo.u32 %r50, %t, {size}; cvt.u64.u32 %d50, %r50; add.s64 %d51, %A, %d50; add.s64 %d52, %B, %d50;
    mov.u32 %r51, global_smem; add.s32 %r51, %r51, %r50; setp.ne.u32 %p1, %l, 5; {clear}
    @%p1 ld.global.nc.{kind} {names}, [%d51]; @%p1 st.shared.{kind} [%r51], {names};
    @%p1 ld.shared.{kind} {names}, [%r51]; st.global.{kind} [%d52], {names};"""
    given = np.arange(64 * size, dtype=np.uint8).reshape(64, -1)
    _, out = run(body, given, np.zeros_like(given), threads=64, shared=given.size)
    kept = np.full(count, 7, f"u{width // 8}").view(np.uint8)
    assert (out == np.where(np.arange(64)[:, None] % 32 == 5, kept, given)).all()


MEET = "bar.warp.sync -1;"


@pytest.mark.parametrize(("space", "where"), [("global", "%A"), ("shared", "global_smem")])
def test_values_are_extended_by_their_type(space, where):
    """9.4.1: into a wider register, signed ones with their sign, others with zeros. A store takes the low bits."""
    body = f"mov.b64 %d1, 0xFEDCBA9889ABCDEF; st.{space}.b64 [{where}], %d1;\n"
    for i, kind in enumerate(["s8", "u8", "b8", "s16", "u16", "b16", "s32", "u32", "b32"]):
        register, wide = ("%d9", "b64") if "32" in kind else ("%r9", "b32")
        body += f"ld.{space}.{kind} {register}, [{where}]; st.global.{wide} [%B+{8 * i}], {register};\n"
    body += f"""{MEET} st.{space}.b8 [{where}+1], %r9; mov.b32 %r9, 0x12345678; st.{space}.b8 [{where}], %r9; {MEET}
    ld.{space}.b64 %d1, [{where}]; st.global.b64 [%B+72], %d1;"""
    _, out = run(body, np.zeros(1, np.uint64), np.zeros(10, np.uint64), shared=8)
    extended = [0xFFFFFFEF, 0xEF, 0xEF, 0xFFFFCDEF, 0xCDEF, 0xCDEF, 0xFFFFFFFF89ABCDEF, 0x89ABCDEF, 0x89ABCDEF]
    assert out.tolist() == [*extended, 0xFEDCBA9889ABEF78]


EACH = """.local .align 8 .b8 depot[16]; mov.b64 %d1, depot; cvta.local.u64 %d1, %d1; add.s64 %d1, %d1, 8;
mov.u64 %d2, global_smem; cvta.shared.u64 %d2, %d2; and.b32 %r50, %l, 7; mul.wide.u32 %d50, %r50, 4;
add.s64 %d2, %d2, %d50; add.s64 %d3, %A, %d50; setp.lt.u32 %p1, %l, 16; setp.lt.u32 %p2, %l, 8;
selp.b64 %d4, %d2, %d1, %p1; selp.b64 %d4, %d3, %d4, %p2; mul.wide.u32 %d51, %l, 4; add.s64 %d52, %B, %d51;\n"""


def test_generic_addresses():
    """6.4.1.1: lanes 0 to 7 have theirs in global memory, 8 to 15 in shared memory, others a place of their own."""
    body = f"""{EACH} st.b32 [%d4], %l; ld.s32 %r1, [%d4]; @!%p1 st.local.b32 [depot+8], 7; @!%p1 ld.b32 %r1, [%d4];
    @%p1 atom.add.u32 %r1, [%d4], 100; @%p1 ld.volatile.b32 %r1, [%d4];
    st.global.b32 [%d52], %r1; add.s64 %d52, %d52, 128;"""
    for i, space in enumerate(["global", "shared", "shared::cta", "local"]):
        body += f"isspacep.{space} %p3, %d4; selp.b32 %r3, 1, 0, %p3; st.global.b32 [%d52+{128 * i}], %r3;"
    body += MEET + "cvta.to.shared.u64 %d5, %d2; ld.shared.b32 %r4, [%d5]; st.global.b32 [%d52+512], %r4;"
    given, out = run(body, words(8), words(6 * 32), shared=32)
    lanes, rows = np.arange(32), out.reshape(6, 32)
    assert (rows[0] == np.where(lanes < 16, lanes + 100, 7)).all()
    spaces = [lanes < 8, lanes // 8 == 1, lanes // 8 == 1, lanes > 15]
    assert (rows[1:5] == np.array(spaces)).all()
    assert (given == rows[0, :8]).all()
    assert (rows[5] == lanes % 8 + 108).all()


ADDRESSES = """
generic address 0x300000000000008 is in no window: mov.b64 %d1, 0x300000000000008; ld.b32 %r1, [%d1];
an atomic on local memory: mov.b64 %d1, 0x200000000000000; atom.add.u32 %r1, [%d1], 1;
byte 72057662757404672: cvta.to.shared.u64 %d1, %A; ld.shared.b32 %r1, [%d1];
outside of every tensor: cvta.shared.u64 %d1, 8; cvta.to.global.u64 %d1, %d1; ld.global.b32 %r1, [%d1];
ok: prefetch.global.L2::evict_last [%A+99999]; prefetchu.L1 [%A]; applypriority.global.L2::evict_normal [%A], 128;
ok: createpolicy.fractional.L2::evict_last.b64 %d1, 0.5; ld.global.L1::evict_last.L2::cache_hint.b32 %r1, [%A], %d1;
ok: createpolicy.range.global.L2::evict_last.b64 %d1, [%A], 64, 128; st.global.cs.L2::cache_hint.b32 [%A], %r1, %d1;
ok: createpolicy.fractional.L2::evict_first.b64 %d1; red.global.add.L2::cache_hint.u32 [%A], 1, %d1;
ok: ld.mmio.relaxed.sys.global.b32 %r1, [%A]; st.mmio.relaxed.sys.global.b32 [%A], %r1;
no multiple of 4: ld.global.b32 %r1, [%A+2];
no multiple of 16: ld.global.v4.b32 {%r1, %r2, %r3, %r4}, [%A+8];
byte 128 of global memory of 128: atom.global.add.u32 %r1, [%A+128], 1;
address 0x40 is outside of every tensor: mov.b64 %d2, 64; st.global.b32 [%d2], %r1;
byte -4 of shared memory: mov.b32 %r1, 0; st.shared.b32 [%r1+-4], %r1;
no multiple of 8: st.shared.v2.b32 [global_smem+4], {%r1, %r2};
that nobody wrote: st.shared.b16 [global_smem], %h1; ld.shared.b32 %r1, [global_smem];
that nobody wrote: atom.shared.exch.b32 %r1, [global_smem], 1;
ok: st.shared.b32 [global_smem], -1; ld.shared.b32 %r1, [global_smem];
ok: mov.b32 %r1, -8; st.shared.b32 [%r1+8], -1; ld.shared.b32 %r1, [global_smem];
"""


@pytest.mark.parametrize("row", ADDRESSES.strip().splitlines())
def test_addresses(row):
    holds(row, {}, "", words(32), shared=64, seeds=[0])


LOADS = """ca cg cs cv lu weak relaxed.gpu acquire.cta volatile L2::128B L2::64B nc.L1::no_allocate.L2::256B nc.ca
L1::evict_unchanged.L2::evict_first L1::evict_normal"""
KEEPS = "wb cg cs wt relaxed.gpu release.sys volatile L1::no_allocate"


@pytest.mark.parametrize("way", LOADS.split())
def test_what_caches_are_told_changes_no_value(way):
    body = f"ld.global.{way}.v8.b32 {{%r0, %r1, %r2, %r3, %r4, %r5, %r6, %r7}}, [%A];"
    for i, kept in enumerate(KEEPS.split()):
        body += f"st.global.{kept}.b32 [%B+{4 * i}], %r{i};"
    given = np.arange(8, dtype=np.uint32)
    assert (run(body, given, words(8))[1] == given).all()


def signed(number: int) -> int:
    return number - 2**32 if number >= 2**31 else number


def compare_and_swap(old: int, operand: int) -> int:
    return 900 if old == operand else old


CHANGES = {  # the first value, and what becomes of a value and an operand
    "add.u32": (5, operator.add), "add.s32": (5, operator.add), "add.u64": (2**64 - 9, operator.add),
    "exch.b32": (5, lambda old, i: i), "exch.b64": (5, lambda old, i: i), "and.b32": (63, operator.and_),
    "or.b32": (0x100, operator.or_), "xor.b32": (5, operator.xor), "xor.b64": (5, operator.xor),
    "min.s32": (5, lambda old, i: min(old, i, key=signed)), "max.s32": (5, lambda old, i: max(old, i, key=signed)),
    "min.u32": (5, min), "max.u32": (5, max), "max.u64": (5, max), "cas.b16": (5, compare_and_swap),
    "cas.b32": (5, compare_and_swap), "cas.b64": (5, compare_and_swap),
    "inc.u32": (5, lambda old, i: 0 if old >= i else old + 1),
    "dec.u32": (5, lambda old, i: i if old == 0 or old > i else old - 1),
}  # fmt: skip


@pytest.mark.parametrize("space", ["global", "shared::cta"])
@pytest.mark.parametrize("op", CHANGES)
def test_atomics(op, space):
    """Lane i brings i - 9, in an order of lanes that a seed decides, and finds what another one left; some lanes by
    red. Lane 0 is first under seed 0's order rotated by it: the order is read off what each lane found."""
    before, after = CHANGES[op]
    r, size = {"16": ("%h", 2), "32": ("%r", 4), "64": ("%d", 8)}[op[-2:]]
    kind, third = f"b{8 * size}", f", {r}3" if "cas" in op else ""
    first, second = ("%A", "%C") if space == "global" else ("global_smem", "global_smem+8")
    red = (
        f"red.{space}.relaxed.sys.{op} [{second}]" if op[:2] not in ("ca", "ex") else f"atom.{space}.{op} _, [{second}]"
    )
    body = f"""st.{space}.{kind} [{first}], {before}; st.{space}.{kind} [{second}], {before}; mov.{kind} {r}3, 900;
    {MEET} sub.s32 %r1, %l, 9; cvt.s64.s32 %d1, %r1; cvt.u16.u32 %h1, %r1; setp.lt.u32 %p1, %l, 5;
    atom.{space}.{op} {r}2, [{first}], {r}1{third}; @%p1 {red}, {r}1{third};
    mul.wide.u32 %d50, %l, {size}; add.s64 %d51, %B, %d50; st.global.{kind} [%d51], {r}2; {MEET}
    ld.{space}.{kind} {r}2, [{first}]; {MEET} st.global.{kind} [%A], {r}2;
    ld.{space}.{kind} {r}2, [{second}]; {MEET} st.global.{kind} [%C], {r}2;"""
    operands, orders = [(lane - 9) % 2 ** (8 * size) for lane in range(32)], set()
    for seed in range(8):
        lane = Machine(seed).lane
        order = [(lane + i * (2 * lane + 1)) % 32 for i in range(32)]
        arrays = (np.zeros(n, f"u{size}") for n in (1, 32, 1))
        last, found, other = run(body, *arrays, shared=16, seeds=[seed])
        states = [x % 2 ** (8 * size) for x in accumulate((operands[i] for i in order), after, initial=before)]
        assert [found[lane] for lane in order] == states[:-1]
        assert last[0] == states[-1]
        few = accumulate((operands[lane] for lane in order if lane < 5), after, initial=before)
        assert other[0] == [*few][-1] % 2 ** (8 * size)
        orders.add(tuple(order))
    assert len(orders) > 4


FLOATS = {"f32": torch.float32, "f64": torch.float64, "f16": torch.float16, "bf16": torch.bfloat16}


@pytest.mark.parametrize(
    "kind",
    ["f32", "f64", "f16", "bf16", "f16x2", "bf16x2", "v2.f32", "v4.f32", "v8.f16", "v2.bf16", "v4.bf16x2", "v2.f16x2"],
)
@pytest.mark.parametrize("space", ["global", "shared"])
def test_atomic_sums_of_floats(kind, space):
    """Each lane adds any numbers to those of its own, as torch does, and finds the old ones."""
    if kind[0] == "v" and space == "shared":
        pytest.skip("vectors are in global memory alone")
    *vector, element = kind.split(".")
    torch_type = FLOATS[element.removesuffix("x2")]
    size, count = torch_type.itemsize * (1 + element.endswith("x2")), int(vector[0][1]) if vector else 1
    random = torch.Generator().manual_seed(7)
    scales = 2.0 ** torch.randint(-12, 12, (2, 32 * count * size // torch_type.itemsize), generator=random)
    x, y = (torch.randn(scales.shape, generator=random) * scales).to(torch_type)
    r, where = {2: "%h", 4: "%r", 8: "%d"}[size], "%d51" if space == "global" else "%r99"
    olds, news = ([f"{r}{start + i}" for i in range(count)] for start in (10, 30))
    body = f"""mul.wide.u32 %d50, %l, {count * size}; add.s64 %d51, %A, %d50; add.s64 %d52, %B, %d50;
    add.s64 %d53, %C, %d50; cvt.u32.u64 %r99, %d50;"""
    for i, (old, new) in enumerate(zip(olds, news, strict=True)):
        body += f"ld.global.b{8 * size} {new}, [%d52+{i * size}]; ld.global.b{8 * size} {old}, [%d51+{i * size}];"
        body += f"st.{space}.b{8 * size} [{where}+{i * size}], {old}; mov.b{8 * size} {old}, 0;"
    old, new = (f"{{{', '.join(names)}}}" if vector else names[0] for names in (olds, news))
    noftz = ".noftz" if torch_type.itemsize == 2 else ""
    body += f"atom.{space}.relaxed.gpu.add{noftz}.{kind} {old}, [{where}], {new};"
    for i, name in enumerate(olds):
        body += f"st.global.b{8 * size} [%d53+{i * size}], {name}; ld.{space}.b{8 * size} {name}, [{where}+{i * size}];"
        body += f"st.global.b{8 * size} [%d51+{i * size}], {name};"
    arrays = [t.view(torch.uint8).numpy() for t in (x, y, torch.zeros_like(x))]
    sums, _, found = run(body, *arrays, seeds=[0], shared=32 * count * size)
    assert found.tobytes() == arrays[0].tobytes()
    assert sums.tobytes() == (x + y).view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize(
    ("space", "left"), [("global", (0x80000000, 1 << 23, 0)), ("shared", (0x80000003, 1, 1 << 22))]
)
def test_tiny_sums(space, left):
    """Those in fp32 are zero in global memory, with their sign, and are kept in shared memory."""
    where, body = ("%A", "global_smem")[space == "shared"], ""
    for i, (x, y) in enumerate([(0x80000001, 0x80000002), (0x00800000, 0x807FFFFF), (0x00C00000, 0x80800000)]):
        at, kept = f"[{where}+{4 * i}]", f"[%A+{4 * i}]"
        body += f"st.{space}.b32 {at}, {x}; mov.b32 %r1, {y}; {MEET} @%one red.{space}.add.f32 {at}, %r1; {MEET}"
        body += f"ld.{space}.b32 %r1, {at}; {MEET} st.global.b32 {kept}, %r1;"
    assert run(body, words(3), shared=12)[0].tolist() == [*left]


FLAG = {"global": "%B", "shared": "global_smem+8"}


def full(word: str, space: str = "global") -> str:
    """Return an instruction on the flag from its opcode without space and type. One lane does atomics for all."""
    operation, _, rest = word.partition(".")
    forms = dict(
        st=f"st.{space}.{rest}.b32 [{FLAG[space]}], 1;",
        ld=f"ld.{space}.{rest}.b32 %r90, [{FLAG[space]}];",
        red=f"@%one red.{space}.{rest}.b32 [{FLAG[space]}], 1; mov.b32 %r90, 1;",
        late="st.global.b32 [%C], 8;",
        atom=f"@%one atom.{space}.{rest}.b32 %r90, [{FLAG[space]}], 1; shfl.sync.idx.b32 %r90, %r90, 0, 31, -1;",
    )
    return forms.get(operation, f"{word};")


def message(release: str, acquire: str, space: str = "global") -> tuple[str, str]:
    """7 at %C, then the flag; who waits for that, and puts at %A what is at %C."""
    first, last = ("".join(full(word, space) for word in text.split()) for text in (release, acquire))
    return f"@%one st.global.b32 [%C], 7; {first}", until(1, last) + "ld.global.b32 %r2, [%C]; st.global.b32 [%A], %r2;"


WHERE = dict(warp="%w", cta="%c", gpu="%k")
LATE = "wrote, with no order between|overwrites .* with no order between"
SCOPE = "and one of their scopes does not reach the other"
# What releases; what acquires; in order between warps, CTAs, devices? If not: for want of an order, or of a scope.
MESSAGES = """
st.release.cta                                    ld.acquire.cta                               warp=7 cta=SCOPE
st.release.sys                                    ld.acquire.sys                               cta=7 gpu=7
st.release.sys                                    ld.acquire.gpu                               cta=7 gpu=SCOPE
red.or.release.sys                                atom.and.acquire.sys                         gpu=7
atom.or.acq_rel                                   atom.and.acq_rel.gpu                         cta=7
fence.acq_rel.gpu st.relaxed.gpu                  ld.relaxed.gpu fence.acq_rel.gpu             cta=7
membar.gl st.volatile                             ld.volatile fence.sc.gpu                     cta=7 gpu=LATE
membar.sys fence.acq_rel.cta red.or.sys           ld.volatile fence.sc.cta membar.sys          gpu=7
fence.acq_rel.cta st.relaxed.gpu                  ld.acquire.gpu                               warp=7 cta=LATE
st.release.gpu                                    ld.relaxed.gpu fence.acq_rel.cta             cta=LATE
st.relaxed.gpu                                    ld.acquire.gpu                               warp=LATE cta=LATE
st.release.gpu                                    ld.relaxed.gpu                               warp=LATE cta=LATE
st.release.gpu late                               ld.acquire.gpu                               cta=LATE
st.weak                                           ld.acquire.gpu                               warp=LATE
st.release.gpu                                    red.or.relaxed.gpu fence.acq_rel.gpu         cta=LATE
"""


@pytest.mark.parametrize("row", MESSAGES.strip().splitlines())
def test_messages(row):
    """8.8: a release and an acquire pattern whose ends are morally strong, on one flag. 8.11.1: red is no acquire."""
    release, acquire, results = re.split(r"\s{2,}", row)
    first, last = message(release, acquire)
    for where, expected in (word.split("=") for word in results.split()):
        expected = dict(LATE=LATE, SCOPE=SCOPE).get(expected, expected)
        holds(f"{expected}: TELL / HEAR", dict(TELL=first, HEAR=last), "", *FLAGS, where=WHERE[where])


# The same between warps, by a flag in shared memory, where every scope is as good as another (8.3).
SHARED_MESSAGES = """
7:    st.release.cta                          / ld.acquire.cta
7:    st.release.sys                          / ld.acquire.cta
7:    red.or.release.cta                      / ld.acquire.cta
7:    atom.or.acq_rel.gpu                     / atom.and.acq_rel.cta
7:    fence.acq_rel.cta st.volatile           / ld.volatile fence.acq_rel.cta
7:    fence.acq_rel.cta atom.or.relaxed.cta   / ld.acquire.cta
7:    st.release.cta red.or.cta               / ld.acquire.cta
LATE: st.relaxed.cta                          / ld.acquire.cta
LATE: st.release.cta                          / ld.relaxed.cta
LATE: st.release.cta                          / red.or.cta fence.acq_rel.cta
LATE: atom.or                                 / ld.acquire.cta
LATE: st.release.cta late                     / ld.acquire.cta
LATE: st.weak                                 / ld.acquire.cta
"""


@pytest.mark.parametrize("row", SHARED_MESSAGES.strip().splitlines())
def test_messages_in_shared_memory(row):
    expected, words_ = row.split(":", 1)
    pieces = dict(zip(["TELL", "HEAR"], message(*words_.split("/"), space="shared"), strict=True))
    start = "st.shared.b32 [global_smem+8], 0; bar.sync 0;"
    holds(f"{expected.replace('LATE', f'{LATE}|may still read')}: TELL / HEAR", pieces, start, *FLAGS, shared=16)


ACCESSES = dict(
    STORE="st.global.b32 [%B], 3;", OTHER="st.global.b32 [%B], 4;", LOAD="ld.global.b32 %r1, [%B];",
    PUT="st.shared.b32 [global_smem], 3;", ANOTHER="st.shared.b32 [global_smem], 4;",
    GET="ld.shared.b32 %r1, [global_smem];", ADD="atom.global.add.u32 %r1, [%B], 1;", WAIT="bar.sync 0;",
    OR="red.global.or.b32 [%B], 1;", UP="red.shared.add.u32 [global_smem], 1;",
    FETCH="atom.shared.cta.add.u32 %r1, [global_smem], 1;", SWAP="atom.shared.cas.b32 %r1, [global_smem], 9, 1;",
    LOOK="ld.volatile.shared.b32 %r1, [global_smem];", SET="st.relaxed.cta.shared.b32 [global_smem], 1;",
    WIDE="atom.shared.or.b64 %d1, [global_smem], 1;", HALF="atom.relaxed.gpu.global.cas.b16 %h1, [%B], 0, 1;",
    BYTE0="st.shared.b8 [global_smem], 5;", BYTE1="st.shared.b8 [global_smem+1], 6;",
    GET0="ld.shared.b8 %r1, [global_smem];", GET1="ld.shared.u8 %r1, [global_smem+1];",
    GBYTE0="st.global.b8 [%B], 5;", GBYTE1="st.global.b8 [%B+1], 6;", GLOAD1="ld.global.b8 %r1, [%B+1];",
    PAIR="st.shared.b16 [global_smem], 7;", GPAIR="st.global.b16 [%B], 7;",
    ADD_SYS="atom.global.sys.add.u32 %r1, [%B], 1;",
    ADD_CTA="atom.global.cta.add.u32 %r1, [%B], 1;", NUMBER="add.u32 %r1, %w, 7; st.shared.b32 [global_smem], %r1;",
    FIRST=message("st.release.gpu", "")[0], LAST=message("", "ld.acquire.gpu")[1],
) | {
    operation: f"{until(1, full('ld.relaxed.gpu'))} {full(operation)} st.global.relaxed.gpu.b32 [%D], 1;"
    for operation in ("atom.or.relaxed.gpu", "red.or.gpu", "st.relaxed.gpu", "st.release.gpu")
}  # fmt: skip
ACCESSES["FAIL"] = """st.global.b32 [%C], 7; @%one atom.release.gpu.global.cas.b32 %r90, [%B], 5, 1;
st.global.relaxed.gpu.b32 [%D], 2;"""
ACCESSES["GO_ON"] = until(2, "ld.global.relaxed.gpu.b32 %r90, [%D];") + (
    f"{full('red.or.relaxed.gpu')} st.global.relaxed.gpu.b32 [%D], 1;"
)
ACCESSES["LAST"] = until(1, "ld.global.relaxed.gpu.b32 %r90, [%D];") + ACCESSES["LAST"]
RACES = f"""
%w with no order between|may still read: STORE / OTHER | STORE / LOAD | LOAD / STORE | ADD / LOAD | STORE / OR
%w with no order between|may still read: PUT / ANOTHER | PUT / GET | GET / PUT
%w overwrites: NUMBER / NUMBER
%w ok: STORE WAIT / WAIT OTHER | STORE WAIT / WAIT LOAD | LOAD WAIT / WAIT STORE | ADD WAIT / WAIT LOAD
%w with no order between|may still read: PUT / PUT | FETCH / GET | UP / PUT | SWAP / GET | LOOK / PUT | SET / GET
%w ok: UP / UP | FETCH / UP / SWAP | LOOK / SET | LOOK / SET / UP | UP WAIT / WAIT GET | LOOK WAIT / WAIT PUT
%w and one of their scopes|with no order: WIDE / UP | ADD / HALF
%w ok: BYTE0 / BYTE1 | BYTE0 GET0 / BYTE1 GET1 | GET0 / BYTE1 | GBYTE0 / GBYTE1 | GBYTE0 / GLOAD1
%w ok: BYTE1 WAIT / WAIT PAIR | PAIR WAIT / WAIT BYTE0 / WAIT BYTE1 | GPAIR WAIT / WAIT GBYTE0 / WAIT GBYTE1
%w with no order between|may still read: BYTE1 / BYTE1 | BYTE1 / GET1 | BYTE1 / GET | BYTE0 / PAIR | GET1 / PAIR
%w with no order between: GBYTE1 / GLOAD1 | GBYTE0 / GPAIR | GBYTE1 / LOAD | GLOAD1 / GPAIR | GBYTE1 / GBYTE1
%w ok: PUT WAIT / WAIT ANOTHER | PUT WAIT / WAIT GET | GET WAIT / WAIT PUT | STORE WAIT / WAIT OR | ADD / ADD
%c ok: ADD / ADD / ADD
%c {SCOPE}: ADD_CTA / ADD_CTA
%k ok: ADD_SYS / ADD_SYS
%k {SCOPE}: ADD / ADD
%c 7: FIRST / atom.or.relaxed.gpu / LAST | FIRST / red.or.gpu / LAST
%c {LATE}: FAIL / GO_ON / LAST
%c {LATE}: FIRST / st.relaxed.gpu / LAST | FIRST / st.release.gpu / LAST
"""


@pytest.mark.parametrize("row", RACES.strip().splitlines())
def test_conflicts_need_an_order(row):
    """8.7.1: in whatever order they come. Strong ones may conflict, of one size. 8.9.2: a release goes on through
    atomics, not through a store; who waits for %D saw no first flag. A cas that fails releases nothing."""
    where, row = row.split(" ", 1)
    start = "st.shared.b64 [global_smem], 1; bar.sync 0;"
    holds(row, ACCESSES, start, *[words(1)] * 4, where=where, shared=8)


def test_each_element_of_a_vector_releases():
    """8.2.4."""
    tell = "st.global.b32 [%C], 7; st.release.gpu.global.v2.b32 [%B], {1, 1};"
    hear = until(1, "ld.acquire.gpu.global.b32 %r90, [%B+4];") + "ld.global.b32 %r2, [%C]; st.global.b32 [%A], %r2;"
    holds("7: TELL / HEAR", dict(TELL=tell, HEAR=hear), "", *[words(2)] * 3, where="%c")


REPLICAS = dict(
    SAME="st.shared.b32 [global_smem], 5;", LANES="st.shared.b32 [global_smem], %l;",
    FILL="shl.b32 %r1, %l, 2; st.shared.b32 [%r1], %l;", WAIT="bar.sync 0;",
    DIFFERENT="add.u32 %r1, %w, 5; st.shared.b32 [global_smem], %r1;", GET="ld.shared.b32 %r1, [global_smem];",
    AGAIN="mov.b32 %r1, 0;\nAGAIN: add.u32 %r1, %r1, 1; setp.eq.u32 %p2, %r1, 1;", LAST="@%p2 bra AGAIN;",
    VALUE="and.b32 %r2, %r1, 1;", TURN="st.shared.b32 [global_smem], %r2;",
    # Warp 0 stores in its second turn what warp 1 does in its first; by another instruction what warp 1 does.
    LATER="add.u32 %r4, %w, %r1; setp.le.u32 %p4, %r4, 2; setp.eq.u32 %p5, %r4, 1; selp.b32 %r5, 8, 0, %p5;"
    "@%p4 st.shared.b32 [%r5], 5;",
    ELSEWHERE="shl.b32 %r1, %w, 2; add.u32 %r2, %w, 5; @%first bra FIRST; bra.uni GO_ON;\n"
    "FIRST: st.shared.b32 [global_smem+4], 6;\nGO_ON: st.shared.b32 [%r1], %r2;",
)  # fmt: skip
"""What all of three warps do."""
STORES = """
ok: SAME | SAME WAIT GET | LANES WAIT GET | FILL WAIT FILL | AGAIN VALUE TURN WAIT LAST
overwrites: DIFFERENT | AGAIN VALUE TURN LAST | AGAIN LATER LAST | ELSEWHERE
with no order between|may still read|nobody wrote: SAME GET
"""


@pytest.mark.parametrize("row", STORES.strip().splitlines())
def test_warps_may_store_the_same_together(row):
    """In the same turn of the same instruction, and nothing else."""
    holds(row, REPLICAS, "", words(1), threads=96, shared=128, seeds=range(6))
