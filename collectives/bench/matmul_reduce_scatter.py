"""How the operation `matmul_reduce_scatter` runs: parts of out[m, n] go to other ranks while others are computed."""

import math
from collections.abc import Callable
from importlib.util import find_spec

import torch

from collectives import matmul_reduce_scatter
from collectives.bench import setting as settings
from collectives.bench import symm_mem
from collectives.bench.operands import buffer, normal
from collectives.links import Scatter, Transfer
from collectives.matmul_reduce_scatter import Operands
from kernels.contract import reason
from roofline.measure.ranks import ALONE
from roofline.theory.arms import cuts

if find_spec("triton"):
    from collectives import signalled


class Telling(settings.Setting):
    """Of a reduce-scatter, by itself or behind a layer: on a GPU parts are added by a kernel, and the arm `telling`
    tells the link on the device what it may send."""

    telling, without_it = "signalled", "block_launches"

    @classmethod
    def telling_arms(cls, device: str) -> dict[str, Callable]:
        """Return that arm; none where kernels are not compiled."""
        return {cls.telling: signalled.run} if device == "cuda" and find_spec("triton") else {}

    def _added(self, operands):
        """Return the same, with parts added as on this device."""
        return signalled.added_by_kernel(operands) if self.telling_arms(self.device) else operands

    def grid_facts(self) -> dict:
        """On a GPU its SMs, and how a matmul is cut into tiles on them."""
        if self.device == "cpu":
            return {}
        case, sms = self.case, torch.cuda.get_device_properties(0).multi_processor_count
        grid = cuts(self.telling, case.m, case.n, case.ranks, sms)[0].grid
        return {"workers": sms, "row_tiles": grid.row_tiles, "column_tiles": grid.column_tiles}

    def _prepared(self, operands):
        return signalled.parts_of(operands).prepared or signalled.prepare(operands, self.t_gemm_s, self.t_comm_s)

    def why_not(self, arm: str) -> str | None:
        if arm not in self.telling_arms(self.device):
            return super().why_not(arm)
        if self.link_kind == "nccl":
            return f"it is on every SM until its end, and NCCL's kernels need some; take {self.without_it}"
        return reason(lambda: [self._prepared(operands) for operands in self.sets])

    def facts_of(self, arm: str) -> dict:
        is_telling = arm in self.telling_arms(self.device)
        return {"row_blocks": self._prepared(self.sets[0]).sent.per_rank} if is_telling else {}

    def config(self, arm: str) -> str:
        config = self.matmul_of(arm).describe(*self.factors)
        if arm in self.telling_arms(self.device):
            ready = self._prepared(self.sets[0])
            up = f"pieces {ready.rows.config}, " if ready.rows else ""
            config = f"{up}{ready.sent.per_rank} row blocks, pieces {ready.sent.config}"
        return f"{config}, sums in fp32"


class ReduceScatter(Telling):
    """out[m / P, n] is summed over ranks."""

    def _operands(self) -> list:
        case, rank, sets = self.case, self.ranks.rank, []
        for number in range(settings.SETS):
            x, w = self._factors_of(rank, number)
            out = x.new_empty(case.m // case.ranks, case.n)
            sets.append(self._added(Operands(x, w, out, case.ranks, rank)))
        self.gemms = [(operands.x, operands.w, operands.products) for operands in sets]
        self.gathers = [operands.parts for operands in sets]
        return sets

    def _factors_of(self, rank: int, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """x and w of `rank` in the set `number`."""
        case, seed = self.case, self.seed + 1000 * rank
        x = normal((case.m, case.k), case.dtype, self.device, seed + 1 + number, 1.0)
        return x, normal((case.n, case.k), case.dtype, self.device, seed, 1 / math.sqrt(case.k))

    gathered_copies = 2 * settings.SETS
    """Products and parts for each set."""

    @staticmethod
    def transfers(operands) -> list:
        return operands.parts

    @staticmethod
    def scratch(operands) -> list:
        return [operands.products]

    def unrelated(self) -> list:
        case = self.case
        spare = buffer((case.m, case.n), case.dtype, self.device, settings.SETS).fill_(1.0).chunk(case.ranks)
        parts = self.sets[0].parts
        return [Scatter(Transfer(p.chunk, 0, spare[p.chunk], p.target) for p in parts)] * settings.SETS

    def arrived(self, transfer) -> bool:
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


class Runner(symm_mem.Runner):
    """Runs matmuls that end in a reduce-scatter: on a GPU also by the arm that tells on the device, and between ranks
    by torch's fused operator and gloo's reduce-scatter."""

    setting, own_arms = ReduceScatter, matmul_reduce_scatter.ARMS
    peers = symm_mem.FUSED_SCATTER, symm_mem.GLOO_SCATTER

    def arms(self, device: str) -> dict[str, Callable]:
        return super().arms(device) | self.setting.telling_arms(device)
