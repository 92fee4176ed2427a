"""Matmuls and layers whose products are summed over ranks, of whole numbers, and their right sums."""

import torch
from gather_cases import whole_numbers

from collectives import ffn, matmul_reduce_scatter

RANKS, ROWS, WIDTH, DEPTH = 4, 24, 16, 12


class Scatter:
    """One matmul. `alone`, what arrives is the rank's product for some rank, of each rank once."""

    arms, gathered = matmul_reduce_scatter.ARMS, 0

    def __init__(self, rank=0, ranks=RANKS, *, alone=True):
        self.rank, self.ranks, self.alone = rank, ranks, alone
        self.operands = self.made(torch.empty(ROWS // ranks, WIDTH))
        self.renew(0)

    def made(self, out):
        self.inputs = torch.empty(ROWS, DEPTH), torch.empty(WIDTH, DEPTH)
        made = matmul_reduce_scatter.Operands(*self.inputs, out, self.ranks, self.rank)
        self.written = made.products, made.arrived, out
        return made

    def numbers(self, seed, rank):
        """Of what `rank` multiplies."""
        return whole_numbers(100 * seed + rank, ROWS, DEPTH), whole_numbers(50 + rank, WIDTH, DEPTH)

    def renew(self, seed):
        """Take other numbers, and poison all that an arm writes."""
        self.of_ranks = [self.numbers(seed, rank) for rank in range(self.ranks)]
        for tensor, values in zip(self.inputs, self.of_ranks[self.rank], strict=True):
            tensor.copy_(values)
        for tensor in self.written:
            tensor.fill_(torch.nan)

    @staticmethod
    def product(x, w):
        return x @ w.T

    def expected(self, arm):
        if self.alone:
            sums = sum(self.product(*self.of_ranks[self.rank]).chunk(self.ranks))
            return sums.repeat(self.ranks, 1) if arm == "all_reduce" else sums
        sums = sum(self.product(*numbers) for numbers in self.of_ranks)
        return sums if arm == "all_reduce" else sums.chunk(self.ranks)[self.rank]


class Layer(Scatter):
    """Both matmuls. All ranks have the same tokens."""

    arms, gathered = ffn.ARMS, 1

    def made(self, out):
        self.inputs = torch.empty(ROWS, WIDTH), torch.empty(DEPTH, WIDTH), torch.empty(WIDTH, DEPTH)
        made = ffn.Operands(*self.inputs, out, self.ranks, self.rank)
        self.written = made.hidden, made.gathered, made.whole, out, made.scatter.products, made.scatter.arrived
        return made

    def numbers(self, seed, rank):
        tokens = whole_numbers(100 * seed, ROWS, WIDTH)
        return tokens, whole_numbers(9 + rank, DEPTH, WIDTH), whole_numbers(50 + rank + seed, WIDTH, DEPTH)

    def renew(self, seed):
        """What comes is there of this rank's own tokens alone."""
        super().renew(seed)
        block = self.operands.scatter.block
        block(self.operands.gathered, self.rank).copy_(block(self.operands.x, self.rank))

    @staticmethod
    def product(x, up, down):
        return x @ up.T @ down.T
