"""Who is to blame where a worker ends other than well."""

from collections.abc import Collection
from dataclasses import dataclass, replace

from roofline.store.outcome import FAILED, Outcome
from roofline.worker.messages import Broke, Step, StepBegan

WHERE = {
    Step.PREPARE: "while its shape was prepared",
    Step.CALL: "in its first call",
    Step.TURNS: "while it was timed",
    Step.RECHECK: "when it was checked again",
    Step.STEADY: "in a block",
}


HUNG, WAITS = "hung", "waits"
"""How a worker ended that came to its limit; and where others did, one that may wait for another rank."""


@dataclass(frozen=True)
class WorkerEnd:
    """How a worker ended, as ranks tell one another where it was not well."""

    step: StepBegan
    how: str = ""
    """In words, `HUNG` or `WAITS`; empty where it did what it was asked for, or told that it broke."""
    marked: int = 0
    """As `Child.marked` has it."""
    broke: Broke | None = None
    rank: str = ""
    """Whose worker it was, or those that it may have been, in words; empty without ranks."""

    @property
    def is_hung(self) -> bool:
        return self.how in (HUNG, WAITS)

    @property
    def excuse(self) -> tuple[bool, ...]:
        """How well another rank's end excuses it: who raises may have lost a peer, and who goes on may wait for one."""
        return self.how == WAITS, self.is_hung, bool(self.broke)


@dataclass(frozen=True)
class Blame:
    """What becomes of the cases that a worker was at when it ended."""

    shape: str
    names: list[str]
    """Contenders that may have ended it; none where it was at no shape."""
    outcome: Outcome
    """That of each, with the step and the rank."""
    is_known: bool
    """Whether it was these, and not something beside them."""
    is_death: bool = False
    """Whether its process died, which another one may have caused."""

    @property
    def place(self) -> str:
        """The case, where it is one, or else the shape or the step."""
        if len(self.names) == 1:
            return f"{self.shape}-{self.names[0]}"
        return self.shape or self.outcome.step

    def without(self, lost: Collection[str]) -> "Blame":
        """The same, without who has lost its row before: its case is in `lost`, and the fault goes on."""
        names = [name for name in self.names if f"{self.shape}-{name}" not in lost]
        is_known = self.is_known and bool(names)
        return replace(self, names=names, is_known=is_known, is_death=self.is_death and is_known)


def blame(end: WorkerEnd, names: list[str], limit: str) -> Blame:
    """Whose fault it is that a worker ended; `names` are those that it may have been at. `limit` says how long its step
    may take."""
    step = end.step
    is_prepared = step.step != Step.PREPARE
    if broke := end.broke:
        names = [broke.name] if broke.name else names
        outcome = broke.outcome
        is_known = len(names) == 1 or (bool(names) and not is_prepared)
    else:
        where = WHERE.get(step.step, f"at its {step.step}")
        reason = f"{end.how}, {where}"
        if end.is_hung:
            reason = f"hung {where}: it was not over in {limit}"
        outcome = Outcome(FAILED, reason)
        is_known = len(names) == 1 and is_prepared
    outcome = replace(outcome, step=step.step, rank=end.rank)
    return Blame(step.shape, names, outcome, is_known, is_death=is_known and not (end.broke or end.is_hung))
