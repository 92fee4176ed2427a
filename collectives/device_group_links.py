"""Links of a GPU between real ranks, a process and a GPU each: `nccl`, `symmetric`, `symmetric_copier`.

All are links of `collectives.device_links`, so that every arm runs over them, what waits on the device itself too. What
they know of the other ranks is `ranks`, a `roofline.measure.ranks.Ranks` whose `world` is there.
None of this was ever run on GPUs: tests have stand-ins for torch's calls, and `kernels.machine` runs the kernels.
"""

from contextlib import suppress
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor

from collectives.device_links import Enqueued, PacedCopier, PCIe, Route, meet_launch
from collectives.group_links import landing, put, shared, theirs, whole
from collectives.links import Gather, InTurn, Scatter
from kernels.contract import Signals

FRESH_STARTS = 64
"""After a failure of a rank a link counts its meetings anew, in another place. There are no more than so many."""

FAR = 2**30
"""More meetings than any link has."""


class _OfRanks:
    """What these links do alike: they are as patient as ranks are, and look meanwhile whether one has failed."""

    def __init__(self, ranks, *more):
        super().__init__(*more)
        self.rank, self._ranks, self.patience_s = ranks.rank, ranks, ranks.late_s

    def _synchronize(self) -> None:
        self._ranks.world.synchronize()


class Nccl(_OfRanks, Enqueued):
    """NCCL, for each transfer a send and a receive at once: while a rank receives from the one that is `step` ahead, it
    sends to the one that is as far behind, so that all ranks are in the same step of the order `direct`. Of a gather by
    row blocks those of a block go together: nobody waits for less, and each batch takes the host a tenth of a
    millisecond.

    NCCL's kernels need SMs: one that is on all of them, and waits for a flag, would keep them out.
    """

    kind = "nccl"

    def __init__(self, ranks):
        super().__init__(ranks)
        self._landings: dict[tuple, Tensor] = {}

    def start(self, transfers: Gather | Scatter | InTurn, *ready, **how) -> None:
        self._outgoing = transfers.outgoing(self.rank, self._ranks.size)
        super().start(transfers, *ready, **how)

    def _bring(self, route: Route, index: int) -> None:
        transfers, group = route.transfers, self._ranks.world.group
        together = self._ranks.size - 1 if isinstance(transfers, Gather) and len(transfers.own) > 1 else 1
        if index % together == 0:
            batch = []
            for one in range(index, index + together):
                here = landing(self._landings, route.first + one, transfers[one])
                piece, behind, _ = self._outgoing[route.first + one]
                batch.append(dist.P2POp(dist.irecv, here, transfers[one].chunk, group))
                batch.append(dist.P2POp(dist.isend, piece, behind, group))
            for work in dist.batch_isend_irecv(batch):
                work.wait()  # which has the current stream wait, the link's
        here, target = landing(self._landings, route.first + index, transfers[index]), transfers[index].target
        if here is not target:
            target.copy_(here)


class NcclAllGather(Nccl):
    """NCCL's own all-gather, of a gather whose shards come in one piece: all of them arrive together."""

    kind = "nccl_all_gather"

    def _bring(self, route: Route, index: int) -> None:
        own, (piece, gathered) = route.transfers.own[0], self._buffers(route.transfers)
        if not index:
            if piece is not own:
                piece.copy_(own)
            gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # its name before 2.13
            gather(gathered.flatten(0, 1), piece, group=self._ranks.world.group)
        put(gathered, route.transfers[index])

    def _buffers(self, transfers: Gather) -> tuple[Tensor, Tensor]:
        """From where the own shard goes, and where those of all ranks go."""
        return transfers.own[0], whole(self._landings, transfers)


class NcclSymmetricAllGather(NcclAllGather):
    """The same from and to memory that NCCL has registered; what is not there already is copied there and back."""

    kind = "nccl_symmetric_all_gather"

    def __init__(self, ranks):
        super().__init__(ranks)
        ranks.links.add(self)

    def _buffers(self, transfers: Gather) -> tuple[Tensor, Tensor]:
        own = transfers.own[0]
        if id(transfers) not in self._landings:
            shape = len(transfers) + 1, *own.shape
            make = self._ranks.world.registered
            self._landings[id(transfers)] = make(lambda: (torch.empty_like(own), own.new_empty(shape)))
        return self._landings[id(transfers)]

    def forget(self) -> None:
        self._landings.clear()  # they were registered with the group that is gone


class _Pulled(_OfRanks):
    """Each rank pulls from the others' symmetric memory, where their own shards lie (`shared`).

    Ranks meet on their streams before the first pull, since the others' shards must be there, and after the last, since
    they may be overwritten then: by `copier.meet_kernel`, which gives up after a while, where torch's own barrier of
    symmetric memory waits for ever or ends the CUDA context. There are two counts, for begin and end by turns, since
    with one a rank that is a meeting ahead could stand in for another that is late.
    """

    def __init__(self, ranks, *more):
        super().__init__(ranks, *more)
        self._counts = shared(torch.zeros(FRESH_STARTS, 2, dtype=torch.int32, device=self.device), ranks)
        others = [theirs(self._counts, rank).data_ptr() for rank in range(ranks.size) if rank != ranks.rank]
        places = torch.tensor(others)[None, None, :] + 4 * torch.arange(2 * FRESH_STARTS).view(FRESH_STARTS, 2, 1)
        self._places = places.to(self.device)
        self._start, self._met = 0, [0, 0]
        self._synchronize()
        ranks.gather(None, "counts of meetings")  # all are at zero before any rank counts
        ranks.links.add(self)

    def _prepared(self, transfers: Gather) -> Route:
        """With the others' pieces as sources: they lie where this rank's own do."""
        own = transfers.own
        return super()._prepared([replace(one, source=theirs(own[one.block], one.chunk)) for one in transfers])

    def _meet(self, place: int) -> None:
        self._met[place] += 1
        wanted = self._met[place] * self._places.shape[2]
        signals = Signals(self._counts[self._start, place:], wanted, self._lost, self.signals(0).patience)
        self._run(meet_launch(self._places[self._start, place], signals, 1, self._times[-2:], timed=self.timed))

    def forget(self) -> None:
        """End what waits for the others, and meet elsewhere from now on: who comes late to the old place is not
        counted."""
        with suppress(RuntimeError, IndexError), torch.cuda.stream(torch.cuda.Stream()):  # the device may be lost
            self._counts[self._start].fill_(FAR)
        self._start, self._met = self._start + 1, [0, 0]


class Symmetric(_Pulled, PCIe):
    """Pulled by the copy engine, which takes no SM."""

    kind = "symmetric"


class SymmetricCopier(_Pulled, PacedCopier):
    """Pulled by the copier's programs, as fast as they can."""

    kind = "symmetric_copier"

    def __init__(self, ranks):
        super().__init__(ranks, None)
