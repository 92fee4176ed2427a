"""Gradients that are summed over ranks: every arm to the bit, whoever is late, and no wrong one gets in."""

import time

import pytest
import torch.distributed as dist
from test_group_links import ranks_of_gloo, run

from collectives import gradient_all_reduce
from collectives.bench.gradient_all_reduce import SETS, Setting
from collectives.gradient_all_reduce import Operands
from roofline.measure.prepared import FAILED
from roofline.measure.ranks import Ranks
from roofline.operations.gradient_all_reduce import GradientAllReduce

COLLECTIVES = {
    **{"flat": 1, "per_parameter": 9, "overlapped": 9, "ddp": 1},
    **{"bucketed_1296B": 3, "bucketed_2592B": 2},  # of 9 layers, 576 bytes each
}


worlds = []
"""Kept to the end of a fork, with their groups: a group that is let go of may wait for its threads."""


def begun(rank, ranks, path):
    world = Ranks(dist.FileStore(path, ranks), rank, ranks)
    worlds.append(world)
    return world, Setting(GradientAllReduce("96x96", 9, 20, "fp32", ranks), 0, world)


def before_backward(do):
    """Have all backward passes of ours `do()` something first."""
    plain = Operands.backward
    Operands.backward = lambda *given: do() or plain(*given)


def every_arm(rank, ranks, path):
    _, setting = begun(rank, ranks, path)
    before_backward(lambda: time.sleep(0.01 * (late == rank)))
    for late in range(ranks):
        for name, count in COLLECTIVES.items():
            if name == "ddp":
                continue
            entrant = setting.entrant(name)
            assert (entrant.relative_error, entrant.facts["collectives"]) == (0.0, count), (name, rank, late)


def torchs(rank, ranks, path):
    _, setting = begun(rank, ranks, path)
    entrant = setting.entrant("ddp")
    assert (entrant.relative_error, entrant.facts["collectives"]) == (0.0, COLLECTIVES["ddp"])
    ddp = entrant.call.runs[0]
    for _ in range(2 * SETS):
        ddp()  # the backward pass alone
        assert setting.error(ddp.sums, ddp.operands) == 0.0
        ddp.forward()


def wrong_arms(rank, ranks, path):
    _, setting = begun(rank, ranks, path)
    assert setting.entrant("flat").relative_error == 0.0  # what it leaves is right
    wrong = {"not written": lambda operands, reduce: None, "not summed": lambda operands, reduce: operands.backward()}
    gradient_all_reduce.ARMS.update(wrong)
    for name in wrong:
        assert setting.entrant(name).outcome == FAILED, name


@ranks_of_gloo
@pytest.mark.parametrize("of_a_rank", [every_arm, wrong_arms])
def test_gradients_over_gloo(of_a_rank, ranks, tmp_path):
    run(of_a_rank, ranks, tmp_path / "store")


@pytest.mark.slow
def test_torchs_gradients(tmp_path):
    import torch._dynamo  # noqa: F401 (here, and not on each rank: DistributedDataParallel imports it)

    run(torchs, 2, tmp_path / "store")


def test_arms_are_those_that_are_tested():
    assert set(GradientAllReduce("96x96", 9, 20, "fp32", 2).arms) == set(COLLECTIVES)
