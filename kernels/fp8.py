"""Matrices in fp8 (e4m3) with a scale for each row, and how exact their products are on a Hopper GPU.

Its wgmma multiplies exactly, aligns the products of 32 steps along K and the sum so far to the largest of them, and
keeps 13 bits behind that one's leading bit (arXiv:2412.19437, 3.3.2, and arXiv:2511.10909). Sums lose more the longer K
is. With such sums, products of normal rows had a relative Frobenius error of 2.2e-3 at K = 4096, 3.3e-3 at 16384 and
6.2e-3 at 53248 when they were computed so in fp64 and rounded to bf16, which alone makes 1.7e-3. At K = 4096 the
largest error was 1.9 % of a typical value; DeepSeek-V3's report found nearly 2 %.

To take sums out of the tensor cores now and then and add them in fp32 (torch's `use_fast_accum=False`; Triton's
`max_num_imprecise_acc`) would cost registers for a second set of sums: 128x256 tiles would spill. Kernels here leave
them where they are, as cuBLAS is asked to (`use_fast_accum=True`), so all contenders promise the same. Scales by block
would need that.
"""

import torch
from torch import Tensor

from kernels.contract import FP8

LARGEST = torch.finfo(FP8).max


def quantise(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return values[rows, columns] in fp8 and fp32 scales[rows, 1], so that `values * scales` is nearly `matrix`: the
    largest of each row becomes 448, so that nothing saturates.

    Raises ValueError for a row with NaN or an infinity, and for one whose scale would be 0.
    """
    largest = matrix.float().abs().amax(1, keepdim=True)
    scales = largest / LARGEST
    wrong = ~(scales.isfinite() & (scales > 0))
    if wrong.any():
        row = int(wrong.flatten().nonzero()[0])
        raise ValueError(
            f"row {row} has the scale {float(scales[row]):g}, a scale is finite and above 0: its largest value is "
            f"{float(largest[row]):g}; leave out NaN, infinities and rows of zeros"
        )
    return (matrix.float() / scales).to(FP8), scales
