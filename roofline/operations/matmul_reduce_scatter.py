"""The matmul of the layer `down`, whose product is summed over the ranks and scattered over its rows while it is
computed.

As many bytes come and go as before the layer `up`, for as many FLOP, so the degrees are those of the all-gather matmul;
by default the one above the exercise's balance, over two wires, and the greatest.
"""

from dataclasses import dataclass
from functools import partial

from roofline.operations.gathering import Gathering, cases, declare, exercise, middle
from roofline.theory.wires import LINKS

PUSHED = "gloo", "nccl"
"""The links of which a rank sends its parts; symmetric memory is pulled, from where no part lies yet."""


@dataclass(frozen=True)
class MatmulReduceScatter(Gathering):
    """out[m / P, n] on each rank is the sum over ranks of x[m, k] @ w[n, k].T: each sends and receives P - 1 parts.

    >>> case = MatmulReduceScatter("xxl", "down", tp=8, m=8192, dtype="bf16", ranks=8, wire="balance2750")
    >>> case.work.wire_intensity == case.k * 8 / 7  # m and n cancel
    True
    """

    op, of_layer, gathered, sharded = "matmul_reduce_scatter", "down", ("m", "n"), "m"


def sweep(options) -> list[MatmulReduceScatter]:
    """Return every case asked for, in the order of the run."""
    of, cases_chosen = options.gather, []
    rows = [m for m in of.rows if all(m % ranks == 0 for ranks in of.ranks)]
    wires = [wire for wire in of.wires if wire not in LINKS or wire in PUSHED]
    for dtype in options.dtypes:
        choose = partial(cases, MatmulReduceScatter, options.model, dtype, rows)
        cases_chosen += (of_degrees := choose(of.tp, of.ranks, wires))
        if of.more_wires:  # nothing was chosen
            degrees = middle(of_degrees, exercise(options.model, dtype))
            cases_chosen = [case for case in cases_chosen if case.tp in (*degrees, max(of.tp))]
            cases_chosen += choose(degrees, of.ranks, of.more_wires[:1])
    return cases_chosen


OPERATION = declare(
    MatmulReduceScatter, sweep, "matmul_reduce_scatter-xxl/16-down-p8-tp16-m4096-fp32-ridge-block_launches"
)
