"""Links between the GPUs of real ranks, without a GPU: each rank is a process with a stand-in for CUDA, on whose
streams messages have their turn. Symmetric memory is memory that processes share, and gloo is NCCL.

Ranks are forks of a process beside this one: kernels are those that Triton compiles, so that a load that would hang is
seen.
"""

import functools
import itertools
import os
import sys
import time
import types
from pathlib import Path

import pytest
import stand_in
import test_group_links
import torch
import torch.distributed as dist
from arm_cases import Gather, Layer, Prefetch, Scatter, late_runs

from collectives import weight_prefetch
from collectives.bench.links import make_link
from collectives.ranks import shared
from roofline.theory.arms import ARMS as ARM_SPECS
from roofline.theory.wires import RANKS_TAKE
from roofline.worker import device_ranks, ranks

CALLS = 2
LATE_S = 0.1
"""The last rank is so late behind a rendezvous."""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="ranks are forks, and share memory by files")


class SymmetricMemory:
    """torch's, of this rank: a file for each allocation, which all ranks map. The last rank goes on late from a
    rendezvous."""

    def __init__(self, folder, rank, count):
        self.folder, self.rank, self.ranks, self.numbers = folder, rank, range(count), itertools.count()
        self.number_of = {}
        self.late_s = LATE_S * (rank == count - 1)

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


def world_of(rank, count, path) -> ranks.Ranks:
    """Return the ranks as one sees them whose GPU is a stand-in."""
    os.environ[stand_in.NAMED] = "H100"
    stand_in.install()
    for name, value in (("set_device", lambda gpu: None), ("can_device_access_peer", lambda rank, peer: True)):
        setattr(torch.cuda, name, value)
    torch.cuda.device_count, device_ranks.World.backend = lambda: count, "gloo"
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
    world = ranks.Ranks(dist.FileStore(path, count), rank, count)
    world.world = device_ranks.World(world)
    return world


def gather_over(kind, world):
    """A gather over a link of this kind, and the link."""
    link = make_link(kind, "cuda", None, world)
    assert (link.kind, link.patience_s) == (kind, ranks.LATE_S)
    share = torch.clone if kind.startswith("nccl") else functools.partial(shared, ranks=world)
    return Gather(world.rank, world.size, alone=False, device="cuda", share=share), link


def gathers(rank, count, path, kind):
    """All arms over one link, each rank late in turn."""
    world = world_of(rank, count, path)
    case, link = gather_over(kind, world)
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
    case, link = gather_over(kind, world_of(rank, count, path))
    step = Prefetch(rank, count, sizes=(12, 12, 16), device="cuda")
    for _ in late_runs(case, link, CALLS, {"serial": case.arms["serial"]}):
        weight_prefetch.serial(step.operands, link)
        assert torch.equal(step.operands.now, step.layers[step.operands.step % 2])


@pytest.mark.parametrize("count", [3, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("of_a_rank", "kind"),
    [
        *((gathers, kind) for kind in RANKS_TAKE["cuda"]),
        (serial_alone, "nccl_all_gather"),
        (what_is_computed, "nccl"),
    ],
)
def test_links_of_gpus(of_a_rank, kind, count, tmp_path, elsewhere):
    elsewhere(test_group_links.run, of_a_rank, count, tmp_path / "store", kind)
