"""The matmul of the layer `down`, whose product is summed over the ranks and scattered over its rows while it is
computed.

As many bytes come and go as before the layer `up`, for as many FLOP, so the degrees are those of the all-gather matmul;
by default the one above the exercise's balance, over two links, and the greatest.
"""

import math
from dataclasses import dataclass

from roofline.operations.gathering import Gathering, Part, Sweep, declare

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


def parts(sweep: Sweep, middle: int) -> list[Part]:
    """The parts of the sweep, in the order of the run."""
    rows = tuple(m for m in sweep.rows if m % math.lcm(*sweep.ranks) == 0)
    wires = tuple(wire for wire in sweep.wires if wire not in PULLED)
    if not sweep.more_wires:  # something was chosen
        return [Part(sweep.ranks, wires, sweep.tp, rows)]
    return [
        Part(sweep.ranks, wires, (middle, max(sweep.tp)), rows),
        Part(sweep.ranks, sweep.more_wires[:1], (middle,), rows),
    ]


OPERATION = declare(
    MatmulReduceScatter,
    parts,
    "matmul_reduce_scatter-xxl/16-down-p8-tp16-m4096-fp32-ridge-block_launches",
    peer_wire="nccl",
)
