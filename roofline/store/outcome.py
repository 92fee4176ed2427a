"""The outcome of a case that has no number: one type from a contender's check to the report."""

from dataclasses import dataclass

SKIPPED, FAILED, NOT_RUN = "skipped", "failed", "not_run"
"""It cannot run here; it is wrong, or has crashed; its turn never came."""


@dataclass(frozen=True)
class Outcome:
    """Why a case has no number."""

    outcome: str
    """`SKIPPED`, `FAILED` or `NOT_RUN`."""
    reason: str
    case: str = ""
    """Its id, once that is known: a runner's check need not name it."""
