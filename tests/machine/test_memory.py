"""Loads, stores, atomics (PTX ISA 8.7, 9.7.9.8, 9.7.9.11, 9.7.13.5, 9.7.13.6), and which are in order (8.7 to 8.9)."""

import operator
import re
from itertools import accumulate

import numpy as np
import pytest
from small_ptx import FLAGS, holds, run, until, words


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


@pytest.mark.parametrize(("space", "where"), [("global", "%A"), ("shared", "global_smem")])
def test_values_are_extended_by_their_type(space, where):
    """9.4.1: into a wider register, signed ones with their sign, others with zeros. A store takes the low bits."""
    body = f"mov.b64 %d1, 0xFEDCBA9889ABCDEF; st.{space}.b64 [{where}], %d1;\n"
    for i, kind in enumerate(["s8", "u8", "b8", "s16", "u16", "b16", "s32", "u32", "b32"]):
        register, wide = ("%d9", "b64") if "32" in kind else ("%r9", "b32")
        body += f"ld.{space}.{kind} {register}, [{where}]; st.global.{wide} [%B+{8 * i}], {register};\n"
    body += f"""st.{space}.b8 [{where}+1], %r9; mov.b32 %r9, 0x12345678; st.{space}.b8 [{where}], %r9;
    ld.{space}.b64 %d1, [{where}]; st.global.b64 [%B+72], %d1;"""
    _, out = run(body, np.zeros(1, np.uint64), np.zeros(10, np.uint64), shared=8)
    extended = [0xFFFFFFEF, 0xEF, 0xEF, 0xFFFFCDEF, 0xCDEF, 0xCDEF, 0xFFFFFFFF89ABCDEF, 0x89ABCDEF, 0x89ABCDEF]
    assert out.tolist() == [*extended, 0xFEDCBA9889ABEF78]


ADDRESSES = """
no multiple of 4: ld.global.b32 %r1, [%A+2];
no multiple of 16: ld.global.v4.b32 {%r1, %r2, %r3, %r4}, [%A+8];
byte 128 of a tensor of 128: atom.global.add.u32 %r1, [%A+128], 1;
address 0x40 is outside of every tensor: mov.b64 %d2, 64; st.global.b32 [%d2], %r1;
shared address -4: mov.b32 %r1, 0; st.shared.b32 [%r1+-4], %r1;
no multiple of 8: st.shared.v2.b32 [global_smem+4], {%r1, %r2};
that nobody wrote: st.shared.b16 [global_smem], %h1; ld.shared.b32 %r1, [global_smem];
ok: st.shared.b32 [global_smem], -1; ld.shared.b32 %r1, [global_smem];
"""


@pytest.mark.parametrize("row", ADDRESSES.strip().splitlines())
def test_addresses(row):
    holds(row, {}, "", words(32), shared=64, seeds=[0])


@pytest.mark.parametrize(
    ("op", "offset", "before", "after"),
    [("add.u32", 0, 5, operator.add), ("add.u64", 0, 2**64 - 3, operator.add), ("exch.b32", 0, 5, lambda old, i: i),
     ("min.s32", -9, 5, min), ("max.u32", -9, 5, lambda old, i: max(old, i % 2**32)), ("and.b32", 0, 63, operator.and_),
     ("or.b32", 0, 0x100, operator.or_), ("cas.b32", 0, 5, lambda old, i: 9 if old == i else old)],
)  # fmt: skip
def test_atomics(op, offset, before, after):
    """Lane i brings i + offset, and finds what another one left; some of the lanes, by red."""
    register, size, dtype = ("%d", 8, np.uint64) if "64" in op else ("%r", 4, np.uint32)
    body = f"""add.s32 %r1, %l, {offset}; cvt.u64.u32 %d1, %l; mov.b32 %r3, 9; setp.lt.u32 %p1, %l, 5;
    atom.global.{op} {register}2, [%A], {register}1{", %r3" * ("cas" in op)};
    mul.wide.u32 %d50, %l, {size}; add.s64 %d51, %B, %d50; st.global.b{8 * size} [%d51], {register}2;
    @%p1 red.global.relaxed.sys.{op} [%C], {register}1{", %r3" * ("cas" in op)};"""
    cell, old_values, other = run(body, np.array([before], dtype), np.zeros(32, dtype), np.array([before], dtype))
    states = [x % 2 ** (8 * size) for x in accumulate(range(offset, 32 + offset), after, initial=before)]
    assert (old_values.tolist(), cell[0], other[0]) == (states[:32], states[32], states[5])


