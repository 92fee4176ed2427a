"""What is looked for before a run: single lanes that go by a wait, and names that loops do not carry.

Both are problems of a run, so those of all kernels are looked at by `kernels.machine`.
"""

import pytest
import torch
import triton
import triton.language as tl
from small_ptx import program

from kernels.contract import KernelLaunch
from kernels.machine.device import Machine
from kernels.machine.run import enqueue
from kernels.machine.static import races


@triton.jit
def aliased(p, n):
    """In Python 5, 5, 6, 7, ...; compiled, 5 for ever."""
    b = tl.load(p)
    a = b
    for i in range(n):
        tl.store(p + i, a)
        a = b
        b = b + 1


def problems() -> list[str]:
    machine = Machine()
    enqueue(machine, KernelLaunch(aliased, (1,), dict(p=torch.empty(8, dtype=torch.int32), n=6)))
    return list(machine.problems)


def test_a_name_that_a_loop_loses_is_a_problem_of_the_run(printed_elsewhere):
    (problem,) = printed_elsewhere("import json; from test_static import problems; print(json.dumps(problems()))")
    assert "test_static.py" in problem
    assert "does not carry a: Triton keeps the value from before it" in problem


WAIT = "again: mbarrier.try_wait.parity.shared.b64 %p1, [global_smem], %r1; @!%p1 bra again;"
ELECT = "setp.eq.u32 %p2, %l, 0;"
TMA = "@{} cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [1024], [%M, {{%r2, %r3}}], [%r4];"
ARRIVE = "@%p2 mbarrier.arrive.shared.b64 _, [global_smem];"
COPIED = "cp.async.wait_group 0;"
STORED = "@%p2 cp.async.bulk.wait_group.read 0;"
READ, WRITE = "ld.shared.b32 %r5, [global_smem];", "st.shared.b32 [global_smem], %r5;"


@pytest.mark.parametrize(
    ("body", "goes_by"),
    [
        (f"{ELECT} {WAIT} {TMA.format('%p2')}", "cp.async.bulk.tensor"),  # cutlass issue 3654
        (f"{ELECT} {WAIT} bar.warp.sync -1; {TMA.format('%p2')}", None),
        (f"{WAIT} elect.sync %r9|%p2, -1; {TMA.format('%p2')}", None),
        (f"{ELECT} {WAIT} bar.sync 0; {ARRIVE}", None),
        (f"{ELECT} {WAIT} @%p3 bra on; bar.sync 0; on: {ARRIVE}", "mbarrier.arrive"),  # on one of the ways
        (f"{ELECT} on: {ARRIVE} {WAIT} @%p3 bra on;", "mbarrier.arrive"),  # in the loop's next turn
        (f"{WAIT} {READ}", None),  # each lane has waited itself
        (f"{COPIED} {READ}", "ld.shared"),  # what another lane has copied
        (f"{COPIED} bar.sync 0; {READ}", None),
        (f"{ELECT} {STORED} {WRITE}", "st.shared"),
        (f"{ELECT} {STORED} bar.sync 0; {WRITE}", None),
        (f"{ELECT} {STORED} ret; {WRITE}", None),
    ],
)
def test_no_lane_goes_by_a_wait_of_its_warp(body, goes_by):
    reports = races(program(body, names="M", shared=4096).kernel)
    assert [f" {goes_by}" in report for report in reports] == [True] * (goes_by is not None)
