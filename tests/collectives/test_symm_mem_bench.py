"""The peer among the arms: over the same ranks, with the error it may have, and never in the way of the arms.

Without GPUs it is torch's fallback over gloo, gather first and multiply then: no time of that becomes a number."""

import itertools
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from test_gather_bench import all_gather, options_of

from collectives import peer
from collectives.bench import all_gather_matmul, matmul_reduce_scatter, symm_mem, weight_prefetch
from collectives.bench.setting import SETS
from roofline.measure.ranks import ALONE, Ranks
from roofline.operations.all_gather_matmul import AllGatherMatmul
from roofline.operations.matmul_reduce_scatter import MatmulReduceScatter

COUNT, NAMES = 2, ["symm_mem", "gloo_reduce_scatter"]
CASE = AllGatherMatmul("128x512", "up", 1, 1024, "fp32", COUNT, "gloo")
UNTIMED = replace(options_of(), timed=False)


class World:
    """Of ranks without GPUs, which lack `reason` to call the peer; else with a group for torch's fallback."""

    def __init__(self, ranks, reason=None):
        self.reason = reason
        if not dist.is_initialized():
            dist.init_process_group("gloo", store=ranks.fresh_store("world"), rank=ranks.rank, world_size=ranks.size)
        self.group = dist.group.WORLD

    synchronize = staticmethod(lambda: None)

    def why_not(self, kind):
        return self.reason if kind == "symmetric" else None


def a_rank(rank, path):
    torch.set_num_threads(1)
    own = Ranks(dist.FileStore(path, COUNT), rank, COUNT)
    own.world = World(own)
    runner = all_gather_matmul.Runner(UNTIMED)
    runner.ranks = own
    right, fused = peer.fused_all_gather_matmul, torch.distributed._symmetric_memory._fused_all_gather_matmul_fallback
    torch.library.impl("symm_mem::fused_all_gather_matmul", "CPU")(fused)

    def unwritten(x, w, group):
        out = torch.empty_like(right(x, w, group))
        assert out.isnan().all(), "new memory is not poisoned"
        return out

    calls = itertools.count(1)

    def raises_at_last(*given):
        out = right(*given)
        if next(calls) == 2 * SETS:
            raise OSError("the cable was cut")
        return out

    def on_rank_1(wrong):
        return lambda *given: (wrong if rank else right)(*given)

    for call, told in (
        (right, None),
        (on_rank_1(lambda *given: 1.01 * right(*given)), "rank 1: symm_mem: relative error 1.00e-02 is above 1e-05"),
        (on_rank_1(unwritten), "rank 1: symm_mem: the output holds NaN"),
        (on_rank_1(raises_at_last), "rank 1: OSError: the cable was cut"),
        (right, None),
    ):
        peer.fused_all_gather_matmul = call
        own.world = World(own)
        found = runner.prepare(CASE, ["serial", "symm_mem"])
        assert "serial" in found.entrants
        if told:
            assert told in found.rejected["symm_mem"].reason
            continue
        entrant = found.entrants["symm_mem"]
        assert 0 < entrant.relative_error < 1e-5
        assert entrant.facts == {"link": f"fabric of {COUNT} GPUs"}
        outs = [entrant.call() for _ in range(3)]
        assert torch.equal(outs[0], outs[2])  # on two sets by turns
        assert not torch.equal(outs[0], outs[1])


