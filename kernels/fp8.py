"""Matrices in fp8 (e4m3) with a scale for each row or block, and how exact their products are on a Hopper GPU.

Hopper's wgmma multiplies exactly, aligns the products of 32 steps along K and the sum so far to the largest of them,
and keeps 13 bits behind that one's leading bit (arXiv:2412.19437, 3.3.2, and arXiv:2511.10909). Sums lose more the
longer K is. Computed so in fp64 and rounded to bf16, products of normal rows had a relative Frobenius error of 2.2e-3
at K = 4096, 3.3e-3 at 16384 and 6.2e-3 at 53248; rounding alone makes 1.7e-3. At K = 4096 the largest error was 1.9 %
of a typical value; DeepSeek-V3's report found nearly 2 %.

To take sums out of the tensor cores now and then and add them in fp32 (torch's `use_fast_accum=False`; Triton's
`max_num_imprecise_acc`) would cost registers for a second set of sums: 128x256 tiles would spill. Kernels here leave
sums in the tensor cores, as cuBLAS is asked to (`use_fast_accum=True`), so all contenders promise the same. Scales by
block need sums to be taken out every 128 along K. The error was then 1.7e-3 at all three K, that of rounding to bf16.
"""

import torch
from torch import Tensor

from kernels.contract import BLOCK, FP8, Scales, are_by_block

LARGEST = torch.finfo(FP8).max


def quantise(matrix: Tensor, block: tuple[int, int] | None = None) -> tuple[Tensor, Tensor]:
    """values[rows, columns] in fp8 and fp32 scales, one for each block of so many rows and columns: `values` times the
    scales is nearly `matrix`. The largest value of each block becomes 448, so that nothing saturates. Without a `block`
    each row is one; blocks at the edges may be smaller.

    Raises ValueError for a block with NaN or an infinity, and for one whose scale would be 0.
    """
    rows, columns = matrix.shape
    high, wide = block or (1, columns)
    padded = torch.nn.functional.pad(matrix.float(), (0, -columns % wide, 0, -rows % high))
    blocks = padded.unflatten(1, (-1, wide)).unflatten(0, (-1, high))
    largest = blocks.abs().amax((1, 3))
    scales = largest / LARGEST
    wrong = ~(scales.isfinite() & (scales > 0))
    if wrong.any():
        place = tuple(wrong.nonzero()[0].tolist())
        raise ValueError(
            f"block {place} has the scale {float(scales[place]):g}, a scale is finite and above 0: its largest value "
            f"is {float(largest[place]):g}; leave out NaN, infinities and blocks of zeros"
        )
    values = (blocks / scales[:, None, :, None]).to(FP8)
    return values.flatten(2).flatten(0, 1)[:rows, :columns], scales


def scales_of_rows(w: Tensor, scales: Scales) -> Scales:
    """Scales of each row of x and of w: [rows, 1], or by block [rows, blocks along K]."""
    x_scales, w_scales = scales
    if not are_by_block(w, scales):
        return x_scales, w_scales.T
    return x_scales, w_scales.repeat_interleave(BLOCK, 0)[: len(w)]


def scale_rows(matrix: Tensor, scales: Tensor) -> Tensor:
    """Multiply a matrix that is not fp8 by scales of `scales_of_rows`, in place."""
    if scales.shape[1] > 1:
        scales = scales.repeat_interleave(BLOCK, 1)[:, : matrix.shape[1]]
    return matrix.mul_(scales)
