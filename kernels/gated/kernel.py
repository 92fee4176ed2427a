"""The first half of a gated feed-forward layer in one kernel, for Hopper: both matmuls, and SiLU and the product of the
two under their stores.

out[M, F] = silu(x[M, K] @ gate[F, K].T) * (x[M, K] @ up[F, K].T). The weights are one matrix w[2F, K] with the rows of
gate and up by turns (`interleaved`), so that a tile of sums holds for each column of out its gate and its up. Both lie
in the same thread, which computes in fp32 and rounds once; what is stored is half as wide as the tile. In fp8 sums are
scaled by row first, and the result is bf16: a row's scale would take the largest value of the whole row, and a tile has
only some of its columns.

Wins where the 4 M F bytes that are stored between two kernels, and the 6 M F that the second one reads and writes,
weigh: from some hundred rows on. Below, weights are read once either way, and only a launch is saved. Nobody has timed
it. Loses where `kernels.persistent` loses, whose grid, loads and tables it has.
"""

# ruff: noqa: N803 (kernel arguments: sizes and compile-time constants in capitals, as Triton code has them)

from dataclasses import replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels import hopper, persistent
from kernels.contract import Kernel, KernelLaunch, Scales
from kernels.persistent import Config, product, scaled, tile_corner


@triton.jit(do_not_specialize=["M"])  # M differs from shape to shape
def gated_kernel(
    x_desc, w_desc, out_desc, x_scales_ptr, w_scales_ptr, M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr, ALONG_N: tl.constexpr, SUBTILE: tl.constexpr, FLATTEN: tl.constexpr,
):  # fmt: skip
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0), flatten=FLATTEN):
        m0, n0 = tile_corner(tile, tiles_m, tiles_n, BLOCK_M, BLOCK_N, GROUP, ALONG_N)
        acc = product(x_desc, w_desc, m0, n0, K, BLOCK_M, BLOCK_N, BLOCK_K)
        if x_scales_ptr is not None:
            acc = scaled(acc, x_scales_ptr, w_scales_ptr, m0, n0, M, N)
        gate, up = tl.split(tl.reshape(acc, (BLOCK_M, BLOCK_N // SUBTILE, SUBTILE)))
        out_desc.store([m0, n0 // SUBTILE], (gate * tl.sigmoid(gate) * up).to(out_desc.dtype))


def interleaved(gate: Tensor, up: Tensor) -> Tensor:
    """w[2F, K] for `gated`: the rows of gate[F, K] and of up[F, K] by turns."""
    return torch.stack((gate, up), 1).flatten(0, 1)


def require(x: Tensor, w: Tensor, out: Tensor | None = None, scales: Scales | None = None) -> None:
    """Refuse what `kernels.hopper.require` does, and ValueError for a w whose rows are no pairs."""
    if w.ndim == 2 and len(w) % 2:
        raise ValueError(f"w has {len(w)} rows, which are those of gate and up by turns; make it with interleaved()")
    # Scales of half the rows, as there are half the rows of w: a view, of which only the length is looked at.
    of_half = (scales[0], scales[1][..., len(w) // 2 :]) if scales else None
    hopper.require("gated", x, w[::2], out, of_half)


def prepare(x: Tensor, w: Tensor, out: Tensor, config: Config, scales: Scales | None = None) -> KernelLaunch:
    """The launch for checked, non-empty tensors. The result is half as wide as the tile."""
    return persistent.prepare(x, w, out, replace(config, subtile=2), scales, gated_kernel)


class Gated(Kernel):
    """Called as `gated(x, w, out=None, config=None)`, with w[2F, K] as `interleaved` makes it."""

    def columns(self, w: Tensor) -> int:
        return len(w) // 2


gated = Gated(
    name="gated", require=require, prepare=prepare,
)  # fmt: skip
"""out[M, F] = silu(x[M, K] @ gate[F, K].T) * (x[M, K] @ up[F, K].T) in bf16, fp16 or fp8 (fp32 in the interpreter)."""
