"""The peer of the all-gather matmul's arms: torch's fused operator, over as many GPUs as there are ranks.

It runs in processes of its own, over the GPUs' real fabric, and times itself there: its time stands beside the arms',
and nothing of it is compared with the emulated link.
"""

import atexit
import math

import torch

from collectives import peer
from kernels.bench.matmul import DTYPES
from roofline.measure import device_errors
from roofline.measure.prepared import FAILED, SKIPPED, TOLERANCE, Entrant, PreparedCase, Rejection, verdict

NAME = "symm_mem"

_groups: dict[int, object] = {}
"""By ranks: the group that runs, or the PeerError of its start."""


def names(options) -> list[str]:
    """The peer where there are two or more GPUs, or where it was asked for."""
    asked = NAME in (options.contenders or ())
    several = not options.contenders and options.device == "cuda" and torch.cuda.device_count() > 1
    return [NAME] if options.timed and (asked or several) else []


def tolerance(dtype: str, ranks: int) -> float:
    """Each of P chunks rounds the sum once more, the first ones while it is small: sqrt((P + 1) / 2) times the error
    that one rounding leaves."""
    return TOLERANCE[dtype] * math.sqrt((ranks + 1) / 2)


def enter(prepared: PreparedCase, seed: int) -> None:
    """Take the peer into `prepared`, or note why not."""
    case = prepared.case
    if reason := peer.why_not(case.ranks):
        prepared.rejected[NAME] = Rejection(SKIPPED, f"{NAME}: {reason}")
        return

    def check() -> Entrant | Rejection:
        try:
            group = _group(case.ranks)
            error = group.prepare(case.m, case.n, case.k, DTYPES[case.dtype], seed, 1 / math.sqrt(case.k))
        except Exception as failure:
            if isinstance(_groups.get(case.ranks), peer.PeerGroup):
                del _groups[case.ranks]  # it ran, and may again
            return Rejection(FAILED, f"{NAME}: {device_errors.reason(failure)}")
        if wrong := verdict(NAME, error, case.dtype, tolerance(case.dtype, case.ranks)):
            return wrong
        config = f"torch {torch.__version__}, {case.ranks} GPUs, bursts, sums in {case.dtype}"
        facts = {"link": f"fabric of {case.ranks} GPUs"}
        return Entrant(NAME, group, config=config, relative_error=error, facts=facts)

    prepared.enter(NAME, check, 3 * peer.START_S)  # which ends by itself, its start after that and what it prepares too


def _group(ranks: int):
    """One group for all shapes: each process takes seconds to start. One that could not is not started again: that may
    have taken `peer.START_S`. Raises the PeerError of then."""
    if ranks not in _groups:
        try:
            _groups[ranks] = peer.PeerGroup(ranks)
            atexit.register(_groups[ranks].close)
        except peer.PeerError as error:
            _groups[ranks] = error
    if isinstance(_groups[ranks], peer.PeerError):
        raise _groups[ranks]
    return _groups[ranks]
