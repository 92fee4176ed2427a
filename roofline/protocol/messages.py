"""The messages between a supervisor and a worker: a `Request`, and then one of the `MESSAGES` at a time, by a
`Channel`, as JSON.

The stages handle them by `match`, in `supervise.stages` and `supervise.measuring`.
"""

import errno
import signal
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from multiprocessing.connection import Connection

from roofline.store import typed
from roofline.store.outcome import Outcome


class Kind(StrEnum):
    """The kinds of requests."""

    HELLO = "hello"
    CHECK = "check"
    MEASURE = "measure"
    NAMES = "names"


class Step(StrEnum):
    """The steps of a worker, as it tells in `StepBegan`."""

    START = "start"
    IDLE = "look at the idle device"
    CEILINGS = "ceilings"
    PREPARE = "preparation"
    CALL = "first call"
    TURNS = "turns"
    RECHECK = "second check"
    STEADY = "steady block"


class Stopped(BaseException):
    """The supervisor wants no more of the worker, or is gone: nobody who takes a contender's errors takes this one."""


class Broken(BaseException):
    """This worker cannot go on: its device is lost, a contender changed what all share in the process, or it is out of
    step with those of other ranks. `args` are the fields of the message `Broke`."""


def interrupt(number: int, frame) -> None:
    """The end of the run by a signal, as its handler raises it: named, so that nobody takes it for a contender's."""
    raise KeyboardInterrupt(signal.Signals(number).name)


def is_of_contender(error: BaseException) -> bool:
    """True where what a contender's code raised is its own, an Exception or not: all but the end of the worker, and of
    the run by a signal, whose name is the argument. A worker ignores Ctrl-C, so one without a name is the contender's.
    """
    if isinstance(error, (Stopped, Broken)):
        return False
    if isinstance(error, KeyboardInterrupt):
        is_ours = bool(error.args) and error.args[0] in signal.Signals.__members__
        return not is_ours and signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    return True


@dataclass(frozen=True)
class Request:
    """A worker's task. All of it is plain values, so that it can be sent."""

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
    """Shape -> what an earlier worker chose for it, as `worker.runner.Runner.earlier` has it."""
    made: dict[str, dict] = field(default_factory=dict)
    """Shape -> the line of its passes by now, of one that an earlier worker measured: this one's go on from there."""
    passes: dict[str, int] = field(default_factory=dict)
    """Shape -> how many times to come back to it."""
    process: int = 0
    """Number of this worker among those that measure."""
    processes: int = 1
    """How many share the passes of a shape."""
    ceilings: list[dict] = field(default_factory=list)
    """Those that were measured before."""
    when: str = ""
    """What the ceilings that this worker measures are journalled under; empty where it measures none."""
    apart: str = ""
    """The contender that is tried alone with the baseline, if that is so."""
    is_planned: bool = True
    """Whether the plan has it; else it is for decisions."""
    world: dict = field(default_factory=dict)
    """Who this worker is among ranks, as `worker.ranks.of_worker` takes it; empty without torchrun."""


class Message:
    """A message from a worker to its supervisor. Each kind is a dataclass of plain values."""


@dataclass(frozen=True)
class StepBegan(Message):
    """The step, shape and contender that a worker is at from now on."""

    step: Step
    shape: str = ""
    name: str = ""
    """The contender that is called; empty where it is none or several."""
    entrants: list[str] = field(default_factory=list)
    """The contenders that take turns, in the order in which the mark counts them; "" in the place of a reference."""
    baseline: str = ""
    """That of the shape, where turns are taken."""
    seconds: float | None = None
    """What the contender, or the rule of the step, says that it may take."""

    @property
    def words(self) -> str:
        return f"{self.step} of {self.shape}" if self.shape else self.step


@dataclass(frozen=True)
class JournalLines(Message):
    """Lines of the journal, as they stand."""

    lines: list[dict]


@dataclass(frozen=True)
class MachineFound(Message):
    """The machine, the clock and the ranks, as a worker that only looks found them; or the `problem`."""

    fields: dict


@dataclass(frozen=True)
class ShapeChecked(Message):
    """All contenders of a shape were called, and those that are wrong rejected."""

    shape: str
    baseline_call_s: float
    """What a call of the baseline took."""
    facts: dict


@dataclass(frozen=True)
class Rejected(Message):
    """A contender gets no number."""

    shape: str
    name: str
    outcome: Outcome
    is_sure: bool = True
    """Whether no other contender in the worker can have had a part in that."""


@dataclass(frozen=True)
class Broke(Message):
    """The worker ends: the device is lost, or ranks are out of step. `name` is whose call raised, if that is known."""

    name: str
    outcome: Outcome


@dataclass(frozen=True)
class Done(Message):
    """The worker has done what it was asked for."""


LONGEST_MESSAGE, MESSAGE_S = 2**26, 5.0
"""Bytes of a message at most, and the seconds within which the rest of one comes that has begun."""
MESSAGES = {kind.__name__: kind for kind in Message.__subclasses__()}


class Channel(Connection):
    """One end. A worker goes on once what it told is acknowledged."""

    def __init__(self, plug: socket.socket, within_s: float = 0.0):
        """Reading waits for the rest of a message `within_s`, or as long as it takes."""
        plug.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", int(within_s), 0))
        super().__init__(plug.detach())

    def tell(self, message: Message) -> None:
        """Tell the supervisor, and wait until it has journalled that. Raises `Stopped` where it wants no more."""
        try:
            self.send_bytes(typed.encoded({"kind": type(message).__name__} | vars(message)))
            if self.recv_bytes():
                raise Stopped
        except (EOFError, OSError):
            raise Stopped from None

    def request(self) -> Request:
        """The task from the supervisor."""
        return typed.read(Request, typed.decoded(self.recv_bytes()))

    def ask(self, request: Request) -> None:
        """Tell the worker what it is to do."""
        self.send_bytes(typed.encoded(request))

    def receive(self) -> Message:
        """The next message. Raises OSError and EOFError once there is none to come, and ValueError for what is
        none."""
        try:
            text = self.recv_bytes(LONGEST_MESSAGE)
        except OSError as error:
            if error.errno in (None, errno.EAGAIN):  # as `recv_bytes` has it
                raise ValueError("its length is not that of a message") from None
            raise
        return typed.read_line(MESSAGES, typed.decoded(text))

    def acknowledge(self, *, stop: bool) -> None:
        """Let the worker go on, or tell it to end."""
        with suppress(OSError):
            self.send_bytes(b"stop" if stop else b"")
