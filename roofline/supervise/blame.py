"""Who is to blame where a worker ends other than well, and what becomes of them: where a kernel hangs, dies or loses
the device."""

from collections import Counter
from dataclasses import replace

from roofline.store.outcome import FAILED, Outcome
from roofline.store.run import Shape
from roofline.supervise.child import Told, WorkerEnd
from roofline.supervise.supervisor import Supervisor
from roofline.worker.messages import Step

WHERE = {
    Step.PREPARE: "while its shape was prepared",
    Step.CALL: "in its first call",
    Step.TURNS: "while it was timed",
    Step.RECHECK: "when it was checked again",
    Step.STEADY: "in a block",
}
TRIES = 3
"""Workers in a row that may end without anybody to blame."""


def outcome_of(supervisor: Supervisor, worker: Told, end: WorkerEnd) -> Outcome | None:
    """That of what a worker was at when it ended, with the step and the rank; None where it ended well, or was to."""
    if end.is_well or supervisor.end_reason or supervisor.signals:
        return None
    step = end.step.step
    where = WHERE.get(step, f"at its {step}")
    outcome = Outcome(FAILED, f"{end.how}, {where}")
    if end.broke:
        outcome = end.broke.outcome
    elif end.is_hung:
        outcome = Outcome(FAILED, f"hung {where}: it was not over in {worker.patience.words}")
    return replace(outcome, step=step, rank=end.rank)


def culprits(supervisor: Supervisor, worker: Told, end: WorkerEnd) -> list[str]:
    """Who may have ended the worker, by what it was at: a contender, or where that is not known, all but the baseline.
    None where it was at no shape."""
    step = end.step
    prepared = worker.prepared.get(step.shape)
    name = worker.request.suspect or step.name
    if end.broke and end.broke.name:
        return [end.broke.name]
    if not step.shape:
        return []
    if prepared and step.entrants:
        return _likeliest(prepared, step.entrants, end.marked)
    return [name] if name else supervisor.left(step.shape)


def _blamed(supervisor: Supervisor, worker: Told, end: WorkerEnd) -> tuple[list[str], bool]:
    """Who may have ended the worker and has a row to lose, and whether it was these, and not something beside them."""
    names = culprits(supervisor, worker, end)
    is_known = bool(end.broke and names) if end.step.step == Step.PREPARE else len(names) == 1
    lost = supervisor.outcomes
    names = [name for name in names if f"{end.step.shape}-{name}" not in lost]  # else the fault goes on
    return names, is_known and bool(names)


def _likeliest(shape: Shape, entrants: list[str], marked: int) -> list[str]:
    """Of those who take turns, whose turn it was; all but the baseline where that was no contender's."""
    contenders = [name for name in entrants if "role" not in shape.entrants[name]]
    if marked and entrants[marked - 1] in contenders:
        return [entrants[marked - 1]]
    return [name for name in contenders if name != shape.baseline] or contenders


def conclude(supervisor: Supervisor, worker: Told, end: WorkerEnd, ended: Counter) -> None:
    """Give what a worker was at when it ended its outcome, unless it ended well. `ended` counts ends in this stage."""
    outcome = outcome_of(supervisor, worker, end)
    if not outcome:
        return
    shape = end.step.shape
    names, is_known = _blamed(supervisor, worker, end)
    if supervisor.epochs:  # which are out of step
        place = f"{shape}-{names[0]}" if len(names) == 1 else shape or outcome.step
        supervisor.end_reason = f"rank {end.rank} ended the run, at {place}: {outcome.reason}"
    elif outcome.step == Step.CEILINGS:
        return supervisor.note("ceilings", f"No shares of the roof: the worker ended by {outcome.words}.")
    elif is_known:
        suspect = shape, names[0]
        ended[suspect] += 1
        if end.is_death and ended[suspect] == 1:  # another one's timer, or the system, may have ended the process
            return supervisor.suspects.append(suspect)
    elif _is_tried_again(supervisor, worker, end, outcome.words, ended, may_lose=bool(names)):
        return
    for name in names:
        supervisor.lose(shape, name, replace(outcome, reason=f"{name}: {outcome.words}"))


def _is_tried_again(
    supervisor: Supervisor, worker: Told, end: WorkerEnd, words: str, ended: Counter, *, may_lose: bool
) -> bool:
    """Whether the next worker makes a step anew at which one ended with nobody surely to blame: once where contenders
    `may_lose` their rows for it, and a few times where the run is over then."""
    where, place = end.step.words, (end.step.step, end.step.shape or next(iter(worker.request.cases)))
    ended[place] += 1
    if may_lose and ended[place] > 1:
        return False
    if ended[place] < TRIES:
        supervisor.note(f"again {where}", f"A worker ended at the {where}: {words}. Another one made it anew.")
    else:
        supervisor.end_reason = f"{TRIES} workers ended at their {end.step.step}: {words}"
    return True


def next_suspect(supervisor: Supervisor, ended: Counter) -> tuple[str, str] | None:
    """The shape and the name of the next suspect to be tried alone, whose next death is proof; None where there is
    none."""
    if not supervisor.suspects:
        return None
    suspect = supervisor.suspects.pop()
    ended[suspect] += 1
    return suspect
