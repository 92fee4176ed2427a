"""Flash attention, forward and backward. q, k, v [heads * L, D]; the scores of a row never leave the chip."""

# ruff: noqa: N803 (kernel arguments: sizes and compile-time constants in capitals, as Triton code has them)

import math

import torch
import triton
import triton.language as tl

from clean import Trial, normal, trial

LOG2_E = math.log2(math.e)


@triton.jit
def forward_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, scale, L,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """A block of queries meets block after block of keys. `scale` has log2(e) in it: powers are of two."""
    start, head = tl.program_id(0) * BM, tl.program_id(1)
    m, d = start + tl.arange(0, BM), tl.arange(0, D)
    q = tl.load(q_ptr + (head * L + m[:, None]) * D + d)
    highest, total = tl.full([BM], -float("inf"), tl.float32), tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, D], tl.float32)
    for begin in range(0, start + BM if CAUSAL else L, BN):
        n = begin + tl.arange(0, BN)
        k = tl.load(k_ptr + (head * L + n[None, :]) * D + d[:, None])
        scores = tl.dot(q, k) * scale
        if CAUSAL:
            scores = tl.where(n <= m[:, None], scores, -float("inf"))
        higher = tl.maximum(highest, tl.max(scores, 1))
        p = tl.exp2(scores - higher[:, None])
        shrunk = tl.exp2(highest - higher)
        total = total * shrunk + tl.sum(p, 1)
        v = tl.load(v_ptr + (head * L + n[:, None]) * D + d)
        acc = tl.dot(p.to(v.dtype), v, acc * shrunk[:, None])
        highest = higher
    tl.store(out_ptr + (head * L + m[:, None]) * D + d, (acc / total[:, None]).to(q.dtype))
    tl.store(lse_ptr + head * L + m, highest + tl.log2(total))


@triton.jit
def backward_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, dq_ptr, dk_ptr, dv_ptr, scale, L,
    D: tl.constexpr, BLOCK: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """A block of keys meets the queries after it, for dk and dv; then as a block of queries the keys before, for dq.

    `scale` has no log2(e); `lse` is in powers of two, as `forward_kernel` leaves it; `delta` has sums of out * do.
    """
    start, head = tl.program_id(0) * BLOCK, tl.program_id(1)
    own, d = start + tl.arange(0, BLOCK), tl.arange(0, D)
    own_place, base = (head * L + own[:, None]) * D + d, head * L
    k, v = tl.load(k_ptr + own_place), tl.load(v_ptr + own_place)
    dk, dv = tl.zeros([BLOCK, D], tl.float32), tl.zeros([BLOCK, D], tl.float32)
    for begin in range(start if CAUSAL else 0, L, BLOCK):
        m = begin + tl.arange(0, BLOCK)
        q, do = tl.load(q_ptr + (base + m[:, None]) * D + d), tl.load(do_ptr + (base + m[:, None]) * D + d)
        p = tl.exp2(tl.dot(k, q.T) * scale * 1.4426950408889634 - tl.load(lse_ptr + base + m))  # [keys, queries]
        if CAUSAL:
            p = tl.where(own[:, None] <= m, p, 0.0)
        dv = tl.dot(p.to(do.dtype), do, dv)
        ds = p * (tl.dot(v, do.T) - tl.load(delta_ptr + base + m))
        dk = tl.dot(ds.to(q.dtype), q, dk)
    tl.store(dv_ptr + own_place, dv.to(v.dtype))
    tl.store(dk_ptr + own_place, (dk * scale).to(k.dtype))
    q, do, dq = tl.load(q_ptr + own_place), tl.load(do_ptr + own_place), tl.zeros([BLOCK, D], tl.float32)
    lse, delta = tl.load(lse_ptr + base + own)[:, None], tl.load(delta_ptr + base + own)[:, None]
    for begin in range(0, start + BLOCK if CAUSAL else L, BLOCK):
        n = begin + tl.arange(0, BLOCK)
        k, v = tl.load(k_ptr + (base + n[:, None]) * D + d), tl.load(v_ptr + (base + n[:, None]) * D + d)
        p = tl.exp2(tl.dot(q, k.T) * scale * 1.4426950408889634 - lse)
        if CAUSAL:
            p = tl.where(n <= own[:, None], p, 0.0)
        dq = tl.dot((p * (tl.dot(do, v.T) - delta)).to(k.dtype), k, dq)
    tl.store(dq_ptr + own_place, (dq * scale).to(q.dtype))


def attend(q, k, v, causal: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return out and the logarithms, to the base of two, of the sums of powers; in fp64, or whatever they are of."""
    scores = q @ k.mT / q.shape[-1] ** 0.5
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -math.inf)
    return scores.softmax(-1) @ v, scores.logsumexp(-1) * LOG2_E


TOLERANCE = {torch.bfloat16: 2**-7, torch.float16: 2**-10}
"""Four times the rounding of numbers below 2: powers and gradients of scores are rounded before they multiply."""


def operands(heads: int, length: int, dtype) -> list[torch.Tensor]:
    return [normal(heads * length, 32, dtype=dtype, seed=seed) for seed in range(4)]


def forward(dtype, *, causal: bool, heads: int = 1, length: int = 128, **more) -> Trial:
    q, k, v, _ = operands(heads, length, dtype)
    out, lse = attend(*(t.double().view(heads, length, 32) for t in (q, k, v)), causal)
    args = dict(q_ptr=q, k_ptr=k, v_ptr=v, out_ptr=torch.empty_like(q), lse_ptr=torch.empty(heads * length))
    args |= dict(scale=32**-0.5 * LOG2_E, L=length, D=32, BM=64, BN=32, CAUSAL=causal)
    expected = dict(out_ptr=out.view_as(q), lse_ptr=lse.view(-1))
    return Trial(
        forward_kernel, (length // 64, heads), dict(num_warps=4, num_stages=2) | args | more, expected, TOLERANCE[dtype]
    )


def backward(dtype, *, causal: bool, length: int = 128) -> Trial:
    q, k, v, do = operands(1, length, dtype)
    leaves = [t.double().requires_grad_() for t in (q, k, v)]
    out, lse = attend(*leaves, causal)
    expected = torch.autograd.grad(out, leaves, do.double())
    names = "dq_ptr", "dk_ptr", "dv_ptr"
    args = dict(
        q_ptr=q, k_ptr=k, v_ptr=v, do_ptr=do, lse_ptr=lse.detach().float(), delta_ptr=(out * do).sum(1).detach().float()
    )
    args |= {name: torch.empty_like(q) for name in names}
    args |= dict(scale=32**-0.5, L=length, D=32, BLOCK=64, CAUSAL=causal, num_warps=4, num_stages=2)
    return Trial(backward_kernel, (length // 64, 1), args, dict(zip(names, expected, strict=True)), TOLERANCE[dtype])


for _causal, _word in ((False, ""), (True, "_causal")):
    for _dtype, _name in ((torch.bfloat16, "bf16"), (torch.float16, "fp16")):
        trial(lambda dtype=_dtype, causal=_causal: forward(dtype, causal=causal), name=f"attention_{_name}{_word}")
        trial(
            lambda dtype=_dtype, causal=_causal: backward(dtype, causal=causal),
            name=f"attention_backward_{_name}{_word}",
        )
