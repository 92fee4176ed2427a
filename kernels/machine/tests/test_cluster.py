"""Clusters (PTX ISA 8.7, 9.7.13.3, 9.7.9.23 and 24): two CTAs that see each other's shared memory and mbarriers."""

import numpy as np
import pytest

from kernels.machine.core.faults import FaultError
from kernels.machine.core.machine import Machine

from .small_ptx import BUDGET, TMA, by, faults, holds, prepared, program, run, until, words

PAIR = dict(more=".reqnctapercluster 2", where="%c")
WAIT = "{{\nW: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r9+64], {}; @!%p1 bra W;\n}}\n"
MULTICAST = f"""@%one {TMA}.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster
    [%r6], [%M, {{{{0, 0}}}}], [%r5], {{}};"""
PIECES = dict(
    PUT="@%one st.shared.b32 [%r9], 5;", FAR="@%one st.shared::cluster.b32 [%r10], 7;",
    GET="ld.shared::cluster.b32 %r1, [%r10];",
    OWN="ld.shared.b32 %r1, [global_smem];", OUT="@%one st.global.b32 [%A], %r1;",
    SYNC="barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;", ARRIVE="barrier.cluster.arrive.release;",
    WAIT="barrier.cluster.wait.acquire;",
    RELAXED="barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.aligned;",
    FENCE="fence.acq_rel.cluster;", NEAR="fence.acq_rel.cta;", INITS="@%one fence.mbarrier_init.release.cluster;",
    INIT="@%one mbarrier.init.shared::cta.b64 [%r9+64], 1;", INVAL="@%one mbarrier.inval.shared::cta.b64 [%r9+64];",
    HIT="@%one mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r10+64];", L0=WAIT.format(0), L1=WAIT.format(1),
    EXPECT="@%one mbarrier.arrive.expect_tx.relaxed.cluster.shared::cluster.b64 _, [%r10+64], 1024;",
    BYTES="@%one mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r9+64], 1024;",
    SEEN="ld.shared.b32 %r1, [%r4+1024]; st.global.b32 [%d1], %r1;",
    LESS="@%one mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r9+64], 512;",
    ONE=MULTICAST.format("1"), TWO=MULTICAST.format("2"), BOTH=MULTICAST.format("3"),
    PUT6="@%one st.shared.b32 [%r9], 6;", SOME="@%one barrier.cluster.arrive.aligned;",
    L0FAR=WAIT.replace("parity", "parity.acquire.cluster").format(0),
    L0LATER=WAIT.replace("parity", "parity.relaxed.cluster").format(0),
    BARE="@%one mbarrier.arrive.shared::cluster.b64 _, [%r10+64];", MEET="bar.sync 0;",
    LOOSE="@%one mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%r10+64];",
    LOOK="mbarrier.test_wait.parity.shared::cta.b64 %p1, [%r10+64], 0;",
)  # fmt: skip
START = """mov.b32 %r9, global_smem; mov.u32 %r8, %cluster_ctarank; xor.b32 %r7, %r8, 1;
mapa.shared::cluster.u32 %r10, %r9, %r7; add.u32 %r5, %r9, 64; add.u32 %r6, %r9, 1024;\n"""
# What each of the two CTAs does; what A holds then, or what is wrong.
STEPS = """
5: PUT SYNC SYNC / SYNC GET OUT SYNC | PUT ARRIVE WAIT SYNC / SYNC GET OUT SYNC
5: PUT FENCE RELAXED SYNC / RELAXED GET OUT SYNC
7: PUT SYNC SYNC OWN OUT / SYNC FAR SYNC
wrote, with no order|while reader: PUT SYNC OWN SYNC / SYNC FAR SYNC | PUT SYNC PUT6 SYNC / SYNC FAR SYNC
reads shared memory that .* wrote, with no order|nobody wrote: PUT SYNC / GET OUT SYNC
reads shared memory that .* wrote, with no order: PUT RELAXED SYNC / RELAXED GET SYNC
reads shared memory that .* wrote, with no order: PUT NEAR RELAXED SYNC / RELAXED GET SYNC
overwrites shared memory while reader|that .* wrote, with no order: PUT SYNC PUT6 SYNC / SYNC GET SYNC
ends while CTA 1 may still access|of CTA 0, which has ended: PUT SYNC / SYNC GET OUT | PUT SYNC / SYNC FAR
arrives again, with no wait between, at the barrier of the cluster: ARRIVE ARRIVE / SYNC
waits at the barrier of the cluster, where it has not arrived: WAIT / WAIT
not all lanes of the warp reach: SOME / SOME
nobody can go on: SYNC SYNC / SYNC INIT L0
ok: SYNC / ret; | SYNC SYNC / SYNC ARRIVE
7: INIT INITS RELAXED L0FAR OWN OUT SYNC / RELAXED FAR HIT SYNC
7: PUT INIT SYNC L0FAR OWN OUT SYNC / SYNC FAR HIT SYNC
5: INIT SYNC L0FAR GET OUT SYNC / SYNC PUT FENCE LOOSE SYNC | INIT SYNC L0LATER FENCE GET OUT SYNC / SYNC PUT HIT SYNC
scope that does not reach so far|nobody wrote: INIT SYNC L0 GET SYNC / SYNC PUT HIT SYNC
scope that does not reach so far|nobody wrote: INIT SYNC L0FAR GET SYNC / SYNC PUT BARE SYNC
scope that does not reach so far|nobody wrote: INIT SYNC L0FAR GET SYNC / SYNC PUT NEAR LOOSE SYNC
wrote, with no order|nobody wrote: INIT SYNC L0FAR GET SYNC / SYNC PUT LOOSE SYNC
wrote, with no order|nobody wrote: INIT SYNC L0LATER GET SYNC / SYNC PUT HIT SYNC
wrote, with no order|nobody wrote: INIT SYNC L0LATER NEAR GET SYNC / SYNC PUT HIT SYNC
may not have initialised yet: PUT INIT RELAXED L0 SYNC / RELAXED HIT SYNC
ends while CTA 1 may still access|of CTA 0, which has ended: INIT SYNC / SYNC HIT
no mbarrier was initialised at 64: SYNC SYNC / SYNC HIT SYNC
no mbarrier was initialised at -16777152: INIT SYNC SYNC / SYNC LOOK
middle of a phase|no mbarrier was initialised|which has ended: INIT SYNC INVAL / SYNC EXPECT
"""


