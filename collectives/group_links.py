"""Links between real ranks: each process is one rank, and its chunks come from the others over a process group.

`gloo` sends and receives point to point, over whatever network the group was made for. All receives are posted before
the first send, without which gloo takes twice as long. A rank sends its own shard to those first who want it first, so
that the order of arrival is that of `theory.schedule` (`direct`).
"""

import math
import threading

import torch
from torch import Tensor

from collectives.links import Gather, InTurn, Scatter, Threaded, Transfer


class Gloo(Threaded):
    """Sends and receives over the group of `ranks`, a `roofline.measure.ranks.Ranks`, in a thread of this process. All
    ranks start their gathers in the same order, which tells messages apart; after a failure the group is fresh."""

    kind = "gloo"

    def __init__(self, ranks):
        super().__init__(ranks.rank)
        self._ranks = ranks
        ranks.links.add(self)
        self._copying = threading.Lock()
        self.forget()
        self._landings: dict[tuple, Tensor] = {}

    def start(self, transfers: Gather | Scatter | InTurn, ready: int | None = None, apart: bool = False) -> None:
        super().start(transfers, ready)
        self._send(ready)

    def ready(self, count: int) -> None:
        super().ready(count)
        self._send(count)

    def _send(self, count: int | None) -> None:
        """Send the first `count` of what is to go, or all of it."""
        for piece, rank, block in self._outgoing[len(self._sends) : count]:
            self._sends.append(self._ranks.group.send([piece], rank, block))

    def _begin(self, transfers: Gather | Scatter | InTurn) -> None:
        self._targets = [landing(self._landings, index, transfer) for index, transfer in enumerate(transfers)]
        group = self._ranks.group
        self._receives = [
            group.recv([landing], transfer.chunk, transfer.block)
            for transfer, landing in zip(transfers, self._targets, strict=True)
        ]
        self._outgoing = transfers.outgoing(self._ranks.rank, self._ranks.size)
        self._sends = []

    def _bring(self, job, index: int) -> None:
        receives, here, target = self._receives, self._targets[index], job.transfers[index].target
        receives[index].wait()
        with self._copying:
            if here is not target and receives is self._receives:  # else the call was given up
                target.copy_(here)

    def _due_s(self, nbytes: int) -> float:
        return self._ranks.late_s

    def forget(self) -> None:
        """Let go of messages, which refer to their group. None comes to its target from here on."""
        with self._copying:
            self._receives, self._sends = [], []

    def finish(self) -> None:
        super().finish()
        for send in self._sends:
            send.wait()


class GlooAllGather(Gloo):
    """gloo's own all-gather, of a gather whose shards come in one piece: all of them arrive together."""

    kind = "gloo_all_gather"

    def _begin(self, transfers: Gather) -> None:
        self._whole, self._outgoing = whole(self._landings, transfers), []
        self._receives = [self._ranks.group._allgather_base(self._whole.flatten(0, 1), transfers.own[0])]

    def _bring(self, job, index: int) -> None:
        receives = self._receives
        if not index:
            receives[0].wait()
        with self._copying:
            if receives is self._receives:
                put(self._whole, job.transfers[index])


def whole(kept: dict[int, Tensor], transfers: Gather) -> Tensor:
    """Where an all-gather may write the shards of all ranks, [ranks, *shard]: the targets themselves where these lie so
    in one piece, else one of the tensors `kept`."""
    target, chunk = transfers[0].target, transfers[0].chunk
    shape, size = (len(transfers) + 1, *target.shape), target.numel()
    begin = target.storage_offset() - chunk * size
    there = begin >= 0 and target.untyped_storage().nbytes() >= (begin + math.prod(shape)) * target.element_size()
    if there and all(
        one.target.is_contiguous() and one.target.storage_offset() == begin + one.chunk * size for one in transfers
    ):
        return target.as_strided(shape, (size, *target.stride()), begin)
    if id(transfers) not in kept:
        kept[id(transfers)] = target.new_empty(shape)
    return kept[id(transfers)]


def put(gathered: Tensor, transfer: Transfer) -> None:
    """Copy a transfer from what was `gathered` to its target, unless that is there."""
    if (here := gathered[transfer.chunk]).data_ptr() != transfer.target.data_ptr():
        transfer.target.copy_(here)


def landing(kept: dict[tuple, Tensor], index: int, transfer: Transfer) -> Tensor:
    """Where a message may be received: the target itself where it is in one piece, else one of the tensors `kept`, to
    be copied from."""
    target = transfer.target
    if target.is_contiguous():
        return target
    key = index, *target.shape, target.dtype
    if key not in kept:
        kept[key] = torch.empty_like(target, memory_format=torch.contiguous_format)
    return kept[key]


def shared(tensor: Tensor, ranks) -> Tensor:
    """A copy of `tensor` in symmetric memory, where the other `ranks` read it; all of them call this, with tensors of
    one shape and dtype. It has an allocation of its own, not a part of the pool that torch's `symm_mem.empty` takes:
    `get_buffer` counts from the begin of an allocation."""
    from torch._C._distributed_c10d import _SymmetricMemory

    about = tensor.shape, tensor.stride(), tensor.dtype, tensor.device, ranks.world.group.group_name
    found = _SymmetricMemory.empty_strided_p2p(*about)
    _SymmetricMemory.rendezvous(found)
    return found.copy_(tensor)


def theirs(tensor: Tensor, rank: int) -> Tensor:
    """What lies in `rank`'s memory where the contiguous `tensor` lies in ours, a part of what was `shared`."""
    from torch._C._distributed_c10d import _SymmetricMemory

    handle = _SymmetricMemory.rendezvous(tensor)  # at once: torch keeps what the first one found
    return handle.get_buffer(rank, tensor.shape, tensor.dtype, tensor.storage_offset())


def make(kind: str, ranks):
    """The link of `kind`, one of `theory.wires.OF_RANKS` or `ALL_AT_ONCE`, between `ranks`."""
    for of_cpu in (Gloo, GlooAllGather):
        if kind == of_cpu.kind:
            return of_cpu(ranks)
    from collectives import device_group_links as gpus

    of_gpus = gpus.Nccl, gpus.NcclAllGather, gpus.NcclSymmetricAllGather, gpus.Symmetric, gpus.SymmetricCopier
    return {one.kind: one for one in of_gpus}[kind](ranks)
