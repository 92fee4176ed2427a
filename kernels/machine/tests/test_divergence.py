"""Lanes of a warp that go different ways, functions that they call, and what each has for itself."""

import numpy as np
import pytest

from .small_ptx import by, faults, holds, run, until, words

LANE = np.arange(32)
STORE = "mul.wide.u32 %d1, %t, 4; add.s64 %d1, %A, %d1; st.global.b32 [%d1], %r1;\n"
# Per lane: the PTX, and what it leaves in %r1.
WAYS = {
    "one side": ("mov.b32 %r1, 5; setp.lt.u32 %p1, %l, 7; @%p1 bra END; add.u32 %r1, %r1, %l;\nEND:",
                 np.where(LANE < 7, 5, 5 + LANE)),
    "two sides": ("setp.lt.u32 %p1, %l, 7; @%p1 bra LESS; mov.b32 %r1, 1; bra.uni END;\nLESS: mov.b32 %r1, 2;\nEND:",
                  np.where(LANE < 7, 2, 1)),
    "a loop of its own length": (
        "mov.b32 %r1, 0; mov.b32 %r2, %l;\nAGAIN: setp.eq.u32 %p1, %r2, 0; @%p1 bra END; add.u32 %r1, %r1, %r2;\n"
        "sub.u32 %r2, %r2, 1; bra.uni AGAIN;\nEND:", LANE * (LANE + 1) // 2),
    "one in another": (
        "mov.b32 %r1, 0; setp.lt.u32 %p1, %l, 9; setp.lt.u32 %p2, %l, 4; @!%p1 bra END; @%p2 bra FEW;\n"
        "add.u32 %r1, %r1, 100; bra.uni MEET;\nFEW: add.u32 %r1, %r1, 10;\nMEET: add.u32 %r1, %r1, %l;\nEND:",
        np.where(LANE < 9, LANE + np.where(LANE < 4, 10, 100), 0)),
    "the colder side is last": (  # and comes back
        "mov.b32 %r1, 0; setp.eq.u32 %p1, %l, 3; @%p1 bra COLD;\nBACK: add.u32 %r1, %r1, %l; bra.uni END;\n"
        "COLD: mov.b32 %r1, 50; bra.uni BACK;\nEND: bar.sync 0;", LANE + np.where(LANE == 3, 50, 0)),
    "some end": ("mov.b32 %r1, %l; setp.gt.u32 %p1, %l, 29; @%p1 exit;", np.where(LANE < 30, LANE, 0)),
    "some wait for another": (  # which stands behind them in the code
        "mov.b32 %r1, 1; st.volatile.global.b32 [%B], 0; bar.warp.sync -1; @%one bra RAISE;\n"
        "AGAIN: ld.volatile.global.b32 %r2, [%B]; setp.ne.u32 %p1, %r2, 9; @%p1 bra AGAIN; bra.uni END;\n"
        "RAISE: st.volatile.global.b32 [%B], 9;\nEND: bar.warp.sync -1;",
        np.ones(32)),
    "a lane votes for itself": (
        "mov.b32 %r1, 0; @!%one bra END; elect.sync %r2|%p2, 1; selp.b32 %r1, 7, 8, %p2;\nEND:", 7 * (LANE == 0)),
    "a lane votes for itself, behind where others wait": (
        "mov.b32 %r1, 0; @%one bra VOTE;\nBACK: bar.warp.sync -1; bra.uni END;\n"
        "VOTE: elect.sync %r2|%p2, 1; selp.b32 %r1, 7, 8, %p2; bra.uni BACK;\nEND:", 7 * (LANE == 0)),
    "an index": ("and.b32 %r2, %l, 1; mov.b32 %r1, 40; setp.eq.u32 %p1, %r2, 0; @%p1 bra END; bra START;\n"
                 "labels: .branchtargets ZERO, TWO;\nZERO: mov.b32 %r1, 70; bra END;\nTWO: mov.b32 %r1, 72; bra END;\n"
                 "START: brx.idx %r2, labels;\nEND:", np.where(LANE % 2, 72, 40)),
}  # fmt: skip


@pytest.mark.parametrize("name", WAYS)
def test_lanes_part_and_meet(name):
    body, expected = WAYS[name]
    out, _ = run(f"{body}\n{STORE}", words(32), words(1), seeds=range(8))
    assert out.tolist() == expected.tolist()


PIECES = dict(
    BAR="bar.sync 0;", PART="@%one bra END;", END="\nEND:", WARP="bar.warp.sync -1;", EXIT="@%one exit;",
    SHUFFLE="shfl.sync.bfly.b32 %r1, %r1, 1, 31, -1;", TRAP="@%one trap;", STORE="st.global.b32 [%A], 7;",
    JOINED="\nEND: bar.sync 0;",
)  # fmt: skip
APART = """
not all lanes of the warp reach: PART BAR JOINED
ok: PART STORE JOINED | EXIT BAR | PART BAR END
the kernel traps: TRAP
"""


@pytest.mark.parametrize("row", APART.strip().splitlines())
def test_what_lanes_execute_together(row):
    holds(row, PIECES, "mov.b32 %r1, 0;", words(1))


MODULE = """
.extern .func (.param .b32 func_retval0) vprintf (.param .b64 a, .param .b64 b);
.extern .func __assertfail (.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, .param .b64 e) .noreturn;
.global .align 1 .b8 text[9] = {37, 117, 32, 37, 46, 49, 102, 33};
.global .align 1 .b8 wrong[6] = {119, 114, 111, 110, 103};
.func (.param .b32 func_retval0) half(.param .b32 half_param_0);
.func (.param .align 8 .b8 func_retval0[8]) both(.param .b32 both_param_0, .param .b32 both_param_1)
{
.reg .pred %p<2>; .reg .b32 %r<9>;
ld.param.b32 %r1, [both_param_0]; ld.param.b32 %r2, [both_param_1]; setp.gt.u32 %p1, %r1, 20; @%p1 bra $L__BB1_2;
{ .param .b32 param0; .param .b32 retval0; st.param.b32 [param0], %r1; call.uni (retval0), half, (param0);
ld.param.b32 %r1, [retval0]; }
$L__BB1_2: add.u32 %r3, %r1, %r2; st.param.b32 [func_retval0], %r3; st.param.b32 [func_retval0+4], %r2;
ret;
}
.func (.param .b32 func_retval0) half(.param .b32 half_param_0)
{
.reg .b32 %r<9>;
ld.param.b32 %r1, [half_param_0]; shr.u32 %r2, %r1, 1; st.param.b32 [func_retval0], %r2; ret;
}
"""
CALL = """{ .param .b32 param0; .param .b32 param1; .param .align 8 .b8 retval0[8];
st.param.b32 [param0], %l; st.param.b32 [param1], 1000; call.uni (retval0), both, (param0, param1);
ld.param.v2.b32 {%r1, %r2}, [retval0]; }
add.u32 %r1, %r1, %r2;
"""


def test_calls():
    """Each lane has parameters, results and a way back of its own; registers of a function are its own."""
    (out,) = run(f"mov.b32 %r3, 5; {CALL} add.u32 %r1, %r1, %r3;\n{STORE}", words(32), module=MODULE, seeds=range(8))
    assert out.tolist() == [(lane if lane > 20 else lane // 2) + 2005 for lane in range(32)]


def test_local_memory():
    """Each lane reads what it wrote, by an index of its own, and no further."""
    body = """.local .align 8 .b8 depot[16]; mov.b64 %d2, depot; and.b32 %r2, %l, 3; mul.wide.u32 %d3, %r2, 4;
    add.s64 %d3, %d2, %d3; st.local.v2.b32 [depot], {1, 2}; st.local.v2.b32 [%d2+8], {3, 4}; st.local.b32 [%d3], %l;
    ld.local.b32 %r1, [depot+4];"""
    (out,) = run(f"{body}\n{STORE}", words(32))
    assert out.tolist() == [lane if lane % 4 == 1 else 2 for lane in range(32)]
    faults("local byte 16, a thread has 16", body.replace("[depot+4]", "[depot+16]"), words(1))


CALLS = {
    "vprintf": """.local .align 8 .b8 depot[16]; st.local.b32 [depot], %l; st.local.b64 [depot+8], 0x4004000000000000;
        { .param .b64 param0; .param .b64 param1; .param .b32 retval0; mov.b64 %d1, text; st.param.b64 [param0], %d1;
        st.param.b64 [param1], 0x200000000000000; @%one call.uni (retval0), vprintf, (param0, param1); }""",
    "__assertfail": """{ .param .b64 param0; .param .b64 param1; .param .b32 param2; .param .b64 param3;
        .param .b64 param4; mov.b64 %d1, wrong; st.param.b64 [param0], %d1; st.param.b64 [param1], %d1;
        st.param.b32 [param2], 12; st.param.b64 [param3], %d1; st.param.b64 [param4], 1; @!%one bra END;
        call.uni __assertfail, (param0, param1, param2, param3, param4); trap; }\nEND:""",
}


def test_what_a_kernel_says():
    run(CALLS["vprintf"], words(1), module=MODULE)
    faults("wrong:12: thread 0: wrong: wrong", CALLS["__assertfail"], words(1), module=MODULE)


FOREVER = {
    "two wait for each other": "AGAIN: ld.relaxed.gpu.global.b32 %r1, [%A]; setp.eq.u32 %p1, %r1, 0; @%p1 bra AGAIN;",
    "a lock that nobody gives back": "AGAIN: atom.global.cas.b32 %r1, [%A], 1, 2; setp.ne.u32 %p1, %r1, 1;"
    "@%p1 bra AGAIN;",
}
ENDS = {
    "a long count": "mov.b32 %r1, 1200;\nAGAIN: sub.u32 %r1, %r1, 1; ld.global.b32 %r2, [%A];"
    "setp.ne.u32 %p1, %r1, 0; @%p1 bra AGAIN;",
    "both count, and wait for each other": "mov.b32 %r1, 1200;\nAGAIN: sub.u32 %r1, %r1, 1; bar.sync 0; bar.sync 1;"
    "setp.ne.u32 %p1, %r1, 0; @%p1 bra AGAIN;",
    "one counts, another waits": by("%w",
        "mov.b32 %r1, 1200;\nCOUNT: sub.u32 %r1, %r1, 1; setp.ne.u32 %p1, %r1, 0; @%p1 bra COUNT;"
        "st.relaxed.gpu.global.b32 [%A], 1;",
        "AGAIN: ld.relaxed.gpu.global.b32 %r1, [%A]; setp.eq.u32 %p1, %r1, 0; @%p1 bra AGAIN;"),
}  # fmt: skip


@pytest.mark.parametrize("name", [*FOREVER, *ENDS])
def test_a_wait_without_end_is_told_from_a_long_one(name, monkeypatch):
    monkeypatch.setattr("kernels.machine.core.stall.PATIENCE", 2_000)  # which the long counts exceed
    monkeypatch.setattr("kernels.machine.tests.small_ptx.BUDGET", 100_000)
    if name in FOREVER:
        faults("nothing changes any more", FOREVER[name], words(1), threads=64, seeds=[0])
    else:
        run(ENDS[name], words(1), threads=64, seeds=[0])


def test_many_that_wait_for_what_never_comes_are_told_soon(monkeypatch):
    """Those that only look make way for those that have not, however seldom the seed has these come round."""
    monkeypatch.setattr("kernels.machine.tests.small_ptx.BUDGET", 60_000)
    body = "atom.acq_rel.gpu.global.add.u32 %r1, [%A], 1;"
    body += until(81, "bar.sync 0; ld.acquire.gpu.global.b32 %r90, [%A]; bar.sync 0;")
    faults("nothing changes any more", body, words(1), grid=(40,), threads=64, seeds=[1])
