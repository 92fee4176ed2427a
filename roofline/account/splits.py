"""How to divide devices between FSDP (X) and tensor parallelism (Y), both whole. docs/exercise.md has the best of the
reals in closed form."""

import math
from collections.abc import Iterator
from dataclasses import replace

from roofline.account.communication_bound import bound
from roofline.account.question import Question, divisors


def whole(question: Question) -> Iterator[Question]:
    """Yield `question` with its devices divided in every way that fits the mesh; Y divides F."""
    devices = round(question.devices)
    for tp in divisors(math.gcd(devices, question.model.d_ff)):
        split = replace(question, tp=tp, fsdp=devices // tp)
        if not split.misfit():
            yield split


def best_whole(question: Question) -> Question:
    """The whole split with the least bound: there is one, since FSDP alone has a bound."""
    return min(whole(question), key=lambda split: bound(split).tokens)
