"""Links of a GPU between real ranks, a process and a GPU each: `nccl`, and `symmetric`, by the copy engine.

Both are links of `collectives.device`, so that every arm runs over them, `symmetric` what waits on the device itself
too. What they know of the other ranks is `ranks`, a `roofline.measure.ranks.Ranks` whose `world` is there. None of this
was ever run on GPUs: tests have stand-ins for torch's calls.
"""

from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor

from collectives.device import DeviceLink, Route, wait_launch
from collectives.ranks import landing, rendezvous, shared
from collectives.transfers import Transfers


class Enqueued(DeviceLink):
    """The host enqueues one transfer after another, and behind each its flag, which the stream writes. A subclass says
    how a transfer is enqueued (`bring`). It is as patient as ranks are.

    Raises NotImplementedError without the package cuda-bindings, which most CUDA builds of torch bring.
    """

    def __init__(self, ranks):
        try:
            import cuda.bindings  # noqa: F401
        except ImportError:
            raise NotImplementedError(f"the link {self.kind} needs the package cuda-bindings; install it") from None
        super().__init__(ranks.rank)
        self.ranks, self.patience_s = ranks, ranks.late_s
        self._events = [torch.cuda.Event(enable_timing=True)]

    def before(self) -> None:
        super().before()
        lacking = len(self._route.table) + 1 - len(self._events)
        self._events += [torch.cuda.Event(enable_timing=True) for _ in range(lacking)]
        self._events[0].record()

    def move(self, route: Route) -> None:
        from cuda.bindings import driver

        stream = driver.CUstream(self._stream.cuda_stream)
        counted = self.counted()
        for index in range(len(route.transfers)):
            if counted:
                self.launch(wait_launch(counted, index + 1, self._times[-4:]))
            self.bring(route, index)
            succeed(driver.cuStreamWriteValue32(stream, route.flags[index:].data_ptr(), route.runs, 0))
            self._events[route.first + index + 1].record()

    def bring(self, route: Route, index: int) -> None:
        raise NotImplementedError

    def arrivals_s(self, route: Route, t0: int) -> list[float]:
        return [self._events[0].elapsed_time(event) * 1e-3 for event in self._events[1 : len(route.table) + 1]]


class Nccl(Enqueued):
    """NCCL, for each transfer a send and a receive at once: while a rank receives from the one that is `step` ahead, it
    sends to the one that is as far behind, so that all ranks are in the same step of the order `direct`. Those that are
    waited for together go together: each batch takes the host a tenth of a millisecond.

    NCCL's kernels need SMs: one that is on all of them, and waits for a flag, would keep them out.
    """

    kind = "nccl"

    def __init__(self, ranks):
        super().__init__(ranks)
        self._landings: dict[tuple, Tensor] = {}

    def bring(self, route: Route, index: int) -> None:
        transfers, group = route.transfers, self.ranks.world.group
        together = getattr(transfers, "together", 1)  # a part of a route is a plain list
        if index % together == 0:
            batch = []
            for number, transfer in enumerate(transfers[index : index + together], index):
                landed = landing(self._landings, route.first + number, transfer)
                receiver = transfer.receiver(self.rank, self.ranks.size)
                batch.append(dist.P2POp(dist.irecv, landed, transfer.chunk, group))
                batch.append(dist.P2POp(dist.isend, transfer.sent, receiver, group))
            for work in dist.batch_isend_irecv(batch):
                work.wait()  # which has the current stream wait, the link's
        landed, target = landing(self._landings, route.first + index, transfers[index]), transfers[index].target
        if landed is not target:
            target.copy_(landed)


class NcclAllGather(Nccl):
    """NCCL's own all-gather, of a gather whose shards come in one piece: all of them arrive together."""

    kind = "nccl_all_gather"

    def bring(self, route: Route, index: int) -> None:
        gathered, transfer = self._gathered(route.transfers), route.transfers[index]
        if not index:
            gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # its name before 2.13
            gather(gathered.flatten(0, 1), transfer.sent, group=self.ranks.world.group)
        if (landed := gathered[transfer.chunk]).data_ptr() != transfer.target.data_ptr():
            transfer.target.copy_(landed)

    def _gathered(self, transfers: Transfers) -> Tensor:
        """Return where the shards of all ranks are written, [ranks, *shard]: the targets themselves where these lie so
        in one piece, else a tensor that is kept."""
        target, ranks = transfers[0].target, self.ranks.size
        if transfers.into is not None:
            return transfers.into.unflatten(0, (ranks, -1))
        if id(transfers) not in self._landings:
            self._landings[id(transfers)] = target.new_empty(ranks, *target.shape)
        return self._landings[id(transfers)]


class Symmetric(Enqueued):
    """Each rank has the copy engine, which takes no SM, pull from the others' symmetric memory, where their own shards
    lie (`ranks.shared`).

    Ranks meet on their streams before the first pull, since the others' shards must be there, and after the last, since
    they may be overwritten then: by torch's barrier of symmetric memory. Past the link's patience that ends the CUDA
    context.
    """

    kind = "symmetric"

    def __init__(self, ranks):
        super().__init__(ranks)
        self._place = shared(torch.zeros(1, dtype=torch.int32, device=self.device), ranks)

    def prepared(self, transfers: Transfers) -> Route:
        """With the others' shards as sources: they lie where this rank's own do."""
        pulled = []
        for transfer in transfers:
            mine = transfer.sent
            buffer = rendezvous(mine).get_buffer(transfer.chunk, mine.shape, mine.dtype, mine.storage_offset())
            pulled.append(replace(transfer, source=buffer))
        return super().prepared(pulled)

    def before(self) -> None:
        self._meet()
        super().before()

    def after(self) -> None:
        self._meet()

    def _meet(self) -> None:
        rendezvous(self._place).barrier(channel=0, timeout_ms=round(1e3 * self.patience_s))

    def bring(self, route: Route, index: int) -> None:
        from cuda.bindings import driver

        transfer = route.transfers[index]
        source, target, size = transfer.source, transfer.target, transfer.source.element_size()
        copy = driver.CUDA_MEMCPY2D()
        # By its address CUDA knows whose memory it is: this GPU's, or another's.
        copy.srcMemoryType = copy.dstMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_UNIFIED
        copy.srcDevice, copy.srcPitch = source.data_ptr(), source.stride(0) * size
        copy.dstDevice, copy.dstPitch = target.data_ptr(), target.stride(0) * size
        copy.WidthInBytes, copy.Height = source.shape[1] * size, len(source)
        succeed(driver.cuMemcpy2DAsync(copy, driver.CUstream(self._stream.cuda_stream)))


def succeed(result: tuple) -> None:
    """Raise RuntimeError where the driver refused."""
    if int(result[0]):
        raise RuntimeError(f"CUDA error: {result[0].name}")