def a_scattering_rank(rank, path):
    torch.set_num_threads(1)
    own = Ranks(dist.FileStore(path, COUNT), rank, COUNT)
    own.world = World(own)
    runner = matmul_reduce_scatter.Runner(UNTIMED)
    runner.ranks = own
    fused = torch.distributed._symmetric_memory._fused_matmul_reduce_scatter_fallback
    torch.library.impl("symm_mem::fused_matmul_reduce_scatter", "CPU")(fused)
    plain = {name: getattr(peer, name) for name in ("fused_matmul_reduce_scatter", "gloo_reduce_scatter")}
    names, case = NAMES, MatmulReduceScatter("128x512", "down", 1, 64, "fp32", 2, "gloo")
    for factor in (1.0, 1.01):
        for name, call in plain.items():
            setattr(peer, name, lambda *given, call=call, factor=factor**rank: call(*given).mul_(factor))
        found = runner.prepare(case, ["serial", *names])
        assert "serial" in found.entrants
        if factor > 1:
            assert all("rank 1: " in found.rejected[name].reason for name in names), found.rejected
            continue
        assert not found.rejected, found.rejected
        assert found.entrants["symm_mem"].facts == {"link": "fabric of 2 GPUs"}
        said = "gloo's reduce-scatter between 2 ranks, an all-reduce"
        assert found.entrants["gloo_reduce_scatter"].facts == {"link": said}
        for name in names:
            outs = [found.entrants[name].call().clone() for _ in range(3)]
            assert torch.equal(outs[0], outs[2])
            assert not torch.equal(outs[0], outs[1])


def test_peers_of_the_reduce_scatter_add_all_ranks_products_and_one_that_is_wrong_is_named(tmp_path):
    multiprocessing.start_processes(a_scattering_rank, (str(tmp_path / "store"),), COUNT, start_method="fork")


def test_gloos_reduce_scatter_is_there_between_ranks_without_gpus_alone():
    for device, world, wire, there in (
        ("cpu", 2, "gloo", ["gloo_reduce_scatter"]),
        ("cpu", 1, "gloo", []),
        ("cpu", 2, "1GBps", []),
        ("cuda", 2, "nccl", ["symm_mem"]),
    ):
        runner = matmul_reduce_scatter.Runner(replace(options_of(), device=device, world=world))
        assert [name for name in runner.names(SimpleNamespace(wire=wire)) if name in NAMES] == there
    found = matmul_reduce_scatter.Runner(replace(options_of(), timed=False)).prepare(
        MatmulReduceScatter("128x512", "down", 1, 64, "fp32", 2, "1GBps"), NAMES
    )
    assert "it takes a GPU for each rank" in found.rejected["symm_mem"].reason
    assert "it takes ranks: start torchrun" in found.rejected["gloo_reduce_scatter"].reason


def test_all_ranks_multiply_all_chunks_with_their_own_weights_and_one_that_is_wrong_is_named(tmp_path):
    multiprocessing.start_processes(a_rank, (str(tmp_path / "store"),), COUNT, start_method="fork")


def test_it_is_there_where_ranks_have_gpus_or_it_is_asked_for():
    several = replace(options_of(), device="cuda", world=4)
    for options, wire, there in (
        (several, "symmetric", True),
        (several, "nccl", False),
        (replace(several, world=1), "symmetric", False),
        (replace(several, contenders=("symm_mem",)), "nccl", True),
    ):
        case = SimpleNamespace(wire=wire)
        assert ("symm_mem" in all_gather_matmul.Runner(options).names(case)) == there
        assert "symm_mem" not in weight_prefetch.Runner(options).names(case)


def test_it_may_round_once_for_each_chunk_and_no_more():
    assert symm_mem.tolerance("fp32", 4) == pytest.approx(1.58e-5, rel=1e-2)  # of one rounding: 1e-5


def test_it_says_what_it_lacks(monkeypatch):
    found = all_gather_matmul.Runner(UNTIMED).prepare(all_gather(), ["row_block_launches", "symm_mem"])
    assert found.contenders == ["row_block_launches"]
    said = "it takes a GPU for each rank: start torchrun --nproc-per-node N -m pytest --benchmark-only"
    assert found.rejected["symm_mem"].reason == f"symm_mem: {said}"
    assert peer.why_not(ALONE) == said
    ranks = SimpleNamespace(world=SimpleNamespace(why_not=lambda kind: f"not {kind}"))
    assert peer.why_not(ranks) == "not symmetric"
    monkeypatch.setattr(torch.ops, "symm_mem", object())
    assert "has no symm_mem.fused_all_gather_matmul" in peer.why_not(ranks)
