"""The GPUs that kernels are compiled for, and what each holds.

Sources: CUDA C++ Programming Guide, Technical Specifications per Compute Capability; for the number of SMs the data
sheets of A100, A40, L40S and H100.
"""

from typing import NamedTuple


class Sm(NamedTuple):
    """A streaming multiprocessor, and how many of them the GPU has."""

    count: int
    warps: int
    ctas: int
    shared_bytes: int


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
