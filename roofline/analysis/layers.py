"""The ratio of a layer's matmuls alone, in the same rounds as the layer."""

from roofline.analysis.fields import with_ends
from roofline.analysis.measured import MeasuredCase
from roofline.store.run import PART, Shape

HALVES = 2
"""Matmuls of a layer: of gate and up together, and down."""


def fields(case: MeasuredCase) -> dict:
    """The fields of a contender whose matmuls took turns alone, beside those of the baseline; {} of others. The ratio
    is the baseline's time over this one's."""
    shape = case.shape
    theirs = _multiplied_by(shape, shape.baseline)
    ours = _multiplied_by(shape, case.contender)
    if theirs == ours or not shape.anchor:
        return {}
    baseline_parts = _times(shape, theirs)
    own_parts = _times(shape, ours)
    if not len(baseline_parts) == len(own_parts) == HALVES:
        return {}

    def ratio(*times_s: float) -> float:
        return sum(times_s[:HALVES]) / sum(times_s[HALVES:])

    return with_ends("alone_ratio", shape.estimate(ratio, *baseline_parts, *own_parts))


def _multiplied_by(shape: Shape, name: str) -> str | None:
    return shape.entrants.get(name, {}).get("multiplied_by")


def _times(shape: Shape, by: str | None) -> list[dict[int, float]]:
    """{round: seconds} of each matmul of `by` alone."""
    times_s = []
    for name in shape.of_role(PART):
        if _multiplied_by(shape, name) == by:
            times_s.append(shape.times_s(name))
    return times_s
