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
        case, ranks, errors = setting.case, setting.ranks, []
        if reason := self.why_not(ranks):
            return Rejection(SKIPPED, f"{self.name}: {reason}")
        runs = [partial(self.call, operands, ranks) for operands in setting.sets]
        for operands, run in 2 * list(zip(setting.sets, runs, strict=True)):
            operands.out.fill_(math.nan)
            torch.set_deterministic_debug_mode("warn")  # memory is handed out full of NaN
            try:
                out = run()
            finally:
                torch.set_deterministic_debug_mode("default")
            if ranks.world:
                torch.cuda.synchronize()
            errors.append(checks.error_of(out, checks.reference_sums(*setting.whole(operands))))
        error = checks.worst(errors)
        config, facts = f"torch {torch.__version__}, sums in {case.dtype}", {"link": self.link.format(case.ranks)}
        return verdict(self.name, error, case.dtype, tolerance(case.dtype, case.ranks)) or Entrant(
            self.name, Call(runs, setting.device), "", config, error, facts
        )


def tolerance(dtype: str, ranks: int) -> float:
    """Each of P chunks rounds the sum once more, the first ones while it is small: sqrt((P + 1) / 2) times the error
    that one rounding leaves."""
    return TOLERANCE[dtype] * math.sqrt((ranks + 1) / 2)


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
