"""The checks of a contender, before it is timed and once more after: it computes what was asked for, in each call anew,
into the tensor that it was given, and leaves its inputs as they are.

The reference is float64, and every element of a result is compared with it. In results of up to EXACT_ROWS rows each
element is compared by itself, in larger ones GROUP neighbours of a row as a weighted sum. All products in float64 would
take a CPU twice the time that it is timed for, and a GPU, which has few such units, far more.
"""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy
import torch
from torch import Tensor, randint, randperm

from kernels.contract import Scales, dtype_name
from kernels.fp8 import scale_rows, scales_of_rows
from roofline.host.device_errors import RefusedError
from roofline.worker.bound import time
from roofline.worker.clocks import Call
from roofline.worker.prepared import FAILED, TOLERANCE, VENDOR_TOLERANCE, Entrant, Inputs, Rejection, verdict

norm = Tensor.norm  # bound before a file of a user's is imported, as `randint` is

EXACT_ROWS, GROUP = 256, 16

BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""{bytes of a float: the integers of its size, which hold its bits}. fp8 has no arithmetic."""

TAIL = 10
"""The largest error may be so many times the limit of the relative Frobenius error. Rounding to bf16 leaves at most
2**-8 of an element, and the largest of 1e9 normal elements is 6.1 times a typical one: 0.024, where 0.03 is allowed.
In a sum, whose error is that of a typical element times sqrt(GROUP), an element weighs at least 0.75: a single one is
refused if it is off by more than 16 % of a typical element in bf16, 3 % in fp16 and 0.06 % in fp32."""

GUARD_ROWS = 64
"""Rows that are checked before and behind each matrix: a kernel without a mask writes there."""

LATER_S = 0.1
"""Seconds after which a thread has done what a call has left to it, if that is short."""
NOT_JOINED = "and right later: what it hands to a thread or a stream goes on when it returns; have it wait for that"

SLICE = 64 * GROUP
"""Rows of w that are float64 at a time."""

WROTE = "timed calls wrote into their inputs, which others read"

LOOKED_AT_ROWS, SUMS = 256, 8
"""A look at a timed result takes so many of its rows at most, and so many sums of each; of no more rows than SUMS,
every element."""


class Signs(Inputs):
    """Inputs whose columns get random signs once they have been used: one bit of each element is flipped. That is exact
    in every dtype and takes one pass over x, and no product follows from an earlier one."""

    def __init__(self, inputs: list[Tensor], seed: int, then: Callable[[], object] = lambda: None):
        """`then` is called after each change."""
        self.inputs = inputs
        self.used = set(range(len(inputs)))
        self.then = then
        self._flips: dict[int, Tensor] = {}
        self.numbers = torch.Generator(inputs[0].device).manual_seed(seed)

    def change(self) -> None:
        for number in self.used:
            x = self.inputs[number]
            coins = randint(2, x.shape[-1:], generator=self.numbers, device=x.device)
            flips = coins.sub_(1).to(BITS[x.element_size()]).bitwise_and_(sign_bit(x))
            bits(x).bitwise_xor_(flips)
            self._flips[number] = flips.bitwise_xor_(self._flips.get(number, 0))
        self.then()

    def restore(self) -> None:
        for number, flips in self._flips.items():
            bits(self.inputs[number]).bitwise_xor_(flips)
        self.used |= self._flips.keys()  # with these values, too
        self._flips.clear()


class Rotation(Signs):
    """Sets of (x, w, out), in fp8 (x, w, out, scales), by turns. A set whose x has changed is not in the cache when its
    turn comes again: it was the last to be used."""

    def __init__(self, sets: list[tuple], seed: int):
        super().__init__([x for x, *_ in sets], seed)
        self.sets = sets
        self.number = 0
        self.sums = list(map(bit_sums, sets))
        self.used = {0}

    def rotated(self, run: Callable) -> Call:
        """A call of `run` on its own sets by turns. Threads are woken on the set of the sample before, so that a sample
        gets an x that this call has not seen."""
        sets = own(tuple(self.sets))

        def again() -> Tensor:
            self.used.add(self.number)
            given = sets[self.number]
            try:
                return run(*given)
            except Exception as error:
                if changed := changed_tensor(given, self.sets[self.number]):
                    raise RefusedError(changed) from error
                raise

        def next_one() -> Tensor:
            self.number = (self.number + 1) % len(self.sets)
            return again()

        return Call(next_one, wake=again)

    def entrant(self, name: str, run: Callable, check: Callable, **about) -> Entrant | Rejection:
        """`run` on the sets by turns, if `check()`, as the function of that name, takes it. It is checked once more
        when it was timed. `about` are further fields of the entrant."""
        error, refused = check()
        call = self.rotated(run)

        def recheck() -> Rejection | None:
            if bit_sums(self.sets[0]) != self.sums[0]:
                return Rejection(FAILED, f"{name}: {WROTE}")
            return check()[1]

        return refused or Entrant(name, call, relative_error=error, recheck=recheck, **about)

    def change(self) -> None:
        super().change()
        self.used.clear()

    def look(self, limit: float, result: Tensor) -> Callable[[], str]:
        """Look at the `result` of the last call, as `glance` does."""
        number = self.number
        x, w, out, *scales = self.sets[number]
        if problem := not_out(result, out):
            return lambda: problem
        numbers = torch.Generator(x.device)
        numbers.seed()  # which rows is chance: the call could have read `self.numbers`
        difference = glance(out, x, w, limit, numbers, *scales)

        def words() -> str:
            problem_words = difference()
            if problem_words and bit_sums(self.sets[number])[1:] != self.sums[number][1:]:  # of w, which never changes
                raise RefusedError(WROTE)
            return problem_words

        return words


def own(operands):
    """Tensors for one contender, over the memory of `operands`, tuples of tensors: what it does to them as objects, by
    `w.t_()` or `out.data = ...`, it does to no other. They are no views."""
    if isinstance(operands, Tensor):
        return operands.new_empty(0).set_(operands)
    return tuple(map(own, operands)) if isinstance(operands, tuple) else operands


def changed_tensor(given: tuple, operands: tuple) -> str:
    """Which of the tensors that a contender was `given` is no longer as one of the `operands`, in words; "" where all
    are."""
    for operand, its, ours in zip(("x", "w", "out"), given, operands, strict=False):
        if isinstance(ours, Tensor) and (type(its) is not Tensor or _layout(its) != _layout(ours)):
            return f"it changed the tensor {operand} itself, as t_(), resize_() and data do: take a view or a copy"
    return ""


def bit_sums(operands: tuple) -> list[int]:
    """For x and w, a number by some of their rows, which says whether somebody wrote there."""
    return [int(bits(tensor[::GUARD_ROWS]).sum()) for tensor in operands[:2] if isinstance(tensor, Tensor)]


def bits(tensor: Tensor) -> Tensor:
    """The integers that store the elements of a tensor of a floating type: a view."""
    return tensor.view(BITS[tensor.element_size()])


def sign_bit(tensor: Tensor) -> int:
    return torch.iinfo(BITS[tensor.element_size()]).min


def glance(
    out: Tensor, x: Tensor, w: Tensor, limit: float, numbers: torch.Generator, scales: Scales | None = None
) -> Callable[[], str]:
    """Begin to compare some rows of `out` with x @ w.T, by sums over the columns with random signs, which take one pass
    over w (Freivalds 1977). The function that is returned says where they differ; "" where they are within `limit`, by
    the measure of `error_of`."""
    rows = randperm(len(out), generator=numbers, device=out.device)[:LOOKED_AT_ROWS]
    seen = out[rows].double()
    products = w.float()
    factors = x[rows].float()
    if scales:
        x_scales, w_scales = scales_of_rows(w, scales)
        scale_rows(products, w_scales)
        scale_rows(factors, x_scales[rows])
    if len(rows) > SUMS:
        signs = 2.0 * randint(2, (SUMS, len(w)), generator=numbers, device=w.device) - 1
        seen = seen @ signs.double().T
        products = signs @ products
    reference = (factors @ products.T).double()
    error = seen - reference

    def problem() -> str:
        typical = reference.square().mean().sqrt()
        of_rows = (error.square().mean(1).sqrt() / typical).nan_to_num(math.inf)
        worst_row = int(of_rows.argmax())
        largest = float(of_rows[worst_row])
        if max(largest / TAIL, float(norm(error) / norm(reference))) <= limit:
            return ""
        row = int(rows[worst_row])
        if out[row].isnan().any():
            return f"row {row} holds NaN"
        return f"row {row} is off by {largest:.2g} times a typical value"

    return problem


def reference_sums(x: Tensor, w: Tensor, scales: Scales | None = None) -> Tensor:
    """The sums of x @ w.T that `error_of` compares, with scales those of the values that fp8 stands for: float64, with
    no more products than there are sums."""
    exact = x.double()
    if scales:
        x_scales, w_scales = scales_of_rows(w, scales)
        scale_rows(exact, x_scales)
    sums = []
    for first in range(0, len(w), SLICE):
        rows = w[first : first + SLICE].double()
        if scales:
            scale_rows(rows, w_scales[first : first + SLICE])
        sums.append(exact @ _weighted_sums(rows, len(x)).T)
    return torch.cat(sums, dim=1)


def error_of(out: Tensor, reference: Tensor) -> float:
    """The relative Frobenius error against `reference_sums`, or the largest error over TAIL if that is more; NaN if any
    element of `out` was left unwritten."""
    if out.isnan().any():
        return math.nan
    error = _errors(out, reference)
    largest = error.abs().max() / reference.square().mean().sqrt()
    return float(torch.maximum(norm(error) / norm(reference), largest / TAIL))


def error_of_last(result: Tensor, right: Tensor) -> float:
    """The relative Frobenius error of the last matrices of `result`, as many as are `right`; NaN or inf where any
    element of it is."""
    if not result.isfinite().all():
        return math.nan if result.isnan().any() else math.inf
    last = result.detach().flatten(0, 1)[-len(right) :]
    return float((last.double() - right).norm() / right.norm())


def _errors(out: Tensor, reference: Tensor) -> Tensor:
    """The differences between the sums of `out` and `reference_sums`."""
    return _weighted_sums(out.T, len(out)).T - reference


def _group(m: int) -> int:
    """The number of neighbouring rows of w that are summed for an out of `m` rows."""
    return 1 if m <= EXACT_ROWS else GROUP


def _weighted_sums(matrix: Tensor, m: int) -> Tensor:
    """The weighted sum of each GROUP neighbouring rows of `matrix`, float64; where `m` is at most EXACT_ROWS, of each
    row by itself. Weights differ within a group, so that exchanged rows do not cancel, and have random signs."""
    group = _group(m)
    numbers = torch.Generator("cpu").manual_seed(0)
    signs = randint(2, (group,), generator=numbers) * 2 - 1
    weights = signs * torch.linspace(0.75, 1.25, group, dtype=torch.float64)
    groups = -(-len(matrix) // group)
    sums = matrix.new_zeros((groups, matrix.shape[1]), dtype=torch.float64)
    for first, weight in enumerate(weights.tolist()):
        rows = matrix[first::group]
        sums[: len(rows)].add_(rows.double(), alpha=weight)
    return sums


def first_nan(**results: Tensor) -> str:
    """The name and the first row of a result that holds NaN, in words; "" where none does."""
    for name, result in results.items():
        if result.isnan().any():
            place = result.isnan().nonzero()[0].tolist()
            return f"row {', '.join(map(str, place[:-1] or place))} of {name}"
    return ""


def limit_of(contender, dtype: str) -> float:
    """The largest relative error at which a result of a matmul's `contender` is right."""
    if contender.kind in ("vendor", "library"):
        return VENDOR_TOLERANCE[dtype]
    return getattr(contender.load(), "tolerance", None) or TOLERANCE[dtype]


