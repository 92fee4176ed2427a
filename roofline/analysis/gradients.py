"""The analysis of gradients that are summed over ranks while a backward pass goes on: which bucket is best, and why.

A collective of b bytes takes o + b / w. Of gradients of s bytes in buckets of b, the first is there after b / s of the
backward pass, and s / b of them cost o each. Where the backward pass takes as long as the bytes, s / w, the sum of both
is least at b = sqrt(s o w). `Model.time_s` knows of several collectives in flight, too: where the overhead is time of
other machines or cores, those share it; where it is time of the core that computes, they do not.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from roofline.analysis.base import Analysis, Column, Figure, Table, grouped
from roofline.analysis.overlap import metrics as overlap
from roofline.analysis.throughput import metrics as throughput
from roofline.analysis.throughput.metrics import shape_of
from roofline.report import theme
from roofline.report.format import binary_text, number_text, rate_text, time_text
from roofline.stats import estimate, time_of
from roofline.store.run import Run, Shape
from roofline.theory.simulator import hidden_fraction


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
        """The best by the model of one collective at a time: sqrt(s o w)."""
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
    names = [name for role in ("link", "message") for name in shape.of_role(role) if shape.times_s(name)]
    backward = next(iter(shape.of_role("gemm")), None)
    if len(names) < 2 or not shape.times_s(backward):
        return None
    typical = {one: time_of(shape.times_s(one), shape.groups, shape.anchor).value for one in (*names, backward)}
    rows = [[shape.entrants[name][key] / typical[name] for key in ("collectives", "nbytes")] for name in names]
    overhead_s, per_byte_s = map(float, np.linalg.lstsq(np.array(rows), np.ones(len(rows)), rcond=None)[0])
    if overhead_s <= 0 or per_byte_s <= 0:
        return None
    sizes = shape.facts["gradient_bytes"], shape.params["layers"]
    models = [
        Model(typical[backward], *sizes, in_flight, overhead_s, 1 / per_byte_s)
        for in_flight in range(1, shape.facts["in_flight"] + 1)
    ]
    return min(models, key=lambda model: sum(_error(model, shape, arm) for arm in _swept(shape.measured)))


def _swept(arms: Iterable[str]) -> list[str]:
    """Those whose buckets are sent while the backward pass goes on."""
    return [arm for arm in arms if arm.startswith(("overlapped", "bucketed_"))]


def _error(model: Model, shape: Shape, arm: str) -> float:
    time = time_of(shape.times_s(arm), shape.groups, shape.anchor).value
    return math.log(model.time_s(shape.entrants[arm]["bucket_bytes"]) / time) ** 2


def metrics(run: Run, shape: Shape, arm: str) -> dict:
    """The record of `arm` on `shape`: the fields of any case, and those of `OWN`, None where not measured."""
    about, groups, model = shape.entrants[arm], shape.groups, fit(shape)
    gemm, link = (shape.times_s(next(iter(shape.of_role(role)), None)) for role in ("gemm", "link"))
    alone = {"t_gemm_s": gemm, "t_comm_s": link}
    hidden = gemm and link and estimate(
        hidden_fraction, gemm, link, shape.times_s(arm), groups=groups, anchor=shape.anchor, log=False
    )  # fmt: skip
    return throughput.metrics(run, shape, arm) | {
        **{name: time_of(own, groups, shape.anchor).value if own else None for name, own in alone.items()},
        **throughput.with_ends(hidden or None, *overlap.HIDDEN),
        **{name: about[name] for name in ("bucket_bytes", "collectives")},
        "overhead_s": model and model.overhead_s,
        "all_reduce_bytes_per_s": model and model.bytes_per_s,
        "model_bucket_bytes": model and model.bucket_bytes,
        "model_s": model.time_s(about["bucket_bytes"]) if model and _swept([arm]) else None,
    }


def best(records: list[dict]) -> list[dict]:
    """Of each shape, the fastest of the arms that send buckets while the backward pass goes on."""
    shapes = grouped((shape_of(r), r) for r in records if _swept([r["contender"]]))
    return [min(own, key=lambda r: r["time_s"]) for own in shapes.values()]


def summary(records: list[dict]) -> list[str]:
    """A line per shape: its best bucket, and what the model says of it."""
    return [f"{shape_of(r)}: {_finding(r)}" for r in best(records)]


def _finding(record: dict) -> str:
    text = f"Best bucket: {binary_text(record['bucket_bytes'])} measured"
    if not (model := record["model_bucket_bytes"]):
        return text
    overhead, rate = time_text(record["overhead_s"]), rate_text(record["all_reduce_bytes_per_s"] / 1e9)
    ratio = number_text(record["bucket_bytes"] / model, 2)
    return f"{text}, {ratio} of sqrt(s o w) = {binary_text(model)}, by o = {overhead} and w = {rate} GB/s"


def draw(run: Run, frame):
    """The figure buckets: time over bucket size, of the first shape."""
    shape = run.shapes[shape_of(frame.iloc[0])]
    own, model = frame[frame["case"].str.startswith(f"{shape.id}-")], fit(shape)
    figure = theme.new(9.5, 5)
    axes = figure.add_subplot(xscale="log", xlabel="bytes of a bucket", ylabel="time, ms")
    swept = own["contender"].isin(_swept(own["contender"]))
    parts = {"in buckets, while the backward pass goes on": own[swept]}
    parts |= {row.contender: own.loc[[row.Index]] for row in own[~swept].itertuples()}
    colours = theme.colours([*parts])
    for (name, part), marker in zip(parts.items(), theme.MARKERS, strict=False):
        times = 1e3 * part[["time_s", "time_low_s", "time_high_s"]].to_numpy().T
        look = {"color": colours[name], "marker": marker, "label": name, "linestyle": "none", "capsize": 2}
        axes.errorbar(part["bucket_bytes"].astype(float), times[0], abs(times[1:] - times[0]), **look)
        if name == "flat":
            axes.axhline(times[0, 0], color=colours[name], linestyle=":", zorder=1)
    if (backward_s := own["t_gemm_s"].iloc[0]) == backward_s:
        axes.axhline(1e3 * backward_s, color=theme.GREY, linestyle="--", label="backward alone", zorder=1)
    if model:
        sizes = model.gradient_bytes / model.layers * np.unique(np.geomspace(1, model.layers, 100).astype(int))
        words = f"model, {model.in_flight} in flight"
        axes.plot(sizes, [1e3 * model.time_s(size) for size in sizes], color=theme.DARK, label=words, zorder=1)
        axes.axvline(model.bucket_bytes, color=theme.DARK, linewidth=0.8, label="sqrt(s o w)", zorder=1)
    axes.set_xticks(own.loc[own["contender"] != "ddp", "bucket_bytes"].unique())
    axes.xaxis.set_major_formatter(lambda size, _: binary_text(size))
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=9)
    found = best(own.to_dict("records"))
    theme.about(figure, run, _finding(found[0]) if found else "Gradients summed over ranks")
    return figure


OWN = (
    Column("bucket_bytes", "of the largest that it sends", "bytes", "bucket", binary_text),
    Column("collectives", "all-reduces of one call", "1", "collectives"),
    Column("t_gemm_s", "T_gemm: of gradients, the backward pass alone", "s", "backward", time_text),
    Column("t_comm_s", "T_comm: of gradients, one all-reduce of them alone", "s", "all-reduce", time_text),
    *(column for column in overlap.OWN if column.name in overlap.HIDDEN),
    Column("model_s", "its time by the model, whose o and w are fitted to all-reduces measured alone", "s", "by model",
           time_text),
    Column("overhead_s", "o: what an all-reduce takes beside its bytes", "s"),
    Column("all_reduce_bytes_per_s", "w: bytes of gradients that an all-reduce sums", "bytes/s"),
    Column("model_bucket_bytes", "sqrt(s o w), for gradients of s bytes", "bytes"),
    Column("layers", "of the backward pass", "1"),
    Column("ranks", "over which gradients are summed", "1"),
)  # fmt: skip
_SHOWN = (*throughput.CASE, throughput.TIME, throughput.RATIO, *OWN, throughput.NOTES)
COLUMNS = (*_SHOWN, *throughput.others(_SHOWN, "layer", "tp", "n", "k"))
BRIEF = Table(
    "Which bucket?",
    "The arm that is fastest of those that send buckets of gradients while the backward pass goes on. Its gain is over "
    "`flat`, one all-reduce behind the backward pass.",
    (throughput.CASE[0], throughput.CASE[1], throughput.TIME, throughput.RATIO, *OWN[:5], throughput.NOTES),
    lambda run, records: best(records),
)
GRADIENTS = Analysis(
    "gradients",
    metrics,
    COLUMNS,
    (Figure("buckets", frozenset({"bucket_bytes", "time_s"}), draw),),
    BRIEF,
    summary,
)
