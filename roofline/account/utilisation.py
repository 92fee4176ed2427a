"""Model FLOP utilisation over the number of chips, with gathers serial and overlapped: a simulation.

Assumed: one batch for every number of chips; at each number the whole split of X and Y that is fastest; chips that
reach their FLOP/s in every matmul; no latency, no attention, no optimizer step. Serial: every gather and scatter, then
the matmuls. Overlapped: weights come beside the matmuls of the block before, and each gather or scatter of activations
runs beside its own matmul chunk by chunk, as `overlap.coarse` simulates it.
"""

from dataclasses import replace
from typing import NamedTuple

from roofline.account import splits
from roofline.account.communication_bound import Setting
from roofline.analysis.overlap.simulator import coarse

CHIPS = tuple(2**i for i in range(3, 18))
"""8 to 131,072."""

ARMS = ("serial", "overlapped")


class Point(NamedTuple):
    """`utilisation` is the share of the chips' FLOP/s, in the split `setting`."""

    chips: int
    arm: str
    setting: Setting
    utilisation: float


def step_s(setting: Setting, step: str, tokens: float, arm: str) -> float:
    """Seconds of one block in `step`: see above."""
    math_s = setting.math_s(step, tokens)
    terms = [term for term in setting.terms if term.step == step]
    if arm == "serial":
        return math_s + sum(term.seconds(tokens) for term in terms)
    # The matmuls of a block share its collectives of activations evenly.
    with_matmuls = [term.seconds(tokens) for term in terms if term.kind == "tp"]
    share = math_s / len(with_matmuls) if with_matmuls else math_s
    ranks = round(setting.sharding.tp)
    own = sum(coarse(ranks, share, seconds) for seconds in with_matmuls) if with_matmuls else math_s
    return max(own, setting.wire_s(step, tokens))


def utilisation(setting: Setting, tokens: float, arm: str) -> float:
    """The share of the chips' FLOP/s in a step of `tokens`; what is computed again does not count as work."""
    useful = sum(replace(setting, recompute=False).math_s(step, tokens) for step in setting.steps)
    return useful / sum(step_s(setting, step, tokens, arm) for step in setting.steps)


def over_chips(setting: Setting, tokens: float, chips: tuple[int, ...] = CHIPS) -> list[Point]:
    """For each number of chips and each arm, the fastest split of X and Y (the other degrees are left out)."""
    found = []
    for count in chips:
        alone = replace(setting, sharding=replace(setting.sharding, tp=1, ep=1, dp=1, pp=1, fsdp=count))
        for arm in ARMS:
            best = max(splits.whole(alone), key=lambda split: utilisation(split, tokens, arm))
            found.append(Point(count, arm, best, utilisation(best, tokens, arm)))
    return found
