"""How the operation `weight_prefetch` runs: the next layer's w[n, k] is sharded by rows, and gathered meanwhile."""

import functools
import math
from collections.abc import Callable

from collectives import weight_prefetch
from collectives.bench import arms
from collectives.bench import setting as settings
from collectives.bench.operands import buffer, normal, shards_of
from collectives.weight_prefetch import Operands


class Prefetch(settings.Setting):
    """The next layer's w[n, k] is sharded by rows."""

    def _operands(self) -> list:
        case = self.case
        layers = [
            normal((case.n, case.k), case.dtype, self.device, self.seed + layer, 1 / math.sqrt(case.k))
            for layer in range(2)
        ]
        shards = [shards_of(layer, case.ranks, 0, self.pinned) for layer in layers]
        buffers = [buffer((case.n, case.k), case.dtype, self.device, number) for number in range(2)]
        x = normal((case.m, case.k), case.dtype, self.device, self.seed + 2, 1.0)
        return [Operands(shards, buffers, x, x.new_empty(case.m, case.n))]

    @staticmethod
    def _gemm(operands) -> tuple:
        return operands.x, operands.buffers[0], operands.out

    gathered_copies = 4
    """Shards and a buffer for each of two layers."""

    @staticmethod
    def transfers(operands) -> list:
        return operands.next

    @staticmethod
    def all_transfers(operands) -> list:
        return [transfer for layer in operands.transfers for transfer in layer]

    def _factors(self, operands) -> tuple:
        for transfer in operands.transfers[operands.step % 2]:  # whatever another arm has left there
            transfer.target.copy_(transfer.source)
        return operands.x, operands.now.clone()

    @staticmethod
    def _grid_facts() -> dict:
        return {}

    def config(self, arm: str) -> str:
        return self.matmul_of(arm).config(*self._gemm(self.sets[0])[:2])

    def references(self) -> dict[str, tuple[str, list[Callable], object]]:
        operands, link = self.sets[0], self.link()
        found = {
            f"gemm {name}": (
                "gemm",
                [functools.partial(c.run, operands.x, w, operands.out) for w in operands.buffers],
                None,
            )
            for name, c in self.unsplit.items()
        }
        found["link"] = ("link", [functools.partial(settings.alone, link, t) for t in operands.transfers], link)
        for name, contender in self.matmuls_beside_link().items():
            link = self.link()
            runs = [
                functools.partial(
                    settings.contended, link, transfers, functools.partial(contender.run, operands.x, w, operands.out)
                )
                for w, transfers in zip(operands.buffers, reversed(operands.transfers), strict=True)
            ]
            found[name] = ("contended", runs, link)
        return found


class Runner(arms.Runner):
    """Runs weight prefetches."""

    setting, own_arms = Prefetch, weight_prefetch.ARMS
