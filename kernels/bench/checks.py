"""What a contender is checked for before it is timed, and once more after: it computes what was asked for, in each call
anew, into the tensor it was given, on the stream it was given, and by clocks that it left alone.

The reference is float64. A call gets an output poisoned with NaN, so that nothing left unwritten passes.
"""

import functools
import math
import time
from collections.abc import Callable

import torch
from torch import Tensor

from roofline.measure import clocks
from roofline.measure.prepared import FAILED, Rejection, verdict

CHECKED_ROWS = 32
"""One row in each run of this many is compared with the reference: no tile is smaller, so every tile is looked at."""

HOLD_CYCLES, LOOK_S = 40_000_000, 0.005
"""Of a GPU's stream: it is held for some 20 ms, and what is written within 5 ms was written on another one."""

CLOCKS = [
    (owner, name, getattr(owner, name, None))
    for owner, names in (
        (time, ("perf_counter", "monotonic")),
        (torch.cuda, ("synchronize", "Event")),
        (torch.cuda.Event, ("record", "query", "elapsed_time")),
        (clocks.CpuClock, ("turn", "burst")),
        (clocks.CudaClock, ("turn", "burst")),
    )
    for name in names
]
"""What tells the time of a sample."""


def reference_rows(x: Tensor, w: Tensor) -> Tensor:
    """x @ w.T in float64 for `checked_rows` of x, [rows, n]."""
    rows = x[checked_rows(len(x))].double()
    return torch.cat([rows @ part.double().T for part in w.split(8192)], dim=1)


def checked_rows(m: int) -> Tensor:
    """One row in each run of CHECKED_ROWS, each time another of it, and the last row; all of them up to 256."""
    if m <= 256:
        return torch.arange(m)
    starts = torch.arange(0, m, CHECKED_ROWS)
    return torch.cat([(starts + torch.arange(len(starts)) % CHECKED_ROWS).clamp(max=m - 1), torch.tensor([m - 1])])


def relative_error(run: Callable, x: Tensor, w: Tensor, out: Tensor, reference: Tensor) -> float:
    """That of `run` on a NaN-poisoned `out`, as `error_of` has it."""
    out.fill_(math.nan)
    return error_of(run(x, w, out), reference)


def error_of(out: Tensor, reference: Tensor) -> float:
    """Relative Frobenius error, against `reference_rows`; NaN if any element of `out` was left unwritten."""
    if out.isnan().any():
        return math.nan
    return float((out[checked_rows(len(out))].double() - reference).norm() / reference.norm())


def worst(errors: list[float]) -> float:
    """The largest; NaN where one is."""
    return math.nan if any(map(math.isnan, errors)) else max(errors)


def refuse(
    name: str,
    run: Callable,
    x: Tensor,
    w: Tensor,
    out: Tensor,
    reference: Tensor,
    dtype: str,
    limit: float | None,
    beside: Tensor | None = None,
) -> Rejection | None:
    """Why `run`, which was right on x and w, is refused all the same; None if it does its work.

    It computes -x @ w.T anew, and at once: not what it computed before, nor when somebody looks. It leaves `beside`
    alone, which lies behind `out`, within 512 elements.
    """
    for poisoned in (out, beside):
        if poisoned is not None:
            poisoned.fill_(math.nan)
    x.neg_()
    try:
        result = run(x, w, out)
        if type(result) is not Tensor or result.data_ptr() != out.data_ptr():
            return Rejection(FAILED, f"{name}: it returned another tensor than the `out` that it was given")
        early = result if x.is_cuda else result.clone()
        if wrong := verdict(name, error_of(early, -reference), dtype, limit):
            return wrong._replace(reason=f"{wrong.reason}, of inputs that it had not seen")
        if beside is not None and not beside.isnan().all():
            return Rejection(FAILED, f"{name}: it writes beyond the end of `out`")
        if x.is_cuda and _writes_on_another_stream(run, x, w, out):
            return Rejection(FAILED, f"{name}: it writes `out` on another stream, where its time is not taken")
    finally:
        x.neg_()
    return None


def by_true_clocks(name: str, check: Callable) -> object:
    """What `check()` returns or raises, unless it changed what samples are timed by: that is put back, and refused."""
    changed = []
    try:
        found = check()
    finally:
        for owner, attribute, original in CLOCKS:
            if getattr(owner, attribute, None) is not original:
                setattr(owner, attribute, original)
                changed.append(f"{owner.__name__}.{attribute}")
    if changed:
        return Rejection(FAILED, f"{name}: it changed {', '.join(changed)}, by which samples are timed")
    return found


@functools.cache
def _side_stream():
    return torch.cuda.Stream()


def _writes_on_another_stream(run: Callable, x: Tensor, w: Tensor, out: Tensor) -> bool:
    """Whether `out` is written while the current stream is held. What waits for the device itself is not found out."""
    out.fill_(math.nan)
    torch.cuda.synchronize()

    def is_written() -> bool:
        with torch.cuda.stream(_side_stream()):
            return not out.isnan().all().item()

    is_written()  # loads what looks, and takes its memory: neither can be had while a stream is held
    held = torch.cuda.Event()
    torch.cuda._sleep(HOLD_CYCLES)
    held.record()
    run(x, w, out)
    time.sleep(LOOK_S)
    return is_written() and not held.query()
