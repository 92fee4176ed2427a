"""Attention and its gradients against float64, in the interpreter or on a GPU; what it keeps; what it refuses."""

import pytest
import torch
from attention_cases import exact, heads

from kernels.attention import kernel

pytestmark = pytest.mark.gpu
TOLERANCE = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}
"""Relative Frobenius error: about four roundings, of out or a gradient and of what is rounded on the way to it."""


@pytest.fixture
def tensors(device):
    """`tensors(width, length, dtype)`: q, k, v and a gradient of out where the tests run."""
    return lambda *sizes, dtype=torch.float16: [tensor.to(device, dtype) for tensor in heads(*sizes)]


def verify(q, k, v, grad, causal):
    """Compare out, lse and what flows back through autograd."""
    leaves = [tensor.clone().requires_grad_() for tensor in (q, k, v)]
    out = kernel.attention(*leaves, causal)
    results = [out.detach(), kernel.forward(q, k, v, causal)[1], *torch.autograd.grad(out, leaves, grad)]
    for name, result, wanted in zip(
        ("out", "lse", "dq", "dk", "dv"), results, exact(q, k, v, grad, causal), strict=True
    ):
        error = (result.double() - wanted).norm() / wanted.norm().clamp(min=1)
        assert error <= TOLERANCE[q.dtype], f"{name}: relative error {error:.1e}"  # which NaN is not, either


@pytest.mark.parametrize("dtype", [0, pytest.param(1, marks=pytest.mark.slow)], indirect=True)
@pytest.mark.parametrize(
    ("width", "length", "causal"),
    [(16, 129, True), (128, 70, True), (64, 200, False), (32, 256, True)],
)
def test_out_and_gradients_are_those_of_float64(width, length, causal, dtype, tensors):
    verify(*tensors(width, length, dtype=dtype), causal)


def test_heads_follow_one_another_however_many_run_at_a_time(tensors, monkeypatch):
    monkeypatch.setattr(kernel, "L2_BYTES", 2 * 2 * 130 * 32 * 2)  # two heads; of three, the last is by itself
    q, k, v, grad = (torch.cat([tensor, tensor[:, :1]], 1) for tensor in tensors(32, 130))
    verify(q, k, v, grad, True)


def test_scores_far_from_zero_overflow_nowhere(tensors):
    q, k, v, grad = tensors(32, 70)
    q, k = 100 * q, 10 * k
    out, lse = kernel.forward(q, k, v, False)
    wanted = exact(q, k, v, grad, False)
    assert lse.abs().max() > 1000
    torch.testing.assert_close((out.double(), lse.double()), tuple(wanted[:2]), rtol=1e-2, atol=1e-2)
    assert all(gradient.isfinite().all() for gradient in kernel.backward(q, k, v, out, lse, grad, False))


def test_results_are_those_of_autograd(tensors):
    q, k, v, _ = tensors(32, 70)
    out, lse = kernel.forward(q, k, v, True)
    leaves = [tensor.requires_grad_() for tensor in (q, k, v)]
    graph = kernel.attention(*leaves, True)
    assert len(graph.grad_fn.saved_tensors) == len((q, k, v, out, lse))
    assert torch.equal(graph, out)
    # A gradient that autograd has expanded has no rows of its own.
    gradients = torch.autograd.grad(graph.sum(), leaves)
    assert all(map(torch.equal, gradients, kernel.backward(q, k, v, out, lse, torch.ones_like(q), True)))


WRONG = {
    "rank": (lambda t: t[0], r"q has shape \[2, 70, 32\], \[batch, heads, length, width\] is needed"),
    "width": (lambda t: t[..., :24], r"a width of 16, 32, 64, 128; fold, split or pad it"),
    "empty": (lambda t: t[:, :, :0], r"none of them 0"),
    "dtype": (lambda t: t.double(), r"q is torch.float64, the kernels take torch.float16 and .* cast it with .to\(\)"),
    "strides": (lambda t: t.mT.contiguous().mT, r"q has strides \(.*\), rows without gaps are needed; call .contig"),
    "address": (
        lambda t: torch.cat([t.flatten()[:1], t.flatten()])[1:].view_as(t),
        r"q starts 2 bytes past",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_cannot_be_taken_is_refused_with_the_way_out(wrong, tensors):
    change, message = WRONG[wrong]
    with pytest.raises(ValueError, match=message):
        kernel.attention(*(change(tensor) for tensor in tensors(32, 70)[:3]), True)


def test_tensors_that_are_not_alike_are_refused_by_name(tensors):
    q, k, v, grad = tensors(32, 70)
    with pytest.raises(ValueError, match=r"v is \[1, 2, 69, 32\] torch.float16 on .*, q is .*; make them alike"):
        kernel.forward(q, k, v[:, :, 1:], True)
    out, lse = kernel.forward(q, k, v, True)
    with pytest.raises(ValueError, match=r"grad is .* torch.float32 on"):
        kernel.backward(q, k, v, out, lse, grad.float(), True)