@pytest.mark.parametrize("row", STEPS.strip().splitlines())
def test_two_ctas(row):
    holds(row, PIECES, START, words(1), shared=256, **PAIR)


@pytest.mark.parametrize(
    ("writer", "reader", "scope", "fault"),
    [(2, 3, "cluster", ""), (1, 2, "gpu", ""), (2, 3, "cta", "scope"), (1, 2, "cluster", "scope")],
)
def test_scope_of_a_cluster(writer, reader, scope, fault):
    """8.5: of four CTAs 0 and 1 are a cluster, and 2 and 3."""
    publish = f"st.global.b32 [%A], %t; st.release.{scope}.global.b32 [%B], 1;"
    look = until(1, f"ld.acquire.{scope}.global.b32 %r90, [%B];") + "ld.global.b32 %r1, [%A];"
    parts = {writer: publish, reader: look}
    more = dict(grid=(4,), more=PAIR["more"])
    body = by("%c", *(parts.get(rank, "") for rank in range(4)))
    if fault:
        faults(fault, body, words(1), words(1), **more)
    else:
        run(body, words(1), words(1), **more)


TENSOR = np.arange(1, 513, dtype=np.uint16).reshape(8, 64)
LANES_OUT = """shl.b32 %r4, %l, 2; add.u32 %r4, %r9, %r4; shl.b32 %r3, %c, 5; add.u32 %r3, %r3, %l;
mul.wide.u32 %d1, %r3, 4; add.s64 %d1, %B, %d1;\n"""
# What CTA 0 loads to itself, to the other or to both, and who expects it.
MULTICASTS = """
ok: INIT SYNC BYTES BOTH L0 SEEN SYNC / INIT SYNC BYTES L0 SEEN SYNC
ok: INIT SYNC TWO EXPECT SYNC / INIT SYNC L0 SEEN SYNC | INIT SYNC L0 SEEN SYNC / INIT SYNC EXPECT ONE SYNC
ok: INIT SYNC BYTES BOTH L0 SEEN SYNC BYTES BOTH L1 SYNC / INIT SYNC BYTES L0 SEEN SYNC BYTES L1 SYNC
ok: INIT SYNC TWO L0 TWO SYNC / INIT SYNC BYTES L0 SEEN MEET BARE BYTES L1 SEEN SYNC
overwrites shared memory|wrote, with no order: INIT SYNC TWO L0 TWO SYNC / INIT SYNC BYTES L0 BARE SEEN BYTES L1 SYNC
no mbarrier was initialised|may not have initialised yet: INIT BYTES BOTH L0 SYNC / INIT BYTES L0 SYNC
no mbarrier was initialised at 64: INIT SYNC BYTES BOTH L0 SYNC / SYNC SYNC
overwrites shared memory: INIT SYNC BYTES BOTH L0 BYTES BOTH L1 SYNC / INIT SYNC BYTES L0 SEEN BYTES L1 SYNC
wrote, with no order|nobody wrote: INIT SYNC BYTES BOTH L0 SEEN SYNC / INIT SYNC BYTES SEEN L0 SYNC
nobody can go on: INIT SYNC BYTES BOTH L0 SYNC / INIT SYNC LESS L0 SYNC
nobody can go on: INIT SYNC BYTES ONE L0 SYNC / INIT SYNC BYTES L0 SYNC
"""


