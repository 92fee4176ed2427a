"""The feed-forward layer in tensor parallelism: `up` and `down`, what is gathered before, and scattered or reduced
behind.

It has the FLOP and the bytes of an all-gather matmul and of a matmul reduce-scatter, and by default the cases of the
latter.
"""

from dataclasses import dataclass

from roofline.operations.gathering import declare
from roofline.operations.matmul_reduce_scatter import MatmulReduceScatter
from roofline.theory.work import Work


@dataclass(frozen=True)
class Ffn(MatmulReduceScatter):
    """out[m / P, n] on each rank is the sum over ranks of x[m, n] @ up[k, n].T @ down[n, k].T, of n = d_model and
    k = d_ff / tp.

    >>> case = Ffn("xxl", "up_down", tp=8, m=8192, dtype="bf16", ranks=8, wire="balance2750")
    >>> case.work.wire_intensity == case.k * 8 / 7  # as before `up` alone
    True
    """

    op, layers = "ffn", ("up_down",)
    facts = {}  # noqa: RUF012
    """It is no matmul of one n and k."""

    @property
    def gathered_bytes(self) -> int:
        """Bytes of x, which is gathered, and of the products, which are scattered."""
        return 2 * super().gathered_bytes

    @property
    def work(self) -> Work:
        layer = super().work
        return Work(2 * layer.flop, 2 * layer.device_bytes, layer.wire_bytes)


OPERATION = declare(Ffn, "ffn-xxl/16-up_down-p8-tp16-m4096-fp32-ridge-layer_launches")
