"""The peers of the arms: torch's fused operators and gloo's reduce-scatter, by the same ranks on the same operands.

They bring their own transfers, whatever the wire of the case: their time stands beside the arms', and no hidden
fraction.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from collectives import peer
from collectives.bench import arms
from kernels.bench import checks
from roofline.measure.prepared import SKIPPED, TOLERANCE, Entrant, PreparedCase, Rejection, verdict
from roofline.measure.ranks import ALONE


@dataclass(frozen=True)
class Peer:
    """`call(operands, ranks)` returns the result."""

    name: str
    why_not: Callable
    call: Callable
    link: str
    """What it runs over, of so many ranks."""


FUSED_GATHER = Peer(
    "symm_mem", peer.why_not,
    lambda operands, ranks: peer.fused_all_gather_matmul(
        operands.shards[ranks.rank], operands.w, ranks.world.group.group_name
    ),
    "fabric of {} GPUs",
)  # fmt: skip
FUSED_SCATTER = Peer(
    "symm_mem", functools.partial(peer.why_not, name="fused_matmul_reduce_scatter"),
    lambda operands, ranks: peer.fused_matmul_reduce_scatter(operands.x, operands.w, ranks.world.group.group_name),
    "fabric of {} GPUs",
)  # fmt: skip
GLOO_SCATTER = Peer(
    "gloo_reduce_scatter",
    lambda ranks: "it takes ranks: start torchrun --nproc-per-node N -m pytest" if ranks is ALONE else None,
    lambda operands, ranks: peer.gloo_reduce_scatter(operands, ranks.group),
    "gloo's reduce-scatter between {} ranks, an all-reduce",
)  # fmt: skip


def tolerance(dtype: str, ranks: int) -> float:
    """Each of P chunks rounds the sum once more, the first ones while it is small: sqrt((P + 1) / 2) times the error
    that one rounding leaves."""
    return TOLERANCE[dtype] * math.sqrt((ranks + 1) / 2)


class Runner(arms.Runner):
    """Runs arms, and beside them their `peers`."""

    peers: tuple[Peer, ...]

    def enter(self, prepared: PreparedCase, setting, name: str) -> None:
        peer_called = {peer.name: peer for peer in self.peers}.get(name)
        if not peer_called:
            super().enter(prepared, setting, name)
        elif reason := peer_called.why_not(setting.ranks):
            prepared.rejected[name] = Rejection(SKIPPED, f"{name}: {reason}")
        else:
            self.together(prepared, name, functools.partial(_checked, peer_called, setting))


def _checked(peer_called: Peer, setting) -> Entrant | Rejection:
    case, ranks, errors = setting.case, setting.ranks, []
    runs = [functools.partial(peer_called.call, operands, ranks) for operands in setting.sets]
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
    config, facts = f"torch {torch.__version__}, sums in {case.dtype}", {"link": peer_called.link.format(case.ranks)}
    refused = verdict(peer_called.name, error, case.dtype, tolerance(case.dtype, case.ranks))
    return refused or Entrant(peer_called.name, arms.Call(runs, setting.device, None), "", config, error, facts)
