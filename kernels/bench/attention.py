"""How the operation `attention` runs: its contenders, their checks against float64, and the bytes that each keeps.

A forward call builds the graph for a backward one, as in training; a backward call goes through a graph that is kept.
"""

import math
import tracemalloc
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile

from kernels.bench import matmul
from kernels.bench.checks import first_nan, worst
from kernels.tiles import DTYPES
from roofline.operations.attention import COMPILED, CONTENDERS, Attention
from roofline.operations.contenders import FIRST_CALL_S
from roofline.worker.prepared import SKIPPED, VENDOR_TOLERANCE, Entrant, PreparedCase, Rejection, unwatched, verdict

CHECKED_SCORES = {"cpu": 2**24, "cuda": 2**28}
"""How many scores the check makes in float64, at most: of as many heads, the last ones."""

RESULTS = {"forward": ("out",), "backward": ("dq", "dk", "dv")}
"""What a part computes."""

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
    """Return the mask of what no row may see."""
    return torch.ones(m, m, dtype=torch.bool, device=device).triu(1)


def sdpa(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal)


def cudnn(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return sdpa(q, k, v, causal)


@cache
def _compiled(function: Callable) -> Callable:
    # Past recompile_limit shapes Dynamo would fall back to eager. A graph that is kept for a second backward pass may
    # not give its buffers away.
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 256)
    torch._functorch.config.donated_buffer = False
    return torch.compile(function, dynamic=False)


