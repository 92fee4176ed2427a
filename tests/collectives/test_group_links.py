"""Arms over real ranks: processes that gather from one another, to the bit, whoever is late."""

import itertools
import platform
import time

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from arm_cases import Layer, Scatter, whole_numbers

from collectives import all_gather_matmul, ffn
from collectives.bench import ffn as layer_runs
from collectives.paced import PacedThread
from collectives.ranks import Gloo
from collectives.transfers import Transfer, WarmUp
from roofline.operations import gathering
from roofline.operations.ffn import Ffn
from roofline.operations.options import Options
from roofline.theory.arms import ARMS as ARM_SPECS
from roofline.worker.clocks import Call
from roofline.worker.prepared import Broken
from roofline.worker.ranks import Ranks, RanksCpuClock
from roofline.worker.rounds import CallError

B, D, F, CALLS = 20, 16, 12, 3
ranks_of_gloo = pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])


@pytest.fixture(autouse=True)
def a_worker():
    """The process that is forked has a thread that moves for its links, which its forks do not have."""
    link, here = PacedThread(1e9), torch.zeros(1, 1)
    link.start([Transfer(0, 0, here, here.clone())])
    link.finish()


def gather_matmuls(rank, ranks, path):
    link = Gloo(Ranks(dist.FileStore(path, ranks), rank, ranks))
    shards = [torch.full((B, D // ranks), torch.nan) for _ in range(ranks)]
    gathered, w = torch.empty(B, D), whole_numbers(rank, F, D)  # w of its own on each rank
    operands = all_gather_matmul.Operands(shards, gathered, w, torch.empty(B, F), rank, blocks=3)
    assert {name for name, _ in gathered_late(operands, link)} == {*all_gather_matmul.ARMS}


def gathered_late(operands, link, calls=CALLS):
    """The name of each arm, and its timeline, with each rank late in turn. Of the others' shards an arm has NaN. What a
    rank shares is overwritten as soon as an arm is done."""
    rank, ranks, w = operands.rank, len(operands.shards), operands.w
    rows, depth = operands.gathered.shape
    for late, (name, arm), call in itertools.product(range(ranks), all_gather_matmul.ARMS.items(), range(calls)):
        x = whole_numbers(100 * late + call, rows, depth).to(w)
        mine = x.chunk(ranks, 1)[rank]
        operands.gathered.fill_(torch.nan)
        operands.out.fill_(torch.nan)
        operands.shards[rank].copy_(mine)
        operands.columns(rank, operands.gathered).copy_(mine)
        time.sleep(0.02 * (late == rank))
        assert torch.equal(arm(operands, link), x @ w.T), (name, rank, late, call)
        timeline = link.timeline()
        assert timeline.arrivals_s == sorted(timeline.arrivals_s)
        assert len(timeline.arrivals_s) == (ranks - 1) * (3 if ARM_SPECS[name].by_block else 1)
        yield name, timeline


def sums(rank, ranks, path, link=None, device="cpu"):
    link = link or Gloo(Ranks(dist.FileStore(path, ranks), rank, ranks))
    kinds = [(kind, name) for kind in (Scatter, Layer) for name in kind.arms]
    for late, (kind, name) in itertools.product(range(ranks), kinds):
        case = kind(rank, ranks, alone=False, device=device)
        if device != "cpu":  # what is loaded while a stream waits would wait for it
            kind.arms[name](case.operands, WarmUp())
        for call in range(CALLS):
            case.renew(call)
            if kind is Layer and name != "all_reduce":  # which has all tokens; others have their own
                for other in set(range(ranks)) - {rank}:
                    case.operands.scatter.block(case.operands.x, other).fill_(torch.nan)
            time.sleep(0.02 * (late == rank))
            assert torch.equal(kind.arms[name](case.operands, link), case.expected(name)), (name, rank, late, call)
            timeline = link.timeline()
            assert len(timeline.ready_s) == len(timeline.arrivals_s) == (1 + kind.gathered) * (ranks - 1)


def layers_are_checked(rank, ranks, path):
    """By what all ranks sum, which no rank's own operands tell; what is wrong on one is out on all."""
    world, plain = Ranks(dist.FileStore(path, ranks), rank, ranks), ffn.all_reduce
    options = Options(
        device="cpu",
        timed=True,
        model="128x512",
        layers=("up",),
        tokens=(1024,),
        tp=(1,),
        dtypes=("fp32",),
        max_seconds=1.0,
        gather=gathering.make("cpu", "128x512", ranks=(ranks,), wires=("gloo",)),
        world=ranks
    )  # fmt: skip

    def wrong(operands, link):
        operands.scatter.block(plain(operands, link), int(not rank)).mul_(1.0 + 0.001 * (rank == 0))

    for arm, good in ((plain, True), (wrong, False)):
        layer_runs.Runner.own_arms["all_reduce"] = arm
        runner = layer_runs.Runner(options)
        runner.ranks = world
        prepared = runner.prepare(Ffn("128x512", "up_down", 1, 1024, "fp32", ranks, "gloo"), [*ffn.ARMS])
        assert prepared.contenders == [name for name in ffn.ARMS if good or name != "all_reduce"], prepared.rejected
        assert max(prepared.entrants[name].relative_error for name in prepared.contenders) < 1e-6
        prepared.entrants["gemm beside link"].call()


def metadata_of_a_run(rank, ranks, path):
    world = Ranks(dist.FileStore(path, ranks), rank, ranks)
    about = world.metadata()["ranks"]
    assert about["loopback"] is world.loopback is True
    assert (about["world"], about["threads"], about["interfaces"]) == (ranks, [1] * ranks, [None] * ranks)
    assert platform.node() not in repr(about)


def run(of_a_rank, ranks, path, *more):
    """Run it on each of `ranks` forks of this process, whose pool of threads they do not have."""
    multiprocessing.start_processes(on_one_core, (of_a_rank, ranks, str(path), *more), ranks, start_method="fork")


def on_one_core(rank, of_a_rank, *about):
    torch.set_num_threads(1)
    of_a_rank(rank, *about)


def turns(rank, ranks, path):
    """The sample is the slowest rank's time. Whose call raises is out of step, and nobody else."""
    world = Ranks(dist.FileStore(path, ranks), rank, ranks)
    clock, link = RanksCpuClock(world), Gloo(world)
    gathered, w, x = torch.empty(B, D), whole_numbers(rank, F, D), whole_numbers(100, B, D)
    shards = [part.contiguous() for part in x.chunk(ranks, 1)]
    operands = all_gather_matmul.Operands(shards, gathered, w, torch.empty(B, F), rank)

    def arm():
        assert torch.equal(all_gather_matmul.serial(operands, link), x @ w.T)

    with clock.ranks.in_step():
        times = clock.turn([Call(lambda: None), Call(arm, is_long=True)])
    of_ranks = [[of_call[f"rank{number}_s"] for number in range(ranks)] for of_call in clock.readings]
    assert times == [max(times_s) for times_s in of_ranks]
    with pytest.raises(Broken) as raised, clock.ranks.in_step():
        raise CallError("arm") from KeyError("gone")
    name, rejection = raised.value.args
    assert (name, rejection.reason.partition(":")[0]) == ("arm", "KeyError")


@ranks_of_gloo
@pytest.mark.parametrize("of_a_rank", [gather_matmuls, sums, layers_are_checked, metadata_of_a_run, turns])
def test_arms_over_gloo(of_a_rank, ranks, tmp_path):
    run(of_a_rank, ranks, tmp_path / "store")
