"""The peer of the all-gather matmul's arms: torch's fused operator, called by the same ranks on the same operands.

It brings its own transfers, whatever the wire of the case: its time stands beside the arms', and no hidden fraction.
"""

import functools
import math
from collections.abc import Callable

import torch

from collectives import peer
from collectives.bench.arms import Call
from kernels.bench import checks
from roofline.measure.prepared import SKIPPED, TOLERANCE, Entrant, PreparedCase, Rejection, verdict

NAME, WIRE = "symm_mem", "symmetric"


def names(options, wire: str = WIRE) -> list[str]:
    """The peer where ranks have GPUs, at the wire that is most like its own; or where it was asked for."""
    by_default = not options.contenders and options.device == "cuda" and options.world > 1 and wire == WIRE
    return [NAME] if options.timed and (by_default or NAME in (options.contenders or ())) else []


def tolerance(dtype: str, ranks: int) -> float:
    """Each of P chunks rounds the sum once more, the first ones while it is small: sqrt((P + 1) / 2) times the error
    that one rounding leaves."""
    return TOLERANCE[dtype] * math.sqrt((ranks + 1) / 2)


def enter(prepared: PreparedCase, setting, together: Callable) -> None:
    """Take the peer into `prepared`, or note why not. `together(check)` has all ranks make the check `check`."""
    case, ranks = prepared.case, setting.ranks
    if reason := peer.why_not(ranks):
        prepared.rejected[NAME] = Rejection(SKIPPED, f"{NAME}: {reason}")
        return

    def check() -> Entrant | Rejection:
        group, errors = ranks.world.group.group_name, []
        runs = [
            functools.partial(peer.fused_all_gather_matmul, operands.shards[ranks.rank], operands.w, group)
            for operands in setting.sets
        ]
        for operands, run in 2 * list(zip(setting.sets, runs, strict=True)):
            torch.set_deterministic_debug_mode("warn")  # memory is handed out full of NaN
            try:
                out = run()
            finally:
                torch.set_deterministic_debug_mode("default")
            ranks.world.synchronize()
            errors.append(checks.error_of(out, checks.reference_rows(*setting.whole(operands))))
        error = math.nan if any(map(math.isnan, errors)) else max(errors)
        if wrong := verdict(NAME, error, case.dtype, tolerance(case.dtype, case.ranks)):
            return wrong
        config = f"torch {torch.__version__}, {case.ranks} GPUs, sums in {case.dtype}"
        facts = {"link": f"fabric of {case.ranks} GPUs"}
        return Entrant(NAME, Call(runs, setting.device, None), config=config, relative_error=error, facts=facts)

    together(check)
