"""Who is to blame where a share ends other than well, and how long it may be at a step before it counts as hung."""

from dataclasses import dataclass

from roofline.worker.messages import Broke, Step, StepBegan
from roofline.worker.prepared import FAILED

HUNG = "hung"
"""How the reason begins of what did not end in time."""

HUNG_TIMES, RULE_TIMES = 100, 3
LIMIT_S = {
    Step.START: {"cpu": 120.0, "cuda": 180.0},  # imports, and on a GPU its context
    Step.IDLE: {"cpu": 20.0, "cuda": 30.0},
    Step.CEILINGS: {"cpu": 180.0, "cuda": 240.0},
    Step.PREPARE: {"cpu": 60.0, "cuda": 180.0},  # on a GPU also matmuls that are compiled and timed to choose one
    Step.CALL: {"cpu": 60.0, "cuda": 120.0},  # without the CPU: one that uses it has `contenders.FIRST_CALL_S`
    Step.RECHECK: {"cpu": 20.0, "cuda": 60.0},
    Step.TURNS: {"cpu": 10.0, "cuda": 20.0},
    Step.STEADY: {"cpu": 10.0, "cuda": 20.0},
}
"""Seconds that a step may take on a device. Where it is at a shape, there come to that `HUNG_TIMES` calls of the
reference for each of those that it calls, and `RULE_TIMES` the seconds that its own rule names."""

WHERE = {
    Step.PREPARE: "while its shape was prepared",
    Step.CALL: "in its first call",
    Step.TURNS: "while it was timed",
    Step.RECHECK: "when it was checked again",
    Step.STEADY: "in a block",
}


def limit_s(step: StepBegan, device: str, reference_s: float) -> float:
    """What `step` may take, where a call of the reference takes `reference_s`. A first call has seconds of its own."""
    limit = LIMIT_S[step.step][device]
    if not step.shape:
        return limit
    calls = len(step.entrants) or 1
    of_rule_s = 0.0 if step.step == Step.CALL else step.seconds or 0.0
    return limit + HUNG_TIMES * calls * reference_s + RULE_TIMES * of_rule_s


@dataclass(frozen=True)
class Blame:
    """What becomes of the cases that a share was at when it ended."""

    step: str
    shape: str
    names: list[str]
    """Contenders that may have ended it; none where it was at no shape."""
    outcome: str
    reason: str
    is_known: bool
    """Whether it was these, and not something beside them."""
    is_death: bool = False
    """Whether its process died, which another one may have caused."""


def blame(step: StepBegan, names: list[str], how: str, *, limit: str = "", broke: Broke | None = None) -> Blame:
    """Whose fault it is that a share ended by `how` at `step`, or `broke`; `names` are those that it may have been at.

    `limit` says of a share that hung how long it had.
    """
    if broke:
        names = [broke.name] if broke.name else names
        return Blame(step.step, step.shape, names, broke.outcome, broke.reason, is_known=bool(names))
    where = WHERE.get(step.step, f"at its {step.step}")
    reason = f"{HUNG} {where}: it was not over in {limit}" if how == HUNG else f"{how}, {where}"
    is_known = len(names) == 1 and step.step != Step.PREPARE
    return Blame(
        step.step, step.shape, names, FAILED, reason, is_known=is_known, is_death=is_known and how != HUNG
    )  # fmt: skip
