"""Model FLOP utilisation over the number of chips, with gathers serial and overlapped: a simulation."""

from dataclasses import replace

from roofline.account import splits
from roofline.account.communication_bound import Setting
from roofline.account.meshes import Sharding
from roofline.analysis.overlap.simulator import coarse

CHIPS = tuple(2**i for i in range(3, 18))
"""8 to 131,072."""

ARMS = ("serial", "overlapped")

COMPUTING = 0.95
"""Of the time: where chips that wait for what was not hidden compute for so much of it, they are said to."""

ASSUMED = """\
A simulation, nothing here was measured. Assumed: the same {tokens:,} tokens a step on any number of chips, split over
fsdp X and tp Y (the small numbers) as is fastest for each; matmuls at {flops:.4g} FLOP/s; no latency, attention or
optimizer step; memory not looked at. Serial: every gather, then the matmul. Overlapped: weights beside the block
before, activations chunk by chunk beside their own matmul."""


def step_s(setting: Setting, step: str, tokens: float, arm: str) -> float:
    """Seconds of one block in `step`; chunk by chunk is as `simulator.coarse` has it."""
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


def hidden_s(setting: Setting, step: str, tokens: float, hidden: float) -> float:
    """Seconds of one block in `step` where the share `hidden` of the shorter of matmuls and wires is hidden."""
    math_s, wire_s = setting.math_s(step, tokens), setting.wire_s(step, tokens)
    return math_s + wire_s - hidden * min(math_s, wire_s)


def computing_tokens(setting: Setting, hidden: float, share: float = COMPUTING) -> float:
    """From how many tokens on the chips compute for the `share` of the time: a bound, as `Setting.bound` has it.

    T_math is that share of `hidden_s` where T_wire is `wires` T_math: above 1 only where nearly all is hidden.
    """
    wait = 1 / share - 1
    wires = wait + hidden if wait + hidden >= 1 else wait / (1 - hidden)
    return replace(setting, flops=setting.flops / wires).bound().tokens


def utilisation(setting: Setting, tokens: float, arm: str) -> float:
    """The share of the chips' FLOP/s in a step of `tokens`; what is computed again does not count as work."""
    useful = sum(replace(setting, recompute=False).math_s(step, tokens) for step in setting.steps)
    return useful / sum(step_s(setting, step, tokens, arm) for step in setting.steps)


def over_chips(setting: Setting, tokens: float, chips: tuple[int, ...] = CHIPS) -> dict[str, list[Setting]]:
    """By arm, for each number of chips the fastest split of X and Y (the other degrees are left out)."""
    alone = [replace(setting, sharding=Sharding(fsdp=count)) for count in chips]
    return {
        arm: [max(splits.whole(one), key=lambda split: utilisation(split, tokens, arm)) for one in alone]
        for arm in ARMS
    }
