"""How the operation `all_gather_matmul` runs: x[m, k] is sharded by columns, and gathered while it is multiplied."""

import functools
import math
from collections.abc import Callable
from importlib.util import find_spec

import torch

from collectives import all_gather_matmul
from collectives.all_gather_matmul import Operands, addmm_sums_in_fp32
from collectives.bench import setting as settings
from collectives.bench import symm_mem
from collectives.bench.operands import buffer, normal
from kernels.contract import reason
from roofline.theory.arms import base_arm, plan

if find_spec("triton"):
    from collectives import flagged_arms

PRESET = "row_block"
"""The arm whose kernel also runs with all flags up: what waiting code costs where nothing is late."""


class AllGather(settings.Setting):
    """x[m, k] is sharded by columns, and gathered while it is multiplied."""

    def _operands(self) -> list:
        case, sets = self.case, []
        rank, w_seed = self.ranks.rank, self.seed + 1000 * self.ranks.rank
        w = normal((case.n, case.k), case.dtype, self.device, w_seed, 1 / math.sqrt(case.k))
        for number in range(settings.SETS):
            x = normal((case.m, case.k), case.dtype, self.device, self.seed + 1 + number, 1.0)
            shards = self.shards_of(x, 1)
            gathered = buffer((case.m, case.k), case.dtype, self.device, number).copy_(x)
            sets.append(Operands(shards, gathered, w, gathered.new_empty(case.m, case.n), rank, blocks=1))
        self.gemms = [(operands.gathered, operands.w, operands.out) for operands in sets]
        self.gathers = [operands.by_chunk for operands in sets]
        return sets

    gathered_copies = 2 * settings.SETS
    """Shards and a buffer for each set."""

    @staticmethod
    def transfers(operands) -> list:
        return operands.by_chunk

    def unrelated(self) -> list:
        spare = buffer((self.case.m, self.case.k), self.case.dtype, self.device, settings.SETS)
        return [self.sets[0].transfers(into=spare)] * settings.SETS

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
        grid = by_block.grid
        facts = {"row_blocks": by_block.row_blocks, "workers": sms}
        return facts | {"row_tiles": grid.row_tiles, "column_tiles": grid.column_tiles}

    def why_not(self, arm: str) -> str | None:
        if arm not in waiting_arms(self.device):
            return super().why_not(arm)
        if all(arm in operands.prepared for operands in self.sets):
            return None
        if self.link_kind == "nccl":
            return "it is on every SM and waits for NCCL, whose kernels need some: take the links symmetric"
        about = arm, self.t_gemm_s, self.t_comm_s
        return reason(lambda: [flagged_arms.prepare(operands, *about) for operands in self.sets])

    def facts_of(self, arm: str) -> dict:
        operands = self.sets[0]
        if ready := operands.prepared.get(arm):
            return {"row_blocks": ready.row_blocks, "spilled_bytes": ready.plan.spilled_bytes}
        return {"row_blocks": operands.blocks} if base_arm(arm) == "row_block_launches" else {}

    def config(self, arm: str) -> str:
        operands = self.sets[0]
        if ready := operands.prepared.get(arm):
            return f"{ready.row_blocks} row blocks, flagged {ready.plan.config}"
        base, ours = base_arm(arm), self.matmul_of(arm).describe(*self.factors)
        if base == "chunk_launches":
            x = operands.gathered
            addmm = x.dtype == torch.float32 or addmm_sums_in_fp32(x.device, x.dtype)
            return f"torch {torch.__version__}, {'addmm' if addmm else 'mm and add'}, sums in fp32"
        return f"{operands.blocks} row blocks, {ours}" if base == "row_block_launches" else ours

    def preset_runs(self) -> list[Callable]:
        if PRESET not in waiting_arms(self.device) or self.why_not(PRESET):
            return []
        return [functools.partial(flagged_arms.preset, operands, PRESET) for operands in self.sets]


def waiting_arms(device: str) -> dict[str, Callable]:
    """Return the arms that wait on the device; none where kernels are not compiled."""
    if device != "cuda" or not find_spec("triton"):
        return {}
    return flagged_arms.ARMS


class Runner(symm_mem.Runner):
    """Runs all-gather matmuls: also by arms that wait on the device, and by torch's fused operator on several GPUs."""

    setting, own_arms, peers = AllGather, all_gather_matmul.ARMS, (symm_mem.FUSED_GATHER,)

    def arms(self, device: str) -> dict[str, Callable]:
        return super().arms(device) | waiting_arms(device)
