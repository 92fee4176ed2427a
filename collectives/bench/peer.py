"""The peer of the arms: torch's fused operator, by the same ranks on the same operands.

It brings its own transfers, whatever the wire of the case: its time stands beside the arms', and no hidden fraction.
"""

import math
from collections.abc import Callable
from functools import partial

import torch

from collectives.bench.operands import by_turns
from collectives.transfers import Preset
from roofline.theory.arms import PEER
from roofline.worker.prepared import TOLERANCE, Entrant, Rejection, verdict


def entrant(operator: Callable, setting) -> Entrant | Rejection:
    """The peer, if it is right twice on each set of operands of `setting`; else why it is not taken.
    `operator(operands, ranks)`, of `collectives.peer`, returns the result."""
    case, ranks = setting.case, setting.ranks

    def checked(operands, link) -> None:
        torch.set_deterministic_debug_mode("warn")  # memory is handed out full of NaN
        try:
            operands.out.copy_(operator(operands, ranks))
        finally:
            torch.set_deterministic_debug_mode("default")

    error, where = setting.worst_error(checked, Preset(), 2 * setting.sets)
    # Each of P chunks rounds the sum once more, the first ones while it is small.
    limit = TOLERANCE[case.dtype] * math.sqrt((case.ranks + 1) / 2)
    call = by_turns([partial(operator, operands, ranks) for operands in setting.sets], setting.device)
    config = f"torch {torch.__version__}, sums in {case.dtype}"
    facts = {"link": f"fabric of {case.ranks} GPUs"}
    look = setting.look_at(call, limit, lambda operands, result: result)
    return verdict(PEER, error, case.dtype, limit, where) or Entrant(PEER, call, "", config, error, facts, look=look)
