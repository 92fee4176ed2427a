"""Attention in float64; what is run of the kernels of attention, and what the compiler makes of them."""

from collections.abc import Sequence
from itertools import product

import torch
from cases import Case
from torch import Tensor

from kernels.attention.kernel import launch, launch_delta
from kernels.contract import KernelLaunch
from kernels.inspect import cubin_of
from kernels.machine.compile import compile_for
from kernels.machine.core.machine import Machine
from kernels.machine.launcher import enqueue
from kernels.machine.trial import difference

TOLERANCE = 2**-6
"""Four times the rounding of bf16 below 1: powers and gradients of scores are rounded before they multiply."""
SHORT = [(16, 136, True, True), (16, 72, False, False)]
"""Width, length, whether a row sees none behind it, and whether by TMA: lengths that no block divides."""
MORE = [(width, length, causal, True) for width in (64, 128) for length in (256, 200) for causal in (True, False)]
MORE += [(16, 128, False, False), (32, 200, False, True), (64, 1, True, True), (64, 1, False, False)]
MORE += [(32, 128, False, False), (64, 128, True, False), (128, 72, True, False)]


def heads(width: int, length: int, seed: int = 0) -> list[Tensor]:
    """q, k, v and a gradient of out, of 1 x 2 heads."""
    random = torch.Generator().manual_seed(seed + length)
    return [torch.randn(1, 2, length, width, generator=random) for _ in range(4)]


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
    sums = dict(lse_ptr=lse, delta_ptr=delta)
    args = {
        "forward": dict(q_ptr=q, k_of=k, v_of=v, out_of=nothing_like(q), lse_ptr=nothing_like(lse)),
        "dkdv": sums | dict(q_of=q, k_ptr=k, v_ptr=v, grad_of=grad, dk_of=nothing_like(q), dv_of=nothing_like(q)),
        "dq": sums | dict(q_ptr=q, k_of=k, v_of=v, grad_ptr=grad, dq_of=nothing_like(q)),
    }
    return {direction: launch(direction, args[direction], causal, tma=tma) for direction in args}


def nothing_like(tensor: Tensor) -> Tensor:
    return torch.full_like(tensor, torch.nan)


def attention(direction: str, width: int, length: int, causal: bool, tma: bool, **more) -> Case:
    """A direction's kernel for two heads in bf16: for Hopper by TMA, for an A100 by pointers."""

    def make(seed: int):
        q, k, v, grad = (tensor.bfloat16() for tensor in heads(width, length, seed))
        out, lse, dq, dk, dv = exact(q, k, v, grad, causal)
        delta = (out * grad).sum(-1).float()
        expected = {
            "forward": dict(out_of=out, lse_ptr=lse),
            "dkdv": dict(dk_of=dk, dv_of=dv),
            "dq": dict(dq_of=dq),
            "delta": dict(delta_ptr=(out.bfloat16() * grad.double()).sum(-1)),
        }[direction]
        if direction == "delta":
            called = launch_delta(out.bfloat16(), grad, nothing_like(delta))
        else:
            called = launches([q, k, v, grad, lse.float(), delta], causal, tma)[direction]

        def add(machine: Machine) -> None:
            enqueue(machine, called, target=90 if tma else 80)

        def wrong() -> str:
            for name, values in expected.items():
                result = getattr(called.args[name], "base", called.args[name])
                if found := difference(result, values.to(result.dtype), TOLERANCE):
                    return f"{name}{list(found[0])} {found[1]}"
            return ""

        return add, wrong

    ways = f"{'causal' if causal else 'full'}, by {'TMA' if tma else 'pointers'}"
    return Case("attention", f"{length} x {width} {ways}, bf16: {direction}", make, **more)


def cases() -> list[Case]:
    listed = []
    for of_shape in SHORT + MORE:
        for direction in ("forward", "dkdv", "dq"):
            listed.append(attention(direction, *of_shape, thorough=of_shape in MORE))
    return [*listed, attention("delta", *SHORT[0])]


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
