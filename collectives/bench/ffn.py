"""How the operation `ffn` runs: rows of x come before the first matmul, and parts of the second go away."""

import functools
import math
from collections.abc import Callable

import torch

from collectives import ffn
from collectives.bench import runner
from collectives.bench.matmul_reduce_scatter import Summed
from collectives.bench.operands import on_host
from collectives.ffn import Operands
from collectives.transfers import Transfers
from kernels.bench import checks
from roofline.theory.wires import PCIE
from roofline.worker.alone import ALONE


class Layer(Summed):
    """x[m, n] and out[m, n] are sharded by rows. The unsplit matmul is both, one after the other."""

    limit_share = math.sqrt(3 / 2)
    """Three are rounded, `hidden`, parts and sums, where a reduce-scatter rounds two."""

    def make(self, number: int) -> Operands:
        case, rank = self.case, self.ranks.rank
        x = self.normal((case.m, case.n), 1 + number)
        out = x.new_empty(case.m // case.ranks, case.n)
        shards = on_host(x, case.ranks, 0, rank) if self.wire.kind == PCIE else ()
        return Operands(x, *self._weights_of(rank), out, case.ranks, rank, shards=shards)

    def gemms_of(self, operands) -> list[tuple]:
        return [(operands.gathered, operands.up, operands.hidden)]

    def _weights_of(self, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
        """up[k, n] and down[n, k]."""
        case, seed = self.case, 1000 * (rank + 1)
        return self.weights((case.k, case.n), seed), self.weights((case.n, case.k), seed + 1)

    def multiplied_by(self, contender) -> list[Callable]:
        matmul = contender.load()
        return [functools.partial(ffn.multiply, operands, operands.gathered, matmul) for operands in self.sets]

    def transfers(self, operands) -> Transfers:
        return operands.transfers

    def add(self, operands, link) -> None:
        super().add(operands.scatter, link)

    def written(self, operands) -> list:
        return [operands.hidden, operands.scatter.products, operands.whole, operands.out]

    @staticmethod
    def now_here(sets: list) -> None:
        for operands in sets:
            own = operands.scatter.block(operands.x, operands.rank)
            operands.scatter.block(operands.gathered, operands.rank).copy_(own)
            for shard, rows in zip(operands.shards, operands.x.chunk(operands.ranks), strict=False):
                shard.copy_(rows)

    def whole(self, operands) -> tuple:
        return operands.scatter.block(self._rows(operands), operands.rank), self._sum_of_weights

    def _rows(self, operands) -> torch.Tensor:
        """The rows that `_sum_of_weights` multiplies: in one process every rank is this one, turned by its number."""
        if self.ranks is not ALONE:
            return operands.x
        return operands.x.double().unflatten(0, (operands.ranks, -1)).sum(0).repeat(operands.ranks, 1)

    @functools.cached_property
    def _sum_of_weights(self) -> torch.Tensor:
        """The sum over ranks of down @ up, in fp64."""
        ranks = [self.ranks.rank] if self.ranks is ALONE else range(self.case.ranks)
        return sum(down.double() @ up.double() for up, down in map(self._weights_of, ranks))

    def relative_error(self, arm: Callable, link, operands) -> float:
        """Also of all rows, where the arm makes them: the larger one."""
        error = super().relative_error(arm, link, operands)
        if link.timeline().transfers is not operands.reduced:
            return error
        of_all = checks.error_of(operands.whole, checks.reference_sums(self._rows(operands), self._sum_of_weights))
        return checks.worst([error, of_all])


class Runner(runner.Runner):
    """Runs feed-forward layers."""

    setting = Layer
    own_arms = ffn.ARMS
