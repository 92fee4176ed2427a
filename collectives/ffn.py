"""The feed-forward layer in tensor parallelism: both its matmuls, and the wire before the first and behind the second.

Rank r has up_r[F_loc, D] and down_r[D, F_loc], and wants the sum over ranks of x @ up_r.T @ down_r.T. Between layers
tokens are sharded (sequence parallelism): it has B/P rows of x, gathers those of the others, and gets as many rows of
the sum, by a reduce-scatter. What stands between the matmuls in a model works element by element, and is not measured:
here is nothing.

    serial            gather, up, down, send, add
    all_reduce        plain tensor parallelism: all tokens are on every rank before and behind. Up, down, and an
                      all-reduce as a reduce-scatter and an all-gather, which are as many bytes
    layer_launches    up for each rank's rows as they come, the own first; then down for one rank after another, the own
                      rows last, each part sent while the next is computed
    chained_launches  up and down for each rank's rows as they come, and the part sent while the next is computed. All
                      but a matmul of some rows at either end hides; the weights of both layers pass through the caches
                      for each rank. As layer_launches, also for the rows of some ranks at a time
    layer_signalled   on a GPU: as layer_launches, but up and down are one launch each (`collectives.on_device`)

Arms but `all_reduce` compute `out`, it `whole`. Sums are those of `matmul_reduce_scatter`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from collectives import matmul_reduce_scatter
from collectives.all_gather_matmul import Matmul, by_torch
from collectives.matmul_reduce_scatter import add
from collectives.transfers import Transfer, Transfers
from roofline.theory import schedule


@dataclass
class Operands:
    """What one rank multiplies: `x[B, D]`, the tokens of all ranks, `up[F_loc, D]`, `down[D, F_loc]`; `out[B/P, D]` is
    its rows of the sum, one dtype. `whole[B, D]` is all rows of it.

    `gathered[B, D]` takes the rows of x that are not this rank's, from `sources` in their order, `hidden[B, F_loc]` the
    product by `up`; `scatter` is what follows. A link moves `transfers`, rows of x and parts of the sum, or `reduced`,
    parts and rows of the sum; in one process the sums of all ranks are alike.
    """

    x: Tensor
    up: Tensor
    down: Tensor
    out: Tensor
    ranks: int
    rank: int = 0
    matmul: Matmul = by_torch
    prepared: dict = field(default_factory=dict)
    """{arm: what `collectives.on_device` has prepared for it}."""
    shards: Sequence[Tensor] = ()
    """Rows of x by rank, where a link finds those of others elsewhere."""

    def __post_init__(self):
        self.hidden = self.x.new_empty(len(self.x), len(self.up))
        # Parts go to the ranks in the order in which the rows of these come.
        about = self.ranks, self.rank, "ring"
        self.scatter = matmul_reduce_scatter.Operands(self.hidden, self.down, self.out, *about)
        self.sources = self.scatter.destinations
        self.gathered, self.whole = self.x.clone(), torch.empty_like(self.x)
        self.rows = self._gather(self.shards or self.x.chunk(self.ranks), self.gathered)
        self.transfers = self.before(self.scatter.parts)
        sums = self._gather([self.out] * self.ranks, self.whole)
        self.reduced = Transfers([*self.transfers[len(self.rows) :], *sums])

    def before(self, parts: Transfers) -> Transfers:
        """The transfers of the rows of x, and then `parts`."""
        return Transfers([*self.rows, *(replace(part, block=1 + part.block) for part in parts)])

    def _gather(self, shards, into: Tensor) -> list[Transfer]:
        mine, block = shards[self.rank], self.scatter.block
        return [Transfer(rank, 0, shards[rank], block(into, rank), mine) for rank in self.sources]

    def multiply(self, ranks: Sequence[int], *, up: bool, by: Matmul | None = None) -> None:
        """Multiply the rows of `ranks` by `up`, or by `down`; `by` another matmul than that of the operands."""
        x, w, out = (self.gathered, self.up, self.hidden) if up else (self.hidden, self.down, self.scatter.products)
        self.scatter.multiply(ranks, x, w, out, by or self.matmul)


def serial(operands: Operands, link) -> Tensor:
    """Gather all of x, multiply twice, then send all parts."""
    others = operands.ranks - 1
    link.start(operands.transfers, ready=others)
    link.wait(others)
    multiply(operands, operands.gathered, operands.matmul)
    return _finished(operands, link)


def multiply(operands: Operands, x: Tensor, matmul: Matmul) -> Tensor:
    """Multiply all rows of `x` by `up`, and that by `down`. Returns the products."""
    matmul(x, operands.up, operands.hidden)
    return matmul(operands.hidden, operands.down, operands.scatter.products)


def all_reduce(operands: Operands, link) -> Tensor:
    """Multiply twice, then send all parts, add, and gather the sums."""
    others = operands.ranks - 1
    link.start(operands.reduced, ready=0)
    multiply(operands, operands.x, operands.matmul)
    link.ready(others)
    add(operands.scatter, link)
    link.ready(2 * others)
    operands.scatter.block(operands.whole, operands.rank).copy_(operands.out)
    link.wait(2 * others)
    link.finish()
    return operands.whole


def layer_launches(operands: Operands, link, matmul: Matmul | None = None, ranks_per_launch: int = 1) -> Tensor:
    """Multiply by `up` as rows come, then by `down` as parts are sent, with `matmul` or that of the operands; the rows
    of so many ranks at a time. Where these are groups of two sizes, the smaller one comes first and goes last: little
    else is there to hide it."""
    others, own = operands.ranks - 1, [operands.rank]
    link.start(operands.transfers, ready=others)
    here = 0
    link.wait(here)
    operands.multiply(own, up=True, by=matmul)
    for ranks in schedule.groups(operands.sources[::-1], ranks_per_launch)[::-1]:
        here += len(ranks)
        link.wait(here)
        operands.multiply(ranks, up=True, by=matmul)
    link.wait(others)  # here already: tells the timeline when `up` was done
    sent = others
    for ranks in schedule.groups(operands.sources, ranks_per_launch):
        operands.multiply(ranks, up=False, by=matmul)
        sent += len(ranks)
        link.ready(sent)
    operands.multiply(own, up=False, by=matmul)
    return _finished(operands, link)


def chained_launches(operands: Operands, link, ranks_per_launch: int = 1) -> Tensor:
    """Multiply by `up` and `down` as rows come and parts are sent, of so many ranks at a time, the own rows by `up`
    first and by `down` last."""
    others, own = operands.ranks - 1, [operands.rank]
    link.start(operands.transfers, ready=others)
    operands.multiply(own, up=True)
    here = 0
    for ranks in schedule.groups(operands.sources, ranks_per_launch):
        here += len(ranks)
        link.wait(here)
        operands.multiply(ranks, up=True)
        operands.multiply(ranks, up=False)
        link.ready(others + here)
    operands.multiply(own, up=False)
    return _finished(operands, link)


def _finished(operands: Operands, link) -> Tensor:
    """Let all parts go; add those of the others."""
    others = operands.ranks - 1
    link.ready(2 * others)
    add(operands.scatter, link, 2 * others)
    link.finish()
    return operands.out


ARMS: dict[str, Callable[[Operands, object], Tensor]] = {
    "serial": serial,
    "all_reduce": all_reduce,
    "layer_launches": layer_launches,
    "chained_launches": chained_launches,
}
"""Name -> `arm(operands, link)`, each time from rows and parts that are sent anew."""
