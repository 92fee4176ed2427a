"""The ratio of a layer's matmuls alone, in the same rounds as the layer."""

from roofline.analysis.fields import with_ends
from roofline.analysis.measured import MeasuredCase
from roofline.store.run import PART

MAKER = "multiplied_by"
HALVES = 2
"""Matmuls of a layer: of gate and up together, and down."""


def fields(case: MeasuredCase) -> dict:
    """The fields of a contender whose matmuls took turns alone, beside those of the baseline; {} of others. The ratio
    is the baseline's time over this one's."""
    shape = case.shape
    makers = [shape.entrants.get(name, {}).get(MAKER) for name in (shape.baseline, case.contender)]
    if makers[0] == makers[1] or not shape.anchor:
        return {}
    times_s = []
    for maker in makers:
        for name in shape.of_role(PART):
            if shape.entrants[name].get(MAKER) == maker:
                times_s.append(shape.times_s(name))
    if len(times_s) != 2 * HALVES:
        return {}

    def ratio(*times_s: float) -> float:
        return sum(times_s[:HALVES]) / sum(times_s[HALVES:])

    return with_ends("alone_ratio", shape.estimate(ratio, *times_s))
