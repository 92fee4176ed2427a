"""Who runs when: grids, slots, launches one after another, several devices, the host; and what a seed decides."""

from contextlib import nullcontext

import numpy as np
import pytest
from host import Host
from small_ptx import BAR, FLAGS, INIT, LANDED, SEEDS, TMA, holds, load, prepared, program, run, words

from kernels.machine.core.faults import FaultError
from kernels.machine.core.machine import Machine
from kernels.machine.core.order import CLUSTER_BITS, FOREVER, GENERIC, Clock

TELL = "st.global.b32 [%C], 7; mov.b32 %r1, 1; st.global.release.{}.b32 [%B], %r1;"
HEAR = "HEAR: ld.global.{}.b32 %r90, [%B];\nsetp.ne.u32 %p1, %r90, 1; @%p1 bra HEAR; ld.global.b32 %r2, [%C];" + (
    "st.global.b32 [%A], %r2;"
)


def test_places_in_a_grid():
    """3.2, 10.6: %ctaid.x is the fastest."""
    body = """mov.u32 %r1, %ctaid.y; mov.u32 %r2, %ctaid.z; mov.u32 %r3, %nctaid.x; mov.u32 %r4, %nctaid.y;
    mad.lo.u32 %r5, %r2, %r4, %r1; mad.lo.u32 %r5, %r5, %r3, %c; mul.wide.u32 %d1, %r5, 4; add.s64 %d1, %d1, %A;
    mad.lo.u32 %r6, %r2, 100, %c; mad.lo.u32 %r6, %r1, 10, %r6; st.global.b32 [%d1], %r6;"""
    (out,) = run(body, np.zeros((2, 3, 4), np.uint32), grid=(4, 3, 2))
    assert (out == [[[100 * z + 10 * y + x for x in range(4)] for y in range(3)] for z in range(2)]).all()


@pytest.mark.parametrize(
    ("row", "where", "slots"),
    [("7: HEAR / TELL", "%c", 2), ("nothing changes any more: HEAR / TELL", "%c", 1), ("7: HEAR / TELL", "%k", 1)],
)  # fmt: skip
def test_slots_of_each_device(row, where, slots):
    """A CTA that waits for one that has no slot waits for ever."""
    event = "cp.async.ca.shared.global [0], [%D], 4; cp.async.wait_all;"  # is no reason to begin another CTA
    pieces = dict(TELL=TELL.format("sys"), HEAR=event + HEAR.format("acquire.sys"))
    holds(row, pieces, "", *FLAGS, where=where, slots=slots, shared=4)


def two(seed: int, first: str, second: str, arrays, after=(0,), **more) -> None:
    """Run two launches, the second by default after the first."""
    machine, maps = Machine(seed, budget=100_000), [(0, (8, 64), 3)]
    for body, when in ((first, ()), (second, after)):
        machine.launch(program(body, "ABM", shared=BAR + 8, **more), (1,), [*prepared(machine, arrays, maps), 0], when)
    machine.run()


SAVE = f"""shl.b32 %r50, %t, 4; add.s32 %r1, %t, 1; st.shared.v4.b32 [%r50], {{%r1, %r1, %r1, %r1}};
fence.proxy.async; bar.sync 0; @%first {TMA}.global.shared::cta.bulk_group [%M, {{0, 0}}], [0];
cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0;"""
READ = """mul.wide.u32 %d1, %t, 4; add.s64 %d2, %A, %d1; add.s64 %d3, %B, %d1;
ld.global.b32 %r1, [%d2+4]; st.global.b32 [%d3], %r1;"""
LOAD = f"{INIT}{load(0, 0, 1024)}{LANDED} shl.b32 %r50, %t, 4; ld.shared.b32 %r1, [%r50];"


@pytest.mark.parametrize("first", [SAVE, "mul.wide.u32 %d1, %t, 16; add.s64 %d2, %A, %d1; st.global.b32 [%d2+4], 5;"])
@pytest.mark.parametrize("second", [READ, LOAD])
def test_a_launch_after_another(first, second):
    """On one stream: it begins when all that the first one did has been done, and sees it, by either proxy."""
    for seed in range(9):
        arrays = [np.zeros((8, 64), np.uint16), words(64)]
        two(seed, first, second, arrays, threads=64)
        assert second is LOAD or (arrays[1] == arrays[0].view(np.uint32).reshape(-1)[1:65]).all()
        with pytest.raises(FaultError, match="global memory that"):
            two(seed, first, second, [np.zeros((8, 64), np.uint16), words(64)], after=(), threads=64)


@pytest.mark.parametrize(
    ("steps", "acquire", "why"),
    [("data flag", "acquire.sys", ""), ("data flag", "acquire.gpu", "scopes does not reach"),
     ("data flag", "relaxed.sys", "no order"), ("data late", "acquire.sys", "no order between"),
     ("data flag data", "acquire.sys", "no order between")],
)  # fmt: skip
def test_the_host_tells_devices(steps, acquire, why):
    """Its writes are in order for those who read with acquire, at system scope, the flag that it wrote last, and for a
    launch after theirs, by any proxy."""
    for seed in SEEDS:
        machine, arrays = Machine(seed, budget=100_000), [words(1), words(1), np.zeros((8, 64), np.uint16)]
        *parameters, tensor_map = prepared(machine, arrays, [(2, (8, 64), 3)])

        def write(host, to=parameters):
            for step in steps.split():
                if step != "data":
                    yield
                at, value = (to[2:], 7) if step == "data" else (to[1:2], 1)
                host.write(np.array(at), np.full((1, 1), value, np.uint32).view(np.uint8), release=step == "flag")

        Host(machine, write)
        machine.launch(program(HEAR.format(acquire), "ABC"), (1,), [*parameters, 0])
        machine.launch(program(LOAD, "M", shared=BAR + 8), (1,), [tensor_map, 0], after=(0,))
        with pytest.raises(FaultError, match=why) if why else nullcontext():
            machine.run()
        assert why or arrays[0][0] == 7


def test_a_seed_decides_the_order():
    """The last of eight CTAs and warps to write; the same one under the same seed."""
    body = "shl.b32 %r1, %c, 1; add.s32 %r1, %r1, %w; @%one atom.global.exch.b32 %r2, [%A], %r1;"
    seeds, more = list(range(40)) * 2, dict(grid=(4,), threads=64)
    last = [run(body, words(1), seeds=[seed], **more)[0][0] for seed in seeds]
    assert (last[:40], set(last)) == (last[40:], set(range(8)))


def test_who_knows_that_a_launch_has_ended_knows_all_of_it():
    """Whatever it knew of one of its CTAs before."""
    agent = 5 << CLUSTER_BITS
    before, after = Clock(1), Clock(1, ended=frozenset({range(4, 9)}))
    before.put(agent, 3)
    after.join(before)
    assert (before.item(GENERIC, agent), after.item(GENERIC, agent)) == (3, FOREVER)
    assert after.item(GENERIC, 9 << CLUSTER_BITS) == 0
