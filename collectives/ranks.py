"""What ranks that are processes bring one another: the link `gloo`, and symmetric memory.

`gloo` sends and receives point to point, over whatever network the group was made for. All receives are posted before
the first send, without which gloo takes twice as long. A rank sends its own shard to those first who want it first, so
that the order of arrival is that of `theory.schedule` (`direct`).
"""

import torch
from torch import Tensor

from collectives.paced import Run, Threaded
from collectives.transfers import Transfer, Transfers


class Gloo(Threaded):
    """Sends and receives over the group of `ranks`, a `roofline.worker.ranks.Ranks`, in a thread of this process. All
    ranks start their gathers in the same order, which tells messages apart."""

    kind = "gloo"

    def __init__(self, ranks):
        super().__init__(ranks.rank)
        self._ranks = ranks
        self._landings: dict[tuple, Tensor] = {}

    def start(self, transfers: Transfers, ready: int | None = None) -> None:
        recv = self._ranks.group.recv
        self._sends: list = []
        self._targets = [landing(self._landings, index, transfer) for index, transfer in enumerate(transfers)]
        self._receives = [recv([to], t.chunk, t.block) for t, to in zip(transfers, self._targets, strict=True)]
        super().start(transfers, ready)
        self._send(len(transfers) if ready is None else ready)

    def ready(self, count: int) -> None:
        super().ready(count)
        self._send(count)

    def _send(self, count: int) -> None:
        """Send what goes out while the first `count` transfers come."""
        ranks = self._ranks
        for transfer in self._run.transfers[len(self._sends) : count]:
            receiver = transfer.receiver(ranks.rank, ranks.size)
            self._sends.append(ranks.group.send([transfer.sent], receiver, transfer.block))

    def bring(self, run: Run, index: int) -> None:
        landed, target = self._targets[index], run.transfers[index].target
        self._receives[index].wait()
        if landed is not target:
            target.copy_(landed)

    def due_s(self, nbytes: int) -> float:
        return 86_400.0  # who waits in vain is ended by the supervisor, which finds who hangs

    def finish(self) -> None:
        super().finish()
        for send in self._sends:
            send.wait()


def landing(kept: dict[tuple, Tensor], index: int, transfer: Transfer) -> Tensor:
    """The tensor that a message is received in: the target itself where that is contiguous, else one of `kept`, which
    is then copied."""
    target = transfer.target
    if target.is_contiguous():
        return target
    key = index, *target.shape, target.dtype
    if key not in kept:
        kept[key] = torch.empty_like(target, memory_format=torch.contiguous_format)
    return kept[key]


def shared(tensor: Tensor, ranks) -> Tensor:
    """A copy of `tensor` in symmetric memory, where the other `ranks` read it; all of them call this, with
    tensors of one shape and dtype. It has an allocation of its own, not a part of the pool that torch's
    `symm_mem.empty` takes: `get_buffer` counts from the begin of an allocation."""
    about = tensor.shape, tensor.stride(), tensor.dtype, tensor.device, ranks.world.group.group_name
    made = symmetric_memory().empty_strided_p2p(*about)
    rendezvous(made)
    return made.copy_(tensor)


def rendezvous(tensor: Tensor):
    """torch's handle of what was `shared`. All ranks call this in the same order the first time; torch keeps it."""
    return symmetric_memory().rendezvous(tensor)


def symmetric_memory():
    """torch's class of it, which builds for a CPU lack."""
    from torch._C._distributed_c10d import _SymmetricMemory

    return _SymmetricMemory