def worst(errors: list[float]) -> float:
    """The largest error; NaN where one is."""
    return float(numpy.max(errors))


def changes_later(out: Tensor) -> bool:
    """Whether a thread or another stream, to which the call has left its work, still writes to `out`."""
    before = out.clone()
    time.sleep(LATER_S)
    if out.is_cuda:
        torch.cuda.synchronize(out.device)
    return not are_same_bits(before, out)


def check(
    name: str,
    run: Callable,
    operands: tuple,
    reference: Tensor,
    limit: float | None = None,
    reference_of_minus: Tensor | None = None,
) -> tuple[float, Rejection | None]:
    """The relative error of `run`, and why it is refused. It is right if it computes x @ w.T, then -x @ w.T anew, into
    `out`, and leaves x, w and the memory around the three as they are. Raises what `run` raises; all but `out` is
    restored.

    `operands` are x, w, out, and in fp8 scales. `limit` is that of `verdict`. `reference_of_minus` is the reference for
    -x, where that is not -reference.
    """
    x, w, out, *scales = operands
    watched = {"its input x": x, "its input w": w}
    if scales:
        watched["its scales of x"], watched["its scales of w"] = scales[0]
    for operand, tensor in (("x", x), ("w", w), ("out", out)):
        watched[f"what lies before {operand}"], watched[f"what lies behind {operand}"] = around(tensor)
    copies = {place: tensor.clone() for place, tensor in watched.items()}
    if reference_of_minus is None:
        reference_of_minus = -reference
    given = own(operands)
    try:
        error, refused = _check_call(name, run, given, operands, reference, limit)
        if not refused:
            bits(x).bitwise_xor_(sign_bit(x))
            unseen = ", of inputs that it had not seen"
            _, refused = _check_call(name, run, given, operands, reference_of_minus, limit, unseen)
            bits(x).bitwise_xor_(sign_bit(x))  # last: a late kernel or thread still reads it
    finally:
        written = [place for place, tensor in watched.items() if not are_same_bits(tensor, copies[place])]
        for place in written:
            torch.Tensor.copy_(watched[place], copies[place])
    if written:
        return error, Rejection(FAILED, f"{name}: it wrote into {' and '.join(written)}, which others read")
    return error, refused


