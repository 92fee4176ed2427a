"""Who is to blame where a worker ends other than well."""

from dataclasses import dataclass, replace

from roofline.store.outcome import FAILED, Outcome
from roofline.worker.messages import Broke, Step, StepBegan

HUNG = "hung"
"""How the reason begins of what did not end in time."""

WHERE = {
    Step.PREPARE: "while its shape was prepared",
    Step.CALL: "in its first call",
    Step.TURNS: "while it was timed",
    Step.RECHECK: "when it was checked again",
    Step.STEADY: "in a block",
}


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


def blame(
    step: StepBegan, names: list[str], how: str, *, limit: str = "", broke: Broke | None = None, rank: str = ""
) -> Blame:
    """Whose fault it is that a worker ended by `how` at `step`, or `broke`; `names` are those that it may have been at.

    `limit` says of a worker that hung how long it had.
    """
    if broke:
        names = [broke.name] if broke.name else names
        outcome = replace(broke.outcome, step=step.step, rank=rank)
        is_known = len(names) == 1 or (bool(names) and step.step == Step.PREPARE)
        return Blame(step.shape, names, outcome, is_known=is_known)
    where = WHERE.get(step.step, f"at its {step.step}")
    reason = f"{HUNG} {where}: it was not over in {limit}" if how == HUNG else f"{how}, {where}"
    is_known = len(names) == 1 and step.step != Step.PREPARE
    outcome = Outcome(FAILED, reason, step=step.step, rank=rank)
    return Blame(step.shape, names, outcome, is_known=is_known, is_death=is_known and how != HUNG)
