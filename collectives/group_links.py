"""Links between real ranks: each process is one rank, and its chunks come from the others over a process group.

`gloo` sends and receives point to point, over whatever network the group was made for. All receives are posted before
the first send, without which gloo takes twice as long. A rank sends its own shard to those first who want it first, so
that the order of arrival is that of `theory.schedule` (`direct`).
"""

import torch
from torch import Tensor

from collectives.links import Gather, Threaded, Transfer


class Gloo(Threaded):
    """Sends and receives over the group of `ranks`, a `roofline.measure.ranks.Ranks`, in a thread of this process. All
    ranks start their gathers in the same order."""

    kind = "gloo"

    def __init__(self, ranks):
        super().__init__(ranks.rank)
        self._ranks = ranks
        ranks.links.add(self)
        self.forget()
        self._landings: dict[tuple, Tensor] = {}

    def _begin(self, transfers: Gather) -> None:
        self._targets = [landing(self._landings, index, transfer) for index, transfer in enumerate(transfers)]
        group, ranks, own = self._ranks.group, self._ranks.size, self._ranks.rank
        self._receives = [
            group.recv([landing], transfer.chunk, transfer.block)
            for transfer, landing in zip(transfers, self._targets, strict=True)
        ]
        self._sends = [
            group.send([piece], (own - step) % ranks, block)
            for block, piece in enumerate(transfers.own)
            for step in range(1, ranks)
        ]

    def _bring(self, job, index: int) -> None:
        self._receives[index].wait()
        if (here := self._targets[index]) is not (target := job.transfers[index].target):
            target.copy_(here)

    def _due_s(self, nbytes: int) -> float:
        return self._ranks.late_s

    def forget(self) -> None:
        """Let go of messages, which refer to their group."""
        self._receives, self._sends = [], []

    def finish(self) -> None:
        super().finish()
        for send in self._sends:
            send.wait()


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


def make(kind: str, ranks):
    """The link of `kind`, one of `theory.wires.OF_RANKS`, between `ranks`."""
    if kind == "gloo":
        return Gloo(ranks)
    from collectives import device_group_links as of_gpus

    of_kind = {"nccl": of_gpus.Nccl, "symmetric": of_gpus.Symmetric, "symmetric_copier": of_gpus.SymmetricCopier}
    return of_kind[kind](ranks)
