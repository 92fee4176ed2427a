"""A prepared case: the entrants of one shape, checked and ready to be timed in turns, and who was rejected and why."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from roofline.host import device_errors, machine
from roofline.protocol.messages import Broken, is_of_contender
from roofline.store.outcome import FAILED, SKIPPED, Outcome
from roofline.worker import process_state
from roofline.worker.clocks import Call

TOLERANCE = {"bf16": 3e-3, "fp16": 5e-4, "fp32": 1e-5, "fp8": 1e-2, "fp8_block": 3e-3}
"""Largest relative Frobenius error against a float64 reference that still counts as right, by dtype of the operands. Of
fp8 it allows for sums of 14 bits, as Hopper's are, but by block of sums that leave the tensor cores every 128 along K
(kernels/fp8.py)."""

VENDOR_TOLERANCE = {"bf16": 1e-2, "fp16": 2e-3, "fp32": 1e-5, "fp8": 1e-2, "fp8_block": 1e-2}
"""The vendor and other libraries have these: they may split K and add up parts that are rounded to the dtype (torch's
default on a GPU). Without the vendor there is no ratio; its `relative_error` tells what others are compared at."""


def unwatched(name: str, within_s: float | None = None) -> None:
    """Do nothing before the first call of the contender `name`. A runner calls this, or another function in its place,
    which may raise what refuses the contender.

    The first call may take `within_s` seconds, or the usual, with what it compiles and its check."""


Rejection = Outcome
"""What the files of runners call an outcome: `Rejection(FAILED, reason)`."""


@dataclass
class Entrant:
    """One that takes turns in a round: a contender, an arm, or a reference beside them."""

    name: str
    call: Call
    """A plain function becomes one."""
    role: str = ""
    """Set where it is a reference for contenders: `gemm`, `link`, `preset`, `contended`; else empty."""
    config: str = ""
    relative_error: float | None = None
    facts: dict = field(default_factory=dict)
    """Further fields of its entry in the journal: plain values."""
    recheck: Callable[[], Outcome | None] | None = None
    """Once it was timed: why what it computes is no longer right, on inputs that it has not seen; None if it is."""
    costs: Callable[[], dict] | None = None
    """Once all timing is over: the bytes that a call needs, as further fields of its entry."""
    look: Callable[[object], Callable[[], str]] | None = None
    """Right behind a sample: begins to look at what the call has returned. What that returns says in words, once the
    device is done, where the result is wrong, and "" where it is not."""

    def __post_init__(self):
        if not isinstance(self.call, Call):
            self.call = Call(self.call)


def rejection(error: BaseException) -> Outcome:
    """The outcome of what raised `error`: skipped where memory or support lacks, failed if it crashed."""
    return Outcome(SKIPPED if device_errors.lack(error) else FAILED, device_errors.reason(error))


def stop_if_lost(device: str, error: BaseException, name: str = "") -> None:
    """Raise `Broken` where the `device` answers no more since `error`, which the call of `name` raised; and `error`
    again where it is none of a contender's."""
    if not is_of_contender(error):
        raise error
    if device_errors.device_lost(device):
        raise Broken(name, rejection(error)) from error


class Inputs:
    """The inputs of timed calls. By default they stay as they are."""

    def change(self) -> None:
        """Have whatever calls have read be other values from now on, in place, so that no earlier result is right."""

    def restore(self) -> None:
        """Have it be what it was, for other shapes and for checks."""


