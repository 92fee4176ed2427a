"""FSDP's weight prefetch: the next layer's weights are gathered while this layer multiplies.

Tokens on a chip run from one side of the balance to the other.
"""

from dataclasses import dataclass, replace

from roofline.operations.gathering import Gathering, Sweep, declare


@dataclass(frozen=True)
class WeightPrefetch(Gathering):
    """FSDP: the next layer's w[n, k], sharded over its rows, is gathered while this layer's multiplies m tokens.

    >>> case = WeightPrefetch("xxl", "up", tp=1, m=2750, dtype="bf16", ranks=8, wire="balance2750")
    >>> case.work.wire_intensity == 2750 * 8 / 7
    True
    """

    op, gathered, sharded = "weight_prefetch", ("n", "k"), "n"

    @staticmethod
    def swept(sweep: Sweep) -> Sweep:
        """With degrees and tokens of its own."""
        return replace(sweep, tp=sweep.prefetch_tp, rows=sweep.tokens)


OPERATION = declare(
    WeightPrefetch,
    "weight_prefetch-xxl-up-p8-tp1-m2750-bf16-balance2750-overlapped",
)
