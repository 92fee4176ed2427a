"""Links of copy engines on the stand-in for CUDA: which calls of the driver they make, in which order and when, and
what is said where no engine copies. That arms over them are right, and load nothing late: test_loads. The pacer as
compiled, and a consumer that does not wait: tests/machine.

All of it runs in one process beside this one.
"""

import ctypes

import pytest
import stand_in
from arm_cases import ON_GPU, Gather, Scatter

from roofline.operations import Runners, find
from roofline.operations.all_gather_matmul import AllGatherMatmul

ROWS, WIDTH, RANKS, BYTES_PER_S, SLICE_ROWS = 24, 16, 3, 1e6, 8
ROW_BYTES = 4 * WIDTH
SLICE_S = SLICE_ROWS * ROW_BYTES / BYTES_PER_S
SLICES = ROWS // SLICE_ROWS
NEW, OLD = "cuMemcpy3DBatchAsync_v2", "cuMemcpy2DAsync_v2"
WAIT, WRITE = "cuStreamWaitValue32_v2", "cuStreamWriteValue32_v2"


def gather():
    return Gather(ranks=RANKS, sizes=(ROWS, 8, RANKS * WIDTH), device="cuda").operands


def paced() -> dict:
    """Of a gather's second run over the paced link what it calls, and when."""
    from collectives import all_gather_matmul, engines

    engines.ENGINE_SLICE_BYTES = SLICE_ROWS * ROW_BYTES
    operands, link = gather(), engines.PacedEngine(BYTES_PER_S)
    for _ in range(2):
        del stand_in.DEVICE.calls[:]
        all_gather_matmul.serial(operands, link)
        timeline = link.timeline()
    route = link._route
    raised = [[stand_in.DEVICE.raised_at[counter.data_ptr()] for counter in pair.split(1)] for pair in route.let_go]
    begun_s = 1e-9 * int(route.free[0])
    names = [name for name, *_ in stand_in.DEVICE.calls]
    return {"names": names, "begun": begun_s, "raised": raised, "arrivals": timeline.arrivals_s}


def over_pcie() -> list[list[str]]:
    """Of a gather and a scatter over PCIe where each copy is from and to, the host (h) or the device (d), and flags."""
    from collectives import all_gather_matmul, engines, matmul_reduce_scatter
    from collectives.transfers import WarmUp

    operands, scatter, outcomes = gather(), Scatter(ranks=RANKS, device="cuda").operands, []
    operands.shards[1:] = map(engines.in_host_memory, operands.shards[1:])
    for arm, made, transfers in (
        (all_gather_matmul.serial, operands, operands.by_chunk),
        (matmul_reduce_scatter.serial, scatter, scatter.parts),
    ):
        arm(made, WarmUp())
        del stand_in.DEVICE.calls[:]
        arm(made, link := engines.Pcie())
        link.timeline()
        on_device = {end.data_ptr() for t in transfers for end in (t.source, t.target) if end.is_cuda}
        steps = []
        for name, *about in stand_in.DEVICE.calls:
            matrix = next((each for each in about if isinstance(each, ctypes.Array)), None)
            if matrix:
                source, _, target, *_ = (matrix[place] for place in stand_in.COPIED[name])
                name = "".join("hd"[end in on_device] for end in (source, target))
            steps.append(name)
        outcomes.append(steps)
    return outcomes


def by_driver(sms=(), lacks=()) -> list:
    """What is taken to copy, and what the runner says of a case over the engine, where the functions `sms` take SMs and
    the driver has none of those that it `lacks`."""
    from collectives import device, engines

    case = AllGatherMatmul("256x384", "up", 1, 512, "fp16", 4, "1GBpsengine")
    stand_in.DEVICE.copies_take_sms, device.driver_has = {*sms}, lambda name: name not in lacks
    engines.engine.cache_clear()
    if engines.engine():
        return [engines.engine()]
    runner = Runners(ON_GPU).of(find(case.op))
    prepared = runner.prepare(case, ["serial"])
    return [*prepared.entrants, *(rejected.reason for rejected in prepared.rejected.values())]


def main() -> dict:
    stand_in.install()
    return {
        "paced": paced(),
        "pcie": over_pcie(),
        "drivers": [by_driver(), by_driver(lacks=[NEW]), by_driver(sms=[NEW]), by_driver(sms=[NEW, OLD])],
    }


def test_each_slice_is_one_copy_behind_its_wait_and_each_transfer_has_a_flag(outcome):
    assert outcome["paced"]["names"] == (RANKS - 1) * (SLICES * [WAIT, NEW] + [WAIT, WRITE])


def test_a_slice_is_let_go_when_the_one_before_is_due_and_flags_are_up_no_earlier(outcome):
    paced = outcome["paced"]
    due_s = [(number + 1) * SLICE_S for number in range(len(paced["raised"]))]
    for at_s, raised in zip(due_s, paced["raised"], strict=True):
        assert raised == pytest.approx([paced["begun"] + at_s - SLICE_S, paced["begun"] + at_s], abs=2e-6)
    assert paced["arrivals"] == pytest.approx(due_s[SLICES - 1 :: SLICES], abs=2e-8)


def test_shards_come_from_host_memory_and_parts_go_there_and_come_back(outcome):
    of_gather, of_scatter = outcome["pcie"]
    assert of_gather == ["hd", WRITE] * (RANKS - 1)
    assert of_scatter == [WAIT, "dh", "hd", WRITE] * (RANKS - 1)


def test_a_copy_that_goes_by_a_kernel_on_every_sm_is_taken_and_without_one_the_link_is_not_used(outcome):
    *engines, (reason,) = outcome["drivers"]
    assert engines == [[NEW], [OLD], [OLD]]
    assert reason.startswith("paced_engine: on this GPU a copy within its memory waits for SMs, by whatever function")
