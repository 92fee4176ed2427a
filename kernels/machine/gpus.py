"""The GPUs that kernels are compiled for, and what each holds.

Sources: CUDA C++ Programming Guide, Technical Specifications per Compute Capability; for the number of SMs the data
sheets of A100, A40, L40S and H100.
"""

from typing import Any, NamedTuple


class Sm(NamedTuple):
    """A streaming multiprocessor, and how many of them the GPU has."""

    count: int
    warps: int
    ctas: int
    shared_bytes: int

    def resident(self, program: Any, registers: int) -> int:
        """The number of a program's CTAs that the GPU holds at a time. `registers`: those of a thread."""
        of_warp = -(-32 * registers // REGISTERS_AT_ONCE) * REGISTERS_AT_ONCE
        warps = min(self.warps, REGISTERS // of_warp)
        fitting = min(self.ctas, warps // program.warps, self.shared_bytes // (program.shared_bytes + RESERVED))
        return max(self.count * fitting // program.cluster, 1) * program.cluster


def capability(arch: str) -> int:
    if arch not in ARCHITECTURES:
        raise ValueError(f"arch {arch!r}: it is one of {', '.join(ARCHITECTURES)}")
    return ARCHITECTURES[arch]


ARCHITECTURES = {"sm_80": 80, "sm_86": 86, "sm_89": 89, "sm_90": 90, "sm_90a": 90}
SMS = {
    80: Sm(108, 64, 32, 167_936),
    86: Sm(84, 48, 16, 102_400),
    89: Sm(142, 48, 24, 102_400),
    90: Sm(132, 64, 32, 233_472),
}
RESERVED = 1024  # bytes of each CTA's shared memory that the system takes
REGISTERS = 65_536  # of each SM
REGISTERS_AT_ONCE = 256  # the unit in which a warp is given registers
