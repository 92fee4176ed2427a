"""What is read of the text, and looked for in it (PTX ISA 8.7, chapters 4 and 5, 9.7.12.1 and 9.7.12.4, 11.1)."""

import re

import pytest

from kernels.machine.core.faults import UnknownError
from kernels.machine.core.ptx import parse
from kernels.machine.lint import races

from .small_ptx import program, run, words

TEXT = """.version 8.7
.target sm_90a // one comment
.address_size 64
.visible .entry some$kernel(
.param .u64 .ptr .global .align 1 p0, // another: ; {
.param .align 64 .b8 p1[128],
.param .f32 p2
)
.reqntid 128
.maxnreg 168
{
.reg .b32 %r<3>; .reg .pred %p<2>;
.loc 1 42 3 // of a file
mov.b32 %r1, 7; @!%p1 mov.b32 %r2, %r1;
$L__BB0: .loc 2 9 1
st.global.v2.b32 [ %rd1 + 8 ], {%r1, %r2}; // kept; apart
targets: .branchtargets $L__BB0, done;
done: ret;
}
.file 1 "/some/where/tiled.py"
.file 2 "other.py"
.section .debug_abbrev { .b8 1 }
"""


def test_a_kernel():
    kernel = parse(TEXT)
    assert (kernel.name, kernel.threads, kernel.registers_a_thread) == ("some$kernel", 128, 168)
    assert [(name, taken.size) for name, taken in kernel.parameters.items()] == [("p0", 8), ("p1", 128), ("p2", 4)]
    assert [str(inst) for inst in kernel.code] == [
        "PTX line 14 (tiled.py:42): mov.b32 %r1, 7",
        "PTX line 14 (tiled.py:42): @!%p1 mov.b32 %r2, %r1",
        "PTX line 16 (other.py:9): st.global.v2.b32 [ %rd1 + 8 ], {%r1, %r2}",
        "PTX line 18 (other.py:9): ret ",
    ]
    assert kernel.labels == {"$L__BB0": 2, "targets": 3, "done": 3}
    assert kernel.targets == {"targets": ["$L__BB0", "done"]}
    assert [kernel.kinds.get(name) for name in ("%r2", "%p1", "%q1", "7")] == ["b32", "pred", None, None]


def test_braces_keep_registers_and_labels_to_themselves():
    """9.7.12.1: inline assembly declares its own, under names that recur."""
    block = """{{
    .reg .pred p; .reg .b32 %r1, n;
    mov.b32 n, 0; mov.b32 %r1, 50;
    again: add.s32 n, n, 1;
    {{
    .reg .b32 n; mov.b32 n, 100; add.s32 %r3, %r3, n;
    }}
    setp.lt.s32 p, n, {};
    @p bra again; add.s32 %r3, %r3, n;
    }}
    """
    body = f"mov.b32 %r3, 0; mov.b32 %r1, 5;\n{block.format(3)}{block.format(4)}"
    (out,) = run(f"{body} add.s32 %r3, %r3, %r1; st.global.b32 [%A], %r3;", words(1))
    assert out[0] == (3 + 4) * 100 + 3 + 4 + 5


def test_a_vector_is_declared_as_one():
    """5.4.2, as CUTLASS's DSL writes it."""
    body = """mov.b64 %d1, %A; { .reg .v4 .s32 abcd; mov.s32 abcd.x, 7; mov.s32 abcd.y, %t; mov.s32 abcd.z, 9;
    mov.s32 abcd.w, abcd.x; @%first st.global.v4.b32 [%d1], abcd; }"""
    assert run(body, words(4))[0].tolist() == [7, 0, 9, 7]


def test_constants():
    """4.5."""
    numbers = {"0x1F": 31, "0X10U": 16, "-3": 2**32 - 3, "0f3F800000": 0x3F800000, "global_smem": 0}
    stores = "".join(f"mov.b32 %r1, {text}; st.global.b32 [%A+{4 * i}], %r1;" for i, text in enumerate(numbers))
    assert run(stores, words(5))[0].tolist() == list(numbers.values())


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [(".reqntid 128", "", "no .reqntid"), ("@!%p1 mov.b32 %r2, %r1;", "bra on;", "bra on: there is no such label"),
     (".visible .entry", ".global .b64 table[1] = {other};\n.visible .entry", "table is initialised by something else"),
     ("mov.b32 %r1, 7;", ".texref other;", ".texref is no directive"),
      ("mov.b32 %r1, 7;", ".shared .tile some;", "some has no form"),
     ("mov.b32 %r1, 7;", ".reg;", "line 14: .reg has no form")],
)  # fmt: skip
def test_other_forms_are_refused(old, new, why):
    with pytest.raises(UnknownError, match=why):
        parse(TEXT.replace(old, new, 1))


