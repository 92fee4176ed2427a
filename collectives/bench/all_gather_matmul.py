"""How the operation `all_gather_matmul` runs: x[m, k] is sharded by columns, and gathered while it is multiplied."""

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from operator import attrgetter

import torch

from collectives import all_gather_matmul
from collectives.all_gather_matmul import Operands, addmm_sums_in_fp32
from collectives.bench import peers, runner
from collectives.bench import setting as settings
from roofline.theory.arms import base_arm, plan

if find_spec("triton"):
    from collectives import flagged_arms

PRESET = "row_block"
"""The arm whose kernel also runs with all flags up: what waiting code costs where nothing is late."""


class AllGather(settings.Setting):
    """x[m, k] is sharded by columns, and gathered while it is multiplied."""

    transfers = attrgetter("by_chunk")
    waiting_arms, without_them = flagged_arms.ARMS if find_spec("triton") else {}, "the link symmetric"

    def _operands(self) -> list:
        case, sets = self.case, []
        w = self.weights((case.n, case.k), 1000 * self.ranks.rank)
        for number in range(settings.SETS):
            x = self.normal((case.m, case.k), 1 + number)
            gathered = self.buffer((case.m, case.k), number).copy_(x)
            out = gathered.new_empty(case.m, case.n)
            sets.append(Operands(self.shards_of(x, 1), gathered, w, out, self.ranks.rank, blocks=1))
        self.gemms = [(operands.gathered, operands.w, operands.out) for operands in sets]
        return sets

    def unrelated(self) -> list:
        return [self.sets[0].transfers(into=self.buffer((self.case.m, self.case.k)))]

    def whole(self, operands) -> tuple:
        return torch.cat(list(operands.shards), 1), operands.w

    def grid_facts(self) -> dict:
        """Row blocks, SMs and tiles; sets the plan of the operands by them."""
        case, times = self.case, (self.t_gemm_s, self.t_comm_s)
        gpu = self.device == "cuda"
        sms = torch.cuda.get_device_properties(0).multi_processor_count if gpu else 1
        by_chunk, by_block = (
            plan(arm, case.m, case.n, case.ranks, sms, *times) for arm in ("chunk_launches", "row_block_launches")
        )
        for operands in self.sets:
            operands.blocks = by_block.row_blocks
            if gpu:  # the host does not see what has arrived, so launches go by what should have
                operands.chunk_plan = [launch.chunk_to for launch in by_chunk.simulate(*times).spans]
                operands.block_plan = [launch.block_to for launch in by_block.simulate(*times).spans]
        facts = {"row_blocks": by_block.row_blocks, "workers": sms}
        return facts | {"row_tiles": by_block.grid.row_tiles, "column_tiles": by_block.grid.column_tiles}

    def prepared(self, operands, arm: str):
        return operands.prepared.get(arm) or flagged_arms.prepare(operands, arm, self.t_gemm_s, self.t_comm_s)

    def facts_of(self, arm: str) -> dict:
        operands = self.sets[0]
        if ready := operands.prepared.get(arm):
            return {"row_blocks": ready.row_blocks, "spilled_bytes": ready.plan.spilled_bytes}
        return {"row_blocks": operands.blocks} if base_arm(arm) == "row_block_launches" else {}

    def config(self, arm: str) -> str:
        operands = self.sets[0]
        if ready := operands.prepared.get(arm):
            return f"{ready.row_blocks} row blocks, flagged {ready.plan.config}"
        if base_arm(arm) == "chunk_launches":
            x = operands.gathered
            addmm = x.dtype == torch.float32 or addmm_sums_in_fp32(x.device, x.dtype)
            return f"torch {torch.__version__}, {'addmm' if addmm else 'mm and add'}, sums in fp32"
        blocks = f"{operands.blocks} row blocks, " if base_arm(arm) == "row_block_launches" else ""
        return blocks + super().config(arm)

    def preset_runs(self) -> list[Callable]:
        if PRESET not in self.waiting(self.device) or self.why_not(PRESET):
            return []
        return [partial(flagged_arms.preset, operands, PRESET) for operands in self.sets]


class Runner(runner.Runner):
    """Runs all-gather matmuls: also by arms that wait on the device, and by torch's fused operator on several GPUs."""

    setting, own_arms, peers = AllGather, all_gather_matmul.ARMS, (peers.FUSED_GATHER,)
