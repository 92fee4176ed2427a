"""How the operation `ffn` runs: rows of x come before the first matmul, and parts of the second go away."""

import functools
import math
from collections.abc import Callable

import torch

from collectives import ffn
from collectives.bench import matmul_reduce_scatter as scatters
from collectives.bench import setting as settings
from collectives.bench.operands import buffer, normal
from collectives.ffn import Operands
from collectives.links import Gather, InTurn, Scatter, Transfer
from kernels.bench import checks
from roofline.measure.ranks import ALONE


class Layer(scatters.Telling):
    """x[m, n] and out[m, n] are sharded by rows. The unsplit matmul is both, one after the other."""

    telling, without_it = "layer_signalled", "layer_launches"

    def _operands(self) -> list:
        case, sets = self.case, []
        up, down = self._weights_of(self.ranks.rank)
        for number in range(settings.SETS):
            x = normal((case.m, case.n), case.dtype, self.device, self.seed + 1 + number, 1.0)
            out = x.new_empty(case.m // case.ranks, case.n)
            sets.append(self._added(Operands(x, up, down, out, case.ranks, self.ranks.rank)))
        self.gemms = [(operands.gathered, operands.up, operands.hidden) for operands in sets]
        self.gathers = [operands.transfers for operands in sets]
        return sets

    def _weights_of(self, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
        """up[k, n] and down[n, k]."""
        case, seed = self.case, self.seed + 1000 * (rank + 1)
        up = normal((case.k, case.n), case.dtype, self.device, seed, 1 / math.sqrt(case.n))
        return up, normal((case.n, case.k), case.dtype, self.device, seed + 1, 1 / math.sqrt(case.k))

    def _gemms(self, contender) -> list[Callable]:
        return [
            functools.partial(ffn.multiply, operands, operands.gathered, contender.load()) for operands in self.sets
        ]

    gathered_copies = 2 * settings.SETS
    """x as it is and as it comes, products and parts for each set."""

    @staticmethod
    def transfers(operands) -> list:
        return operands.transfers

    @staticmethod
    def scratch(operands) -> list:
        return [operands.hidden, operands.scatter.products, operands.whole]

    def unrelated(self) -> list:
        case, sent = self.case, self.sets[0].transfers
        spare = buffer((case.m, case.n), case.dtype, self.device, settings.SETS).fill_(1.0).chunk(case.ranks)
        rows = Gather((Transfer(t.chunk, 0, t.source, spare[t.chunk]) for t in sent if not t.block), [spare[0]])
        parts = Scatter(Transfer(t.chunk, 1, spare[t.chunk], t.target) for t in sent if t.block)
        return [InTurn(rows, parts)] * settings.SETS

    @staticmethod
    def arrived(transfer) -> bool:
        """Return True, since the sums tell: each row that comes is in some rank's, and an arm need not move all."""
        return True

    def whole(self, operands) -> tuple:
        return operands.scatter.block(self._rows(operands), operands.rank), self._weights

    def _rows(self, operands) -> torch.Tensor:
        """Return what the sums of all rows are of: in one process every rank is this one, turned by its number."""
        if self.ranks is not ALONE:
            return operands.x
        return operands.x.double().unflatten(0, (operands.ranks, -1)).sum(0).repeat(operands.ranks, 1)

    @property
    def limit(self) -> float:
        """Three are rounded, `hidden`, parts and sums, where a reduce-scatter rounds two."""
        return super().limit * math.sqrt(3 / 2)

    @functools.cached_property
    def _weights(self) -> torch.Tensor:
        """Return the sum over ranks of down @ up, in fp64."""
        ranks = [self.ranks.rank] if self.ranks is ALONE else range(self.case.ranks)
        return sum(down.double() @ up.double() for up, down in map(self._weights_of, ranks))

    def relative_error(self, arm: Callable, link, operands, **about) -> float:
        """Also of all rows, where the arm makes them: the larger one."""
        error = super().relative_error(arm, link, operands, **about)
        if link.timeline().transfers is not operands.reduced:
            return error
        of_all = checks.error_of(operands.whole, checks.reference_sums(self._rows(operands), self._weights))
        return checks.worst([error, of_all])


class Runner(scatters.Runner):
    """Runs feed-forward layers."""

    setting, own_arms, peers = Layer, ffn.ARMS, ()
