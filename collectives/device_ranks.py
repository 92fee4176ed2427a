"""Links of a GPU between real ranks, a process and a GPU each: `nccl`, and `symmetric`, by the copy engine.

Both are links of `collectives.device`, so that every arm runs over them, `symmetric` what waits on the device itself
too. What they know of the other ranks is `ranks`, a `roofline.worker.ranks.Ranks` whose `world` is there. None of this
was ever run on GPUs: tests have stand-ins for torch's calls.
"""

from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor

from collectives.device import Route
from collectives.engines import Enqueued, copy_matrix
from collectives.ranks import landing, rendezvous
from collectives.transfers import Transfers


class OfRanks(Enqueued):
    """As patient as ranks are."""

    def __init__(self, ranks):
        super().__init__(ranks.rank)
        self.ranks, self.patience_s = ranks, ranks.late_s
        self._landings: dict[tuple, Tensor] = {}


class Nccl(OfRanks):
    """NCCL, for each transfer a send and a receive at once: while a rank receives from the one that is `step` ahead, it
    sends to the one that is as far behind, so that all ranks are in the same step of the order `direct`. Those that are
    waited for together go together: each batch takes the host a tenth of a millisecond.

    NCCL's kernels need SMs: one that is on all of them, and waits for a flag, would keep them out.
    """

    kind = "nccl"

    def __init__(self, ranks):
        super().__init__(ranks)
        self._connected: set[tuple[int, int]] = set()
        """Who sends to this rank, and whom it sends to meanwhile."""

    def load(self, route: Route) -> None:
        """Also connect this rank with those that the transfers are from and to: NCCL does so at the first message of a
        pair, and the host waits for it, which a stream may keep waiting. All ranks send each other a number."""
        super().load(route)
        pairs = {(transfer.chunk, transfer.receiver(self.rank, self.ranks.size)) for transfer in route.transfers}
        group, batch = self.ranks.world.group, []
        for sender, receiver in sorted(pairs - self._connected):
            batch.append(dist.P2POp(dist.irecv, torch.empty_like(self._lost), sender, group))
            batch.append(dist.P2POp(dist.isend, torch.zeros_like(self._lost), receiver, group))
        if batch:
            for work in dist.batch_isend_irecv(batch):
                work.wait()
        self._connected |= pairs

    def bring(self, route: Route, index: int, first: int, end: int) -> None:
        group, size, transfers = self.ranks.world.group, self.ranks.size, route.transfers
        together = transfers.together
        if (index - first) % together == 0:
            batch = []
            for number in range(index, min(index + together, end)):
                transfer = transfers[number]
                batch.append(dist.P2POp(dist.irecv, landing(self._landings, number, transfer), transfer.chunk, group))
                batch.append(dist.P2POp(dist.isend, transfer.sent, transfer.receiver(self.rank, size), group))
            for work in dist.batch_isend_irecv(batch):
                work.wait()  # which has the current stream wait, the link's
        landed, target = landing(self._landings, index, transfers[index]), transfers[index].target
        if landed is not target:
            target.copy_(landed)


class NcclAllGather(OfRanks):
    """NCCL's own all-gather, of a gather whose shards come in one piece: all of them arrive together."""

    kind = "nccl_all_gather"

    def bring(self, route: Route, index: int, first: int, end: int) -> None:
        transfers, ranks = route.transfers, self.ranks.size
        target, key = transfers[index].target, (id(transfers),)
        if key not in self._landings:
            into = target.new_empty(ranks * len(target), target.shape[1]) if transfers.into is None else transfers.into
            self._landings[key] = into.unflatten(0, (ranks, -1))  # [ranks, *shard]
        gathered = self._landings[key]
        if not index:
            gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # its name before 2.13
            gather(gathered.flatten(0, 1), transfers[0].sent, group=self.ranks.world.group)
        if (landed := gathered[transfers[index].chunk]).data_ptr() != target.data_ptr():
            target.copy_(landed)


class Symmetric(OfRanks):
    """Each rank has the copy engine, which takes no SM, pull from the others' symmetric memory, where their own shards
    lie (`ranks.shared`).

    Ranks meet on their streams before the first pull, since the others' shards must be there, and after the last, since
    they may be overwritten then: by torch's barrier of symmetric memory. Past the link's patience that ends the CUDA
    context.
    """

    kind = "symmetric"

    def prepared(self, transfers: Transfers) -> Route:
        """With the others' shards as sources: they lie where this rank's own do."""
        pulled = []
        for transfer in transfers:
            mine = transfer.sent
            buffer = rendezvous(mine).get_buffer(transfer.chunk, mine.shape, mine.dtype, mine.storage_offset())
            pulled.append(replace(transfer, source=buffer))
        return super().prepared(Transfers(pulled))

    def before(self) -> None:
        self.after()
        super().before()

    def after(self) -> None:
        rendezvous(self._route.transfers[0].sent).barrier(channel=0, timeout_ms=round(1e3 * self.patience_s))

    def bring(self, route: Route, index: int, first: int, end: int) -> None:
        copy_matrix(route.transfers[index].source, route.transfers[index].target)
