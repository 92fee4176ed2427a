"""How gradients that are summed over ranks are shown: the best bucket, the times by the model, a figure."""

import numpy as np

from roofline.analysis.gradients import best, fit, swept
from roofline.analysis.overlap.metrics import HIDDEN
from roofline.analysis.throughput.metrics import shape_of
from roofline.report import theme
from roofline.report.format import binary_text, number_text, rate_text, time_text
from roofline.report.layout import Analysis, Column, Figure, Table
from roofline.report.overlap import columns as overlap
from roofline.report.throughput import columns as throughput
from roofline.store.run import Run


def summary(records: list[dict]) -> list[str]:
    """Return a line per shape: its best bucket, and what the model says of it."""
    return [f"{shape_of(r)}: {_finding(r)}" for r in best(records)]


def _finding(record: dict) -> str:
    text = f"Best bucket: {binary_text(record['bucket_bytes'])} measured"
    if not (model := record["model_bucket_bytes"]):
        return text
    overhead, rate = time_text(record["overhead_s"]), rate_text(record["all_reduce_bytes_per_s"] / 1e9)
    ratio = number_text(record["bucket_bytes"] / model, 2)
    return f"{text}, {ratio} of sqrt(s o w) = {binary_text(model)}, by o = {overhead} and w = {rate} GB/s"


def draw(run: Run, frame):
    """Return the figure buckets: time over bucket size, of the first shape."""
    shape = run.shapes[shape_of(frame.iloc[0])]
    rows, model = frame[frame["case"].str.startswith(f"{shape.id}-")], fit(shape)
    figure = theme.new(9.5, 5)
    axes = figure.add_subplot(xscale="log", xlabel="bytes of a bucket", ylabel="time, ms")
    is_swept = rows["contender"].isin(swept(rows["contender"]))
    parts = {"in buckets, while the backward pass goes on": rows[is_swept]}
    parts |= {row.contender: rows.loc[[row.Index]] for row in rows[~is_swept].itertuples()}
    colours = theme.colours([*parts])
    for (name, part), marker in zip(parts.items(), theme.MARKERS, strict=False):
        times = 1e3 * part[["time_s", "time_low_s", "time_high_s"]].to_numpy().T
        look = {"color": colours[name], "marker": marker, "label": name, "linestyle": "none", "capsize": 2}
        axes.errorbar(part["bucket_bytes"].astype(float), times[0], abs(times[1:] - times[0]), **look)
        if name == "flat":
            axes.axhline(times[0, 0], color=colours[name], linestyle=":", zorder=1)
    if (backward_s := rows["t_gemm_s"].iloc[0]) == backward_s:
        axes.axhline(1e3 * backward_s, color=theme.GREY, linestyle="--", label="backward alone", zorder=1)
    if model:
        sizes = model.gradient_bytes / model.layers * np.unique(np.geomspace(1, model.layers, 100).astype(int))
        words = f"model, {model.in_flight} in flight"
        axes.plot(sizes, [1e3 * model.time_s(size) for size in sizes], color=theme.DARK, label=words, zorder=1)
        axes.axvline(model.bucket_bytes, color=theme.DARK, linewidth=0.8, label="sqrt(s o w)", zorder=1)
    axes.set_xticks(rows.loc[rows["contender"] != "ddp", "bucket_bytes"].unique())
    axes.xaxis.set_major_formatter(lambda size, _: binary_text(size))
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=9)
    best_rows = best(rows.to_dict("records"))
    theme.about(figure, run, _finding(best_rows[0]) if best_rows else "Gradients summed over ranks")
    return figure


OWN = (
    Column("bucket_bytes", "of the largest that it sends", "bytes", "bucket", binary_text),
    Column("collectives", "all-reduces of one call", "1", "collectives"),
    Column("t_gemm_s", "T_gemm: of gradients, the backward pass alone", "s", "backward", time_text),
    Column("t_comm_s", "T_comm: of gradients, one all-reduce of them alone", "s", "all-reduce", time_text),
    *(column for column in overlap.OWN if column.name in HIDDEN),
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
    COLUMNS,
    (Figure("buckets", frozenset({"bucket_bytes", "time_s"}), draw),),
    BRIEF,
    summary,
)
