"""The matmul of `kernels.warpgroup` by pairs of SMs: clusters of two CTAs with tiles of the same columns of w.

out[M, N] = x[M, K] @ w[N, K].T. It is the same kernel. A cluster has twice the rows of a tile. The first 128 are those
of the first consumer of both CTAs, 64 in each, the next 128 those of the second. Each CTA loads its own rows of x. The
first one loads w, by a multicast of TMA into the same stage of both, once all four consumers have read that stage: they
arrive at a third mbarrier of the stage, `both`, which lies in the first CTA. So a step of 128x256x64 takes 32 KiB from
L2 and not 48. Triton makes the barriers of the cluster, behind the mbarriers' initialisation.

Nobody has timed it. It should win where a wave waits for L2, or where the power that L2 takes would clock a GPU down.
For other kernels gains of some 0.6 to 3 % are published (fast.cu, 777 to 799 TFLOP/s, with other changes at the same
time; Triton's TLX, 672 to 676). It should lose at 128 rows or fewer, where half of each cluster has none, and wherever
sharing the last wave (`kernels.stream_k`) is worth more: a pair shares none. The registry leaves it out unless somebody
asks.

Needs Triton 3.8, the first whose mbarriers two CTAs can share.
"""

from torch import Tensor

from kernels import warpgroup
from kernels.contract import Kernel, KernelLaunch, Scales, refuse_fp8
from kernels.tiles import Config, triton_release
from kernels.warpgroup import describe, warpgroup_kernel

ROWS_PARTED, SAME = ((1, 0),), ((0, 0),)
"""The parts of a block that the CTAs of a pair have: its upper and lower half, or all of it in both."""


def require(x: Tensor, w: Tensor, out: Tensor | None = None, scales: Scales | None = None) -> None:
    """Refuse what `kernels.warpgroup.require` does; TypeError for fp8, ValueError before Triton 3.8."""
    warpgroup.require(x, w, out, scales)
    refuse_fp8("pair", x)
    if triton_release() < (3, 8):
        raise ValueError("pair needs Triton 3.8 or later, whose mbarriers can be of two CTAs; use kernels.warpgroup")


def prepare(x: Tensor, w: Tensor, out: Tensor, config: Config) -> KernelLaunch:
    """The launch for checked, non-empty tensors. `config` is that of a CTA, and the pair is its gang. Raises ValueError
    for another gang, and what `kernels.warpgroup.prepare` does."""
    if (config.gang_m, config.gang_n, config.shared_waves) != (2, 1, 0) or config.is_odd:
        raise ValueError(f"{config}, pair has gangs of 2x1, no odd width, and shares none; change the configuration")
    launch = warpgroup.prepare(x, w, out, config)
    args = launch.args | dict(
        x_desc=describe(x, (config.block_m, config.block_k), ROWS_PARTED),
        w_desc=describe(w, (config.block_n, config.block_k), SAME),
        out_desc=describe(out, (config.block_m, config.block_n // config.subtile), ROWS_PARTED),
        BLOCK_M=2 * config.block_m, gang_m=1, num_ctas=2,
    )  # fmt: skip
    return KernelLaunch(launch.kernel, (launch.grid[0] // 2,), args)


matmul = Kernel(
    name="pair", jit=warpgroup_kernel, require=require, prepare=prepare,
)  # fmt: skip
"""out[M, N] = x[M, K] @ w[N, K].T in bf16 or fp16, on a Hopper GPU."""
