"""What is left in a layer of what its matmuls win alone, in the same rounds."""

import math

from roofline.analysis.throughput import with_ends
from roofline.store.run import Shape
from roofline.store.stats import estimate, ratio_of

PART = "part"


def fields(shape: Shape, contender: str) -> dict:
    """Return the fields of a contender whose matmuls took turns alone, beside those of the baseline; {} of others.

    Both ratios are the baseline's time over this one's. Of the win alone so much is left as the logarithm of the
    layer's ratio is of that of its matmuls.
    """
    parts = {by: _times(shape, by) for by in (_multiplied_by(shape, name) for name in (shape.baseline, contender))}
    if contender == shape.baseline or len(parts) < 2 or not all(parts.values()):
        return {}
    baseline_parts, own_parts = parts.values()

    def ratio(*times_s: float) -> float:
        return sum(times_s[: len(baseline_parts)]) / sum(times_s[len(baseline_parts) :])

    alone = estimate(ratio, *baseline_parts, *own_parts, groups=shape.groups, anchor=shape.anchor)
    in_layer = ratio_of(shape.anchor, shape.times_s(contender), shape.groups)
    left = math.log(in_layer.value) / math.log(alone.value) if alone.value != 1 else None
    return with_ends("alone_ratio", alone) | {"win_left": left}


def _multiplied_by(shape: Shape, name: str) -> str | None:
    return shape.entrants.get(name, {}).get("multiplied_by")


def _times(shape: Shape, by: str | None) -> list[dict[int, float]]:
    """Return {round: seconds} of each matmul of `by` alone."""
    return [shape.times_s(name) for name in shape.of_role(PART) if _multiplied_by(shape, name) == by]
