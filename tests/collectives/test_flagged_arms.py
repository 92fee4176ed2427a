"""The arms that are one launch: their agreement, and on a GPU room for the copier."""

import time

import pytest
import torch

from collectives import all_gather_matmul, flagged_arms, links, weight_prefetch
from collectives.flagged_arms import ARMS, prepare
from collectives.links import LinkError
from roofline.theory.arms import of_operation

every_arm = pytest.mark.parametrize("arm", ARMS)
pytestmark = pytest.mark.gpu


def test_arms_agree_to_the_bit_on_any_data(operands, link, poison):
    """They add the same chunks in the same order, and a spill in fp32 is exact."""
    results = {}
    for arm in ARMS:
        mine = operands(1)
        poison(mine)
        results[arm] = ARMS[arm](mine, link(rank=1))
    assert mine.out.isfinite().all()
    assert all(torch.equal(result, mine.out) for result in results.values())


def test_every_arm_is_declared_for_its_operation():
    for op, known in (("all_gather_matmul", all_gather_matmul.ARMS | ARMS), ("weight_prefetch", weight_prefetch.ARMS)):
        assert known.keys() == set(of_operation(op, gpu=True))
    assert set(all_gather_matmul.ARMS) == set(of_operation("all_gather_matmul", gpu=False))


@every_arm
def test_preset_kernel_waits_for_nothing(arm, operands, link, close):
    mine = operands()
    link("preset").fill(mine.by_chunk)
    flagged_arms.preset(mine, arm)
    close(mine)
    assert int(mine.prepared[arm].up.lost) == 0


def test_flag_that_is_given_up_is_an_error_though_its_chunk_comes_after_all(operands, link, monkeypatch, device):
    if device == "cuda":
        pytest.skip("a GPU's patience is in seconds: the dead link's test has it")
    monkeypatch.setattr(links, "PATIENCE_LOOKS", 1)
    mine = operands()
    wire = link()
    wire.clock.let_go = lambda: None  # until the kernel has ended, time stands still
    with pytest.raises(LinkError, match=r"chunk \d .*to rank 0, .* its flag was given up"):
        ARMS["row_block"](mine, wire)
    monkeypatch.undo()
    del wire.clock.let_go
    ARMS["row_block"](mine, wire)  # and the link is as good as new


def test_copier_finishes_while_the_matmul_holds_every_sm(device, operands, monkeypatch):
    """The matmul is there first, one program on each SM, and none of them ends before its chunks are here."""
    if device != "cuda":
        pytest.skip("needs a GPU: there is no clock and no stream in the interpreter")
    from collectives import device_links
    from kernels import hopper

    monkeypatch.setattr(hopper, "programs", lambda of: torch.cuda.get_device_properties(of).multi_processor_count)
    mine = operands(rows=4096, columns=2048)
    link = device_links.PacedCopier(100e9)
    programs = hopper.programs(mine.out.device)
    assert len(prepare(mine, "row_block").plan.grid.tiles) >= programs
    ARMS["row_block"](mine, link)  # loads the kernels
    link.timeline()
    ready, move = mine.prepared["row_block"], link._move
    link._move = lambda route: None
    device_links.DeviceLink.start(link, ready.transfers)
    mine.out.fill_(torch.nan)
    flagged_arms.flagged.matmul(mine.gathered, mine.w, mine.out, ready.plan, link.signals())
    time.sleep(0.2)
    assert not torch.cuda.current_stream().query(), "the matmul has ended without its chunks"
    with torch.cuda.stream(link._stream):
        move(link._route)
    link.finish()
    link.timeline()  # raises where a flag was given up
    assert mine.out.isfinite().all()
