"""What a contender is checked for before it is timed, and once more after: it computes what was asked for, in each call
anew, into the tensor it was given, and leaves its inputs as they are.

The reference is float64, and every element of a result is compared with it. A call gets an output poisoned with NaN, so
that nothing left unwritten passes.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from roofline.measure.prepared import FAILED, Rejection, verdict

EXACT_ROWS = 256
"""Up to so many rows each element is compared by itself; beyond them GROUP neighbours of a row are, by a weighted sum.
All products in float64 would take twice what a CPU is timed for, and far more of a GPU that has few such units."""

GROUP = 16

TAIL = 10
"""The largest error may be so many times the limit of the relative Frobenius error. Rounding to bf16 leaves at most
2**-8 of an element, and the largest of 1e9 normal elements is 6.1 times a typical one: 0.024, where 0.03 is allowed.
In a sum, whose error is that of a typical element times sqrt(GROUP), an element weighs at least 0.75: a single one is
refused if it is off by more than 16 % of a typical element in bf16, 3 % in fp16 and 0.06 % in fp32."""

SLICE = 2**20
"""Elements that are float64 at once."""


def reference_sums(x: Tensor, w: Tensor) -> Tensor:
    """Return the `sums` of x @ w.T, with no more products than there are sums: x @ sums(w.T)."""
    if (group := _group(len(x))) == 1:
        return torch.cat([x.double() @ part.double().T for part in _slices(w)], dim=1)
    weights = sums(w.T, group)
    return torch.cat([part.double() @ weights for part in _slices(x)])


def sums(matrix: Tensor, group: int) -> Tensor:
    """Return the weighted sum of each `group` neighbours in a row of matrix[m, n]: float64[m, n / group].

    Weights differ within a group, so that exchanged columns do not cancel, and have random signs. In a group of 1 they
    are 1.
    """
    if group == 1:
        return matrix.double()
    if missing := -matrix.shape[1] % group:
        matrix = torch.nn.functional.pad(matrix, (0, missing))
    signs = torch.randint(2, (matrix.shape[1] // group, group), generator=torch.Generator("cpu").manual_seed(0)) * 2 - 1
    weights = (signs * torch.linspace(0.75, 1.25, group, dtype=torch.float64)).to(matrix.device)
    grouped = (part.double().unflatten(1, weights.shape) for part in _slices(matrix))
    return torch.cat([torch.einsum("mgi,gi->mg", part, weights) for part in grouped])


def _group(rows: int) -> int:
    return 1 if rows <= EXACT_ROWS else GROUP


def _slices(matrix: Tensor) -> tuple[Tensor, ...]:
    return matrix.split(max(1, SLICE // matrix.shape[1]))


def error_of(out: Tensor, reference: Tensor) -> float:
    """Return the relative Frobenius error against `reference_sums`, or the largest error over TAIL if that is more; NaN
    if any element of `out` was left unwritten."""
    if out.isnan().any():
        return math.nan
    error = sums(out, _group(len(out))) - reference
    frobenius = error.norm() / reference.norm()
    largest = error.abs().max() / reference.square().mean().sqrt()
    return float(torch.maximum(frobenius, largest / TAIL))


def relative_error(run: Callable, x: Tensor, w: Tensor, out: Tensor, reference: Tensor) -> float:
    """Return the error of `run` on a NaN-poisoned `out`, as `error_of` has it."""
    out.fill_(math.nan)
    return error_of(run(x, w, out), reference)


def worst(errors: list[float]) -> float:
    """Return the largest; NaN where one is."""
    return math.nan if any(map(math.isnan, errors)) else max(errors)


def refuse(
    name: str, run: Callable, x: Tensor, w: Tensor, out: Tensor, reference: Tensor, dtype: str, limit: float | None
) -> Rejection | None:
    """Return why `run`, which was right on x and w, is refused all the same; None if it computes -x @ w.T anew, into
    `out`."""
    out.fill_(math.nan)
    x.neg_()
    try:
        result = run(x, w, out)
        if type(result) is not Tensor or result.data_ptr() != out.data_ptr():
            return Rejection(FAILED, f"{name}: it returned another tensor than the `out` that it was given")
        if wrong := verdict(name, error_of(result, -reference), dtype, limit):
            return wrong._replace(reason=f"{wrong.reason}, of inputs that it had not seen")
    finally:
        x.neg_()
    return None


def inputs_kept(name: str, x: Tensor, w: Tensor, check: Callable) -> object:
    """Return or raise what `check()` does, unless it wrote into x or w: they are restored, and `name` is refused."""
    kept = {"x": (x, x.clone()), "w": (w, w.clone())}
    try:
        checked = check()
    finally:
        written = [operand for operand, pair in kept.items() if not torch.equal(*pair)]
        for operand in written:
            torch.Tensor.copy_(*kept[operand])
    if written:
        return Rejection(FAILED, f"{name}: it wrote into its input {' and '.join(written)}, which others read")
    return checked
