"""When a wgmma may be issued, and what it leaves be used (PTX ISA 8.7, 9.7.15). That it multiplies in every form:
test_small_kernels.py."""

import numpy as np
import pytest
from small_ptx import holds, run

from kernels.machine.ptx import UnknownError

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
no wgmma.fence: FILL PROXY BAR MMA COMMIT WAIT | FILL PROXY BAR FENCE MMA COMMIT OTHER COMMIT WAIT
no wgmma.fence: FILL PROXY BAR FENCE MMA COMMIT WAIT MMA COMMIT WAIT
wrote, with no fence.proxy.async: FILL BAR FENCE MMA COMMIT WAIT | PROXY FILL BAR FENCE MMA COMMIT WAIT
that (.* wrote, with no order|nobody wrote): FILL PROXY FENCE MMA COMMIT WAIT
overwrites shared memory while reader: FILL PROXY BAR FENCE MMA COMMIT FENCE OTHER COMMIT WAIT1 BAR DIRTY WAIT
ends while its wgmma: FILL PROXY BAR FENCE MMA COMMIT | FILL PROXY BAR FENCE MMA WAIT
not all lanes take part in: FILL PROXY BAR FENCE ONE
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


@pytest.mark.parametrize("descriptor", [SWIZZLED | 1 << 49, 0])
def test_other_layouts_are_refused(descriptor):
    with pytest.raises(UnknownError, match="a matrix descriptor with a base offset, or of no swizzle"):
        run(f"mov.pred %p1, 0; {FENCE} {mma(w=descriptor)}", threads=128, shared=1 << 14)
