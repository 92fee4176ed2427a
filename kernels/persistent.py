"""The matmul for Hopper at compute-bound M: TMA descriptors, one program per SM, subtiled epilogue.

out[M, N] = x[M, K] @ w[N, K].T. Host-made descriptors let the TMA unit copy whole blocks, so that no thread computes
addresses; it reads zeros outside the matrices, which covers ragged M, N and K. As many programs as there are SMs stay
for the whole kernel and take tile after tile. The epilogue is stored in two halves: that halves its shared memory, and
128x256x64 gets a fourth stage into the 232,448 bytes of a Hopper SM (4 stages need 262,176 bytes with a whole epilogue,
229,408 with a halved one).

Wins at M of a few hundred and more in bf16 and fp16, where the tensor cores need the reuse of a 128x256 tile; the model
of kernels.waves chooses tile, group and raster. Loses at small M, where the weights are read once and a tile of 64 rows
is mostly padding; and where the last wave is nearly empty: it takes as long as a full one. Needs rows of a multiple of
16 bytes. Descriptors are encoded anew at each launch, which costs tens of microseconds of host time.

Sources: the persistent grid and the fourth stage are those of Triton's persistent matmul tutorial and of
https://github.com/meta-pytorch/tritonbench/pull/1149; grouping after the L2 model of DeepGEMM (heuristics/sm90.hpp), by
which 132 SMs read the fewest rows per wave with groups of 16 for 128x256 and of 8 for 256x128.
"""

# ruff: noqa: N803 (kernel arguments: sizes and compile-time constants in capitals, as Triton code has them)

from dataclasses import dataclass
from functools import partial
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from kernels import hopper, tiles
from kernels.contract import Kernel, KernelLaunch, Scales, scale_arguments
from kernels.hopper import describe
from kernels.tiled import place_of


@dataclass(frozen=True)
class Config(tiles.Config):
    """A tile, and the order in which programs that stay take tiles."""

    flatten: bool = False  # one loop over tiles and K, so that loads start under the store before them
    raster: str = "m"  # the dimension along which tiles are grouped, "m" or "n"

    def own_words(self) -> list[str]:
        return ["flatten"] * self.flatten + ["raster-n"] * (self.raster == "n")


@triton.jit
def tile_corner(
    tile, tiles_m, tiles_n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP: tl.constexpr, ALONG_N: tl.constexpr
):
    """The first row and column of a tile. GROUP tiles along M (or N) share one sweep along the other dimension."""
    if ALONG_N:
        n, m = place_of(tile, tiles_n, tiles_m, GROUP)
    else:
        m, n = place_of(tile, tiles_m, tiles_n, GROUP)
    return m * BLOCK_M, n * BLOCK_N


@triton.jit
def begin_of(program, even, more):
    """The first step of a program, or of a gang, where the first `more` have one step more than `even`."""
    return program * even + tl.minimum(program, more)


