"""Links between the GPUs of real ranks, without a GPU: each rank is a process, whose stand-in for CUDA does at once
what it is told. Kernels are interpreted, symmetric memory is memory that processes share, and gloo is NCCL. The package
cuda-bindings is the real one, over the driver of `libcuda.c`."""

import contextlib
import ctypes
import functools
import itertools
import sys
import time
import types
from pathlib import Path

import pytest
import test_group_links
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

from collectives import all_gather_matmul, copier, device_group_links, device_links, group_links, weight_prefetch
from collectives.bench import links
from kernels.contract import interpreted
from roofline.measure import device_ranks, ranks
from roofline.theory.wires import RANKS_TAKE

B, D, F, CALLS = 12, 48, 12, 2
LATE_S = 0.02

pytestmark = pytest.mark.skipif(
    not interpreted(copier.copy_kernel) or sys.platform != "linux", reason="on a GPU test_device_ranks runs them"
)


def stream(priority=0):
    return types.SimpleNamespace(cuda_stream=0, wait_stream=lambda other: None)


class Event:
    """Of what is done when it is recorded."""

    def __init__(self, enable_timing=False):
        pass

    def record(self):
        self.at = time.perf_counter()

    def elapsed_time(self, later):
        return (later.at - self.at) * 1e3


class SymmetricMemory:
    """torch's, of this rank: a file for each allocation, which all ranks map. The last rank goes on late from a
    rendezvous."""

    def __init__(self, folder, rank, count):
        self.folder, self.rank, self.ranks, self.known, self.numbers = folder, rank, range(count), {}, itertools.count()
        self.late_s = 5 * LATE_S * (rank == count - 1)

    def empty_strided_p2p(self, size, stride, dtype, device, group):
        number, made = next(self.numbers), torch.empty(size, dtype=dtype)
        mine = torch.from_file(str(self.folder / f"{number}-{self.rank}"), True, made.numel(), dtype=dtype)
        self.known[mine.data_ptr()] = number
        return mine.view(size)

    def rendezvous(self, tensor):
        number, size = self.known[tensor.untyped_storage().data_ptr()], tensor.untyped_storage().nbytes()
        time.sleep(self.late_s)

        def get_buffer(rank, shape, dtype, offset):
            return self.whole(number, rank, size // dtype.itemsize, dtype)[offset:][: shape.numel()].view(shape)

        return types.SimpleNamespace(get_buffer=get_buffer, barrier=self.barrier)

    def barrier(self, channel, timeout_ms):
        """Returns once all ranks have come as often."""
        met = [torch.from_file(str(self.folder / f"met-{rank}"), True, 1, dtype=torch.int64) for rank in self.ranks]
        met[self.rank] += 1
        until = time.monotonic() + timeout_ms / 1e3
        while min(map(int, met)) < met[self.rank]:
            assert time.monotonic() < until

    @functools.cache  # noqa: B019 (torch, too, keeps what it has mapped)
    def whole(self, number, rank, count, dtype):
        return torch.from_file(str(self.folder / f"{number}-{rank}"), True, count, dtype=dtype)


def stand_in(rank, count, path) -> ranks.Ranks:
    """The rank of a process whose GPU is its CPU."""
    torch.set_num_threads(1)
    ctypes.CDLL(Path(path).with_name("libcuda.so.1"))  # what asks for that name finds it loaded
    for name, other in dict(
        Stream=stream, current_stream=stream, Event=Event, device_count=lambda: count, set_device=lambda gpu: None,
        stream=lambda stream: contextlib.nullcontext(), synchronize=lambda: None,
        can_device_access_peer=lambda one, other: True,
    ).items():  # fmt: skip
        setattr(torch.cuda, name, other)
    memory = SymmetricMemory(Path(path).parent, rank, count)
    torch._C._distributed_c10d._SymmetricMemory = memory
    device_links.DeviceLink.device, device_links.DeviceLink.timed = "cpu", False
    device_ranks.World.backend = "gloo"
    own = ranks.Ranks(dist.FileStore(path, count), rank, count)
    own.world = device_ranks.World(own)
    return own


def whole_numbers(seed, *shape):
    return torch.randint(-4, 5, shape, generator=torch.Generator().manual_seed(seed)).float()


def shards_of(whole, axis, link, own):
    """Its parts, of which the others' are NaN here: who reads those reads nothing of theirs."""
    parts = [torch.full_like(part, torch.nan).contiguous() for part in whole.chunk(own.size, axis)]
    mine = whole.chunk(own.size, axis)[own.rank].contiguous()
    parts[own.rank] = mine if link.kind.startswith("nccl") else group_links.shared(mine, own)
    return parts


def gathers(rank, count, path, kind):
    """All arms over one link, each rank late in turn. What a rank shares is overwritten as soon as an arm is done."""
    own = stand_in(rank, count, path)
    link, w = links.between(kind, own), whole_numbers(rank, F, D)
    assert (link.kind, link.patience_s) == (kind, ranks.LATE_S)
    gathered, batches, send = torch.empty(B, D), [], dist.batch_isend_irecv
    dist.batch_isend_irecv = lambda batch: batches.append(len(batch)) or send(batch)
    shards = shards_of(torch.zeros(B, D), 1, link, own)
    operands = all_gather_matmul.Operands(shards, gathered, w, torch.empty(B, F), rank, blocks=3)
    for late, (name, arm), call in itertools.product(range(count), all_gather_matmul.ARMS.items(), range(CALLS)):
        x = whole_numbers(100 * late + call, B, D)
        gathered.fill_(torch.nan)
        mine = x.chunk(count, 1)[rank]
        shards[rank].copy_(mine)
        operands.columns(rank, gathered).copy_(mine)
        time.sleep(LATE_S * (late == rank))
        batches.clear()
        assert torch.equal(arm(operands, link), x @ w.T), (name, rank, late, call)
        each = 3 * [2 * (count - 1)] if name == "row_block_launches" else (count - 1) * [2]
        assert batches == each * (kind == "nccl")
        timeline = link.timeline()
        assert len(timeline.arrivals_s) == (count - 1) * (3 if name == "row_block_launches" else 1)
        assert [t.chunk for t in timeline.transfers][: count - 1] == [(rank + s) % count for s in range(1, count)]


class Later(device_group_links.Nccl):
    """What can wait for what is computed: a transfer is brought when the consumer waits for it, and no sooner."""

    def _begun(self):
        self._left, self._events = [], []
        self._happened()

    def _move(self, route):
        self._left += range(route.first, route.first + len(route.transfers))

    def _happened(self):
        self._events.append(torch.cuda.Event(enable_timing=True))
        self._events[-1].record()

    def wait(self, count):
        while self._left and self._left[0] < count:
            index = self._left.pop(0)
            assert int(self._route.counters[index]) == self._route.wanted
            self._bring(self._route, index)
            self._route.flags[index] = self._route.runs
            self._happened()
        return super().wait(count)


def what_is_computed(rank, count, path, kind):
    """NCCL moves it, too: parts of sums, and after rows that are gathered."""
    link = Later(stand_in(rank, count, path))
    test_group_links.scatters(rank, count, path, link)
    test_group_links.layers(rank, count, path, link)


def serial_alone(rank, count, path, kind):
    """What gathers for the baseline alone, columns of x, and rows of a layer."""
    own = stand_in(rank, count, path)
    link, w = links.between(kind, own), whole_numbers(rank, F, D)
    for call in range(CALLS):
        x, layers = whole_numbers(call, B, D), [whole_numbers(10 + call, F, D) for _ in range(2)]
        operands = all_gather_matmul.Operands(
            shards_of(x, 1, link, own), torch.full((B, D), torch.nan), w, torch.empty(B, F), rank
        )
        buffers = [torch.full((F, D), torch.nan) for _ in layers]
        shards = [shards_of(layer, 0, link, own) for layer in layers]
        step = weight_prefetch.Operands(shards, buffers, x, x.new_empty(B, F), rank)
        for _ in range(2):
            assert torch.equal(all_gather_matmul.serial(operands, link), x @ w.T)
            weight_prefetch.serial(step, link)
        assert torch.equal(buffers[1], layers[1])


def refused(rank, count, path, kind):
    """What the driver refuses is told by the driver's name for it."""
    from cuda.bindings import driver

    stand_in(rank, count, path)
    device_links._leave_shared_memory(8)
    with pytest.raises(RuntimeError, match="CUDA error 1: cuFuncSetAttribute"):
        device_links._leave_shared_memory(0)
    with pytest.raises(RuntimeError, match="CUDA error: CUDA_ERROR_INVALID_VALUE"):
        device_group_links._succeed(driver.cuStreamWriteValue32(driver.CUstream(0), 0, 1, 0))


@pytest.mark.parametrize(
    ("of_a_rank", "kind", "count"),
    [
        *[(gathers, kind, 4) for kind in RANKS_TAKE["cuda"]],
        (serial_alone, "nccl_all_gather", 3),
        (what_is_computed, "nccl", 4),
        (refused, "symmetric", 1),
    ],
)
def test_links_of_gpus(of_a_rank, kind, count, tmp_path, libcuda):
    pytest.importorskip("cuda.bindings.driver", reason="there is no package cuda-bindings")
    (tmp_path / libcuda.name).symlink_to(libcuda)
    store = str(tmp_path / "store")
    multiprocessing.start_processes(of_a_rank, (count, store, kind), count, start_method="fork")