def full(word: str) -> str:
    """Return an instruction on the flag at %B from its opcode without space and type. One lane does atomics for all."""
    operation, _, rest = word.partition(".")
    forms = dict(
        st=f"st.global.{rest}.b32 [%B], 1;",
        ld=f"ld.global.{rest}.b32 %r90, [%B];",
        red=f"@%one red.global.{rest}.b32 [%B], 1; mov.b32 %r90, 1;",
        late="st.global.b32 [%C], 8;",
        atom=f"@%one atom.global.{rest}.b32 %r90, [%B], 1; shfl.sync.idx.b32 %r90, %r90, 0, 31, -1;",
    )
    return forms.get(operation, f"{word};")


def message(release: str, acquire: str) -> tuple[str, str]:
    """7 at %C, then the flag; who waits for that, and puts at %A what is at %C."""
    first, last = ("".join(map(full, text.split())) for text in (release, acquire))
    return f"st.global.b32 [%C], 7; {first}", until(1, last) + "ld.global.b32 %r2, [%C]; st.global.b32 [%A], %r2;"


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


ACCESSES = dict(
    STORE="st.global.b32 [%B], 3;", OTHER="st.global.b32 [%B], 4;", LOAD="ld.global.b32 %r1, [%B];",
    PUT="st.shared.b32 [global_smem], 3;", ANOTHER="st.shared.b32 [global_smem], 4;",
    GET="ld.shared.b32 %r1, [global_smem];", ADD="atom.global.add.u32 %r1, [%B], 1;", WAIT="bar.sync 0;",
    OR="red.global.or.b32 [%B], 1;", ADD_SYS="atom.global.sys.add.u32 %r1, [%B], 1;",
    ADD_CTA="atom.global.cta.add.u32 %r1, [%B], 1;", NUMBER="add.u32 %r1, %w, 7; st.shared.b32 [global_smem], %r1;",
    FIRST=message("st.release.gpu", "")[0], LAST=message("", "ld.acquire.gpu")[1],
) | {
    operation: f"{until(1, full('ld.relaxed.gpu'))} {full(operation)} st.global.relaxed.gpu.b32 [%D], 1;"
    for operation in ("atom.or.relaxed.gpu", "red.or.gpu", "st.relaxed.gpu", "st.release.gpu")
}  # fmt: skip
ACCESSES["LAST"] = until(1, "ld.global.relaxed.gpu.b32 %r90, [%D];") + ACCESSES["LAST"]
RACES = f"""
%w with no order between|may still read: STORE / OTHER | STORE / LOAD | LOAD / STORE | ADD / LOAD | STORE / OR
%w with no order between|may still read: PUT / ANOTHER | PUT / GET | GET / PUT
%w overwrites: NUMBER / NUMBER
%w ok: STORE WAIT / WAIT OTHER | STORE WAIT / WAIT LOAD | LOAD WAIT / WAIT STORE | ADD WAIT / WAIT LOAD | PUT / PUT
%w ok: PUT WAIT / WAIT ANOTHER | PUT WAIT / WAIT GET | GET WAIT / WAIT PUT | STORE WAIT / WAIT OR | ADD / ADD
%c ok: ADD / ADD / ADD
%c {SCOPE}: ADD_CTA / ADD_CTA
%k ok: ADD_SYS / ADD_SYS
%k {SCOPE}: ADD / ADD
%c 7: FIRST / atom.or.relaxed.gpu / LAST | FIRST / red.or.gpu / LAST
%c {LATE}: FIRST / st.relaxed.gpu / LAST | FIRST / st.release.gpu / LAST
"""


@pytest.mark.parametrize("row", RACES.strip().splitlines())
def test_conflicts_need_an_order(row):
    """8.7.1: in whatever order they come. Strong ones may conflict; several warps may write the same. 8.9.2: a release
    goes on through atomics, not through a store; who waits for %D saw no first flag."""
    where, row = row.split(" ", 1)
    start = "st.shared.b32 [global_smem], 1; bar.sync 0;"
    holds(row, ACCESSES, start, *[words(1)] * 4, where=where, shared=4)
