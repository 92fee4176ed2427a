"""What is left in a layer of what its matmuls win alone, in the same rounds."""

import math

from roofline.analysis.throughput import with_ends
from roofline.store.run import PART, Shape
from roofline.store.stats import estimate, ratio_of

HALVES = 2
"""Matmuls of a layer: of gate and up together, and down."""


def fields(shape: Shape, contender: str) -> dict:
    """The fields of a contender whose matmuls took turns alone, beside those of the baseline; {} of others.

    Both ratios are the baseline's time over this one's. What is left of the win is the logarithm of the layer's ratio
    over that of its matmuls.
    """
    theirs, ours = _multiplied_by(shape, shape.baseline), _multiplied_by(shape, contender)
    baseline_parts, own_parts = _times(shape, theirs), _times(shape, ours)
    if theirs == ours or not shape.anchor or {len(baseline_parts), len(own_parts)} != {HALVES}:
        return {}

    def ratio(*times_s: float) -> float:
        return sum(times_s[:HALVES]) / sum(times_s[HALVES:])

    alone = estimate(ratio, *baseline_parts, *own_parts, groups=shape.groups, anchor=shape.anchor)
    in_layer = ratio_of(shape.anchor, shape.times_s(contender), shape.groups)
    if not (alone and in_layer):
        return {}
    left = math.log(in_layer.value) / math.log(alone.value) if alone.value != 1 else None
    return with_ends("alone_ratio", alone) | {"win_left": left}


def _multiplied_by(shape: Shape, name: str) -> str | None:
    return shape.entrants.get(name, {}).get("multiplied_by")


def _times(shape: Shape, by: str | None) -> list[dict[int, float]]:
    """{round: seconds} of each matmul of `by` alone."""
    return [shape.times_s(name) for name in shape.of_role(PART) if _multiplied_by(shape, name) == by]
