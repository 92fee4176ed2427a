"""Delays in PTX: where they stand, that a seed decides it, and that right kernels stay right."""

from contextlib import nullcontext

import cases
import perturb
import pytest

from kernels.machine import launcher

PTX = """
\tmov.u32 %r1, %tid.x;
\tbar.sync 0;
\tst.shared.b32 [%r1], %r2;
\t@%p1 mbarrier.init.shared::cta.b64 [%r3], 1;
waitLoop:
\tmbarrier.try_wait.parity.shared.b64 complete, [%r3], %r4;
\t@!complete bra.uni waitLoop;
\t@%p1 cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r5], [%rd1, {%r6, %r7}], [%r3];
\tcp.async.ca.shared.global [%r1], [%rd2], 0x4;
\tcp.async.wait_group 0;
\twgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%r8}, %rd3, %rd4, 1, 1, 1, 0, 1;
\tatom.global.gpu.acq_rel.add.u32 %r9, [%rd5], 1;
\tld.global.acquire.gpu.b32 %r9, [%rd5];
\tret;
"""
POINTS = ("bar.sync", "mbarrier.try_wait", "cp.async.bulk", "cp.async.wait_group", "atom.", "ld.global.acquire")


def test_delays_stand_at_synchronisation_points():
    beside = set()
    for seed in range(20):
        lines = perturb.perturbed(PTX, seed).splitlines()
        assert lines == perturb.perturbed(PTX, seed).splitlines()
        assert [line for line in lines if "perturb" not in line] == PTX.splitlines()
        for number, line in enumerate(lines):
            if "perturb" in line:
                near = [point for point in POINTS for text in lines[number - 1 : number + 2] if point in text]
                assert near, lines[number - 1 : number + 2]
                beside.update(near)
    assert beside == set(POINTS)


def of_kernel() -> list:
    """On the machine: a kernel of barriers and TMA with delays, and without them again."""
    case, said = next(case for case in cases.cases() if case.kernel == "decode"), []
    for delays in (perturb.perturbing(1), nullcontext([0])):
        launcher.PROGRAMS.clear()
        with delays as counts:
            outcome = cases.run(case, 0)
        (made,) = launcher.PROGRAMS.values()
        said.append([outcome.wrong, counts, made.triton.asm["ptx"].count("nanosleep")])
    return said


@pytest.mark.slow
def test_a_right_kernel_stays_exact_with_delays(elsewhere):
    delayed, plain = elsewhere(of_kernel)
    assert delayed[0] == plain[0] == ""
    assert delayed[1] == [delayed[2]]
    assert delayed[2] > 3
    assert plain[2] == 0
