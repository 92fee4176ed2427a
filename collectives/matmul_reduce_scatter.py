"""The layer `down` in tensor parallel: a matmul whose product is summed over P ranks, and scattered over its rows.

Rank r has x_r[B, F_loc] and w_r[D, F_loc], and wants rows r B/P and on of the sum of all ranks' x_r @ w_r.T. It
multiplies B/P rows for each rank, sends those of the others away, and adds what it receives to its own. It is the
all-gather matmul run backwards in time: there what is gathered must be here before a product, here a product before it
is sent.

    serial          multiply, send, add
    block_launches  multiply for one rank after another, or for some at a time, the own rows last; send the parts of a
                    launch while the next is computed

Sums are in fp32. Their order is fixed, whenever parts come: all parts but the last, then the own one, then the last.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from collectives.all_gather_matmul import Matmul, by_torch, runs_of
from collectives.transfers import Transfer, Transfers
from roofline.theory import schedule


@dataclass
class Operands:
    """What one rank multiplies: `x[B, F_loc]`, `w[D, F_loc]`; `out[B/P, D]` is its rows of the sum, one dtype.

    `products[B, D]` is the own product, of which block d is the part for rank d; `arrived[P - 1, B/P, D]` takes the
    parts that come from `sources`, in their order.
    """

    x: Tensor
    w: Tensor
    out: Tensor
    ranks: int
    rank: int = 0
    topology: str = "direct"
    matmul: Matmul = by_torch
    add_all: Callable[[], None] | None = None
    """Adds what has arrived in one launch, as soon as all of it has; without it, torch adds, in fp32 alone."""
    prepared: dict = field(default_factory=dict)
    """{arm: what `collectives.on_device` has prepared for it}."""

    def __post_init__(self):
        self.products = self.out.new_empty(len(self.x), len(self.w))
        self.arrived = self.out.new_empty(self.ranks - 1, *self.out.shape)

    @property
    def scatter(self) -> "Operands":
        """What is multiplied and scattered, as a layer's second half has it."""
        return self

    def block(self, of: Tensor, rank: int, count: int = 1) -> Tensor:
        """The rows of `of`, x or the products, that are for `count` ranks from `rank` on."""
        rows = len(self.out)
        return of[rank * rows : (rank + count) * rows]

    def multiply(self, ranks: Sequence[int], x: Tensor, w: Tensor, products: Tensor, matmul: Matmul) -> None:
        """Multiply the rows of x for `ranks`: those of neighbours in one launch."""
        for first, count in runs_of(ranks):
            matmul(self.block(x, first, count), w, self.block(products, first, count))

    @property
    def sources(self) -> tuple[int, ...]:
        """The other ranks, in the order in which their parts arrive."""
        return schedule.arrival_order(self.topology, self.ranks, self.rank)[1:]

    @property
    def destinations(self) -> tuple[int, ...]:
        """The other ranks, in the order in which their parts are sent: each is as far before this one as a source is
        behind it."""
        return tuple((2 * self.rank - source) % self.ranks for source in self.sources)

    @cached_property
    def parts(self) -> Transfers:
        """The transfers of a link: one for each part, in their order."""
        return self.pieces(1)

    def pieces(self, blocks: int) -> Transfers:
        """The same transfers, with each part in so many row blocks."""
        transfers = Transfers()
        for source, destination, target in zip(self.sources, self.destinations, self.arrived, strict=True):
            pieces = self.block(self.products, destination).chunk(blocks)
            for block, ends in enumerate(zip(pieces, target.chunk(blocks), strict=True)):
                transfers.append(Transfer(source, block, *ends))
        return transfers


def serial(operands: Operands, link) -> Tensor:
    """Multiply, then send all parts."""
    link.start(operands.parts, ready=0)
    operands.matmul(operands.x, operands.w, operands.products)
    link.ready(len(operands.parts))
    add(operands, link)
    link.finish()
    return operands.out


def block_launches(operands: Operands, link, matmul: Matmul | None = None, ranks_per_launch: int = 1) -> Tensor:
    """Multiply for so many ranks at a time, by `matmul` or that of the operands, and send their parts while the next
    are computed."""
    matmul = matmul or operands.matmul
    link.start(operands.parts, ready=0)
    sent = 0
    for ranks in schedule.groups(operands.destinations, ranks_per_launch):
        operands.multiply(ranks, operands.x, operands.w, operands.products, matmul)
        sent += len(ranks)
        link.ready(sent)
    operands.multiply([operands.rank], operands.x, operands.w, operands.products, matmul)
    add(operands, link)
    link.finish()
    return operands.out


def add(operands: Operands, link, count: int = 0) -> None:
    """Add the parts and the own one. All are here with the first `count` transfers, by default one for each part."""
    count = count or len(operands.parts)
    if operands.add_all:
        link.wait(count)
        operands.add_all()
        return
    if most := len(operands.parts) - 1:
        link.wait(count - 1)
    # One pass over memory takes less than an addition after each arrival, and the last part may still be on the wire.
    sums = torch.sum(operands.arrived[:most], 0, out=operands.out)
    sums.add_(operands.block(operands.products, operands.rank))
    link.wait(count)
    sums.add_(operands.arrived[most])


ARMS: dict[str, Callable[[Operands, object], Tensor]] = {"serial": serial, "block_launches": block_launches}
"""Name -> `arm(operands, link)`, which computes `operands.out`, each time from parts that are sent anew."""