def _check_call(
    name: str,
    run: Callable,
    given: tuple,
    operands: tuple,
    reference: Tensor,
    limit: float | None,
    unseen: str = "",
) -> tuple[float, Rejection | None]:
    """The relative error of one call, which is `given` tensors of its own, and why it is refused."""
    x, w, out, *scales = operands
    out.fill_(math.nan)
    result = run(*given)
    if changed := changed_tensor(given, operands):
        return math.nan, Rejection(FAILED, f"{name}: {changed}")
    if problem := not_out(result, out):
        return math.nan, Rejection(FAILED, f"{name}: {problem}")
    error = error_of(out, reference)
    refused = verdict(name, error, dtype_name(x, w, *scales), limit)
    if refused:
        place = worst_place(out, reference)
        later = f", {NOT_JOINED}" if changes_later(out) else ""
        refused = replace(refused, reason=f"{refused.reason}{unseen}; {place}{later}")
    return error, refused


def around(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Up to GUARD_ROWS rows of the memory before and behind a matrix, as far as its storage has them."""
    whole = matrix.new_empty(0).set_(matrix.untyped_storage())
    size = GUARD_ROWS * matrix.shape[1]
    first = matrix.storage_offset()
    end = first + matrix.numel()
    return whole[max(0, first - size) : first], whole[end : end + size]


def are_same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors of a floating type are the same, bit by bit: also where both are NaN, which equals
    nothing."""
    return torch.equal(bits(a), bits(b))


def not_out(result, out: Tensor) -> str:
    """What `result` is, in words, where it is not `out`; "" if it is."""
    if type(result) is Tensor and _layout(result) == _layout(out):
        return ""
    kind = "None" if result is None else f"a {type(result).__name__}"
    if type(result) is Tensor:
        kind = f"another tensor, {result.dtype} {[*result.shape]},"
    return f"it returned {kind} and not the `out` that it was given, {out.dtype} {[*out.shape]}: fill and return that"


def _layout(tensor: Tensor) -> tuple:
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


def worst_place(out: Tensor, reference: Tensor) -> str:
    """Where `out` is the farthest from `reference_sums`, in words; where elements were left unwritten, how many and the
    first."""
    if unwritten := int(out.isnan().sum()):
        row, column = out.isnan().nonzero()[0].tolist()
        return f"{unwritten} of {out.numel()} elements, the first is out[{row}, {column}]"
    error = _errors(out, reference).abs() / reference.square().mean().sqrt()
    row, place = divmod(int(error.argmax()), error.shape[1])
    group = _group(len(out))
    first = place * group
    columns = first if group == 1 else f"{first}:{min(first + group, out.shape[1])}"
    return f"the worst is out[{row}, {columns}], off by {float(error.max()):.2g} times a typical value"
