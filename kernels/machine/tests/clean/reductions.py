"""The gradients of a norm: reductions of rows, and sums that programs share."""

# ruff: noqa: N803 (kernel arguments: compile-time constants in capitals, as Triton code has them)

import torch
import triton
import triton.language as tl

from . import Trial, trial, whole


@triton.jit
def row_gradients(dy_ptr, x_ptr, w_ptr, mean_ptr, rstd_ptr, dx_ptr, row, columns, share, BLOCK: tl.constexpr):
    """Store dx of a row. Return what the row adds to the gradients of w and b. `share`: 1 / columns."""
    column = tl.arange(0, BLOCK)
    inside = column < columns
    x = tl.load(x_ptr + row * columns + column, inside, 0.0)
    dy = tl.load(dy_ptr + row * columns + column, inside, 0.0)
    rstd = tl.load(rstd_ptr + row)
    normed = tl.where(inside, (x - tl.load(mean_ptr + row)) * rstd, 0.0)
    slope = dy * tl.load(w_ptr + column, inside, 0.0)
    along = tl.sum(normed * slope, 0) * share
    dx = (slope - tl.sum(slope, 0) * share - normed * along) * rstd
    tl.store(dx_ptr + row * columns + column, dx, inside)
    return dy * normed, dy


@triton.jit
def locked_gradients_kernel(
    dy_ptr, x_ptr, w_ptr, mean_ptr, rstd_ptr, dx_ptr, dw_ptr, db_ptr, locks_ptr, columns, share,
    GROUPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Rows of a group add to the same sums, which a spin lock guards."""
    row, column = tl.program_id(0), tl.arange(0, BLOCK)
    dw, db = row_gradients(dy_ptr, x_ptr, w_ptr, mean_ptr, rstd_ptr, dx_ptr, row, columns, share, BLOCK)
    group = row % GROUPS
    dw_ptr += group * columns + column
    db_ptr += group * columns + column
    while tl.atomic_cas(locks_ptr + group, 0, 1, sem="acquire") == 1:
        pass
    tl.store(dw_ptr, dw + tl.load(dw_ptr, column < columns, 0.0), column < columns)
    tl.store(db_ptr, db + tl.load(db_ptr, column < columns, 0.0), column < columns)
    tl.debug_barrier()  # one thread releases what all have stored
    tl.atomic_xchg(locks_ptr + group, 0, sem="release")


@trial
def layer_norm_backward_lock() -> Trial:
    """Mean and rstd are whole, and rows have 2**n elements: so every gradient is exact."""
    rows, columns, groups = 8, 128, 2
    x, dy, w = (whole(*shape, seed=i) for i, shape in enumerate(((rows, columns), (rows, columns), (columns,))))
    mean, rstd = whole(rows, seed=3), 2.0 ** whole(rows, low=-1, high=1, seed=4)
    dx, dw, db = torch.empty_like(x), torch.zeros(groups, columns), torch.zeros(groups, columns)
    args = dict(dy_ptr=dy, x_ptr=x, w_ptr=w, mean_ptr=mean, rstd_ptr=rstd, dx_ptr=dx, dw_ptr=dw, db_ptr=db)
    normed, slope = (x - mean[:, None]) * rstd[:, None], dy * w
    apart = slope - slope.mean(1, keepdim=True) - normed * (normed * slope).mean(1, keepdim=True)
    expected = dict(dx_ptr=apart * rstd[:, None])
    expected |= {name: t.view(-1, groups, columns).sum(0) for name, t in dict(dw_ptr=dy * normed, db_ptr=dy).items()}
    args |= dict(columns=columns, share=1 / columns, BLOCK=128, num_warps=4)
    args |= dict(GROUPS=groups, locks_ptr=torch.zeros(groups, dtype=torch.int32))
    return Trial(locked_gradients_kernel, (rows,), args, expected)
