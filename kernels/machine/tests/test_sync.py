"""Barriers, mbarriers and control flow (PTX ISA 8.7, 9.7.12, 9.7.13)."""

import pytest

from .small_ptx import holds, run, words

WAIT = "{{\nW: mbarrier.{}_wait.parity.shared::cta.b64 %p1, [{}], {}; @!%p1 bra W;\n}}\n"
PIECES = dict(
    W="@%one st.shared.b32 [0], 1;", W2="@%one st.shared.b32 [0], 2;",
    R="ld.shared.b32 %r1, [0]; st.global.b32 [%A], %r1;",
    INIT1="@%one mbarrier.init.shared::cta.b64 [64], 1;", INIT2="@%one mbarrier.init.shared::cta.b64 [64], 2;",
    INVAL="@%one mbarrier.inval.shared::cta.b64 [64];", BACK="@%one mbarrier.init.shared::cta.b64 [72], 1;",
    ODD="@%one mbarrier.init.shared::cta.b64 [68], 1;", OVER="st.shared.b32 [64], %k;",
    UNDER="ld.shared.b32 %r1, [68];",
    A="@%one mbarrier.arrive.shared::cta.b64 _, [64];", A2="@%one mbarrier.arrive.shared::cta.b64 _, [64], 2;",
    ABACK="@%one mbarrier.arrive.shared::cta.b64 _, [72];", BAR="bar.sync 0;", WARP="bar.warp.sync -1;",
    BYTES="@%one mbarrier.arrive.expect_tx.shared::cta.b64 _, [64], 16;", SOME="@%one bar.sync 0;",
    BAR1="bar.sync 1, 64;", BAR2="barrier.sync 2, 64;", WIDE="barrier.cta.sync.aligned 1, 96;",
    BAR16="bar.sync 16, 64;", HALF="bar.sync 1, 48;", T0=WAIT.format("test", 64, 0), L0=WAIT.format("try", 64, 0),
    L1=WAIT.format("try", 64, 1), B0=WAIT.format("try", 72, 0), LANES=WAIT.format("try", 64, "%l"),
)  # fmt: skip
# What each warp does; the value that is read at last, or what is wrong.
STEPS = r"""
1: INIT1 BAR W A / BAR T0 R | INIT2 BAR W A / BAR A L0 R | INIT2 BAR W A2 / BAR L0 R
1: INIT1 BAR A BAR INVAL INIT1 BAR W A / BAR L0 BAR BAR L0 R | INIT1 INVAL OVER W WARP R
2: INIT1 BACK BAR W A B0 W2 A / BAR L0 R WARP ABACK L1 R
wrote, with no order between: INIT1 BAR A W / BAR L0 R
overwrites|wrote, with no order|nobody can go on: INIT1 BAR W A W2 A / BAR L0 R
2 arrivals at an mbarrier at 64. phase 0, 1 of 1 arrivals pending: INIT1 A2
1 arrivals at an mbarrier .* 0 of 1 arrivals pending, 16 bytes expected and none on their way: INIT1 BYTES A
nobody can go on: INIT2 BAR W A / BAR L0 R | INIT1 BAR BYTES / BAR L0
initialises again the mbarrier at 64: INIT1 INIT2 | INIT1 A INIT1 | INIT1 A INIT2
may not have initialised yet|overwrites: INIT1 / INIT1
1: INIT1 INIT1 BAR W A / BAR L0 R
in the middle of a phase: INIT2 A INVAL | INIT1 BYTES INVAL
no mbarrier was initialised at 64: INIT1 INVAL A | L0
no mbarrier was initialised|may not have initialised yet: INIT1 / A
no multiple of 8: ODD
overwrites shared memory that an mbarrier's owner: INIT1 OVER
reads shared memory that an mbarrier's owner: INIT1 UNDER
the phase of a wait differs between the lanes: INIT1 LANES
1: W BAR / BAR R / BAR | W BAR1 BAR / BAR / BAR1 R BAR | W BAR2 BAR1 / / BAR2 BAR1 R | W BAR1 BAR1 / / BAR1 R BAR1
wrote, with no order between|nobody wrote|may still read: INIT1 BAR W / BAR L1 R | W BAR W2 / BAR R
wrote, with no order between|nobody wrote|may still read: W BAR1 / R / BAR1 | W WARP / WARP R /
is reached as one of: WIDE / / BAR1
nobody can go on: BAR1 / /
not all lanes of the warp reach: SOME / /
there are 16: BAR16 / BAR16 /
of whole warps: HALF / HALF /
"""


@pytest.mark.parametrize("row", STEPS.strip().splitlines())
def test_warps_in_step(row):
    """9.7.13.15: an mbarrier's phases, counts and life. 9.7.13.1: barriers of all warps, or of as many as are said."""
    holds(row, PIECES, "", words(1), shared=128)


