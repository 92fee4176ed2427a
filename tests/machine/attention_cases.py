"""Attention in float64, and what the machine says of the kernels of kernels.attention beside it."""

import torch
from torch import Tensor

from kernels.attention import launch
from kernels.machine.check import check

TOLERANCE = 2**-6
"""Four times the rounding of bf16 below 1: powers and gradients of scores are rounded before they multiply."""


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
    delta, empty = (out * grad).sum(-1).float(), torch.empty_like
    sums = dict(lse_ptr=lse.float(), delta_ptr=delta)
    forward = launch("forward", dict(q_ptr=q, k_of=k, v_of=v, out_of=empty(q), lse_ptr=empty(delta)), causal, tma=tma)
    dkdv = dict(q_of=q, k_ptr=k, v_ptr=v, grad_of=grad, dk_of=empty(q), dv_of=empty(q))
    dq_ = dict(q_ptr=q, k_of=k, v_of=v, grad_ptr=grad, dq_of=empty(q))
    tasks = [
        (forward, dict(out_of=out, lse_ptr=lse.float())),
        (launch("dkdv", sums | dkdv, causal, tma=tma), dict(dk_of=dk, dv_of=dv)),
        (launch("dq", sums | dq_, causal, tma=tma), dict(dq_of=dq)),
    ]
    verdicts = {}
    for called, expected in tasks:
        verdict = check(
            called.kernel, called.grid, called.args, expected=expected, tolerance=TOLERANCE, seeds=seeds,
            arch="sm_90a" if tma else "sm_80",
        )  # fmt: skip
        if not verdict:
            verdicts[f"{called.kernel.__name__} {width} {length} {causal} {tma}"] = str(verdict)
    return verdicts
