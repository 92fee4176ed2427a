"""Techniques that lower the tokens at which the chips set the pace, how far, and at what cost; or why they do not.

A technique is a row of `TECHNIQUES`: it changes the question, and the difference between the answers is its effect.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from roofline.account import memory
from roofline.account.communication_bound import best_split, bound, collectives
from roofline.account.question import Question
from roofline.theory.chips import GB

MICROBATCHES = 4
"""A step with gradient accumulation has so many; a pipeline has them for each of its stages."""

STAGES = 4
"""A pipeline has so many."""


@dataclass(frozen=True)
class Technique:
    """A change of the question, and what it does and costs: words about the question `after` it."""

    name: str
    change: Callable[[Question], Question | str]
    """A sentence in place of a question says why the technique cannot be used."""
    reason: str


@dataclass(frozen=True)
class Effect:
    """A technique's effect on the bound, and its cost to a device. Numbers are None where it cannot be used."""

    name: str
    reason: str
    helps: bool = False
    tokens: float | None = None
    tokens_of_now: float | None = None
    memory_bytes: float | None = None
    """More than now, or less."""
    received_of_now: float | None = None
    """The bytes of a forward pass of as many tokens as the bound is now, over those that are received now."""


def effects(now: Question) -> list[Effect]:
    """The effects of all techniques, those first that lower the bound of `now` most."""
    rows = [_effect(technique, now) for technique in TECHNIQUES]
    return sorted(rows, key=lambda effect: math.inf if not effect.helps or effect.tokens is None else effect.tokens)


def _effect(technique: Technique, now: Question) -> Effect:
    after = technique.change(now)
    if isinstance(after, str):
        return Effect(technique.name, after)
    reason = technique.reason.format(after=after)
    if after == now:
        reason = f"it is used already; {reason}"
    device_bytes = _device_bytes(after)
    room_bytes = now.chip.memory_bytes or math.inf
    more_bytes = device_bytes - _device_bytes(now) if now.model.blocks else 0.0  # else nobody knows either
    if more_bytes > 0 and device_bytes > room_bytes:
        problem = f"{device_bytes / GB:,.2f} GB do not fit a device of {room_bytes / GB:,.2f} GB"
        return Effect(technique.name, f"{problem}; {reason}", memory_bytes=more_bytes)
    before = bound(now).tokens
    tokens = bound(after).tokens
    at_bound = before if before < math.inf else 0
    received_now = _received_bytes(now, at_bound)
    return Effect(
        technique.name,
        reason,
        helps=tokens < before * (1 - 1e-9),  # by more than rounding
        tokens=tokens,
        tokens_of_now=tokens / before if before and max(tokens, before) < math.inf else None,
        memory_bytes=more_bytes,
        received_of_now=_received_bytes(after, at_bound) / received_now if received_now else None,
    )


def _device_bytes(question: Question) -> float:
    """The bytes of a device, with weights that are gathered."""
    gathered_bytes = question.gathered_blocks * question.block_gathered_bytes
    return memory.sharded_bytes(question) / question.devices + gathered_bytes


def _received_bytes(question: Question, tokens: float) -> float:
    """The bytes that a device receives in a forward pass of all blocks."""
    of_block = 0.0
    for collective in collectives(question):
        for crossing in collective.crossings:
            of_block += collective.array_bytes(tokens) * crossing.received_fraction
    return max(1, question.model.blocks) * of_block  # in proportion, where nobody said how many


def _pipeline(now: Question) -> Question | str:
    """The largest stage: fewer blocks, on fewer devices. On a torus the stages have an axis of their own."""
    if now.fsdp % STAGES:
        return f"fsdp={now.fsdp:g} does not divide into {STAGES}"
    if not now.model.blocks:
        return "how many blocks the model has is not known"
    if now.model.blocks < STAGES:
        return f"the model has fewer blocks, {now.model.blocks}"
    blocks = math.ceil(now.model.blocks / STAGES)
    chip = now.chip
    axes = chip.torus_axes
    if axes:
        chip = replace(chip, torus_axes=axes - 1, links=chip.links - chip.links // axes)
    model = replace(now.model, blocks=blocks)
    stage = replace(now, model=model, chip=chip, fsdp=now.fsdp / STAGES, gathered_blocks=blocks)
    if axes and len(stage.degrees) >= axes:
        return "the torus has no axis left for stages"
    misfit = stage.misfit()
    return f"a stage does not fit: {misfit}" if misfit else stage


IDLE, SLOTS = STAGES - 1, MICROBATCHES * STAGES + STAGES - 1
"""A stage works for as many slots as there are microbatches, and is idle while the others fill and drain."""

TECHNIQUES = (
    Technique(
        "overlap gathers with matmuls",
        lambda now: now,
        "`used if serial`, above, is the share of time for which chips work without it",
    ),
    Technique(
        "a better split of X and Y",
        best_split,
        "X = {after.fsdp:g}, Y = {after.tp:g} is the best of the whole ones",
    ),
    Technique(
        f"{STAGES} pipeline stages",
        _pipeline,
        f"{STAGES} times fewer devices hold a stage's weights, and keep what they gather for all microbatches; on a "
        "torus the stages take an axis from FSDP; the largest has {after.model.blocks} blocks; a bubble of "
        f"{IDLE}/{SLOTS} = {100 * IDLE / SLOTS:.0f} % of the time at {MICROBATCHES * STAGES} microbatches",
    ),
    Technique(
        "8-bit gathers of weights",
        lambda now: replace(now, gathered_weight_bytes=1) if now.fsdp > 1 else "no weights are gathered",
        "half the bytes (of training three quarters, whose gradients are scattered in 16 bits); the scales, and the "
        "digits lost, are not counted",
    ),
    Technique(
        "activation checkpointing",
        lambda now: replace(now, saved="checkpointed"),
        "the forward pass stays as it is; in training it adds FLOP to the backward pass, and no gather of weights",
    ),
    Technique(
        "gradient accumulation",
        lambda now: replace(now, gathers=MICROBATCHES, tokens=math.ceil(now.tokens / MICROBATCHES)),
        f"each of {MICROBATCHES} microbatches gathers the weights that FSDP shards again: it needs the bound's tokens "
        "by itself",
    ),
)
