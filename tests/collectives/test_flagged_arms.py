"""The arms that are one launch: their tables, and their agreement."""

import pytest
import torch

from collectives import all_gather_matmul, flagged_arms, links, weight_prefetch
from collectives.flagged_arms import ARMS, prepare
from collectives.links import LinkError
from roofline.theory.arms import of_operation

every_arm = pytest.mark.parametrize("arm", ARMS)


def test_arms_agree_to_the_bit_on_any_data(operands, link, poison):
    """They add the same chunks in the same order, and a spill in fp32 is exact."""
    results = {}
    for arm in ARMS:
        mine = operands(1)
        poison(mine)
        results[arm] = ARMS[arm](mine, link(rank=1))
    assert mine.out.isfinite().all()
    assert all(torch.equal(result, mine.out) for result in results.values())


def test_chunk_outer_spills_less_where_the_link_is_fast(operands):
    spilled = [
        prepare(operands(rows=256), "chunk_outer", 1.0, t_comm_s).plan.spilled_bytes for t_comm_s in (1.0, 0.3, 0.0)
    ]
    assert spilled[0] > spilled[1] > spilled[2] == 0


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
