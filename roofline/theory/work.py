"""The work of a case: its FLOP and its bytes, declared once. Times and rates are not known here.

A multiply-add counts as two FLOP. Device bytes count each input read once and each output written once, the least that
any kernel has to move. Wire bytes are what one rank receives over the interconnect.
"""

import math
from dataclasses import dataclass

ITEMSIZE = {"bf16": 2, "fp16": 2, "fp32": 4, "fp8": 1, "fp8_block": 1}
"""Bytes of one element, by the name that options and case ids use. `fp8` is e4m3 with scales by row, `fp8_block` by
block, both of matmuls alone, whose results are bf16."""

SCALE_BYTES = 4
"""Size of the fp32 scale that a row or block in fp8 has."""

SCALE_BLOCK = 128
"""Elements along N and K that share a scale by block."""


def peak_dtype(dtype: str) -> str:
    """The dtype by whose name a chip's peak for `dtype` is known."""
    return "fp8" if dtype == "fp8_block" else dtype


Count = int | float
"""Whole in the suite; an operation of a user's may halve one."""


@dataclass(frozen=True)
class Work:
    """FLOP and bytes of one call."""

    flop: Count
    device_bytes: Count
    wire_bytes: Count = 0
    spilled_bytes: Count = 0
    """Accumulators that a schedule writes to device memory and reads back, beyond what the case must move."""

    @property
    def device_intensity(self) -> float:
        """FLOP per byte of device memory, with what is spilled; infinite where no byte moves."""
        moved = self.device_bytes + self.spilled_bytes
        return self.flop / moved if moved else math.inf

    @property
    def wire_intensity(self) -> float:
        """FLOP per byte that one rank receives; infinite where none comes over the wire."""
        return self.flop / self.wire_bytes if self.wire_bytes else math.inf
