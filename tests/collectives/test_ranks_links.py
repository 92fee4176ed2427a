"""Links between real ranks, who gather from one another and send one another sums, to the bit, whoever is late: over
gloo; and between GPUs, without one, where each rank is a process with a stand-in for CUDA, on whose streams messages
have their turn. There symmetric memory is memory that processes share, and gloo is NCCL.

Those with a stand-in are forks of a process beside this one: kernels are those that Triton compiles, so that a load
that would hang is seen.
"""

import functools
import itertools
import sys
import time
import types
from dataclasses import replace
from pathlib import Path

import pytest
import stand_in
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from arm_cases import OPTIONS, Gather, Layer, Prefetch, Scatter, gather_over, late_runs

from collectives import ffn, weight_prefetch
from collectives.bench import ffn as layer_runs
from collectives.bench.links import make_link
from collectives.paced import PacedThread
from collectives.ranks import Gloo
from collectives.transfers import Transfer
from roofline.operations.ffn import Ffn
from roofline.operations.gathering import Sweep
from roofline.theory.arms import ARMS as ARM_SPECS
from roofline.worker import device_ranks
from roofline.worker.ranks import LATE_S, Ranks

CALLS = 2
BARRIER_LATE_S = 0.1
"""The last rank is so late behind a rendezvous."""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="ranks are forks, and share memory by files")


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
    sweep = Sweep(ranks=(ranks,), wires=("gloo",))
    options = replace(OPTIONS, timed=False, world=ranks, gather=sweep)

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


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("of_a_rank", [arms_are_exact, layers_are_checked])
def test_arms_over_gloo(of_a_rank, ranks, tmp_path):
    run(of_a_rank, ranks, tmp_path / "store")


class SymmetricMemory:
    """torch's, of this rank: a file for each allocation, which all ranks map. The last rank goes on late from a
    rendezvous."""

    def __init__(self, folder, rank, count):
        self.folder, self.rank, self.ranks, self.numbers = folder, rank, range(count), itertools.count()
        self.number_of = {}
        self.late_s = BARRIER_LATE_S * (rank == count - 1)

    def empty_strided_p2p(self, size, stride, dtype, device, group):
        number, made = next(self.numbers), torch.empty(size, dtype=dtype)
        mine = torch.from_file(str(self.folder / f"{number}-{self.rank}"), True, made.numel(), dtype=dtype)
        self.number_of[mine.data_ptr()] = number
        return mine.view(size)

    def rendezvous(self, tensor):
        number, size = self.number_of[tensor.untyped_storage().data_ptr()], tensor.untyped_storage().nbytes()
        time.sleep(self.late_s)

        def get_buffer(rank, shape, dtype, offset):
            return self.whole(number, rank, size // dtype.itemsize, dtype)[offset:][: shape.numel()].view(shape)

        return types.SimpleNamespace(get_buffer=get_buffer, barrier=self.barrier)

    def barrier(self, channel, timeout_ms):
        """The current stream goes on once those of all ranks have come as often."""
        stand_in.DEVICE.take(0.0, functools.partial(self.meet, timeout_ms))

    def meet(self, timeout_ms):
        met = [torch.from_file(str(self.folder / f"met-{rank}"), True, 1, dtype=torch.int64) for rank in self.ranks]
        met[self.rank] += 1
        until = time.monotonic() + timeout_ms / 1e3
        while min(map(int, met)) < met[self.rank]:
            assert time.monotonic() < until

    @functools.cache  # noqa: B019 (torch, too, keeps what it has mapped)
    def whole(self, number, rank, count, dtype):
        return torch.from_file(str(self.folder / f"{number}-{rank}"), True, count, dtype=dtype)


batches = []
"""Of peers, in a fork."""


def world_of(rank, count, path) -> Ranks:
    """Return the ranks as one sees them whose GPU is a stand-in."""
    stand_in.install()
    torch.cuda.set_device = lambda gpu: None
    torch.cuda.can_device_access_peer = lambda rank, peer: True
    torch.cuda.device_count = lambda: count
    device_ranks.World.backend = "gloo"
    batch_send, all_gather = dist.batch_isend_irecv, dist.all_gather_into_tensor

    def batch_isend_irecv(batch):
        for op in batch:
            stand_in.DEVICE.load(f"the connection with rank {op.peer}", op.op.__name__)
        if batch[0].tensor.dtype != torch.int32:  # of what connects
            batches.append([op.peer for op in batch])
        stand_in.DEVICE.take(0.0, lambda: [work.wait() for work in batch_send(batch)])
        return []

    dist.batch_isend_irecv = batch_isend_irecv
    dist.all_gather_single = lambda *about, **more: stand_in.DEVICE.take(0.0, lambda: all_gather(*about, **more))
    torch._C._distributed_c10d._SymmetricMemory = SymmetricMemory(Path(path).parent, rank, count)
    world = Ranks(dist.FileStore(path, count), rank, count)
    world.world = device_ranks.World(world)
    return world


def gathers(rank, count, path, kind):
    """All arms over one link, each rank late in turn."""
    world = world_of(rank, count, path)
    case, link = gather_over(kind, world, device="cuda")
    assert (link.kind, link.patience_s) == (kind, LATE_S)
    batches.clear()
    for name, timeline in late_runs(case, link, CALLS):
        peers = [[(rank + step) % count, (rank - step) % count] for step in range(1, count)]
        if ARM_SPECS[name].by_block:
            peers = case.blocks * [[*itertools.chain(*peers)]]
        assert batches == peers * (kind == "nccl")
        batches.clear()
        assert timeline.arrivals_s == sorted(timeline.arrivals_s)
        assert timeline.arrivals_s[-1] < 1
        assert [t.chunk for t in timeline.transfers][: count - 1] == [(rank + s) % count for s in range(1, count)]
    world.gather(None)  # none ends while others read its memory


def what_is_computed(rank, count, path, kind):
    """NCCL moves it, too: parts of sums, and after rows that are gathered."""
    link = make_link(kind, "cuda", None, world_of(rank, count, path))
    for made in (Scatter, Layer):
        assert [*late_runs(made(rank, count, alone=False, device="cuda"), link)]


def serial_alone(rank, count, path, kind):
    """What gathers for the baseline alone, columns of x, and rows of a layer, into one buffer."""
    case, link = gather_over(kind, world_of(rank, count, path), device="cuda")
    step = Prefetch(rank, count, sizes=(12, 12, 16), device="cuda")
    for _ in late_runs(case, link, CALLS, {"serial": case.arms["serial"]}):
        weight_prefetch.serial(step.operands, link)
        assert torch.equal(step.operands.now, step.layers[step.operands.step % 2])


@pytest.mark.parametrize("count", [3, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("of_a_rank", "kind"),
    [
        (gathers, "nccl"),
        pytest.param(gathers, "symmetric", marks=pytest.mark.slow),
        (serial_alone, "nccl_all_gather"),
        (what_is_computed, "nccl"),
    ],
)
def test_links_of_gpus(of_a_rank, kind, count, tmp_path, elsewhere):
    elsewhere(run, of_a_rank, count, tmp_path / "store", kind)
