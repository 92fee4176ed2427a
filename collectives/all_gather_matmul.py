"""The arms of the all-gather matmul: out[B, F_loc] = x[B, D] @ w[F_loc, D].T, where x is gathered over a link.

x is sharded over its columns, the summed dimension: rank r owns chunk r, `shards[r]` of shape [B, D/P]. Every tile of
`out` needs every chunk, which most published collective matmuls, gathering rows, are spared. Chunks are gathered
straight into place, into the columns of one buffer [B, D], where the own chunk lies from the start.

    serial          gather all, then one matmul: what overlapping is measured against
    chunk_launches  the exercise: a matmul for each chunk as it comes, summed in fp32; chunks that are here together are
                    taken together. Best where the link is slow and B x F_loc small: the sums pass through memory for
                    each chunk, and the last chunk's matmul cannot hide
    row_block_launches  the rows come block by block, all chunks of a block after one another; a matmul for each block
                    that is complete, those that are here together taken together. No sums in memory, and only the last
                    block cannot hide; loses where a block is too small to fill the chip, and on a ring, whose order of
                    arrival is not ours to choose

These are ordinary launches, on any device. `collectives.on_device` has those that are one launch, on a GPU.

Shape suffixes: B rows, D the summed dimension, P ranks, F_loc columns of `out`. The idea of chunk_launches is Wang et
al., "Overlap Communication with Dependent Computation via Decomposition" (ASPLOS 2023); row blocks that are gathered
over all ranks are the order of Iris's all_gather_matmul and of the strided all-gather of tt-metal.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from collectives.transfers import Transfer, Transfers
from roofline.theory import schedule

Matmul = Callable[[Tensor, Tensor, Tensor], Tensor]
"""`matmul(x, w, out)`, the contract of `kernels.contract`."""


def by_torch(x: Tensor, w: Tensor, out: Tensor) -> Tensor:
    return torch.mm(x, w.T, out=out)


@dataclass
class Operands:
    """What one rank multiplies, and what the others send it.

    `shards[c]` is x's columns c * D/P and on, [B, D/P], rows contiguous; `gathered` is [B, D], and this rank's own
    chunk is in it. `w[F_loc, D]`, `out[B, F_loc]`, one dtype. `blocks` divide the B rows for row_block_launches;
    `chunk_plan` and `block_plan` are how many chunks, or row blocks, are done after each launch, by the arrivals that
    are expected; without them each launch takes one more, and what is known to be here beyond.
    """

    shards: Sequence[Tensor]
    gathered: Tensor
    w: Tensor
    out: Tensor
    rank: int = 0
    blocks: int = 8
    chunk_plan: Sequence[int] = ()
    block_plan: Sequence[int] = ()
    matmul: Matmul = by_torch
    prepared: dict = field(default_factory=dict)
    """{arm: what `collectives.on_device` has prepared for it}."""

    def __post_init__(self):
        self.columns(self.rank, self.gathered).copy_(self.shards[self.rank])

    @property
    def order(self) -> tuple[int, ...]:
        """Chunks in the order of their arrival, the own one first."""
        return schedule.arrival_order("direct", len(self.shards), self.rank)

    @property
    def block_rows(self) -> int:
        """The rows of a block for row_block_launches."""
        return -(-len(self.gathered) // self.blocks)

    def columns(self, chunk: int, of: Tensor) -> Tensor:
        """The columns of x, or of w, that belong to chunk `chunk`."""
        width = self.shards[0].shape[1]
        return of[:, chunk * width : (chunk + 1) * width]

    def transfers(self, block_rows: int | None = None, into: Tensor | None = None) -> Transfers:
        """The transfers to `into` (default: `gathered`), all chunks of each row block after one another. A block has
        `block_rows` rows, by default all; the last one what is left."""
        into = self.gathered if into is None else into
        height = max(1, block_rows or len(into))
        transfers = Transfers(together=1 if height >= len(into) else len(self.shards) - 1)
        for block, first in enumerate(range(0, len(into), height)):
            rows = slice(first, first + height)
            for chunk in self.order[1:]:
                target = self.columns(chunk, into[rows])
                transfers.append(Transfer(chunk, block, self.shards[chunk][rows], target, self.shards[self.rank][rows]))
        return transfers

    @cached_property
    def by_chunk(self) -> Transfers:
        return self.transfers()

    @cached_property
    def by_block(self) -> Transfers:
        return self.transfers(self.block_rows)

    @cached_property
    def sums(self) -> Tensor:
        """The fp32 tensor in which chunk_launches sums: `out` itself if that is fp32."""
        return self.out if self.out.dtype == torch.float32 else torch.empty_like(self.out, dtype=torch.float32)


def serial(operands: Operands, link) -> Tensor:
    """Gather all of x, then multiply."""
    link.start(operands.by_chunk)
    link.wait(len(operands.by_chunk))
    operands.matmul(operands.gathered, operands.w, operands.out)
    link.finish()
    return operands.out


def chunk_launches(operands: Operands, link) -> Tensor:
    """Multiply each chunk when it is here, the own one at once, and sum in fp32."""
    link.start(operands.by_chunk)
    done, ranks = 0, len(operands.shards)
    for count in operands.chunk_plan or range(1, ranks + 1):
        if done >= count:
            continue
        here = link.wait(count - 1) + 1  # the own chunk needs no transfer
        for chunk, width in runs_of(operands.order[done:here]):
            _add_product(operands, chunk, width, first=not done)
            done += width
    if operands.sums is not operands.out:
        operands.out.copy_(operands.sums)
    link.finish()
    return operands.out


def runs_of(chunks: Sequence[int]) -> list[tuple[int, int]]:
    """The runs of neighbours among `chunks`, as (first, how many): each is one slice of columns.

    >>> runs_of((6, 7, 0, 1)), runs_of((3, 2, 1))
    ([(0, 2), (6, 2)], [(1, 3)])
    """
    runs: list[tuple[int, int]] = []
    for chunk in sorted(chunks):
        first, count = runs.pop() if runs and sum(runs[-1]) == chunk else (chunk, 0)
        runs.append((first, count + 1))
    return runs


def _add_product(operands: Operands, chunk: int, count: int, *, first: bool) -> None:
    """sums += the product of `count` chunks from `chunk` on; `first` overwrites."""
    width = operands.shards[0].shape[1]
    span = slice(chunk * width, (chunk + count) * width)
    x, w, sums = operands.gathered[:, span], operands.w[:, span], operands.sums
    about = {} if x.dtype == torch.float32 else {"out_dtype": torch.float32}  # which torch has on GPUs alone
    if first:
        torch.mm(x, w.T, out=sums, **about)
    else:
        torch.addmm(sums, x, w.T, out=sums, **about)


def row_block_launches(operands: Operands, link, matmul: Matmul | None = None) -> Tensor:
    """Multiply each row block when all of it is here, by `matmul` or that of the operands."""
    matmul = matmul or operands.matmul
    link.start(operands.by_block)
    done, pieces = 0, len(operands.shards) - 1  # of a block; blocks that hold no rows have none
    blocks, height = len(operands.by_block) // pieces, operands.block_rows
    for count in operands.block_plan or range(1, blocks + 1):
        if done >= count:
            continue
        here = link.wait(count * pieces) // pieces
        rows = slice(done * height, here * height)  # the last ones may be fewer, or none
        matmul(operands.gathered[rows], operands.w, operands.out[rows])
        done = here
    link.finish()
    return operands.out


ARMS: dict[str, Callable[[Operands, object], Tensor]] = {
    "serial": serial,
    "chunk_launches": chunk_launches,
    "row_block_launches": row_block_launches,
}
"""Name -> `arm(operands, link)`, which computes `operands.out`, each time from shards that it gathers anew."""
