"""Matmul kernels behind one contract: out[M, N] = x[M, K] @ w[N, K].T.

`matmul(x, w)` picks one of ours for the shape; `CONTENDERS` holds ours and the baselines by name. Read
`kernels/contract.py` for the promise, then `kernels/tiled.py` for a kernel. Without Triton (it is built for Linux) the
vendors still work, and ours say that it is missing; `warpgroup` says so too where this Triton has no Gluon.
"""

from importlib.util import find_spec

from torch import Tensor

from kernels import vendor
from kernels.contract import check
from kernels.registry import CONTENDERS, KERNELS, ORDER, Contender, Kernel, register_absent

if find_spec("triton"):
    from kernels import decode, flagged, flagged_rows, persistent, signalled, tiled

    try:
        from kernels import warpgroup
    except ImportError as error:  # Gluon is experimental: a release may move what another had
        if not (error.name or "").startswith("triton.experimental"):
            raise
        register_absent("warpgroup", why=f"this Triton lacks a part of Gluon: {error}; take 3.7 to 3.9 or 'persistent'")
else:
    register_absent(*ORDER, "warpgroup")


def matmul(x: Tensor, w: Tensor, out: Tensor | None = None) -> Tensor:
    """`x[M, K] @ w[N, K].T` by one of our kernels: on a GPU the first of `kernels.registry.ORDER` that can run, where
    `decode` is for few rows; elsewhere `tiled`.

    Raises what the kernel raises: TypeError or ValueError that names the value, the limit and the way out.
    """
    out = check(x, w, out)
    able = (name for name in ORDER if x.is_cuda and CONTENDERS[name].why_not(x, w, out) is None)
    return CONTENDERS[next(able, "tiled")].run(x, w, out)


__all__ = [
    "CONTENDERS", "KERNELS", "Contender", "Kernel", "decode", "flagged", "flagged_rows", "matmul", "persistent",
    "signalled", "tiled", "vendor", "warpgroup",
]  # fmt: skip
