"""The peer among the arms: over the same ranks, with the error it may have, and never in the way of the arms.

Without GPUs it is torch's fallback over gloo, gather first and multiply then: no time of that becomes a number."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from arm_cases import options_of

from collectives import peer
from collectives.bench import all_gather_matmul, matmul_reduce_scatter
from roofline.measure.ranks import Ranks
from roofline.operations import find
from roofline.operations.all_gather_matmul import AllGatherMatmul
from roofline.operations.matmul_reduce_scatter import MatmulReduceScatter

COUNT, FUSED = 2, ("fused_all_gather_matmul", "fused_matmul_reduce_scatter")
LINKS = {
    "symm_mem": f"fabric of {COUNT} GPUs",
    "gloo_reduce_scatter": f"gloo's reduce-scatter between {COUNT} ranks, an all-reduce",
}
CASE = AllGatherMatmul("128x512", "up", 1, 1024, "fp32", COUNT, "gloo")
SCATTER = MatmulReduceScatter("128x512", "down", 1, 64, "fp32", COUNT, "gloo")
UNTIMED = replace(options_of(), timed=False)


class World:
    """Of ranks without GPUs, with a group for torch's fallback."""

    def __init__(self, ranks):
        if not dist.is_initialized():
            dist.init_process_group("gloo", store=ranks.fresh_store("world"), rank=ranks.rank, world_size=ranks.size)
        self.group = dist.group.WORLD

    def why_not(self, kind):
        return None


def unwritten(out):
    fresh = torch.empty_like(out)
    assert fresh.isnan().all(), "new memory is not poisoned"
    return fresh


def a_rank(rank, path, module, case, peers):
    torch.set_num_threads(1)
    world = Ranks(dist.FileStore(path, COUNT), rank, COUNT)
    runner = module.Runner(UNTIMED)
    runner.ranks = world
    plain = module.Runner.peers
    for name in {*peers.values()} & {*FUSED}:
        fallback = getattr(torch.distributed._symmetric_memory, f"_{name}_fallback")
        torch.library.impl(f"symm_mem::{name}", "CPU")(fallback)
    for spoilt, reason in (
        (lambda out: out, None),
        (lambda out: out.mul_(1.01), "relative error 1.00e-02 is above"),
        (unwritten, "the output holds NaN"),
    ):
        of_rank = spoilt if rank else torch.clone
        module.Runner.peers = [
            replace(each, call=lambda *given, call=each.call, of_rank=of_rank: of_rank(call(*given))) for each in plain
        ]
        world.world = World(world)
        prepared = runner.prepare(case, ["serial", *peers])
        assert "serial" in prepared.entrants
        for name in peers:
            if reason:
                message = prepared.rejected[name].reason
                assert "rank 1: " in message
                assert reason in message
                continue
            entrant = prepared.entrants[name]
            assert entrant.relative_error < 1e-5
            assert entrant.facts == {"link": LINKS[name]}
            outs = [entrant.call().clone() for _ in range(3)]
            assert torch.equal(outs[0], outs[2])  # on two sets by turns
            assert not torch.equal(outs[0], outs[1])


@pytest.mark.parametrize(
    ("module", "case", "peers"),
    [
        (all_gather_matmul, CASE, {"symm_mem": FUSED[0]}),
        (matmul_reduce_scatter, SCATTER, {"symm_mem": FUSED[1], "gloo_reduce_scatter": "gloo_reduce_scatter"}),
    ],
)
def test_peers_are_right_on_all_ranks_and_one_that_is_wrong_on_a_rank_is_named(module, case, peers, tmp_path):
    about = str(tmp_path / "store"), module, case, peers
    multiprocessing.start_processes(a_rank, about, COUNT, start_method="fork")


@pytest.mark.parametrize(
    ("op", "changes", "wire", "peers"),
    [
        ("all_gather_matmul", dict(device="cuda", world=4), "symmetric", ["symm_mem"]),
        ("all_gather_matmul", dict(device="cuda", world=4), "nccl", []),
        ("all_gather_matmul", dict(device="cuda", world=4, contenders=("symm_mem",)), "nccl", ["symm_mem"]),
        ("weight_prefetch", dict(device="cuda", world=4), "symmetric", []),
        ("matmul_reduce_scatter", dict(world=2), "gloo", ["gloo_reduce_scatter"]),
        ("matmul_reduce_scatter", dict(world=1), "gloo", []),
        ("matmul_reduce_scatter", dict(device="cuda", world=2), "nccl", ["symm_mem"]),
    ],
)
def test_a_peer_is_there_where_ranks_have_what_it_takes_or_it_is_asked_for(op, changes, wire, peers):
    names = find(op).planner(replace(options_of(), **changes)).names(SimpleNamespace(wire=wire))
    assert [name for name in names if name in LINKS] == peers


def test_peers_say_what_they_lack(monkeypatch):
    prepared = matmul_reduce_scatter.Runner(UNTIMED).prepare(replace(SCATTER, wire="1GBps"), [*LINKS])
    assert "it takes a GPU for each rank" in prepared.rejected["symm_mem"].reason
    assert "it takes ranks: start torchrun" in prepared.rejected["gloo_reduce_scatter"].reason
    ranks = SimpleNamespace(world=SimpleNamespace(why_not=lambda kind: f"not {kind}"))
    assert peer.why_not(ranks, FUSED[0]) == "not symmetric"
    monkeypatch.setattr(torch.ops, "symm_mem", object())
    assert "has no symm_mem.fused_all_gather_matmul" in peer.why_not(ranks, FUSED[0])
