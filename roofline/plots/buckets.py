"""The figure buckets: time over bucket size of gradients that are summed over ranks, beside the model's curve."""

import numpy as np

from roofline.analysis.gradients import Model, best, swept
from roofline.format import binary_text, number_text, rate_text, time_text
from roofline.plots import theme


def buckets(frame):
    """Return the figure, of the first shape; None where no gradients were summed."""
    frame = frame[frame["analysis"] == "gradients"]
    if frame.empty:
        return None
    rows = frame[frame["shape"] == frame["shape"].iloc[0]]
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
    first = next(rows.itertuples())
    if first.t_gemm_s == first.t_gemm_s:
        axes.axhline(1e3 * first.t_gemm_s, color=theme.GREY, linestyle="--", label="backward alone", zorder=1)
    if first.overhead_s == first.overhead_s:
        sizes = first.gradient_bytes, first.layers, first.model_in_flight
        model = Model(first.t_gemm_s, *sizes, first.overhead_s, first.all_reduce_bytes_per_s)
        xs = model.gradient_bytes / model.layers * np.unique(np.geomspace(1, model.layers, 100).astype(int))
        words = f"model, {model.in_flight} in flight"
        axes.plot(xs, [1e3 * model.time_s(size) for size in xs], color=theme.DARK, label=words, zorder=1)
        axes.axvline(model.bucket_bytes, color=theme.DARK, linewidth=0.8, label="sqrt(s o w)", zorder=1)
    axes.set_xticks(rows.loc[rows["contender"] != "ddp", "bucket_bytes"].unique())
    axes.xaxis.set_major_formatter(lambda size, _: binary_text(size))
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=9)
    fastest = next(best(rows).itertuples(), None)
    theme.about(figure, frame, verdict(fastest) if fastest else "Gradients summed over ranks")
    return figure


def verdict(row) -> str:
    """Return the bucket of a row, and what the model says of the best one."""
    text = f"Best bucket: {binary_text(row.bucket_bytes)} measured"
    if row.model_bucket_bytes != row.model_bucket_bytes:
        return text
    overhead, rate = time_text(row.overhead_s), rate_text(row.all_reduce_bytes_per_s / 1e9)
    ratio = number_text(row.bucket_bytes / row.model_bucket_bytes, 2)
    model = binary_text(row.model_bucket_bytes)
    return f"{text}, {ratio} of sqrt(s o w) = {model}, by o = {overhead} and w = {rate} GB/s"
