"""The portable matmul: one program per output tile, plain pointers. Read this one first.

out[M, N] = x[M, K] @ w[N, K].T. A program owns the tile of out at rows m0.. and columns n0.., walks along K, and
multiplies a block of x with a block of w at every step. It runs on every GPU Triton knows and in Triton's interpreter.

Wins where nothing better fits: rows that are no multiple of 16 bytes, views with any row stride, GPUs without TMA.
Loses to `kernels.persistent` on Hopper: every thread spends registers and instructions on addresses that TMA computes
by itself, and a tile's store is not hidden behind the next tile's loads. Elsewhere descriptors were 13 % faster than
pointers at 8192x8192xK in fp16 (https://github.com/triton-lang/triton/pull/5461); this suite measures its own figure.

The idea is the blocked matmul of P. Tillet, H. T. Kung and D. Cox, "Triton" (MAPL 2019).
"""

# ruff: noqa: N803 (kernel arguments: sizes and compile-time constants in capitals, as Triton code has them)

import triton
import triton.language as tl
from torch import Tensor

from kernels.contract import Kernel, KernelLaunch, Scales, refuse_fp8, require_runnable, validate
from kernels.tiles import Config


@triton.jit
def place_of(tile, tiles_m, tiles_n, GROUP: tl.constexpr):
    """The tile row and the tile column of a tile.

    Programs start roughly in order, so neighbours in number run at the same time and share the L2 cache. Walking GROUP
    tile rows down before stepping one tile column right makes them share rows of x as well as rows of w.
    """
    group = tile // (GROUP * tiles_n)
    height = min(tiles_m - group * GROUP, GROUP)  # the last group may be shorter
    inside = tile % (GROUP * tiles_n)
    return group * GROUP + inside % height, inside // height


# M differs from call to call, and a multiple of 16 makes no better code.
@triton.jit(do_not_specialize=["M"])
def tiled_kernel(
    x_ptr, w_ptr, out_ptr, M, N, K, x_row, w_row, out_row,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr, EVEN_K: tl.constexpr,
):  # fmt: skip
    # 1. Which tile is mine?
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    m, n = place_of(tl.program_id(0), tiles_m, tiles_n, GROUP)
    m0, n0 = m * BLOCK_M, n * BLOCK_N

    # 2. Where do my rows begin? A row number times a row stride passes 2**31 elements on real shapes (65536 rows of
    #    53248), so the product is made in 64 bits. The step along K inside a row stays small and needs 32. Rows
    #    beyond the last read the last one again: their sums are not stored, and no load needs a mask for them.
    rows_m = m0 + tl.arange(0, BLOCK_M)
    rows_n = n0 + tl.arange(0, BLOCK_N)
    ks = tl.arange(0, BLOCK_K)
    x_tile = x_ptr + tl.minimum(rows_m, M - 1).to(tl.int64)[:, None] * x_row + ks[None, :]
    w_tile = w_ptr + tl.minimum(rows_n, N - 1).to(tl.int64)[:, None] * w_row + ks[None, :]

    # 3. Multiply along K. Where K ends inside a step, what lies behind a row (it may be NaN) is read as zero. "ieee"
    #    keeps fp32 exact; bf16 and fp16 are not affected by it. For these two Triton is told that there is a first
    #    step: else 128x256 tiles spill on an A100. Told so, fp32 spills with Triton 3.9.
    if x_ptr.dtype.element_ty != tl.float32:
        tl.assume(K > 0)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k0 in range(0, K, BLOCK_K):
        if EVEN_K:
            x = tl.load(x_tile)
            w = tl.load(w_tile)
        else:
            x = tl.load(x_tile, mask=ks[None, :] < K - k0, other=0.0)
            w = tl.load(w_tile, mask=ks[None, :] < K - k0, other=0.0)
        acc = tl.dot(x, w.T, acc, input_precision="ieee")
        x_tile += BLOCK_K
        w_tile += BLOCK_K

    # 4. Round once, and write only what belongs to out.
    out_tile = out_ptr + rows_m.to(tl.int64)[:, None] * out_row + rows_n[None, :]
    tl.store(out_tile, acc.to(out_ptr.dtype.element_ty), mask=(rows_m[:, None] < M) & (rows_n[None, :] < N))


def require(x: Tensor, w: Tensor, out: Tensor | None = None, scales: Scales | None = None) -> None:
    """Refuse what `kernels.contract.validate` does; TypeError for fp8, and for bf16 in the interpreter; ValueError for
    CPU tensors outside it."""
    validate(x, w, out, scales)
    refuse_fp8("tiled", x)
    require_runnable(x)


def prepare(x: Tensor, w: Tensor, out: Tensor, config: Config, scales: None = None) -> KernelLaunch:
    """The launch for checked, non-empty tensors, which are not fp8."""
    (m, k), n = x.shape, w.shape[0]
    rows, columns = config.tile_counts(m, n)
    args = dict(
        x_ptr=x, w_ptr=w, out_ptr=out, M=m, N=n, K=k, x_row=x.stride(0), w_row=w.stride(0), out_row=out.stride(0),
        GROUP=config.group_m, EVEN_K=k % config.block_k == 0, **config.arguments,
    )  # fmt: skip
    return KernelLaunch(tiled_kernel, (rows * columns,), args)


matmul: Kernel[Config] = Kernel(
    name="tiled", require=require, prepare=prepare,
)  # fmt: skip
"""out[M, N] = x[M, K] @ w[N, K].T in bf16, fp16 or fp32, any row strides."""
