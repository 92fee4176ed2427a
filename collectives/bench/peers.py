"""The peers of the arms: torch's fused operators and gloo's reduce-scatter, by the same ranks on the same operands.

They bring their own transfers, whatever the wire of the case: their time stands beside the arms', and no hidden
fraction.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from collectives import peer
from collectives.bench.operands import Call
from collectives.transfers import Preset
from kernels.bench import checks
from roofline.measure.prepared import SKIPPED, TOLERANCE, Entrant, Rejection, verdict
from roofline.measure.ranks import ALONE


@dataclass(frozen=True)
class Peer:
    """`call(operands, ranks)` returns the result; `why_not(ranks)` why these ranks cannot call it, None if they can."""

    name: str
    call: Callable
    why_not: Callable
    link: str
    """What it runs over, of so many ranks."""

    def entrant(self, setting) -> Entrant | Rejection:
        """Return it, if it is right twice on each set of operands of `setting`."""
        case, ranks = setting.case, setting.ranks
        if reason := self.why_not(ranks):
            return Rejection(SKIPPED, f"{self.name}: {reason}")

        def checked(operands, link) -> None:
            torch.set_deterministic_debug_mode("warn")  # memory is handed out full of NaN
            try:
                operands.out.copy_(self.call(operands, ranks))
            finally:
                torch.set_deterministic_debug_mode("default")

        error = checks.worst([setting.relative_error(checked, Preset(), operands) for operands in 2 * setting.sets])
        # Each of P chunks rounds the sum once more, the first ones while it is small.
        limit = TOLERANCE[case.dtype] * math.sqrt((case.ranks + 1) / 2)
        call = Call([partial(self.call, operands, ranks) for operands in setting.sets], setting.device)
        config, facts = f"torch {torch.__version__}, sums in {case.dtype}", {"link": self.link.format(case.ranks)}
        return verdict(self.name, error, case.dtype, limit) or Entrant(self.name, call, "", config, error, facts)


def fused(call: Callable) -> Peer:
    """Return torch's operator that `call` is named after."""
    return Peer("symm_mem", call, partial(peer.why_not, name=call.__name__), "fabric of {} GPUs")


FUSED_GATHER = fused(peer.fused_all_gather_matmul)
FUSED_SCATTER = fused(peer.fused_matmul_reduce_scatter)
GLOO_SCATTER = Peer(
    "gloo_reduce_scatter", peer.gloo_reduce_scatter,
    lambda ranks: "it takes ranks: start torchrun --nproc-per-node N -m pytest" if ranks is ALONE else None,
    "gloo's reduce-scatter between {} ranks, an all-reduce",
)  # fmt: skip
