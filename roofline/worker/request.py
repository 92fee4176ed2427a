"""What a supervisor asks of a share, and the steps that a share tells."""

import signal
from dataclasses import dataclass, field
from enum import StrEnum


class Kind(StrEnum):
    """What a share does."""

    HELLO = "hello"
    CHECK = "check"
    MEASURE = "measure"
    NAMES = "names"


class Step(StrEnum):
    """What a share is at, as it tells in `at`."""

    START = "start"
    IDLE = "look at the idle device"
    CEILINGS = "ceilings"
    PREPARE = "preparation"
    CALL = "first call"
    TURNS = "turns"
    RECHECK = "second check"
    STEADY = "steady block"


class EndOfShare(BaseException):
    """The share cannot, or shall not, go on: nobody who takes a contender's errors takes this one."""


class Stopped(EndOfShare):
    """The supervisor wants no more of the share, or is gone."""


def interrupt(number: int, frame) -> None:
    """The end of the run by a signal, as its handler raises it: named, so that nobody takes it for a contender's."""
    raise KeyboardInterrupt(signal.Signals(number).name)


def is_of_contender(error: BaseException) -> bool:
    """Whether what a contender's code raised is its own, an Exception or not: all but the end of the share, and of the
    run by a signal, whose name is the argument. A share ignores Ctrl-C, so that one without a name is the contender's.
    """
    if isinstance(error, EndOfShare):
        return False
    if isinstance(error, KeyboardInterrupt):
        is_ours = bool(error.args) and error.args[0] in signal.Signals.__members__
        return not is_ours and signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    return True


@dataclass(frozen=True)
class Request:
    """What a share is to do. All of it is plain values, so that it can be sent."""

    kind: str
    options: dict
    """As the metadata of the run has them."""
    cases: dict[str, list[str]]
    """Shape -> its contenders."""
    runners: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Operation -> its runner and its case, as `package.module:Class` or `FILE::Class`."""
    path: list[str] = field(default_factory=list)
    """Where Python looks for modules."""
    refused: dict[str, str] = field(default_factory=dict)
    """Case -> why it has failed before: a baseline comes along unasked."""
    chosen: dict[str, dict] = field(default_factory=dict)
    """Shape -> what an earlier share chose for it, as `worker.runner.Runner.earlier` has it."""
    entrants: dict[str, list[str]] = field(default_factory=dict)
    """Shape -> who is still in, of one that an earlier share measured."""
    passes: dict[str, int] = field(default_factory=dict)
    """Shape -> how many times to come back to it."""
    process: int = 0
    """Number of this share among those that measure."""
    processes: int = 1
    """How many share the passes of a shape."""
    ceilings: list[dict] = field(default_factory=list)
    """Those that were measured before."""
    when: str = ""
    """What the ceilings that this share measures are journalled under; empty where it measures none."""
    world: dict = field(default_factory=dict)
    """Of ranks, as `worker.ranks.of_share` takes it."""