@triton.jit
def program_of(step, even, more):
    """The program, or the gang, that has a step."""
    longer = more * (even + 1)
    return tl.where(step < longer, step // (even + 1), more + (step - longer) // tl.maximum(even, 1))


@triton.jit
def accumulate(acc, a_desc, b_desc, a0, b0, k0):
    """acc + a @ b.T for the blocks of a and b at rows a0.. and b0.., columns k0..."""
    a = a_desc.load([a0, k0])
    b = b_desc.load([b0, k0])
    return tl.dot(a, b.T, acc, input_precision="ieee")


@triton.jit
def product(
    x_desc, w_desc, m0, n0, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr
):  # fmt: skip
    """The sums of the tile of out at rows m0.. and columns n0.., along all of K."""
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k0 in range(0, K, BLOCK_K):
        acc = accumulate(acc, x_desc, w_desc, m0, n0, k0)
    return acc


@triton.jit
def scaled(acc, x_scales_ptr, w_scales_ptr, m0, n0, M, N):
    """Sums of fp8 times the scales of their rows of x and of w."""
    m = m0 + tl.arange(0, acc.shape[0])
    n = n0 + tl.arange(0, acc.shape[1])
    x_scales = tl.load(x_scales_ptr + m, mask=m < M, other=0.0)
    w_scales = tl.load(w_scales_ptr + n, mask=n < N, other=0.0)
    return acc * x_scales[:, None] * w_scales[None, :]


@triton.jit
def store_tile(out_desc, acc, m0, n0, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SUBTILE: tl.constexpr):
    """Round a tile's sums to the output's dtype and store them, in SUBTILE parts."""
    if SUBTILE == 1:
        out_desc.store([m0, n0], acc.to(out_desc.dtype))
    else:
        # Columns to the front, cut in two. A half is rounded and staged in shared memory while the other stays in
        # registers.
        halves = tl.permute(tl.reshape(acc, (BLOCK_M, 2, BLOCK_N // 2)), (0, 2, 1))
        left, right = tl.split(halves)
        out_desc.store([m0, n0], left.to(out_desc.dtype))
        out_desc.store([m0, n0 + BLOCK_N // 2], right.to(out_desc.dtype))


@triton.jit(do_not_specialize=["M"])  # M differs from shape to shape
def persistent_kernel(
    x_desc, w_desc, out_desc, x_scales_ptr, w_scales_ptr, M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr, ALONG_N: tl.constexpr, SUBTILE: tl.constexpr, FLATTEN: tl.constexpr,
):  # fmt: skip
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    # Program p takes tiles p, p + programs, ...: tiles that run at a time stay close together, as in a grid of
    # single tiles.
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0), flatten=FLATTEN):
        m0, n0 = tile_corner(tile, tiles_m, tiles_n, BLOCK_M, BLOCK_N, GROUP, ALONG_N)
        acc = product(x_desc, w_desc, m0, n0, K, BLOCK_M, BLOCK_N, BLOCK_K)
        if x_scales_ptr is not None:
            acc = scaled(acc, x_scales_ptr, w_scales_ptr, m0, n0, M, N)
        store_tile(out_desc, acc, m0, n0, BLOCK_M, BLOCK_N, SUBTILE)


def prepare(
    x: Tensor, w: Tensor, out: Tensor, config: Config, scales: Scales | None = None, kernel: Any = persistent_kernel
) -> KernelLaunch:
    """The launch for checked, non-empty tensors, of this kernel or another with the same arguments."""
    if config.subtile not in (1, 2):
        raise ValueError(f"subtile={config.subtile}, the epilogue is stored in 1 or 2 parts; change the configuration")
    (m, k), n = x.shape, w.shape[0]
    rows, columns = config.tile_counts(m, n)
    order = dict(GROUP=config.group_m, ALONG_N=config.raster == "n", FLATTEN=config.flatten)
    args = tile_arguments(x, w, out, config) | scale_arguments(scales) | dict(M=m, N=n, K=k) | order
    return KernelLaunch(kernel, (min(hopper.programs(x.device), rows * columns),), args)


def tile_arguments(x: Tensor, w: Tensor, out: Tensor, config: tiles.Config) -> dict[str, Any]:
    """The arguments of every kernel that loads and stores tiles by TMA: descriptors, and the configuration."""
    return dict(
        x_desc=describe(x, (config.block_m, config.block_k)),
        w_desc=describe(w, (config.block_n, config.block_k)),
        out_desc=describe(out, (config.block_m, config.block_n // config.subtile)),
        SUBTILE=config.subtile,
        **config.arguments,
    )


matmul: Kernel[Config] = Kernel(
    name="persistent", require=partial(hopper.require, "persistent"),
    prepare=prepare, variants=lambda config: [config.changed(flatten=flatten) for flatten in (False, True)],
)  # fmt: skip
"""out[M, N] = x[M, K] @ w[N, K].T in bf16, fp16 or fp8 (fp32 in the interpreter)."""
