"""How the operation `weight_prefetch` runs: the next layer's w[n, k] is sharded by rows, and gathered meanwhile."""

from operator import attrgetter

from collectives import weight_prefetch
from collectives.bench import runner
from collectives.bench import setting as settings
from collectives.transfers import Preset
from collectives.weight_prefetch import Operands


class Prefetch(settings.Setting):
    """The next layer's w[n, k] is sharded by rows."""

    transfers = attrgetter("next")

    def _operands(self) -> list:
        case = self.case
        shards = [self.shards_of(self.weights((case.n, case.k), layer), 0) for layer in range(2)]
        buffers = [self.buffer((case.n, case.k), number) for number in range(2)]
        x = self.normal((case.m, case.k), 2)
        operands = Operands(shards, buffers, x, x.new_empty(case.m, case.n), self.ranks.rank)
        self.gemms = [(x, layer, operands.out) for layer in buffers]
        self.gathers = operands.transfers
        return [operands]

    def unrelated(self) -> list:
        return self.gathers[::-1]

    @staticmethod
    def whole(operands) -> tuple:
        Preset.fill(operands.transfers[operands.step % 2])  # whatever another arm has left there
        return operands.x, operands.now.clone()


class Runner(runner.Runner):
    """Runs weight prefetches."""

    setting, own_arms = Prefetch, weight_prefetch.ARMS
