"""The matmul in fp8 with scales by block, as DeepSeek-V3 has them, for Hopper: TMA descriptors, one program per SM.

out[M, N] = x[M, K] @ w[N, K].T, a scale for each 128 elements of a row of x and for each 128 x 128 of w. A step along K
is as long as a block: its sums start from zero in the tensor cores, and are scaled and added in fp32 by the CUDA cores.
So no sum of more than 128 products has the tensor cores' 14 bits (`kernels.fp8`).

Two sets of sums are two times the registers: 128x128 is the largest tile without spills, and 64x128 is for few rows.
While one warpgroup adds its sums, the tensor cores have the other's products alone, and loads hold both back: in
`kernels.warpgroup` each warpgroup goes at its own pace. So this loses to `kernels.persistent` by row, whose grid, loads
and epilogue it has. Nobody has timed it. Wins where a row has outliers that would take all others' bits: it wins
accuracy, not time.

Sources: DeepSeek-V3's report (arXiv:2412.19437, 3.3) and https://github.com/deepseek-ai/DeepGEMM, whose contract of
scales this is.
"""

# ruff: noqa: N803 (kernel arguments: sizes and compile-time constants in capitals, as Triton code has them)

from functools import partial

import triton
import triton.language as tl
from torch import Tensor

from kernels import hopper, persistent
from kernels.contract import BLOCK, Kernel, KernelLaunch, Scales
from kernels.persistent import Config, accumulate, store_tile, tile_corner


@triton.jit
def product(
    x_desc, w_desc, x_scales_ptr, w_scales_ptr, m0, n0, M, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):  # fmt: skip
    """The scaled sums of the tile of out at rows m0.. and columns n0.., along all of K."""
    block_k: tl.constexpr = x_desc.block_shape[1]
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    blocks = tl.cdiv(K, block_k)
    m = m0 + tl.arange(0, BLOCK_M)
    for block in range(blocks):
        x_scales = tl.load(x_scales_ptr + block.to(tl.int64) * M + m, mask=m < M, other=0.0)
        w_scale = tl.load(w_scales_ptr + n0 // block_k * blocks + block)
        nothing = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        sums = accumulate(nothing, x_desc, w_desc, m0, n0, block * block_k)
        acc += sums * (x_scales * w_scale)[:, None]
    return acc


@triton.jit(do_not_specialize=["M"])  # M differs from shape to shape
def blockwise_kernel(
    x_desc, w_desc, out_desc, x_scales_ptr, w_scales_ptr, M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr, ALONG_N: tl.constexpr, SUBTILE: tl.constexpr, FLATTEN: tl.constexpr,
):  # fmt: skip
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0), flatten=FLATTEN):
        m0, n0 = tile_corner(tile, tiles_m, tiles_n, BLOCK_M, BLOCK_N, GROUP, ALONG_N)
        acc = product(x_desc, w_desc, x_scales_ptr, w_scales_ptr, m0, n0, M, K, BLOCK_M, BLOCK_N)
        store_tile(out_desc, acc, m0, n0, BLOCK_M, BLOCK_N, SUBTILE)


def prepare(x: Tensor, w: Tensor, out: Tensor, config: Config, scales: Scales) -> KernelLaunch:
    """The launch for checked, non-empty tensors."""
    if config.block_k != BLOCK or BLOCK % config.block_n:
        raise ValueError(
            f"{config} takes {config.block_n}x{config.block_k} of w at a time, which has to lie in one block of "
            f"{BLOCK}x{BLOCK} and be as long; change the configuration"
        )
    return persistent.prepare(x, w, out, config, scales, blockwise_kernel)


matmul = Kernel(
    name="blockwise", prepare=prepare, by_block=True, variants=persistent.matmul.variants,
    require=partial(hopper.require, "blockwise", by_block=True),
)  # fmt: skip
"""out[M, N] = x[M, K] @ w[N, K].T in fp8 with scales by block, on a Hopper GPU."""