@dataclass
class PreparedCase:
    """The result of a runner's `prepare`: who may be timed, and who may not, each with a reason."""

    case: Any
    """A `roofline.operations.base.Case`, of some operation."""
    baseline: str
    """Name of the contender that the others are compared with. It is measured beside every selection."""
    device: str = "cpu"
    entrants: dict[str, Entrant] = field(default_factory=dict)
    rejected: dict[str, Outcome] = field(default_factory=dict)
    suspected: set[str] = field(default_factory=set)
    """Those of them whom others in this process may have disturbed."""
    changes: dict[str, str] = field(default_factory=dict)
    """Contender -> what it changed of the process, in words."""
    is_guarded: bool = True
    """Whether that is looked for. Arms deal out cores and threads themselves."""
    inputs: Inputs = field(default_factory=Inputs)
    facts: dict = field(default_factory=dict)
    """Further fields of the shape's line in the journal: plain values."""
    first_call: Callable[..., None] = unwatched
    analysis: str = "throughput"
    """Name of what judges it, which its operation knows."""
    has_call_costs: bool = False
    """Whether its calls are short enough for their host to matter: `worker.call_costs` looks at them."""
    cache: str = ""
    """The state of the cache that every sample starts from, in words."""

    @property
    def contenders(self) -> list[str]:
        """The names of those that were asked for, and the baseline's, as far as they are in."""
        return [name for name, entrant in self.entrants.items() if not entrant.role]

    @property
    def memory(self) -> str:
        """The memory that the operands take, and that there is for them, in words."""
        taken = self.case.sets * self.case.work.device_bytes / 1e9
        there = machine.worker_bytes(self.device) / 1e9
        return f"the operands take {taken:.3g} GB, a worker may take {there:.1f}"

    @contextmanager
    def _trying(self, name: str) -> Iterator[None]:
        """A call of `name`, which is out if it raises. Raises `Broken` where the device is lost, or the call was right
        and a setting of the process is no longer what it was; whatever else it dies of, the others still get their
        numbers."""
        try:
            with process_state.guarded(self.is_guarded) as changed:
                yield
        except BaseException as error:
            stop_if_lost(self.device, error, name)
            self.refuse(name, error)
        if changed and name in self.entrants:
            raise Broken(name, Outcome(FAILED, f"it changes {', '.join(changed)}, which others share"))

    def enter(self, name: str, check: Callable[[], Entrant | Outcome], within_s: float | None = None) -> None:
        """Admit or reject `name`, as `check()` returns, which makes its first call."""
        with self._trying(name):
            self.first_call(name, within_s)
            result = check()
            if isinstance(result, Outcome):
                self.reject(name, result, is_sure=True)
            else:
                self.entrants[name] = result

    def load(self, name: str, load: Callable[[], object]) -> None:
        """Import `name`. What that changes of the process is put back, and told; what it raises, its check will."""
        with process_state.guarded(self.is_guarded) as changed, suppress(Exception):
            load()
        if changed:
            self.changes[name] = f"{', '.join(changed)} as it was imported, which was put back"

    def call_again(self, name: str) -> None:
        """Call an entrant, which may be rejected by it."""
        with self._trying(name):
            self.entrants[name].call()
            machine.synchronize(self.device)

    def check_again(self, name: str, recheck: Callable[[], Outcome | None]) -> None:
        """Reject an entrant whose results are no longer right, now that it was timed."""
        with self._trying(name):
            try:
                if wrong := recheck():
                    self.reject(name, wrong)
            except Exception as error:
                if not device_errors.lack(error):  # of memory, by now: that says nothing of what was timed
                    raise

    def let_go(self) -> None:
        """Let go of operands that are not shared with other shapes."""
        self.entrants.clear()
        self.inputs = Inputs()

    def reject(self, name: str, outcome: Outcome, *, is_sure: bool = False) -> None:
        """Take `name` out; for good if that `is_sure`, or it is a reference, else it may be tried alone."""
        entrant = self.entrants.pop(name, None)
        self.rejected[name] = outcome
        if not (is_sure or (entrant and entrant.role)):
            self.suspected.add(name)

    def refuse(self, name: str, error: BaseException) -> None:
        """Take `name` out, which raised `error`."""
        rejected = rejection(error)
        lacking = device_errors.lack(error)
        memory = f"; {self.memory}" if lacking == "out of memory" and self.case else ""
        outcome = Outcome(rejected.outcome, f"{name}: {rejected.reason}{memory}")
        self.reject(name, outcome, is_sure=lacking == "not supported")


def verdict(name: str, error: float, dtype: str, limit: float | None = None, where: str = "") -> Outcome | None:
    """Why a result with relative Frobenius error `error` is wrong, or None. NaN is, `where` in words.
    `limit` is that of the dtype, but for one that promises less."""
    limit = limit or TOLERANCE[dtype]
    if error <= limit:
        return None
    if error != error:
        first = f"; the first is in {where}" if where else ""
        problem = f"the output holds NaN: unwritten, read out of bounds, or computed{first}"
    else:
        problem = f"relative error {error:.2e} is above {limit:.0e}, the limit for {dtype}"
    return Outcome(FAILED, f"{name}: {problem}")