@pytest.mark.parametrize("row", MULTICASTS.strip().splitlines())
def test_multicast(row):
    """9.7.9.25.5.2: each CTA of the mask gets the bytes, and they complete its own mbarrier at the same place."""
    more = PAIR | dict(shared=2048, maps=[(0, (8, 64), 0)])
    holds(row, PIECES, START + LANES_OUT, TENSOR, words(64), **more)


SENT = PIECES | dict(
    FILL="add.u32 %r2, %l, 100; st.shared.b32 [%r4+512], %r2;", FENCED="fence.proxy.async.shared::cta;",
    SEND="""@%one cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes
        [%r10+1024], [%r9+512], 128, [%r10+64];""",
    ODD="""@%one cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes
        [%r10+1024], [%r9+512], 120, [%r10+64];""",
    BYTES="@%one mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r9+64], 128;",
    FILL7="st.shared.b32 [%r4+512], 7;",
    FIRST="ld.shared.b32 %r1, [%r9+1024]; @%one st.global.b32 [%A], %r1;",
)  # fmt: skip
DONE = "mbarrier::complete_tx::bytes"
SENT |= dict(
    PAIR=f"st.async.weak.shared::cluster.{DONE}.v2.b32 [%r7], {{%r2, 5}}, [%r10+64];",
    FEW=f"@%one st.async.shared::cluster.{DONE}.u32 [%r10+1024], 9, [%r10+64];",
    ADD=f"red.async.relaxed.cluster.shared::cluster.{DONE}.add.u32 [%r10+1024], 3, [%r10+64];",
    EXPECT="@%one mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r9+64], 256;",
    CLEAR="@%one st.shared.b32 [%r9+1024], 0;",
    WARP="bar.warp.sync -1;",
    AT="shl.b32 %r7, %l, 3; add.u32 %r7, %r7, %r10; add.u32 %r7, %r7, 1024; add.u32 %r2, %l, 100;",
    FLOAT=f"st.async.{DONE}.f16 [%r10+1024], %h1, [%r10+64];",
)
# From CTA 1 to CTA 0.
COPIES = """
100: INIT SYNC BYTES L0 FIRST SYNC / FILL FENCED SYNC SEND SYNC FILL7
reads shared memory that .* wrote, with no fence.proxy.async: INIT SYNC BYTES L0 SYNC / FILL SYNC SEND SYNC
overwrites shared memory while reader|that .* wrote: INIT SYNC BYTES L0 SYNC / FILL FENCED SYNC SEND FILL7 SYNC
100: INIT SYNC EXPECT L0 FIRST SYNC / AT SYNC PAIR SYNC
100: INIT SYNC EXPECT L0 FIRST WARP BARE EXPECT L1 SYNC / AT INIT SYNC PAIR L0 PAIR SYNC
96: CLEAR INIT SYNC BYTES L0 FIRST SYNC / SYNC ADD SYNC
wrote, with no order|nobody wrote: INIT SYNC EXPECT FIRST SYNC / AT SYNC PAIR SYNC
overwrites shared memory while reader|that .* wrote: CLEAR INIT SYNC FIRST EXPECT L0 SYNC / AT SYNC PAIR SYNC
nobody can go on: INIT SYNC EXPECT L0 SYNC / AT SYNC FEW SYNC
120 bytes, multiples of 16: INIT SYNC BYTES SYNC / FILL FENCED SYNC ODD SYNC
ends while CTA 0 may still access: INIT SYNC BYTES L0 SYNC / FILL FENCED SYNC SEND ARRIVE
"""


