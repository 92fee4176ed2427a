"""The matmul of the layer `down`, whose product is summed over the ranks and scattered over its rows while it is
computed.

As many bytes come and go as before the layer `up`, for as many FLOP, so the degrees are those of the all-gather matmul;
by default the one above the exercise's balance, over two links, and the greatest.
"""

import math
from dataclasses import dataclass, replace

from roofline.operations.gathering import Gathering, Sweep, declare

PULLED = ("symmetric", "preset")
"""The links by which a rank sends no part: symmetric memory is pulled, from where none lies yet."""


@dataclass(frozen=True)
class MatmulReduceScatter(Gathering):
    """out[m / P, n] on each rank is the sum over ranks of x[m, k] @ w[n, k].T: each sends and receives P - 1 parts.

    >>> case = MatmulReduceScatter("xxl", "down", tp=8, m=8192, dtype="bf16", ranks=8, wire="balance2750")
    >>> case.work.wire_intensity == case.k * 8 / 7  # m and n cancel
    True
    """

    op, layers, gathered, sharded = "matmul_reduce_scatter", ("down",), ("m", "n"), "m"

    @staticmethod
    def swept(sweep: Sweep) -> Sweep:
        """Without rows that the ranks do not share, and links by which none sends."""
        rows = tuple(m for m in sweep.rows if m % math.lcm(*sweep.ranks) == 0)
        wires = tuple(wire for wire in sweep.wires if wire not in PULLED)
        return replace(sweep, rows=rows, wires=wires)


OPERATION = declare(
    MatmulReduceScatter,
    "matmul_reduce_scatter-xxl/16-down-p8-tp16-m4096-fp32-ridge-block_launches",
    peer_wire="nccl",
)
