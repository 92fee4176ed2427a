"""Links between real ranks: each process is one rank, and its chunks come from the others over a process group.

`gloo` sends and receives point to point, over whatever network the group was made for. All receives are posted before
the first send, without which gloo takes twice as long. A rank sends its own shard to those first who want it first, so
that the order of arrival is that of `theory.schedule` (`direct`).
"""

import threading

import torch
from torch import Tensor

from collectives.links import Gather, Scatter, Threaded, Transfer


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
        self._landing: dict[tuple, Tensor] = {}

    def start(self, transfers: Gather | Scatter, ready: int | None = None) -> None:
        super().start(transfers, ready)
        self._send(ready)

    def ready(self, count: int) -> None:
        super().ready(count)
        self._send(count)

    def _send(self, count: int | None) -> None:
        """Send the first `count` of what is to go, or all of it."""
        for piece, rank, block in self._outgoing[len(self._sends) : count]:
            self._sends.append(self._ranks.group.send([piece], rank, block))

    def _begin(self, transfers: Gather | Scatter) -> None:
        self._targets = [self._landing_of(index, transfer) for index, transfer in enumerate(transfers)]
        group = self._ranks.group
        self._receives = [
            group.recv([landing], transfer.chunk, transfer.block)
            for transfer, landing in zip(transfers, self._targets, strict=True)
        ]
        self._outgoing = transfers.outgoing(self._ranks.rank, self._ranks.size)
        self._sends = []

    def _landing_of(self, index: int, transfer: Transfer) -> Tensor:
        """Where gloo may write: the target itself where it is in one piece, else a tensor that is copied from."""
        if transfer.target.is_contiguous():
            return transfer.target
        key = index, *transfer.target.shape, transfer.target.dtype
        if key not in self._landing:
            self._landing[key] = torch.empty_like(transfer.target, memory_format=torch.contiguous_format)
        return self._landing[key]

    def _bring(self, job, index: int) -> None:
        receives, landing, target = self._receives, self._targets[index], job.transfers[index].target
        receives[index].wait()
        with self._copying:
            if landing is not target and receives is self._receives:  # else the call was given up
                target.copy_(landing)

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
