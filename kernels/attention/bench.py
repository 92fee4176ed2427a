"""How the operation `attention` runs: its contenders, their checks against float64, and the bytes that each keeps.

A forward call builds the graph for a backward one, as in training; a backward call goes through a graph that is kept.
"""

import math
import tracemalloc
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from kernels import vendor
from kernels.bench import checks, costs, roof
from kernels.tiles import DTYPES
from roofline.account.cases import Attention
from roofline.worker.prepared import VENDOR_TOLERANCE, Entrant, Rejection, verdict

CHECKED_SCORES = {"cpu": 2**24, "cuda": 2**28}
"""{device: the most scores that the check makes in float64}. They are those of the last heads, as many as fit."""

RESULTS = {"forward": ("out",), "backward": ("dq", "dk", "dv")}
"""{part of a case: names of the tensors that it computes}."""

SCORES_ALIVE = 4
"""Matrices of scores that a backward pass holds where they are written out: probabilities, scores, and gradients of
both."""

SCORED = ("eager", "numpy")
"""Contenders that write the scores to memory."""


def eager(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    scores = (q @ k.mT) * q.shape[-1] ** -0.5
    if causal:
        scores = scores.masked_fill(_later(q.shape[-2], q.device), -math.inf)
    return torch.softmax(scores, -1) @ v


@cache
def _later(m: int, device: torch.device) -> Tensor:
    """mask[m, m] of the keys that a query may not see: those after it."""
    return torch.ones(m, m, dtype=torch.bool, device=device).triu(1)


def sdpa(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal)


def cudnn(*inputs) -> Tensor:
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return sdpa(*inputs)


def compile_kept(function: Callable) -> Callable:
    """Compile for a graph that is kept for a second backward pass, and may not give its buffers away."""
    torch._functorch.config.donated_buffer = False
    return vendor.compiled(function)


def compiled(*inputs) -> Tensor:
    return compile_kept(eager)(*inputs)


def flex(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    from torch.nn.attention.flex_attention import flex_attention

    block_mask = _block_mask(q.shape[-2], q.device) if causal else None
    return compile_kept(flex_attention)(q, k, v, block_mask=block_mask)


@cache
def _block_mask(m: int, device: torch.device):
    from torch.nn.attention.flex_attention import create_block_mask

    return create_block_mask(lambda batch, head, row, key: row >= key, None, None, m, m, device=device)


class Numpy(torch.autograd.Function):
    """NumPy's matmuls and exponentials, which write the scores, with gradients by hand."""

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
        keys = k.detach().numpy()
        values = v.detach().numpy()
        scores = (q.detach().numpy() * q.shape[-1] ** -0.5) @ keys.swapaxes(-1, -2)
        masks = []
        if causal:
            masks = [_later(q.shape[-2], q.device)]
            scores[..., masks[0].numpy()] = -numpy.inf
        scores -= scores.max(-1, keepdims=True)
        numpy.exp(scores, out=scores)
        scores /= scores.sum(-1, keepdims=True)
        ctx.save_for_backward(q, k, v, torch.from_numpy(scores), *masks)
        return torch.from_numpy(scores @ values)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, p = (tensor.detach().numpy() for tensor in ctx.saved_tensors[:4])
        out_grad = grad.numpy()
        scores_grad = out_grad @ v.swapaxes(-1, -2)
        scores_grad -= (scores_grad * p).sum(-1, keepdims=True)
        scores_grad *= p
        scores_grad *= q.shape[-1] ** -0.5
        q_grad = scores_grad @ k
        k_grad = scores_grad.swapaxes(-1, -2) @ q
        v_grad = p.swapaxes(-1, -2) @ out_grad
        return *map(torch.from_numpy, (q_grad, k_grad, v_grad)), None


def call_of(run: Callable, case: Attention, tensors: list[Tensor]) -> Callable[[], tuple[Tensor, ...]]:
    """A call of a contender on the operands. It returns the tensors that the part of the case computes; for a backward
    pass it goes through a graph that is made once."""
    *inputs, grad = tensors
    leaves = [tensor.detach().requires_grad_() for tensor in inputs]

    def forward() -> tuple[Tensor]:
        return (run(*leaves, case.mask == "causal"),)

    if case.part == "forward":
        return forward
    out = forward()
    return lambda: torch.autograd.grad(out, leaves, grad, retain_graph=True)


def saved_bytes(forward: Callable) -> int:
    """The bytes of the tensors that a forward call keeps. Memory that several of them share counts once."""
    kept = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        forward()
    return sum(kept.values())


def with_peak(call: Callable, device: str, is_torch: bool) -> tuple[Any, int]:
    """The result of `call`, and the most bytes that are allocated at a time while it runs, beyond those that are there
    when it begins."""
    if device == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        result = call()
        torch.cuda.synchronize()
        return result, torch.cuda.max_memory_allocated() - before
    if is_torch:
        result, _, points = costs.profiled(call)
        return result, max(points)
    tracemalloc.start()
    result = call()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return result, peak


class Runner(roof.Runner):
    """Runs attention."""

    def operands(self, prepared):
        """q, k, v and the gradient of out, each [batch, heads, m, width], of normal values."""
        # Inputs stay: a backward call goes through a graph that is kept, and what it saved would no longer fit them.
        prepared.cache = "warm: one set of operands"
        case = prepared.case
        device = self.options.device
        numbers = torch.Generator(device).manual_seed(self.options.seed)
        shape = case.batch, case.heads, case.m, case.width
        dtype = DTYPES[case.dtype]
        return [torch.randn(shape, generator=numbers, device=device).to(dtype) for _ in range(4)]

    def reference(self, case, tensors):
        """The results of a case's part in float64, out or the gradients, each [heads, m, width]: as many of the last
        heads as are compared."""
        heads = max(1, CHECKED_SCORES[self.options.device] // case.m**2)
        last = [tensor.flatten(0, 1)[-heads:].double() for tensor in tensors]
        return [result.detach() for result in call_of(eager, case, last)()]

    def candidate(self, contender, prepared, tensors, right):
        case = prepared.case
        name = contender.name
        run = contender.load()

        def recheck() -> Rejection | None:
            """Check a call with -v: every result but the gradient of v changes its sign."""
            q, k, v, grad = tensors
            of_minus = [*(-t for t in right[:2]), *right[2:]]
            return verdict_of(name, case, call_of(run, case, [q, k, -v, grad])(), of_minus)[1]

        call = call_of(run, case, tensors)
        entrant = Entrant(name, call, recheck=recheck)
        if contender.first_call:
            call()  # the time and the memory of compiling are not those of a timed call
        if self.earlier.get(case.id, {}).get("medians_s"):  # an earlier process checked who is in, and timed it
            return entrant
        results, entrant.facts["peak_bytes"] = with_peak(call, self.options.device, name != "numpy")
        if case.part == "forward":
            entrant.facts["saved_bytes"] = saved_bytes(call)
            entrant.facts["saved_formula_bytes"] = case.saved_bytes(scores=name in SCORED)
        entrant.config = contender.config(case, tensors)
        entrant.relative_error, refused = verdict_of(name, case, results, right)
        return refused or entrant


def verdict_of(name: str, case: Attention, results: tuple, right: list[Tensor]) -> tuple[float, Rejection | None]:
    """The worst relative error of `results`, and why they are wrong."""
    error = checks.worst([checks.error_of_last(*pair) for pair in zip(results, right, strict=True)])
    where = checks.first_nan(**dict(zip(RESULTS[case.part], results, strict=True)))
    return error, verdict(name, error, case.dtype, VENDOR_TOLERANCE[case.dtype], where)


def require_scores(case: Attention, options, tensors: list[Tensor]) -> None:
    """Raise ValueError where the scores do not fit."""
    needs = SCORES_ALIVE * case.saved_bytes(scores=True)
    memory_bytes = roof.machine(options.device)["memory_bytes"]
    if needs > memory_bytes:
        raise ValueError(f"needs {needs / 1e9:.1f} GB for its scores, {memory_bytes / 1e9:.1f} GB there")


def require_numpy(*about) -> None:
    roof.require_fp32(*about)
    require_scores(*about)


def describe_sdpa(case: Attention, tensors: list[Tensor]) -> str:
    """torch, and the kernels that it chooses."""
    backend = torch._fused_sdp_choice(*tensors[:3], is_causal=case.mask == "causal")
    return f"torch {torch.__version__}, {SDPBackend(backend).name.lower()}"
