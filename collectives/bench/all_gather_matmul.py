"""How the operation `all_gather_matmul` runs: x[m, k] is sharded by columns, and gathered while it is multiplied."""

from collections.abc import Callable
from functools import partial

import torch

from collectives import all_gather_matmul
from collectives.all_gather_matmul import Operands
from collectives.bench import runner
from collectives.bench.operands import shards_for, workers
from collectives.bench.setting import Setting
from collectives.peer import fused_all_gather_matmul
from collectives.transfers import Preset
from roofline.theory.arms import ARMS, base_arm, chunk_launches, plan, row_block_launches


class AllGather(Setting):
    """x[m, k] is sharded by columns, and gathered while it is multiplied."""

    def make(self, number: int) -> Operands:
        case = self.case
        rank = self.ranks.rank
        x = self.normal((case.m, case.k), 1 + number)
        w = self.weights((case.n, case.k), 1000 * rank)
        gathered = self.buffer((case.m, case.k), number).copy_(x)
        shards = shards_for(self.ranks, self.wire.kind, x, case.ranks, 1)
        return Operands(shards, gathered, w, gathered.new_empty(case.m, case.n), rank, blocks=1)

    def gemms_of(self, operands) -> list[tuple]:
        return [(operands.gathered, operands.w, operands.out)]

    def transfers(self, operands):
        return operands.by_chunk

    def unrelated(self) -> list:
        return [self.sets[0].transfers(into=self.buffer((self.case.m, self.case.k)))]

    def whole(self, operands) -> tuple:
        return torch.cat([shard.to(operands.w.device) for shard in operands.shards], 1), operands.w

    def changing(self, operands) -> list:
        return [*operands.shards]

    @staticmethod
    def now_here(sets: list) -> None:
        for operands in sets:
            operands.columns(operands.rank, operands.gathered).copy_(operands.shards[operands.rank])

    def cut(self) -> dict:
        case = self.case
        times = self.pace.t_gemm_s, self.t_comm_s
        sms = workers(self.device)
        about = case.m, case.n, case.ranks, sms, *times
        by_chunk = plan("chunk_launches", *about)
        by_block = plan("row_block_launches", *about)
        for operands in self.sets:
            operands.blocks = by_block.row_blocks
            if self.device == "cuda":  # the host does not see what has arrived, so launches go by what should have
                operands.chunk_plan = [done for done, _ in chunk_launches(by_chunk, *times)]
                operands.block_plan = [done for done, _ in row_block_launches(by_block, *times)]
        return {
            "row_blocks": by_block.row_blocks,
            "workers": sms,
            "row_tiles": by_block.grid.row_tiles,
            "column_tiles": by_block.grid.column_tiles,
        }

    def describe(self, arm: str) -> tuple[str, dict]:
        config, facts = super().describe(arm)
        blocks = self.sets[0].blocks
        base = base_arm(arm)
        if base == "row_block_launches":
            return f"{blocks} row blocks, {config}", {"row_blocks": blocks}
        if ARMS[base].by_torch:
            config = f"torch {torch.__version__}, addmm, sums in fp32"
        return config, facts

    def preset_runs(self) -> list[Callable]:
        if self.device != "cuda" or self.why_not("row_block"):
            return []
        from collectives import on_device

        return [partial(on_device.ARMS["row_block"], operands, Preset()) for operands in self.sets]


class Runner(runner.Runner):
    """Runs all-gather matmuls: also by arms that wait on the device, and by torch's fused operator on several GPUs."""

    setting = AllGather
    own_arms = all_gather_matmul.ARMS
    peer_operator = fused_all_gather_matmul

    def links(self, case, clock) -> dict:
        from collectives.bench import link_probe  # of a GPU

        return link_probe.measure(self.setting, self.options, case, clock)
