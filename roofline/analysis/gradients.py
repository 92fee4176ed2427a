"""The analysis of gradients that are summed over ranks while a backward pass goes on: which bucket is best, and why.

A collective of b bytes takes o + b / w. Of gradients of s bytes in buckets of b, the first is there after b / s of the
backward pass, and s / b of them cost o each. Where the backward pass takes as long as the bytes, s / w, the sum of both
is least at b = sqrt(s o w). `Model.time_s` knows of several collectives in flight, too: where the overhead is time of
other machines or cores, those share it; where it is time of the core that computes, they do not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from roofline.analysis import throughput
from roofline.stats import estimate, time_of
from roofline.store.run import Run, Shape
from roofline.theory.simulator import hidden_fraction

if TYPE_CHECKING:
    from pandas import DataFrame


class Model(NamedTuple):
    """Of a shape: what its backward pass takes alone, and what its all-reduces do."""

    backward_s: float
    gradient_bytes: int
    layers: int
    in_flight: int
    overhead_s: float
    bytes_per_s: float

    @property
    def bucket_bytes(self) -> float:
        """Return the best by the model of one collective at a time: sqrt(s o w)."""
        return math.sqrt(self.gradient_bytes * self.overhead_s * self.bytes_per_s)

    def time_s(self, bucket_bytes: float) -> float:
        """Of a backward pass whose layers take equally long. So many collectives at a time get ready, each for the
        overhead; the wire has the bytes of one after another.

        >>> Model(8.0, 8, 8, 1, 0.0, 1.0).time_s(1), Model(0.0, 8, 8, 1, 1.0, 1.0).time_s(1)
        (9.0, 16.0)
        >>> Model(0.0, 8, 8, 2, 1.0, 1.0).time_s(1)
        9.0
        """
        each = min(self.layers, math.ceil(bucket_bytes * self.layers / self.gradient_bytes))
        free, wire_s = [0.0] * self.in_flight, 0.0
        for end in [*range(each, self.layers, each), self.layers]:
            begin_s = max(self.backward_s * end / self.layers, free.pop(0))
            nbytes = self.gradient_bytes * (end - (end - 1) // each * each) / self.layers
            wire_s = max(begin_s + self.overhead_s, wire_s) + nbytes / self.bytes_per_s
            free.append(wire_s)
        return wire_s


def fit(shape: Shape) -> Model | None:
    """By the all-reduces that were measured alone: o for each and 1 / w for each byte, of least relative squares. Of
    the collectives that may be in flight, as many as come nearest to the arms. None where too few all-reduces were
    measured, or o or w is not above 0."""
    import numpy as np  # which `roofline account` does without

    names = [name for role in ("link", "message") for name in shape.of_role(role) if shape.times_s(name)]
    backward = next(iter(shape.of_role("gemm")), None)
    if len(names) < 2 or not shape.times_s(backward):
        return None
    typical = {name_: time_of(shape.times_s(name_), shape.groups, shape.anchor).value for name_ in (*names, backward)}
    rows = [[shape.entrants[name][key] / typical[name] for key in ("collectives", "nbytes")] for name in names]
    overhead_s, per_byte_s = map(float, np.linalg.lstsq(np.array(rows), np.ones(len(rows)), rcond=None)[0])
    if overhead_s <= 0 or per_byte_s <= 0:
        return None
    sizes = shape.facts["gradient_bytes"], shape.params["layers"]
    models = [
        Model(typical[backward], *sizes, in_flight, overhead_s, 1 / per_byte_s)
        for in_flight in range(1, shape.facts["in_flight"] + 1)
    ]
    return min(models, key=lambda model: sum(_error(model, shape, arm) for arm in swept(shape.measured)))


def swept(arms: Iterable[str]) -> list[str]:
    """Return those whose buckets are sent while the backward pass goes on."""
    return [arm for arm in arms if arm.startswith(("overlapped", "bucketed_"))]


def _error(model: Model, shape: Shape, arm: str) -> float:
    time = time_of(shape.times_s(arm), shape.groups, shape.anchor).value
    return math.log(model.time_s(shape.entrants[arm]["bucket_bytes"]) / time) ** 2


def record(run: Run, shape: Shape, arm: str) -> dict:
    """Return the record of `arm` on `shape`: the fields of any case, and those of gradients, None where not
    measured."""
    about, groups, model = shape.entrants[arm], shape.groups, fit(shape)
    gemm, link = (shape.times_s(next(iter(shape.of_role(role)), None)) for role in ("gemm", "link"))
    alone = {"t_gemm_s": gemm, "t_comm_s": link}
    hidden = gemm and link and estimate(
        hidden_fraction, gemm, link, shape.times_s(arm), groups=groups, anchor=shape.anchor, log=False
    )  # fmt: skip
    return throughput.record(run, shape, arm) | {
        **{name: time_of(times_s, groups, shape.anchor).value if times_s else None for name, times_s in alone.items()},
        **throughput.with_ends("hidden_fraction", hidden or None),
        **{name: about[name] for name in ("bucket_bytes", "collectives")},
        "overhead_s": model and model.overhead_s,
        "all_reduce_bytes_per_s": model and model.bytes_per_s,
        "model_bucket_bytes": model and model.bucket_bytes,
        "model_in_flight": model and model.in_flight,
        "gradient_bytes": shape.facts["gradient_bytes"],
        "model_s": model.time_s(about["bucket_bytes"]) if model and swept([arm]) else None,
    }


def best(frame: DataFrame) -> DataFrame:
    """Return of each shape the row of the fastest arm that sends buckets while the backward pass goes on."""
    rows = frame[frame["contender"].isin(swept(frame["contender"]))]
    return rows.sort_values("time_s", kind="stable").drop_duplicates("shape").sort_index()
