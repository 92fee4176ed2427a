"""The peer among the arms: over the same ranks, with the error it may have, and never in the way of the arms.

Without GPUs it is torch's fallback over gloo, gather first and multiply then: no time of that becomes a number."""

from dataclasses import replace
from functools import wraps
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from arm_cases import OPTIONS
from test_ranks_links import run

from collectives import peer
from collectives.bench import all_gather_matmul, matmul_reduce_scatter
from roofline.operations import find
from roofline.operations.all_gather_matmul import AllGatherMatmul
from roofline.operations.matmul_reduce_scatter import MatmulReduceScatter
from roofline.theory.arms import PEER
from roofline.worker.ranks import Ranks

COUNT = 2
CASE = AllGatherMatmul("128x512", "up", 1, 1024, "fp32", COUNT, "gloo")
SCATTER = MatmulReduceScatter("128x512", "down", 1, 64, "fp32", COUNT, "gloo")
UNTIMED = replace(OPTIONS, timed=False)


def unwritten(out):
    fresh = torch.empty_like(out)
    assert fresh.isnan().all(), "new memory is not poisoned"
    return fresh


def a_rank(rank, count, path, module, case):
    world = Ranks(dist.FileStore(path, count), rank, count)
    runner = module.Runner(UNTIMED)
    runner.ranks = world
    dist.init_process_group("gloo", store=world.fresh_store("world"), rank=rank, world_size=count)
    world.world = SimpleNamespace(group=dist.group.WORLD, why_not=lambda kind: None)  # for torch's fallback
    operator = module.Runner.peer_operator
    fallback = getattr(torch.distributed._symmetric_memory, f"_{operator.__name__}_fallback")
    torch.library.impl(f"symm_mem::{operator.__name__}", "CPU")(fallback)
    for spoilt, reason in (
        (lambda out: out, None),
        (lambda out: out.mul_(1.01), "relative error 1.00e-02 is above"),
        (unwritten, "NaN: unwritten, read out of bounds, or computed; the first is in row 0 of out"),
    ):
        of_rank = spoilt if rank else torch.clone
        module.Runner.peer_operator = wraps(operator)(lambda *given, of_rank=of_rank: of_rank(operator(*given)))
        prepared = runner.prepare(case, ["serial", PEER])
        assert "serial" in prepared.entrants
        if reason:
            message = prepared.rejected[PEER].reason
            assert "rank 1: " in message
            assert reason in message
            continue
        entrant = prepared.entrants[PEER]
        assert entrant.relative_error < 1e-5
        assert entrant.facts == {"link": f"fabric of {COUNT} GPUs"}
        outs = [entrant.call().clone() for _ in range(3)]
        assert torch.equal(outs[0], outs[2])  # on two sets by turns
        assert not torch.equal(outs[0], outs[1])


@pytest.mark.parametrize(("module", "case"), [(all_gather_matmul, CASE), (matmul_reduce_scatter, SCATTER)])
def test_peers_are_right_on_all_ranks_and_one_that_is_wrong_on_a_rank_is_named(module, case, tmp_path):
    run(a_rank, COUNT, tmp_path / "store", module, case)


@pytest.mark.parametrize(
    ("op", "changes", "wire", "is_there"),
    [
        ("all_gather_matmul", dict(device="cuda", world=4), "symmetric", True),
        ("all_gather_matmul", dict(device="cuda", world=4, contenders=("symm_mem",)), "nccl", True),
        ("matmul_reduce_scatter", dict(world=2), "gloo", False),
    ],
)
def test_a_peer_is_there_where_ranks_have_what_it_takes_or_it_is_asked_for(op, changes, wire, is_there):
    names = find(op).planner(replace(OPTIONS, **changes)).names(SimpleNamespace(wire=wire))
    assert (PEER in names) == is_there


def test_a_peer_says_what_it_lacks():
    prepared = matmul_reduce_scatter.Runner(UNTIMED).prepare(replace(SCATTER, wire="1GBps"), [PEER])
    assert "it takes a GPU for each rank" in prepared.rejected[PEER].reason
    ranks = SimpleNamespace(world=SimpleNamespace(why_not=lambda kind: f"not {kind}"))
    assert peer.why_not(ranks) == "not symmetric"
