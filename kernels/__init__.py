"""Matmul kernels behind one contract: out[M, N] = x[M, K] @ w[N, K].T.

`matmul(x, w)` picks one of ours for the shape, by a rule; `kernels.registry` lists ours and the baselines by name. Read
`kernels/contract.py` for the promise, then `kernels/tiled.py` for a kernel. Neither torch nor Triton is imported before
a contender is loaded. Without Triton (it is built for Linux) the vendors still work, and ours say that it is missing;
`warpgroup` says so too where this Triton has no Gluon.
"""

from kernels.registry import CONTENDERS

WARPGROUP_FROM_M = 256
"""Rows of x from which `warpgroup` is the faster on an H100; below, `persistent` has smaller tiles
(results/reference)."""


def matmul(x, w, out=None, scales=None):
    """`x[M, K] @ w[N, K].T` of torch tensors, by the kernel that `contender_for` names. In fp8 `scales` are
    (x_scales[M, 1], w_scales[1, N]), or by block (x_scales[M, K / 128], w_scales[N / 128, K / 128]).

    Raises what the kernel raises: TypeError or ValueError that names the value, the limit and the way out.
    """
    return CONTENDERS[contender_for(x, w, out, scales)].load()(x, w, out, scales)


def contender_for(x, w, out=None, scales=None) -> str:
    """The name of the contender that `matmul` takes. On a GPU that is the first that can run of `decode` (64 rows or
    fewer), `warpgroup` (256 rows or more; its last wave is cut along K where that pays), `persistent` and `tiled`;
    elsewhere it is `tiled`. With scales by block it is `warpgroup_blockwise` from 256 rows on, and `blockwise` below.
    """
    candidates = []
    if x.is_cuda:
        large = ["warpgroup", "warpgroup_blockwise"] if x.ndim == 2 and len(x) >= WARPGROUP_FROM_M else []
        candidates = ["decode", *large, "persistent", "blockwise"]
    able = (name for name in candidates if CONTENDERS[name].why_not(x, w, out, scales) is None)
    return next(able, "tiled")
