"""The pace of a case's wire: the bandwidth that its links are asked for, by the time of the unsplit matmul."""

from dataclasses import dataclass, field
from statistics import median

from collectives.bench.operands import chip_flops, copy_bytes_per_s
from roofline.operations.gathering import Gathering
from roofline.theory import wires
from roofline.theory.models import parse as parse_model

UNTIMED_BYTES_PER_S = 1e9
"""The bandwidth of the link in a test that is not timed."""


@dataclass
class Pace:
    case: Gathering
    t_gemm_s: float
    """About the time of the fastest unsplit matmul."""
    bytes_per_s: float | None
    """What the links are asked for; None where that is not ours to choose."""
    links: list = field(default_factory=list)
    """Those that are made, which keep this pace."""
    gemms_s: list[float] = field(default_factory=list)

    def keep_step(self, gemm_s: float) -> None:
        """Note that the fastest unsplit matmul took so long, and give the wire `ridge` the pace of the median. That is
        over the rounds of this process, and what was known before as one more: a few calls at one moment may fall on
        busy neighbours, or on idle ones."""
        self.gemms_s.append(gemm_s)
        self.t_gemm_s = median(self.gemms_s)
        self.bytes_per_s = wires.parse(self.case.wire).value * self.case.work.wire_bytes / self.t_gemm_s
        for link in self.links:
            link.bytes_per_s = self.bytes_per_s


def asked_of(case, options, t_gemm_s: float) -> float | None:
    """The bandwidth that the wire of `case` asks for, by the time of its fastest unsplit matmul."""
    wire = wires.parse(case.wire)
    if wire.kind in wires.LINKS:
        return None
    if not options.timed:
        return UNTIMED_BYTES_PER_S
    if pinned := dict(options.wires_of).get(case.id):
        return pinned
    model = parse_model(case.model)
    rows = max(options.gather.rows, default=case.m)
    known = {
        "chip_flops": chip_flops(options.device, case.dtype, rows, -(-model.d_ff // 4), model.d_model),
        "t_gemm_s": t_gemm_s,
        "wire_bytes": case.work.wire_bytes,
    }
    if wire.kind == "memory":
        known["copy_bytes_per_s"] = copy_bytes_per_s(options.device)
    return wire.bytes_per_s(**known)
