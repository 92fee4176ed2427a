"""Sums of parts: the parts of a reduce-scatter that arrive and the local product, added in one order, in fp32, and
rounded once.

One launch reads each part once, eight elements of 16 bits a thread, several parts on their way at once. Wins over a
library's additions one after another, which pass fp32 sums through memory each time. It begins when the last part is
here: its time is not hidden.
"""

# ruff: noqa: N803 (kernel arguments: compile-time constants in capitals, as Triton code has them)

import triton
import triton.language as tl
from torch import Tensor

from kernels.contract import KernelLaunch

BLOCK = 1024
"""Elements of a program of 4 warps: each thread loads 16 bytes of a part at 2 bytes an element."""


@triton.jit
def add_kernel(arrived_ptr, local_ptr, out_ptr, parts, size, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    sums = tl.zeros((BLOCK,), dtype=tl.float32)
    at_part = at
    for _ in tl.range(0, parts - 1, loop_unroll_factor=4):  # four trips to memory at once
        sums += tl.load(arrived_ptr + at_part, mask=inside, other=0.0).to(tl.float32)
        at_part += size
    sums += tl.load(local_ptr + at, mask=inside, other=0.0).to(tl.float32)
    sums += tl.load(arrived_ptr + at_part, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + at, sums.to(out_ptr.dtype.element_ty), mask=inside)


def add(arrived: Tensor, local: Tensor, out: Tensor) -> Tensor:
    """Write out[R, N] = arrived[0] + arrived[1] + ... + local[R, N] + arrived[P - 2], added in this order, contiguous,
    of one dtype; returns `out`. `arrived[P - 1, R, N]`. Raises ValueError for tensors that are not contiguous, or parts
    of another shape than `out`."""
    tensors, size = (arrived, local, out), out.numel()
    if not all(part.is_contiguous() for part in tensors) or not arrived.shape[1:] == local.shape == out.shape:
        shapes = [[*part.shape] for part in tensors]
        raise ValueError(f"parts {shapes[0]}, own {shapes[1]}, out {shapes[2]}: all [R, N] must be alike, contiguous")
    args = dict(arrived_ptr=arrived, local_ptr=local, out_ptr=out, parts=len(arrived), size=size, BLOCK=BLOCK)
    KernelLaunch(add_kernel, (-(-size // BLOCK),), args | {"num_warps": 4}).run(out.device)
    return out
