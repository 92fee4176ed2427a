"""Arms over real ranks: processes that gather from one another, to the bit, whoever is late."""

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from arm_cases import Gather, Layer, Scatter, late_runs, options_of

from collectives import ffn
from collectives.bench import ffn as layer_runs
from collectives.paced import PacedThread
from collectives.ranks import Gloo
from collectives.transfers import Transfer
from roofline.host.device_errors import CallError
from roofline.operations import gathering
from roofline.operations.ffn import Ffn
from roofline.protocol.messages import Broken
from roofline.worker.clocks import Call
from roofline.worker.ranks import Ranks, RanksCpuClock

ranks_of_gloo = pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])


@pytest.fixture(autouse=True)
def a_worker():
    """The process that is forked has a thread that moves for its links, which its forks do not have."""
    link, here = PacedThread(1e9), torch.zeros(1, 1)
    link.start([Transfer(0, 0, here, here.clone())])
    link.finish()


def arms_are_exact(rank, ranks, path):
    link = Gloo(Ranks(dist.FileStore(path, ranks), rank, ranks))
    for kind in (Gather, Scatter, Layer):
        for _, timeline in late_runs(kind(rank, ranks, alone=False), link):
            assert kind is not Gather or timeline.arrivals_s == sorted(timeline.arrivals_s)


def layers_are_checked(rank, ranks, path):
    """By what all ranks sum, which no rank's own operands tell; what is wrong on one is out on all."""
    world, plain = Ranks(dist.FileStore(path, ranks), rank, ranks), ffn.all_reduce
    sweep = gathering.make("cpu", "128x512", ranks=(ranks,), wires=("gloo",))
    options = replace(options_of(gather=sweep), timed=False, world=ranks)

    def wrong(operands, link):
        operands.scatter.block(plain(operands, link), int(not rank)).mul_(1.0 + 0.001 * (rank == 0))

    for arm, good in ((plain, True), (wrong, False)):
        layer_runs.Runner.own_arms["all_reduce"] = arm
        runner = layer_runs.Runner(options)
        runner.ranks = world
        prepared = runner.prepare(Ffn("128x512", "up_down", 1, 1024, "fp32", ranks, "gloo"), [*ffn.ARMS])
        assert prepared.contenders == [name for name in ffn.ARMS if good or name != "all_reduce"], prepared.rejected
        assert max(prepared.entrants[name].relative_error for name in prepared.contenders) < 1e-6


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
    case = Gather(rank, ranks, alone=False)

    def arm():
        assert torch.equal(case.arms["serial"](case.operands, link), case.expected("serial"))

    with clock.ranks.in_step():
        times = clock.turn([Call(lambda: None), Call(arm, is_long=True)])
    of_ranks = [[of_call[f"rank{number}_s"] for number in range(ranks)] for of_call in clock.readings]
    assert times == [max(times_s) for times_s in of_ranks]
    with pytest.raises(Broken) as raised, clock.ranks.in_step():
        raise CallError("arm") from KeyError("gone")
    name, rejection = raised.value.args
    assert (name, rejection.reason.partition(":")[0]) == ("arm", "KeyError")


@ranks_of_gloo
@pytest.mark.parametrize("of_a_rank", [arms_are_exact, layers_are_checked, turns])
def test_arms_over_gloo(of_a_rank, ranks, tmp_path):
    run(of_a_rank, ranks, tmp_path / "store")
