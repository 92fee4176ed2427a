"""How the operation `weight_prefetch` runs: the next layer's w[n, k] is sharded by rows, and gathered meanwhile."""

import math
from collections.abc import Callable

import torch

from collectives import weight_prefetch
from collectives.bench import runner
from collectives.bench.operands import shards_for
from collectives.bench.setting import Setting
from collectives.transfers import Preset, Transfers
from collectives.weight_prefetch import Operands


class Prefetch(Setting):
    """The next layer's w[n, k] is sharded by rows."""

    rotation = 1

    def make(self, number: int) -> Operands:
        case = self.case
        weights = [self.weights((case.n, case.k), layer) for layer in range(2)]
        shards = [shards_for(self.ranks, self.wire.kind, layer, case.ranks, 0) for layer in weights]
        buffers = [self.buffer((case.n, case.k), layer) for layer in range(2)]
        x = self.normal((case.m, case.k), 2)
        return Operands(shards, buffers, x, x.new_empty(case.m, case.n), self.ranks.rank)

    def gemms_of(self, operands) -> list[tuple]:
        return [(operands.x, layer, operands.out) for layer in operands.buffers]

    @property
    def gathers(self) -> list[Transfers]:
        return self.sets[0].transfers

    def transfers(self, operands) -> Transfers:
        return operands.next

    def unrelated(self) -> list:
        return self.gathers[::-1]

    def whole(self, operands) -> tuple:
        Preset.fill(operands.transfers[operands.step % 2])  # whatever another arm has left there
        return operands.x, operands.now.clone()

    def changing(self, operands) -> list:
        return [operands.x]

    def multiplied(self, operands) -> tuple:
        return operands.x, operands.buffers[(operands.step + 1) % 2]

    def relative_error(self, arm: Callable, link, operands) -> float:
        """NaN also where the next layer is not here."""
        error = super().relative_error(arm, link, operands)
        for part in operands.transfers[operands.step % 2]:
            if not torch.equal(part.target, part.source.to(operands.x.device)):
                return math.nan
        return error


class Runner(runner.Runner):
    """Runs weight prefetches."""

    setting = Prefetch
    own_arms = weight_prefetch.ARMS
