"""FSDP's forward pass: while a layer multiplies, the weights of the next one are gathered over a link.

Batch and weights are sharded over P ranks. `layers[l][c]` is rank c's share of layer l's weights, rows of w[n, k], and
`buffers` are the two places where whole layers stand by turns: step l multiplies x[m, k] with the layer in one of
them and gathers the next layer into the other. Matmul and gather do not depend on one another, so all that overlapping
can lose here is what they take from each other.

    serial      gather the next layer, then multiply with this one
    overlapped  begin to gather, multiply meanwhile, wait for the rest
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from collectives.all_gather_matmul import Matmul, by_torch
from collectives.transfers import Transfer, Transfers
from roofline.theory import schedule


@dataclass
class Operands:
    """Two layers that follow one another for ever. `x[m, k]`, `out[m, n]`; `layers[l][c]` is [n/P, k], `buffers[l]`
    is [n, k], and holds this rank's own share of layer l from the start, that of layer 0 wholly.
    """

    layers: Sequence[Sequence[Tensor]]
    buffers: Sequence[Tensor]
    x: Tensor
    out: Tensor
    rank: int = 0
    matmul: Matmul = by_torch
    prepared: dict = field(default_factory=dict)
    step: int = 0

    def __post_init__(self):
        self.transfers = []
        for layer, buffer in zip(self.layers, self.buffers, strict=True):
            shares = buffer.chunk(len(layer))
            shares[self.rank].copy_(layer[self.rank])
            others = schedule.arrival_order("direct", len(layer), self.rank)[1:]
            transfers = (Transfer(rank, 0, layer[rank], shares[rank], layer[self.rank]) for rank in others)
            self.transfers.append(Transfers(transfers, into=buffer))
        for transfer in self.transfers[0]:
            transfer.target.copy_(transfer.source)

    @property
    def now(self) -> Tensor:
        """The layer that this step multiplies with."""
        return self.buffers[self.step % 2]

    @property
    def next(self) -> Transfers:
        """The transfers that bring the layer of the next step."""
        return self.transfers[(self.step + 1) % 2]


def serial(operands: Operands, link) -> Tensor:
    """Gather the next layer, then multiply with this one."""
    link.start(operands.next)
    link.wait(len(operands.next))
    operands.matmul(operands.x, operands.now, operands.out)
    link.finish()
    operands.step += 1
    return operands.out


def overlapped(operands: Operands, link, matmul: Matmul | None = None) -> Tensor:
    """Multiply with this layer, by `matmul` or that of the operands, while the next one is gathered."""
    link.start(operands.next)
    (matmul or operands.matmul)(operands.x, operands.now, operands.out)
    link.wait(len(operands.next))
    link.finish()
    operands.step += 1
    return operands.out


ARMS: dict[str, Callable[[Operands, object], Tensor]] = {"serial": serial, "overlapped": overlapped}
"""Name -> `arm(operands, link)`: one step, which returns `operands.out` and leaves the next layer gathered."""
