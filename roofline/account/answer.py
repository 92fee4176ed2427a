"""The answer of `roofline account`, in SI units: rows of memory, bound, splits and techniques. `text` formats them."""

from dataclasses import dataclass, replace

from roofline.account import communication_bound, memory, splits, techniques
from roofline.account.communication_bound import Bound, Forward, Term, bound
from roofline.account.question import Question


@dataclass(frozen=True)
class Answer:
    """All that follows from a question. Each list is a table of the report."""

    question: Question
    memory: list[memory.Part]
    readings: list[memory.Reading]
    forward: Forward
    terms: list[Term]
    bounds: list[Bound]
    """Of the question with fabrics beside each other and one after the other, then of the best split."""
    least_d_ff: float | None
    """The F above which the activations of tensor parallelism take less time than the matmuls; None without it."""
    techniques: list[techniques.Effect]


def answer(question: Question) -> Answer:
    """All rows. Raises ValueError where the question does not pass its `check`."""
    question.check()
    return Answer(
        question=question,
        memory=memory.parts(question),
        readings=memory.readings(question),
        forward=communication_bound.forward(question),
        terms=communication_bound.terms(question),
        bounds=[
            bound(question, "fabrics beside each other (max), as taken here"),
            bound(replace(question, fabrics_overlap=False), "one after the other (sum)"),
            bound(splits.best_whole(question), "best whole split"),
        ],
        least_d_ff=communication_bound.least_d_ff(question),
        techniques=techniques.effects(question),
    )
