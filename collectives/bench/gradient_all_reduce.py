"""How the operation `gradient_all_reduce` runs: arms that were checked, the backward pass alone, and all-reduces alone.

All numbers are whole: weights are permutations with signs, so that activations and their gradients stay as large as
they are, and every sum is exact. Of an all-reduce, T = o + bytes / w: beside the arms, a quarter of the gradients goes
in 1, in 4 and in 16 pieces, one after another. They have as many bytes, and a wire that lets the first ones through
sooner, as `tc ... tbf` its burst, does so in each as much: what they differ by is the overhead o.
"""

import math
import zlib
from functools import partial

import torch

from collectives.bench import runner
from collectives.bench.operands import Call
from collectives.gradient_all_reduce import ARMS, Ddp, Operands, bucketed
from kernels.bench import checks
from roofline.measure.prepared import Entrant, PreparedCase, Rejection, verdict
from roofline.operations.gradient_all_reduce import GradientAllReduce

SETS, PIECES = 2, (1, 4, 16)
IN_FLIGHT = 2
"""Collectives that gloo runs at once: a ProcessGroupGloo made without options has two threads, torch 2.13."""


class Setting:
    """What the arms of `case` work on: operands in rotation, and right sums of each by autograd."""

    def __init__(self, case: GradientAllReduce, seed: int, ranks):
        self._case, self._seed, self._ranks = case, zlib.crc32(f"{seed} {case.op}".encode()), ranks
        generator = torch.Generator().manual_seed(self._seed)
        self._weights = torch.zeros(case.layers, case.d, case.d)
        for weight in self._weights:
            signs = 2.0 * torch.randint(2, (case.d,), generator=generator) - 1
            weight[torch.arange(case.d), torch.randperm(case.d, generator=generator)] = signs
        self.sets = [self._operands(number) for number in range(SETS)]
        self._right = {id(operands): self._sums(number) for number, operands in enumerate(self.sets)}

    def _ends(self, rank: int, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what goes into the first layer of `rank`, and the gradient that comes into the last."""
        generator = torch.Generator().manual_seed(self._seed + 1 + SETS * rank + number)
        return torch.randint(-4, 5, (2, self._case.m, self._case.d), generator=generator).float().unbind()

    def _operands(self, number: int) -> Operands:
        first, gradient = self._ends(self._ranks.rank, number)
        inputs = [first]
        for weight in self._weights[:-1]:
            inputs.append(inputs[-1] @ weight.T)
        return Operands(self._weights, inputs, gradient)

    def _sums(self, number: int) -> torch.Tensor:
        total = torch.zeros_like(self._weights)
        for rank in range(self._ranks.size):
            (out, gradient), weights = self._ends(rank, number), self._weights.clone().requires_grad_()
            for weight in weights:
                out = out @ weight.T
            total += torch.autograd.grad(out, weights, gradient)[0]
        return total

    def reduce(self, tensor: torch.Tensor):
        return self._ranks.group.allreduce([tensor])

    def error(self, sums: torch.Tensor, operands: Operands) -> float:
        """Relative, of the sums `found`; NaN where one is left unwritten."""
        right = self._right[id(operands)]
        return float((sums - right).norm() / right.norm())

    def entrant(self, name: str) -> Entrant | Rejection:
        """Return the arm `name`, if it is right, twice on each set of operands."""
        if name == "ddp":
            ddp, errors = Ddp(self.sets, self._ranks), []
            for _ in range(2 * SETS):
                ddp.forward()
                ddp()
                errors.append(self.error(ddp.sums, ddp.operands))
            call, sizes = Call([ddp]), ddp.sizes
            call.notes = lambda: ddp.forward() or {}  # between turns, where nothing is timed
            call.notes()
        else:
            buckets, sent, errors = self._case.buckets, [], []
            arm = partial(bucketed, nbytes=buckets[name]) if name in buckets else ARMS[name]
            for operands in 2 * self.sets:
                operands.buffer.fill_(math.nan)
                sent.clear()
                arm(operands, lambda bucket: sent.append(bucket.nbytes) or self.reduce(bucket))
                errors.append(self.error(operands.buffer, operands))
            call, sizes = Call([partial(arm, operands, self.reduce) for operands in self.sets]), sent
        error = checks.worst(errors)
        facts = {"bucket_bytes": max(sizes, default=0), "collectives": len(sizes)}
        config = "torch's DistributedDataParallel, backward alone" if name == "ddp" else "torch.mm, views of one buffer"
        return verdict(name, error, self._case.dtype) or Entrant(name, call, "", config, error, facts)

    def references(self) -> list[Entrant]:
        def one_after_another(pieces: tuple[torch.Tensor, ...]) -> None:
            for piece in pieces:
                self.reduce(piece).wait()

        backward = [partial(Operands.backward, operands) for operands in self.sets]
        entrants, zeros = [Entrant("backward", Call(backward), "gemm")], self._weights.flatten() * 0
        quarter = zeros[: len(zeros) // 4]
        sent = {"all_reduce": ("link", (zeros,))}
        sent |= {f"all_reduce of a quarter in {count}": ("message", quarter.chunk(count)) for count in PIECES}
        for name, (role, pieces) in sent.items():
            facts = {"nbytes": sum(piece.nbytes for piece in pieces), "collectives": len(pieces)}
            entrants.append(Entrant(name, Call([partial(one_after_another, pieces)]), role, facts=facts))
        return entrants


class Runner(runner.Runner):
    """Runs backward passes that end in sums over ranks."""

    baseline = "flat"

    def _fill(self, prepared: PreparedCase, names: list[str]) -> None:
        setting = Setting(prepared.case, self.options.seed, self.ranks)
        for name in names:
            self.together(prepared, name, partial(setting.entrant, name))
        if self.options.timed:
            prepared.entrants |= {reference.name: reference for reference in setting.references()}
        prepared.facts = {"in_flight": IN_FLIGHT}
        prepared.cache = f"{SETS} sets of activations and gradients, used by turns"
