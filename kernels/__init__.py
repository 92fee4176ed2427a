"""Matmul kernels behind one contract: out[M, N] = x[M, K] @ w[N, K].T.

`matmul(x, w)` picks one of ours for the shape; `CONTENDERS` holds ours and the yardsticks by name. Read
`kernels/contract.py` for the promise, then `kernels/tiled.py` for a kernel. Without Triton (it is built for Linux) the
vendors still work, and ours say that it is missing; `warpgroup` says so too where this Triton has no Gluon.
"""

from importlib.util import find_spec

from kernels import vendor
from kernels.contract import CONTENDERS, Contender, matmul, register_absent

if find_spec("triton"):
    from kernels import decode, persistent, tiled

    try:
        from kernels import warpgroup
    except ImportError as error:  # Gluon is experimental: a release may move what another had
        if not (error.name or "").startswith("triton.experimental"):
            raise
        register_absent("warpgroup", why=f"this Triton lacks a part of Gluon: {error}; take 3.6, 3.7 or 'persistent'")
else:
    register_absent("persistent", "tiled", "decode", "warpgroup")

__all__ = ["CONTENDERS", "Contender", "decode", "matmul", "persistent", "tiled", "vendor", "warpgroup"]
