"""The all-gather matmul of the layer `up`: every rank's share of the activations is gathered while it is multiplied.

Tensor-parallel degrees run from one side of the balance to the other, and where the default wire is taken, one degree
above it is measured over further wires and with further ranks too; and some with as many ranks as the degree.
"""

from dataclasses import dataclass
from functools import partial

from roofline.operations.gathering import Gathering, cases, declare, exercise, middle


@dataclass(frozen=True)
class AllGatherMatmul(Gathering):
    """x[m, k] is sharded over its columns, the summed dimension: every tile of `out` needs every rank's chunk.

    >>> case = AllGatherMatmul("xxl", "up", tp=8, m=8192, dtype="bf16", ranks=8, wire="balance2750")
    >>> case.id
    'all_gather_matmul-xxl-up-p8-tp8-m8192-bf16-balance2750'
    >>> case.work.wire_intensity == case.n * 8 / 7  # m and k cancel
    True
    """

    op, gathered, sharded = "all_gather_matmul", ("m", "k"), "k"


def sweep(options) -> list[AllGatherMatmul]:
    """Return every case asked for, in the order of the run."""
    gather, cases_chosen = options.gather, []
    for dtype in options.dtypes:
        choose = partial(cases, AllGatherMatmul, options.model, dtype, gather.rows)
        own = choose(gather.tp, gather.ranks, gather.wires)
        degrees = middle(own, exercise(options.model, dtype))
        cases_chosen += (
            own + choose(degrees, gather.ranks, gather.more_wires) + choose(degrees, gather.more_ranks, gather.wires)
        )
        cases_chosen += choose([max(gather.tp, default=1)], gather.ranks, gather.widest_wires)
        cases_chosen += [case for tp in gather.own_ranks for case in choose([tp], [tp], gather.wires)]
    return cases_chosen


OPERATION = declare(AllGatherMatmul, sweep, "all_gather_matmul-xxl-up-p8-tp8-m8192-bf16-balance2750-row_block")
