"""What a kernel may do wrong, by the kinds of verdicts; and that the machine lacks something."""

from typing import Any


class FaultError(Exception):
    """A kernel does something that the hardware leaves undefined. `kind` is what a verdict calls it.

    `byte` is the byte that the fault is about, if it is about one. `memory` is what it counts in: shared memory, or an
    array of global memory; where it is None, `byte` is an address. `agent` is the one that the access conflicts with.
    """

    kind = "misuse"

    def __init__(self, message: str, memory: Any = None, byte: int | None = None, agent: int | None = None):
        super().__init__(message)
        self.message = message
        self.memory = memory
        self.byte = byte
        self.agent = agent


class RaceError(FaultError):
    """Two accesses conflict, and nothing orders them."""

    kind = "race"


class LanesError(FaultError):
    """Lanes of one warp rely on a shuffle or a vote, which order no accesses to memory."""

    kind = "lanes"


class UninitialisedError(FaultError):
    """The kernel reads memory that nobody wrote."""

    kind = "uninitialised"


class BoundsError(FaultError):
    """An address lies outside of the memory that it is for, or is not aligned as it must be."""

    kind = "bounds"


class BarrierError(FaultError):
    """A barrier or an mbarrier is used as it must not be."""

    kind = "barrier"


class AssertError(FaultError):
    """The kernel itself says that something is wrong."""

    kind = "assert"


class TmaError(FaultError):
    """TMA is given what it cannot take, or is not waited for."""

    kind = "tma"


class StuckError(FaultError):
    """No warp can go on, or one goes on for ever."""

    kind = "hang"


class UnknownError(Exception):
    """The PTX has something that this machine does not know: it refuses to guess."""
