"""A kernel as somebody would add one: all there is to it stands here, but for its lines in the registry and a table."""

# ruff: noqa: N803

import triton
import triton.language as tl

from kernels.contract import Kernel, KernelLaunch, require_runnable, validate
from kernels.registry import Contender

ENTRY = {
    "kernel": "toy", "dtypes": ["fp16"], "m_max": None, "block_m": 64, "block_n": 128, "block_k": 64,
    "num_warps": 4, "num_stages": 3, "group_m": 1, "mma": "wgmma.m64n128k16", "measured": None,
}  # fmt: skip


@triton.jit
def toy_kernel(
    x_ptr, w_ptr, out_ptr, M, N, K, x_row, w_row, out_row,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)[:, None]
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    tl.assume(K > 0)
    for k0 in range(0, K, BLOCK_K):
        k = k0 + tl.arange(0, BLOCK_K)[None, :]
        x = tl.load(x_ptr + m * x_row + k, mask=(m < M) & (k < K), other=0.0)
        w = tl.load(w_ptr + n * w_row + k, mask=(n < N) & (k < K), other=0.0)
        acc = tl.dot(x, w.T, acc)
    tl.store(out_ptr + m * out_row + n.T, acc.to(out_ptr.dtype.element_ty), mask=(m < M) & (n.T < N))


def require(x, w, out=None):
    validate(x, w, out)
    require_runnable(toy_kernel, x)


def prepare(x, w, out, config):
    grid = -(-len(x) // config.block_m), -(-len(w) // config.block_n)
    args = dict(
        x_ptr=x, w_ptr=w, out_ptr=out, M=len(x), N=len(w), K=x.shape[1], x_row=x.stride(0), w_row=w.stride(0),
        out_row=out.stride(0), BLOCK_M=config.block_m, BLOCK_N=config.block_n, BLOCK_K=config.block_k,
        num_warps=config.num_warps, num_stages=config.num_stages,
    )  # fmt: skip
    return KernelLaunch(toy_kernel, grid, args)


matmul = Kernel(
    name="toy", jit=toy_kernel, require=require, prepare=prepare, grid=dict(num_stages=(3, 4, 12))
)  # fmt: skip
TOY = Contender(name="toy", path="toy:matmul")
