"""The kernels of kernels.attention on the machine, in bf16: as float64 has it, under several orders of events, by TMA
and by pointers, causal and not, with lengths that a block divides and that none does."""

from itertools import product

import pytest
import torch
from torch import Tensor

from kernels import attention
from kernels.attention import launch
from kernels.machine.check import check

TOLERANCE = 2**-6
"""Twice the rounding of bf16 below 4: powers and gradients of scores are rounded before they multiply."""


def exact(q: Tensor, k: Tensor, v: Tensor, grad: Tensor, causal: bool) -> list[Tensor]:
    """Return out, lse, and the gradients of q, k and v, in float64."""
    leaves = [tensor.double().requires_grad_() for tensor in (q, k, v)]
    scores = leaves[0] @ leaves[1].mT * q.shape[-1] ** -0.5
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    out = scores.softmax(-1) @ leaves[2]
    return [out.detach(), scores.logsumexp(-1).detach(), *torch.autograd.grad(out, leaves, grad.double())]


def accusations(width: int, length: int, causal: bool, tma: bool, seeds: int, heads: int = 2) -> dict[str, str]:
    """Return what the machine says of each direction's kernel, where that is not that it is exact."""
    random = torch.Generator().manual_seed(length)
    q, k, v, grad = (torch.randn(1, heads, length, width, generator=random).bfloat16() for _ in range(4))
    out, lse, dq, dk, dv = exact(q, k, v, grad, causal)
    inputs = dict(q_of=q, k_of=k, v_of=v)
    sums = dict(lse_ptr=lse.float(), delta_ptr=(out * grad).sum(-1).float())
    tasks = {
        "forward": (inputs, {"lse_ptr": torch.empty_like(sums["lse_ptr"])}, dict(out_of=out, lse_ptr=lse)),
        "dkdv": (inputs | dict(grad_of=grad), sums, dict(dk_of=dk, dv_of=dv)),
        "dq": (inputs | dict(grad_of=grad), sums, dict(dq_of=dq)),
    }
    verdicts = {}
    for direction, (rows, row_sums, expected) in tasks.items():
        rows = rows | {name: torch.empty_like(q) for name in expected if name.endswith("_of")}
        called = launch(direction, rows, row_sums, causal, tma=tma)
        expected = {name: values.to((rows | row_sums)[name].dtype) for name, values in expected.items()}
        verdict = check(
            called.kernel, called.grid, called.args, expected=expected, tolerance=TOLERANCE, seeds=seeds,
            arch="sm_90a" if tma else "sm_80",
        )  # fmt: skip
        if not verdict or "note" in verdict.text:
            verdicts[f"{direction} {width} {length} {causal} {tma}"] = str(verdict)
    return verdicts
