"""How the operation `matmul_reduce_scatter` runs: parts of out[m, n] go to other ranks while others are computed."""

from dataclasses import replace
from importlib.util import find_spec
from operator import attrgetter
from typing import ClassVar

import torch

from collectives import matmul_reduce_scatter
from collectives.bench import peers, runner
from collectives.bench import setting as settings
from collectives.matmul_reduce_scatter import Operands
from collectives.transfers import Transfer, Transfers
from roofline.measure.ranks import ALONE
from roofline.theory.arms import cuts

if find_spec("triton"):
    from collectives import signalled


class Summed(settings.Setting):
    """Of a reduce-scatter, by itself or behind a layer: on a GPU parts are added by a kernel, and one arm tells the
    link on the device what it may send."""

    def added(self, operands):
        """Return the same, with parts added as on this device."""
        return signalled.added_by_kernel(operands) if self.waiting(self.device) else operands

    def grid_facts(self) -> dict:
        """On a GPU its SMs, and how a matmul is cut into tiles on them."""
        if self.device == "cpu":
            return {}
        case, sms = self.case, torch.cuda.get_device_properties(0).multi_processor_count
        grid = cuts(*self.waiting_arms, case.m, case.n, case.ranks, sms)[0].grid
        return {"workers": sms, "row_tiles": grid.row_tiles, "column_tiles": grid.column_tiles}

    def prepared(self, operands, arm: str):
        return signalled.parts_of(operands).prepared or signalled.prepare(operands, self.t_gemm_s, self.t_comm_s)

    def facts_of(self, arm: str) -> dict:
        waits = arm in self.waiting(self.device)
        return {"row_blocks": self.prepared(self.sets[0], arm).sent.per_rank} if waits else {}

    def config(self, arm: str) -> str:
        config = super().config(arm)
        if arm in self.waiting(self.device):
            ready = self.prepared(self.sets[0], arm)
            up = f"pieces {ready.rows.config}, " if ready.rows else ""
            config = f"{up}{ready.sent.per_rank} row blocks, pieces {ready.sent.config}"
        return f"{config}, sums in fp32"


class ReduceScatter(Summed):
    """out[m / P, n] is summed over ranks."""

    transfers = attrgetter("parts")
    waiting_arms: ClassVar = {"signalled": find_spec("triton") and signalled.run}
    without_them = "block_launches"

    def _operands(self) -> list:
        case, rank, sets = self.case, self.ranks.rank, []
        for number in range(settings.SETS):
            x, w = self._factors_of(rank, number)
            sets.append(self.added(Operands(x, w, x.new_empty(case.m // case.ranks, case.n), case.ranks, rank)))
        self.gemms = [(operands.x, operands.w, operands.products) for operands in sets]
        return sets

    def _factors_of(self, rank: int, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """x and w of `rank` in the set `number`."""
        case, seed = self.case, 1000 * rank
        return self.normal((case.m, case.k), seed + 1 + number), self.weights((case.n, case.k), seed)

    @staticmethod
    def scratch(operands) -> list:
        return [operands.products]

    def unrelated(self) -> list:
        spare = self.buffer((self.case.m, self.case.n)).fill_(1.0).chunk(self.case.ranks)
        return [Transfers(replace(part, source=spare[part.chunk]) for part in self.sets[0].parts)]

    def arrived(self, transfer: Transfer) -> bool:
        """Between real ranks a part is another rank's product, which the sum is checked by."""
        return self.ranks is not ALONE or super().arrived(transfer)

    def whole(self, operands) -> tuple:
        """Factors of the sum, one beside the other: in one process every rank is this one, turned by its number."""
        if self.ranks is ALONE:
            factors_of_parts = [(part, operands.w) for part in operands.x.chunk(operands.ranks)]
        else:
            number = next(index for index, of_set in enumerate(self.sets) if of_set is operands)
            factors = (self._factors_of(rank, number) for rank in range(operands.ranks))
            factors_of_parts = [(operands.block(x, operands.rank), w) for x, w in factors]
        return tuple(torch.cat(each, 1) for each in zip(*factors_of_parts, strict=True))


class Runner(runner.Runner):
    """Runs matmuls that end in a reduce-scatter: on a GPU also by the arm that tells on the device, and between ranks
    by torch's fused operator and gloo's reduce-scatter."""

    setting, own_arms = ReduceScatter, matmul_reduce_scatter.ARMS
    peers = peers.FUSED_SCATTER, peers.GLOO_SCATTER
