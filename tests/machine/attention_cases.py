"""Attention in float64; what the machine says of the kernels of kernels.attention, and the compiler."""

from collections.abc import Sequence
from itertools import product

import torch
from torch import Tensor

from kernels.attention import launch
from kernels.contract import KernelLaunch
from kernels.inspect import cubin_of
from kernels.machine.compile import compile_for
from kernels.machine.verdict import check

TOLERANCE = 2**-6
"""Four times the rounding of bf16 below 1: powers and gradients of scores are rounded before they multiply."""


def exact(q: Tensor, k: Tensor, v: Tensor, grad: Tensor, causal: bool) -> list[Tensor]:
    """Return out, lse, and the gradients of q, k and v, in float64."""
    leaves = [tensor.double().requires_grad_() for tensor in (q, k, v)]
    scores = leaves[0] @ leaves[1].mT * q.shape[-1] ** -0.5
    if causal:
        scores = scores.masked_fill(
            torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1), -torch.inf
        )
    out = scores.softmax(-1) @ leaves[2]
    return [out.detach(), scores.logsumexp(-1).detach(), *torch.autograd.grad(out, leaves, grad.double())]


def launches(tensors: Sequence[Tensor], causal: bool, tma: bool) -> dict[str, KernelLaunch]:
    """Return the three, for q, k, v, the gradient of out, lse and delta. Results go to tensors of their own."""
    q, k, v, grad, lse, delta = tensors
    new, sums = torch.empty_like, dict(lse_ptr=lse, delta_ptr=delta)
    args = {
        "forward": dict(q_ptr=q, k_of=k, v_of=v, out_of=new(q), lse_ptr=new(lse)),
        "dkdv": sums | dict(q_of=q, k_ptr=k, v_ptr=v, grad_of=grad, dk_of=new(q), dv_of=new(q)),
        "dq": sums | dict(q_ptr=q, k_of=k, v_of=v, grad_ptr=grad, dq_of=new(q)),
    }
    return {direction: launch(direction, args[direction], causal, tma=tma) for direction in args}


def accusations(width: int, length: int, causal: bool, tma: bool, seeds: int) -> dict[str, str]:
    """Return what the machine says of each direction's kernel for two heads, where that is not that it is exact."""
    random = torch.Generator().manual_seed(length)
    q, k, v, grad = (torch.randn(1, 2, length, width, generator=random).bfloat16() for _ in range(4))
    out, lse, dq, dk, dv = exact(q, k, v, grad, causal)
    tensors = [q, k, v, grad, lse.float(), (out * grad).sum(-1).float()]
    expected = {
        "forward": dict(out_of=out, lse_ptr=lse),
        "dkdv": dict(dk_of=dk, dv_of=dv),
        "dq": dict(dq_of=dq),
    }
    verdicts = {}
    for direction, called in launches(tensors, causal, tma).items():
        verdict = check(
            called.kernel, called.grid, called.args, expected=expected[direction], tolerance=TOLERANCE, seeds=seeds,
            arch="sm_90a" if tma else "sm_80",
        )  # fmt: skip
        if not verdict:
            verdicts[direction] = str(verdict)
    return verdicts


def problems(width: int) -> list[str]:
    """Return which kernels of the tables spill, or need more shared memory than there is, for Hopper or an A100."""
    found = []
    for causal, length, (target, limit) in product((True, False), (4096, 4001), ((90, 232_448), (80, 101_376))):
        tensors = [torch.empty(1, 16, length, width, dtype=torch.bfloat16) for _ in range(4)]
        tensors += [torch.empty(1, 16, length) for _ in range(2)]
        for direction, called in launches(tensors, causal, tma=target == 90).items():
            cubin = cubin_of(compile_for(target, called))
            if cubin.spills or cubin.shared_bytes > limit or ("wgmma" in str(cubin.mma)) != (target == 90):
                found.append(f"{direction} {width} {causal} {length} {target}: {cubin}")
    return found
