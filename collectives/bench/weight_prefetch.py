"""How the operation `weight_prefetch` runs: the next layer's w[n, k] is sharded by rows, and gathered meanwhile."""

import math

from collectives import weight_prefetch
from collectives.bench import arms
from collectives.bench import setting as settings
from collectives.bench.operands import buffer, normal
from collectives.weight_prefetch import Operands


class Prefetch(settings.Setting):
    """The next layer's w[n, k] is sharded by rows."""

    def _operands(self) -> list:
        case = self.case
        layers = [
            normal((case.n, case.k), case.dtype, self.device, self.seed + layer, 1 / math.sqrt(case.k))
            for layer in range(2)
        ]
        shards = [self.shards_of(layer, 0) for layer in layers]
        buffers = [buffer((case.n, case.k), case.dtype, self.device, number) for number in range(2)]
        x = normal((case.m, case.k), case.dtype, self.device, self.seed + 2, 1.0)
        operands = Operands(shards, buffers, x, x.new_empty(case.m, case.n), self.ranks.rank)
        self.gemms = [(x, layer, operands.out) for layer in buffers]
        self.gathers = operands.transfers
        return [operands]

    gathered_copies = 4
    """Shards and a buffer for each of two layers."""

    @staticmethod
    def transfers(operands) -> list:
        return operands.next

    def unrelated(self) -> list:
        return self.gathers[::-1]

    @staticmethod
    def whole(operands) -> tuple:
        for transfer in operands.transfers[operands.step % 2]:  # whatever another arm has left there
            transfer.target.copy_(transfer.source)
        return operands.x, operands.now.clone()

    def config(self, arm: str) -> str:
        return self.matmul_of(arm).describe(*self.factors)


class Runner(arms.Runner):
    """Runs weight prefetches."""

    setting, own_arms = Prefetch, weight_prefetch.ARMS