@pytest.mark.parametrize("row", COPIES.strip().splitlines())
def test_shared_memory_is_copied_to_another_cta(row):
    """9.7.9.25.4.1: bytes complete the mbarrier there; until somebody knows of it, they may still be read here.
    What st.async fills again may have been read by whom an arrival of the default scope tells of."""
    start = START + LANES_OUT.replace("%B", "%A")
    holds(row, SENT, start, words(64), **PAIR | dict(shared=2048))


def of_both(case: str) -> str:
    return by("%c", *("\n".join(PIECES[word] for word in part.split()) for part in case.split(" / ")))


def test_multicast_reaches_both():
    body = START + LANES_OUT + of_both(MULTICASTS.strip().splitlines()[0].removeprefix("ok: "))
    _, out = run(body, TENSOR, words(64), grid=(2,), shared=2048, maps=[(0, (8, 64), 0)], more=PAIR["more"])
    assert out.reshape(2, 32).tolist() == [TENSOR.view(np.uint32).reshape(-1)[:32].tolist()] * 2


# Of CTAs in a grid of 6 x 2, clusters of 2.
PLACES = {
    "%cluster_ctarank": lambda x, y: x % 2, "%cluster_ctaid.x": lambda x, y: x % 2, "%cluster_nctarank": lambda x, y: 2,
    "%clusterid.x": lambda x, y: x // 2, "%clusterid.y": lambda x, y: y, "%nclusterid.x": lambda x, y: 3,
    "%cluster_nctaid.x": lambda x, y: 2, "%cluster_nctaid.y": lambda x, y: 1, "%nctaid.x": lambda x, y: 6,
}  # fmt: skip


@pytest.mark.parametrize("name", PLACES)
def test_places_of_ctas(name):
    """10.15 to 10.22."""
    body = f"""mov.u32 %r1, {name}; mov.u32 %r2, %ctaid.y; mad.lo.u32 %r2, %r2, 6, %c; mul.wide.u32 %d1, %r2, 4;
    add.s64 %d1, %A, %d1; st.global.b32 [%d1], %r1;"""
    (out,) = run(body, words(12), grid=(6, 2), more=PAIR["more"])
    assert out.tolist() == [PLACES[name](x, y) for y in range(2) for x in range(6)]


def test_ranks_of_addresses():
    """9.7.9.23 and 24, and what Triton does with the upper bits."""
    body = """mov.b32 %r9, global_smem; mapa.shared::cluster.u32 %r2, %r9, 1; getctarank.shared::cluster.u32 %r1, %r2;
    getctarank.shared::cluster.u32 %r3, %r9; shl.b32 %r1, %r1, 4; or.b32 %r1, %r1, %r3; and.b32 %r9, %r9, -16777217;
    getctarank.shared::cluster.u32 %r3, %r9; shl.b32 %r3, %r3, 8; or.b32 %r1, %r1, %r3;
    mul.wide.u32 %d1, %c, 4; add.s64 %d1, %A, %d1; st.global.b32 [%d1], %r1;"""
    assert run(body, words(2), grid=(2,), more=PAIR["more"])[0].tolist() == [0x10, 0x11]
    reach = "mov.b32 %r9, global_smem; mapa.shared::cluster.u32 %r2, %r9, 2; ld.shared::cluster.b32 %r1, [%r2];"
    faults("of no CTA of the cluster", reach, words(1), grid=(2,), shared=64, more=PAIR["more"])


@pytest.mark.parametrize(
    ("case", "words_of"),
    [("INIT SYNC BYTES BOTH L0 SYNC / INIT SYNC LESS L0 SYNC",
      ["mbarrier at 64 of CTA 1: phase 0, 0 of 1 arrivals pending, 512 bytes more landed than expected",
       "the barrier of the cluster: of warps (CTA.warp) 0.0 arrived, 1.0 did not"]),
      ("INIT SYNC BYTES ONE L0 SYNC / INIT SYNC BYTES L0 SYNC",
      ["mbarrier at 64 of CTA 1: phase 0, 0 of 1 arrivals pending, 1024 bytes expected and none on their way"])],
)  # fmt: skip
def test_who_waits_for_what(case, words_of):
    """A warp that waits says for what."""
    body = START + LANES_OUT + of_both(case)
    machine, arrays = Machine(0, None, BUDGET), [TENSOR.copy(), words(64)]
    made = program(body, "ABM", shared=2048, more=PAIR["more"])
    machine.launch(made, (2,), [*prepared(machine, arrays, [(0, (8, 64), 0)]), 0])
    with pytest.raises(FaultError):
        machine.run()
    waiting = [str(warp.ready) for warp in machine.warps if warp.ready]
    assert all(text in waiting for text in words_of), waiting