def test_one_entry_is_chosen_by_name():
    text = TEXT.replace(".section", ".visible .entry other() .reqntid 32 { ret; }\n.section")
    assert [parse(text, name).threads for name in ("some$kernel", "other")] == [128, 32]
    for name in (None, "third"):
        with pytest.raises(ValueError, match=r"the PTX has some\$kernel, other"):
            parse(text, name)


# One for each place that refuses: opcodes, types, roundings, operands, state spaces, scopes, shapes.
UNKNOWN = """add.sat.s32 %r0, %r1, %r2; cvt.pack.sat.u8.s32.b32 %r0, %r1, %r2, %r3; add.s32 %r0, %q1, 1;
lop3.or.b32 %r0|%p1, %r1, %r2, %r3, 0x80, %p2; setp.ltx.f32 %p0, %r1, %r2; setp.lt.nor.s32 %p0, %r1, %r2, %p1;
sqrt.rz.f16 %h0, %h1; cvt.rs.f16x2.f32 %r0, %r1, %r2, %r3; cvt.rn.satfinite.e2m1x2.f32 %h0, %r1, %r2;
prmt.b32.f4e %r0, %r1, %r2, %r3; addc.foo.u32 %r0, %r1, %r2; add.f32x2 %d0, %d1, %d2; ex2.approx.f64 %d0, %d1;
min.f32 %r0, %r1, %r2, %r3; mov.u32 %r0, 017; mov.u32 %r0, other_smem;
ld.b128 %r1, [%A]; ld.local.acquire.b32 %r1, [%d1]; ld.global.acquire.b32 %r1, [%A]; ld.shared.relaxed.b32 %r1, [%r2];
atom.shared.add.b32 %r1, [%r2], 1; atom.global.max.f32 %r1, [%A], %r2; ld.global.b32 %r1, [%A+%r1];
cp.async.cg.shared.global [%r1], [%A], 8; fence.proxy.alias; redux.sync.add.s32 %r1; redux.sync.min.f32 %r1, %r2, -1;
shfl.up.b32 %r1, %r2, 1, 31; call.uni (%r1), malloc, (%r2);
vote.all.pred %p1, %p2; ld.global.L3::evict_last.b32 %r1, [%A];
mbarrier.arrive_drop.b64 _, [64]; movmatrix.sync.aligned.m8n8.b16 %r1, %r2;
wgmma.mma_async.sync.aligned.m64n8k16.f32.e4m3.e4m3 {%r1}, %d1, %d2, %p1;
mma.sp.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 %r1, %r2, %r3, %r4, %r5, 0x0;
tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1], 128"""


@pytest.mark.parametrize("line", [line.strip() for line in UNKNOWN.split(";")])
def test_what_is_unknown_is_refused_by_name(line):
    with pytest.raises(UnknownError, match="^PTX line 15: " + re.escape(line)):
        program(line + ";", "A")


LANES = dict(
    ELECT="setp.eq.u32 %p2, %l, 0;", BAR="bar.sync 0;", WARP="bar.warp.sync -1;", ANY="elect.sync %r9|%p2, -1;",
    WAIT="again: mbarrier.try_wait.parity.shared.b64 %p1, [global_smem], %r1; @!%p1 bra again;",
    TMA="@%p2 cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [1024], [%M, {%r2, %r3}], [%r4];",
    ARRIVE="@%p2 mbarrier.arrive.shared.b64 _, [global_smem];", COPIED="cp.async.wait_group 0;", END="ret;",
    STORED="@%p2 cp.async.bulk.wait_group.read 0;", READ="ld.shared.b32 %r5, [global_smem];",
    WRITE="st.shared.b32 [global_smem], %r5;", JUMP="@%p3 bra on;", ON="on:",
)  # fmt: skip
# By a lane that goes by: an mbarrier may be a round ahead (cutlass issue 3654), on one of the ways, in the loop's next
# turn; what another lane has copied or stored. In order: each lane has waited itself.
GOES_BY = """
cp.async.bulk.tensor: ELECT WAIT TMA
mbarrier.arrive: ELECT WAIT JUMP BAR ON ARRIVE | ELECT ON ARRIVE WAIT JUMP
ld.shared: COPIED READ
st.shared: ELECT STORED WRITE
ok: ELECT WAIT WARP TMA | WAIT ANY TMA | ELECT WAIT BAR ARRIVE | WAIT READ | COPIED BAR READ | ELECT STORED BAR WRITE
ok: ELECT STORED END WRITE
"""


@pytest.mark.parametrize("row", GOES_BY.strip().splitlines())
def test_no_lane_goes_by_a_wait_of_its_warp(row):
    """What is looked for before a run, of all kernels that `kernels.machine` runs."""
    goes_by, cases = row.split(": ")
    for case in cases.split(" | "):
        body = " ".join(LANES[word] for word in case.split())
        reports = races(program(body, names="M", shared=4096).kernel)
        assert [f" {goes_by}" in report for report in reports] == [True] * (goes_by != "ok"), case
