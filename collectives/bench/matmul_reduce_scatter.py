"""How the operation `matmul_reduce_scatter` runs: parts of out[m, n] go to other ranks while others are computed."""

from dataclasses import replace

import torch

from collectives import matmul_reduce_scatter
from collectives.bench import runner
from collectives.bench.setting import Setting
from collectives.matmul_reduce_scatter import Operands
from collectives.peer import fused_matmul_reduce_scatter
from collectives.transfers import Transfers
from roofline.measure.ranks import ALONE
from roofline.theory.arms import TELLING, cuts, of_operation


class Summed(Setting):
    """Of a reduce-scatter, by itself or behind a layer: on a GPU a kernel adds the parts."""

    def changing(self, operands) -> list:
        return [operands.x] if self.ranks is ALONE else []

    def cut(self) -> dict:
        if self.device == "cpu":
            return {}
        from collectives import on_device

        for operands in self.sets:
            on_device.added_by_kernel(operands)
        case, sms = self.case, torch.cuda.get_device_properties(0).multi_processor_count
        arm = next(arm for arm in of_operation(case.op, gpu=True) if arm in TELLING)
        grid = cuts(arm, case.m, case.n, case.ranks, sms)[0].grid
        return {"workers": sms, "row_tiles": grid.row_tiles, "column_tiles": grid.column_tiles}

    def describe(self, arm: str) -> tuple[str, dict]:
        config, facts = super().describe(arm)
        return f"{config}, sums in fp32", facts


class ReduceScatter(Summed):
    """out[m / P, n] is summed over ranks."""

    def make(self, number: int) -> Operands:
        case, rank = self.case, self.ranks.rank
        x, w = self._factors(rank, number)
        return Operands(x, w, x.new_empty(case.m // case.ranks, case.n), case.ranks, rank)

    def gemms_of(self, operands) -> list[tuple]:
        return [(operands.x, operands.w, operands.products)]

    def _factors(self, rank: int, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """x and w of `rank` in the set `number`."""
        case, seed = self.case, 1000 * rank
        return self.normal((case.m, case.k), seed + 1 + number), self.weights((case.n, case.k), seed)

    def transfers(self, operands) -> Transfers:
        return operands.parts

    def written(self, operands) -> list:
        return [operands.products, operands.out]

    def unrelated(self) -> list:
        spare = self.buffer((self.case.m, self.case.n)).fill_(1.0).chunk(self.case.ranks)
        return [Transfers(replace(part, source=spare[part.chunk]) for part in self.sets[0].parts)]

    def whole(self, operands) -> tuple:
        """Factors of the sum, one beside the other: in one process every rank is this one, turned by its number."""
        if self.ranks is ALONE:
            factors = [(part, operands.w) for part in operands.x.chunk(operands.ranks)]
        else:
            number = next(index for index, of_set in enumerate(self.sets) if of_set is operands)
            of_ranks = (self._factors(rank, number) for rank in range(operands.ranks))
            factors = [(operands.block(x, operands.rank), w) for x, w in of_ranks]
        return tuple(torch.cat(each, 1) for each in zip(*factors, strict=True))


class Runner(runner.Runner):
    """Runs matmuls that end in a reduce-scatter: on a GPU also by the arm that tells on the device, and between ranks
    by torch's fused operator."""

    setting, own_arms, peer_operator = ReduceScatter, matmul_reduce_scatter.ARMS, fused_matmul_reduce_scatter
