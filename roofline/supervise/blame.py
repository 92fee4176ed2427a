"""Whose fault it may be that a worker ended other than well: where a kernel hangs, dies or loses the device. What
becomes of who is suspected, is in `supervise.apart`."""

from dataclasses import replace

from roofline.protocol.messages import Step, StepBegan
from roofline.store.outcome import FAILED, Outcome
from roofline.supervise.child import Told, WorkerEnd
from roofline.supervise.session import Session


def outcome_of(session: Session, worker: Told, end: WorkerEnd) -> Outcome | None:
    """The outcome of what a worker was at when it ended, with the step and the rank; None where it ended well, or was
    to."""
    if end.is_well or worker.is_stopped or session.end_reason or session.signals:
        return None
    step = end.step.step
    outcome = Outcome(FAILED, f"{end.how}, at its {step}")
    if end.broke:
        outcome = end.broke.outcome
    elif end.is_hung:
        option = "; --ffn-first-call-seconds sets another" if step == Step.CALL else ""
        limit = f"it was not over in {worker.limit_s:.4g} s, the limit{option}"
        outcome = Outcome(FAILED, f"hung at its {step}: {limit}; {end.stands}")
    return replace(outcome, reason=f"rank {end.rank}: {outcome.reason}") if end.rank else outcome


def suspects(session: Session, worker: Told, end: WorkerEnd) -> list[str]:
    """The contenders that may have ended a worker at a shape: whose turn or call it was, or where that is not known,
    who was alone, or who failed alone before, or all but the baseline. Who has lost the row did not: the fault goes
    on."""
    step = end.step
    at_turn = step.entrants[end.marked - 1] if step.entrants and end.marked else ""
    told = end.broke.name if end.broke else at_turn
    name = told or step.name or worker.request.apart
    names = [name] if name else _likeliest(session, step)
    return [name for name in names if step.shape and f"{step.shape}-{name}" not in session.run.outcomes]


def _likeliest(session: Session, step: StepBegan) -> list[str]:
    left = session.trials.left().get(step.shape, [])
    others = [name for name in left if name != step.baseline]
    return [*filter(session.trials.failures.get, left)] or others or left


def conclude(session: Session, worker: Told, end: WorkerEnd) -> None:
    """Suspect somebody of the end of a worker, unless it ended well. Where there is nobody, the next one makes the step
    anew, once."""
    outcome = outcome_of(session, worker, end)
    if not outcome:
        return
    shape = end.step.shape
    names = suspects(session, worker, end)
    where = end.step.words
    if session.epochs:  # which are out of step
        place = f"{shape}-{names[0]}" if len(names) == 1 else shape or end.step.step
        session.end(f"the run ends at {place}, by {outcome.reason}")
    elif end.step.step == Step.CEILINGS:
        return session.writer.note("ceilings", f"No shares of the roof: the worker ended by {outcome.reason}.")
    elif not names and f"again {where}" in session.run.notes_by_topic:
        session.end(f"workers end at their {where}: {outcome.reason}")
    elif not names:
        words = f"A worker ended at its {where}: {outcome.reason}. Another one made it anew."
        session.writer.note(f"again {where}", words)
    for name in names:
        accused = replace(outcome, reason=f"{name}: {outcome.reason}")
        session.trials.accuse(worker.request, shape, name, accused)
