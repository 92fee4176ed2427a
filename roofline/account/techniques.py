"""Techniques that lower the tokens at which the chips set the pace, how far, and at what cost; or why they do not.

A technique is a row of `TECHNIQUES`: it changes the question, and the difference between the answers is its effect.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from roofline.account import memory
from roofline.account.communication_bound import best_split, bound, collectives
from roofline.account.question import Question
from roofline.theory.chips import GB

MICROBATCHES = 4
"""A step with gradient accumulation has so many; a pipeline has them for each of its stages."""

STAGES = 4
"""A pipeline has so many."""


class Technique(NamedTuple):
    """A change of the question, and what it does and costs: words about the question `after` it."""

    name: str
    change: Callable[[Question], Question | str]
    """A sentence in place of a question says why the technique cannot be used."""
    reason: str


class Effect(NamedTuple):
    """The question after a technique, None where that cannot be used, with its bound and its cost to a device."""

    name: str
    reason: str
    after: Question | None = None
    more_bytes: float = 0.0
    """Than now; below 0 where it saves some."""
    tokens: float = math.inf


def effects(now: Question) -> list[Effect]:
    """The effects of all techniques, those first that lower the bound of `now` most."""
    least = bound(now).tokens * (1 - 1e-9)  # by more than rounding
    rows = [_effect(technique, now) for technique in TECHNIQUES]
    return sorted(rows, key=lambda effect: effect.tokens if effect.tokens < least else math.inf)


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
        return Effect(technique.name, f"{problem}; {reason}", None, more_bytes)
    return Effect(technique.name, reason, after, more_bytes, bound(after).tokens)


def _device_bytes(question: Question) -> float:
    """The bytes of a device, with weights that are gathered."""
    gathered_bytes = question.gathered_blocks * question.block_gathered_bytes
    return memory.sharded_bytes(question) / question.devices + gathered_bytes


def received_bytes(question: Question, tokens: float) -> float:
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