GO = "W{0}: mbarrier.{1}_wait.shared::cta.b64 %p1, [64], %d{0}, 100; @!%p1 bra W{0};"
FORMS = PIECES | dict(
    A32="mbarrier.arrive.shared.b64 _, [64];",
    INIT3="@%one mbarrier.init.shared.b64 [64], 3;", S1="@%one mbarrier.arrive.shared.b64 %d1, [64];",
    INIT32="@%one mbarrier.init.shared.b64 [64], 32; bar.sync 0;", S32="mbarrier.arrive.shared.b64 %d2, [64];",
    GO=GO.format(2, "try"), TEST=GO.format(2, "test"), OUT="@%one st.global.b32 [%A], %r1;",
    DROP="@%one mbarrier.arrive_drop.release.cta.shared::cta.b64 _, [64];",
    PENDING="mbarrier.pending_count.b64 %r1, %d1;", INIT0="@%one mbarrier.init.shared.b64 [64], 0;",
    SOON="@%one mbarrier.arrive.noComplete.shared::cta.b64 %d1, [64], 1;",
    RELAXED="@%one mbarrier.arrive.relaxed.cta.shared::cta.b64 _, [64];",
    TX="@%one mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [64], 48;",
    DONE="@%one mbarrier.complete_tx.shared::cta.b64 [64], 48;",
    DONE16="@%one mbarrier.complete_tx.shared::cta.b64 [64], 16;",
    L0R="{\nW: mbarrier.try_wait.parity.relaxed.cta.shared::cta.b64 %p1, [64], 0; @!%p1 bra W;\n}",
    HUGE="@%one mbarrier.expect_tx.shared::cta.b64 [64], 1048576;",
    COUNT="setp.lt.u32 %p1, %l, 5; barrier.red.popc.u32 %r1, 0, %p1;",
    R0="ld.shared.b32 %r9, [0];", LAST="@%first st.global.b32 [%A], %r1;",
    NONE="setp.lt.u32 %p1, %t, 9; barrier.cta.red.and.aligned.pred %p2, 3, 64, !%p1; selp.u32 %r1, 4, 7, %p2;",
    SOME="setp.gt.u32 %p1, %t, 9; bar.red.or.pred %p2, 3, 64, %p1; selp.u32 %r1, 4, 7, %p2;",
    COME="bar.arrive 3, 64;", MEET="barrier.cta.sync 3, 64;",
)  # fmt: skip
OTHERS = r"""
3: INIT3 S1 PENDING OUT
2: INIT3 A S1 PENDING OUT
1: INIT32 W S32 GO R | INIT32 W S32 TEST R | INIT1 W TX A DONE L0 R
1: INIT2 BAR W DROP L0 BAR A L1 / BAR A L0 R BAR | INIT1 W TX BYTES DONE DONE16 L0 R
waits for phase 0 of an mbarrier at 64. phase 2: INIT32 S32 A32 TEST
is the last to arrive, with .noComplete, at an mbarrier at 64: INIT1 SOON
1 arrivals at an mbarrier .* 0 of 0 arrivals: INIT1 DROP A
more than 1048575 are expected of an mbarrier at 64: INIT1 HUGE
an mbarrier of 0 arrivals: INIT0
nobody can go on: INIT3 SOON SOON L0 | INIT1 TX A L0
wrote, with no order between|nobody wrote: INIT1 BAR W RELAXED / BAR L0 R | INIT1 BAR W A / BAR L0R R
1: W COME / MEET R | W COME BAR / MEET R BAR | MEET R / W COME | W COME MEET BAR / BAR R
wrote, with no order between|nobody wrote: COME R / W MEET | COME W BAR / MEET R BAR
15: COUNT LAST / COUNT LAST / COUNT LAST
7: NONE LAST / NONE LAST
4: SOME LAST / SOME LAST | W SOME LAST / SOME LAST R0
arrives again at barrier 3 of 64 threads: of warps .CTA.warp. 0.0 arrived, 0.1, 0.2 did not: COME COME / / MEET
"""


@pytest.mark.parametrize("row", OTHERS.strip().splitlines())
def test_other_forms(row):
    """9.7.13.15: states, arrivals that are dropped or complete nothing, bytes by hand, order. 9.7.13.1: bar.arrive, and
    bar.red, which counts and orders."""
    holds(row, FORMS, "", words(1), shared=128)


def test_a_loop_initialises_several():
    """As many as it turns: each has an agent of its own, by which its loads are known."""
    body = """mov.b32 %r1, 64;\nAGAIN: @%one mbarrier.init.shared::cta.b64 [%r1], 1; add.u32 %r1, %r1, 8;
    setp.lt.u32 %p1, %r1, 96; @%p1 bra AGAIN; @%one mbarrier.arrive.shared::cta.b64 _, [88];
    WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p1, [88], 0; @!%p1 bra WAIT; st.global.b32 [%A], 5;"""
    assert run(body, words(1), shared=128)[0][0] == 5


CHANGES = {f"{way}{n}": f"setmaxnreg.{way}.sync.aligned.u32 {n};" for way in ("inc", "dec") for n in range(16, 272, 4)}
POOLS = r"""
ok: dec40 / inc88 | dec40 inc64 /
nobody can go on: dec40 / inc96
dec.* to 72, from 64: dec72 /
inc.* to 56, from 64: inc56 /
to 36: dec36 /
to 264: inc264 /
"""
FLOW = dict(
    SPIN="AGAIN: nanosleep.u32 20; bra AGAIN;",
    GO="bra START;\nlabels: .branchtargets TWO, ZERO, TWO;\nZERO: mov.b32 %r1, 70; bra.uni STORE;"
    "TWO: mov.b32 %r1, 72; bra STORE;\nSTART:", STORE="STORE: st.global.b32 [%A], %r1;",
    ZEROTH="brx.idx 1, labels;", THIRD="brx.idx 3, labels;", LANES="brx.idx %l, labels;",
)  # fmt: skip
BRANCHES = """
nothing changes any more: SPIN
70: GO ZEROTH STORE
brx.idx 3 of 3 labels: GO THIRD STORE
index of brx.idx differs: GO LANES STORE
"""


@pytest.mark.parametrize("row", POOLS.strip().splitlines())
def test_setmaxnreg(row):
    """9.7.19.5: what is asked for comes from what others gave back, and is waited for."""
    holds(row, CHANGES, "", more=".maxnreg 64")


@pytest.mark.parametrize("row", BRANCHES.strip().splitlines())
def test_control_flow(row):
    """9.7.12: warps stay together. An endless loop is given up."""
    holds(row, FLOW, "", words(1))