def compiled(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    return _compiled(eager)(q, k, v, causal)


def flex(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    from torch.nn.attention.flex_attention import flex_attention

    return _compiled(flex_attention)(q, k, v, block_mask=_block_mask(q.shape[-2], q.device) if causal else None)


@cache
def _block_mask(m: int, device: torch.device):
    from torch.nn.attention.flex_attention import create_block_mask

    return create_block_mask(lambda batch, head, row, key: row >= key, None, None, m, m, device=device)


def flash(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    from kernels.attention import attention

    return attention(q, k, v, causal)


RUN = {function.__name__: function for function in (sdpa, cudnn, eager, compiled, flex, flash)}
"""Contenders that torch's autograd differentiates, as run(q, k, v, causal); NumPy's is a class of its own."""


class Torch:
    """A contender of `RUN` with its operands: calls without arguments."""

    def __init__(self, name: str, q: Tensor, k: Tensor, v: Tensor, grad: Tensor, causal: bool):
        self.operands, self.grad = tuple(t.detach().requires_grad_() for t in (q, k, v)), grad
        self.run = partial(RUN[name], causal=causal)

    def forward(self) -> Tensor:
        return self.run(*self.operands)

    def backward(self) -> Callable[[], tuple[Tensor, ...]]:
        """Return the call of the backward pass alone, through a graph that is made once."""
        out = self.forward()
        return lambda: torch.autograd.grad(out, self.operands, self.grad, retain_graph=True)

    def kept(self) -> tuple[Tensor, int]:
        """Return out, and the bytes of the tensors that the call keeps, each memory once."""
        kept = {}

        def pack(tensor: Tensor) -> Tensor:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            out = self.forward()
        return out.detach(), sum(kept.values())


class Numpy:
    """NumPy's matmuls and exponentials, which write the scores, with gradients by hand."""

    def __init__(self, name: str, q: Tensor, k: Tensor, v: Tensor, grad: Tensor, causal: bool):
        self.q, self.k, self.v, self.grad = (t.detach().numpy() for t in (q, k, v, grad))
        self.later = numpy.triu(numpy.ones((q.shape[-2],) * 2, bool), 1) if causal else None
        self.scale = numpy.float32(q.shape[-1] ** -0.5)

    def probabilities(self) -> numpy.ndarray:
        scores = (self.q * self.scale) @ self.k.swapaxes(-1, -2)
        if self.later is not None:
            scores[..., self.later] = -numpy.inf
        scores -= scores.max(-1, keepdims=True)
        numpy.exp(scores, out=scores)
        scores /= scores.sum(-1, keepdims=True)
        return scores

    def forward(self) -> Tensor:
        return torch.from_numpy(self.probabilities() @ self.v)

    def backward(self) -> Callable[[], tuple[Tensor, ...]]:
        p = self.probabilities()

        def call() -> tuple[Tensor, ...]:
            scores_grad = self.grad @ self.v.swapaxes(-1, -2)
            scores_grad -= (scores_grad * p).sum(-1, keepdims=True)
            scores_grad *= p
            scores_grad *= self.scale
            grads = scores_grad @ self.k, scores_grad.swapaxes(-1, -2) @ self.q, p.swapaxes(-1, -2) @ self.grad
            return tuple(map(torch.from_numpy, grads))

        return call

    def kept(self) -> tuple[Tensor, int]:
        p = self.probabilities()
        kept = self.q, self.k, self.v, p, *([] if self.later is None else [self.later])
        return torch.from_numpy(p @ self.v), sum(array.nbytes for array in kept)


def with_peak(call: Callable, device: str, is_torch: bool) -> tuple[Any, int]:
    """Return what `call` does, and the most bytes that are allocated at a time while it runs, beside what is there when
    it begins."""
    if device == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        result = call()
        torch.cuda.synchronize()
        return result, torch.cuda.max_memory_allocated() - before
    if not is_torch:
        tracemalloc.start()
        result = call()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return result, peak
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = call()
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    changes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
    return result, int(max(numpy.cumsum(changes), default=0))


class Runner(matmul.Runner):
    """Runs attention. Its probes of the roof are those of the matmuls."""

    def prepare(self, case: Attention, names: list[str], first_call=unwatched) -> PreparedCase:
        device = self.options.device
        baseline = CONTENDERS[device][0]
        prepared = PreparedCase(case, baseline, device, first_call=first_call)
        tensors, heads, right = operands(case, self.options), *reference(case, self.options)

        is_known = bool(self.earlier.get(case.id, {}).get("medians_s"))  # an earlier process checked it, and timed it

        def entrant(name: str) -> Entrant | Rejection:
            if lacking := why_not(name, case, self.options):
                return Rejection(SKIPPED, f"{name}: {lacking}")
            make = partial(Numpy if name == "numpy" else Torch, name, causal=case.mask == "causal")
            contender, is_forward = make(*tensors), case.part == "forward"
            call = contender.forward if is_forward else contender.backward()

            def verdict_of(results: tuple[Tensor, ...], right: tuple[Tensor, ...]) -> tuple[float, Rejection | None]:
                error = worst([error_of(*pair, heads) for pair in zip(results, right, strict=True)])
                where = first_nan(**dict(zip(RESULTS[case.part], results, strict=True)))
                return error, verdict(name, error, case.dtype, VENDOR_TOLERANCE[case.dtype], where)

            def recheck() -> Rejection | None:
                """With -v, of which all but its own gradient have the other sign."""
                q, k, v, grad = tensors
                again = make(q, k, -v, grad)
                results = (again.forward(),) if is_forward else again.backward()()
                return verdict_of(results, (*(-t for t in right[:2]), *right[2:]))[1]

            if name in COMPILED:
                call()  # what compiling takes and allocates is not that of a timed call
            if is_known:
                return Entrant(name, call, recheck=recheck)
            about, facts = config(name, *tensors[:3], case.mask == "causal"), {}
            results, facts["peak_bytes"] = with_peak(contender.kept if is_forward else call, device, name != "numpy")
            if is_forward:
                out, facts["saved_bytes"] = results
                results, facts["saved_formula_bytes"] = (out,), case.saved_bytes(scores=name in SCORED)
            error, refused = verdict_of(results, right)
            return refused or Entrant(name, call, "", about, error, facts, recheck)

        for name in dict.fromkeys([baseline, *names] if self.options.timed else names):
            prepared.enter(name, partial(entrant, name), FIRST_CALL_S["compiled"] if name in COMPILED else None)
        # Inputs stay: a backward call goes through a graph that is kept, and what it saved would no longer fit them.
        prepared.cache = "warm: one set of operands"
        return prepared


def why_not(name: str, case: Attention, options) -> str | None:
    """Return why a contender cannot run the case, or must not be timed, here; None if it can."""
    device = options.device
    if options.timed and name not in CONTENDERS[device]:
        return f"it is not timed on the {device}; take {', '.join(CONTENDERS[device])}"
    if name == "numpy" and case.dtype != "fp32":
        return f"NumPy computes in fp32 here, and the case is {case.dtype}"
    memory_bytes = matmul.machine(device)["memory_bytes"]
    if name in SCORED and (needs := SCORES_ALIVE * case.saved_bytes(scores=True)) > memory_bytes:
        return f"needs {needs / 1e9:.1f} GB for its scores, {memory_bytes / 1e9:.1f} GB there"
    return None


def config(name: str, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> str:
    """Return which library, or which of its kernels, a contender is."""
    if name == "numpy":
        return f"numpy {numpy.__version__}"
    chosen = ""
    if name == "sdpa":
        chosen = f", {SDPBackend(torch._fused_sdp_choice(q, k, v, is_causal=causal)).name.lower()}"
    return f"torch {torch.__version__}{chosen}"


def operands(case: Attention, options) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return q, k, v and the gradient of out, each [batch, heads, m, width], of normal values."""
    shape, numbers = (case.batch, case.heads, case.m, case.width), torch.Generator(options.device)
    numbers.manual_seed(options.seed)
    about = {"generator": numbers, "device": options.device}
    return tuple(torch.randn(shape, **about).to(DTYPES[case.dtype]) for _ in range(4))


def reference(case: Attention, options) -> tuple[int, tuple[Tensor, ...]]:
    """Return of how many of the last heads the results are compared, and these in float64: out, or the gradients."""
    heads = min(case.batch * case.heads, max(1, CHECKED_SCORES[options.device] // case.m**2))
    q, k, v, grad = (last(t, heads).double() for t in operands(case, options))
    leaves = [t.requires_grad_(case.part == "backward") for t in (q, k, v)]
    parts = []
    for head in zip(*leaves, grad, strict=True):
        out = eager(*head[:3], case.mask == "causal")
        parts.append((out,) if case.part == "forward" else torch.autograd.grad(out, head[:3], head[3]))
    return heads, tuple(torch.stack(part) for part in zip(*parts, strict=True))


def last(t: Tensor, heads: int) -> Tensor:
    """Return the last `heads` of a tensor [batch, heads, m, width]: [heads, m, width]."""
    return t.detach().flatten(0, 1)[-heads:]


def error_of(result: Tensor, right: Tensor, heads: int) -> float:
    """Return the relative Frobenius error of the last `heads`; NaN or inf where any element of `result` is that."""
    if not result.isfinite().all():
        return math.nan if result.isnan().any() else math.inf
    return float((last(result, heads).double() - right).norm() / right.norm())
