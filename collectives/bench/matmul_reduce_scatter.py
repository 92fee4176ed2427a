"""How the operation `matmul_reduce_scatter` runs: parts of out[m, n] go to other ranks while others are computed."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import median

import torch

from collectives import matmul_reduce_scatter
from collectives.bench import runner
from collectives.bench.operands import WARM_TURNS, by_turns, turns_of, workers
from collectives.bench.setting import Setting
from collectives.matmul_reduce_scatter import Operands
from collectives.peer import fused_matmul_reduce_scatter
from collectives.transfers import Transfers, WarmUp
from roofline.theory.arms import ARMS, TELLING, OverlapPlan, arms_of, base_arm, cuts
from roofline.theory.schedule import Grid
from roofline.worker.alone import ALONE

RANKS_PER_LAUNCH = 1, 2, 4
"""The numbers of ranks whose rows an arm may multiply at a time."""

TURNS, LEAST_TURNS = 15, 3
"""Turns that measure what splitting a matmul costs: a few percent. With fewer than the least it is not measured."""

SPLIT_S = 10.0
"""Seconds for that. A matmul of which too few turns fit is multiplied for one rank at a time."""


class Summed(Setting):
    """A case that ends in a reduce-scatter, by itself or behind a layer. On a GPU a kernel adds the parts. Arms that
    multiply the rows of some ranks at a time do so for as many as suit what splitting the matmul costs."""

    def split(self, name: str, arm: Callable) -> Callable:
        """`arm`, for as many ranks at a time as the first worker has chosen."""
        if not ARMS[base_arm(name)].by_rank:
            return arm
        splits = self.facts.setdefault("splits", {})
        if name not in splits:
            splits[name] = self.earlier["facts"].get("splits", {}).get(name) or self._fastest_split(name, arm)
        return partial(arm, ranks_per_launch=splits[name]["ranks_per_launch"])

    def _fastest_split(self, name: str, arm: Callable) -> dict:
        """The one of `RANKS_PER_LAUNCH` that ends first by the simulator, and the slowdown of the matmul by each, over
        the unsplit one. Later workers and tests that time nothing do not measure that: they take one rank at a time."""
        slowdowns = {}
        if self.options.timed and not self.earlier["facts"]:
            slowdowns = self.ranks.broadcast(self._slowdowns(arm, self.matmul_of(name)))
        if not slowdowns:
            return {"ranks_per_launch": 1}

        def end_s(count: str) -> float:
            plan = OverlapPlan(base_arm(name), Grid(1, 1), 1, self.case.ranks, ranks_per_launch=int(count))
            return plan.end_s(self.pace.t_gemm_s * slowdowns[count], self.t_comm_s)

        return {"ranks_per_launch": int(min(slowdowns, key=end_s)), "slowdowns": slowdowns}

    def _slowdowns(self, arm: Callable, contender) -> dict[str, float]:
        """{ranks at a time: the time of the launches of `arm` over that of the whole matmul by `contender`}. All is
        here, nothing goes, and the time of the sums is taken off."""
        calls = [
            by_turns(self.multiplied_by(contender), self.device),
            by_turns([partial(self.add, each, WarmUp()) for each in self.sets], self.device),
        ]
        by_count: dict[str, list[float]] = {}
        for count in RANKS_PER_LAUNCH:
            if count < self.case.ranks:
                by_count[str(count)] = []
                runs = [partial(arm, each, WarmUp(), ranks_per_launch=count) for each in self.sets]
                calls.append(by_turns(runs, self.device))
        most = int(SPLIT_S / (len(calls) * self.pace.t_gemm_s)) - WARM_TURNS
        if most < LEAST_TURNS:
            return {}
        for turn in turns_of(calls, self.device, min(TURNS, most)):
            times_s = [time_s for time_s in turn if time_s is not None]
            if len(times_s) < len(calls):
                continue
            unsplit_s, add_s, *launches_s = times_s
            for ratios, time_s in zip(by_count.values(), launches_s, strict=True):
                ratios.append((time_s - add_s) / unsplit_s)
        return {count: median(ratios) for count, ratios in by_count.items() if ratios}

    def add(self, operands, link) -> None:
        """Add what has arrived, as the arms do."""
        link.start(operands.parts)
        matmul_reduce_scatter.add(operands, link)

    def unrelated(self) -> list:
        spare = self.buffer((self.case.m, self.case.n)).fill_(1.0).chunk(self.case.ranks)
        others = Transfers()
        for transfer in self.transfers(self.sets[0]):
            end = "source" if transfer.shard is None else "target"  # of a scatter, or of the gather before it
            others.append(replace(transfer, **{end: spare[transfer.chunk]}))
        return [others]

    def changing(self, operands) -> list:
        return [operands.x] if self.ranks is ALONE else []

    def cut(self) -> dict:
        if self.device == "cpu":
            return {}
        from collectives import on_device

        for operands in self.sets:
            on_device.added_by_kernel(operands)
        case = self.case
        sms = workers(self.device)
        arm = next(arm for arm in arms_of(case.op, gpu=True) if arm in TELLING)
        grid = cuts(arm, case.m, case.n, case.ranks, sms)[0].grid
        return {"workers": sms, "row_tiles": grid.row_tiles, "column_tiles": grid.column_tiles}

    def describe(self, arm: str) -> tuple[str, dict]:
        config, facts = super().describe(arm)
        if split := self.facts.get("splits", {}).get(arm):
            config += f", ranks a launch: {split['ranks_per_launch']}"
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

    def whole(self, operands) -> tuple:
        """Factors of the sum, one beside the other: in one process every rank is this one, turned by its number."""
        if self.ranks is ALONE:
            xs = operands.x.chunk(operands.ranks)
            ws = [operands.w] * operands.ranks
        else:
            xs = []
            ws = []
            number = next(index for index, of_set in enumerate(self.sets) if of_set is operands)
            for rank in range(operands.ranks):
                x, w = self._factors(rank, number)
                xs.append(operands.block(x, operands.rank))
                ws.append(w)
        return torch.cat(xs, 1), torch.cat(ws, 1)


class Runner(runner.Runner):
    """Runs matmuls that end in a reduce-scatter: on a GPU also by the arm that tells on the device, and between ranks
    by torch's fused operator."""

    setting = ReduceScatter
    own_arms = matmul_reduce_scatter.ARMS
    peer_operator = fused_matmul_reduce_scatter
