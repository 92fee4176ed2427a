"""The figure memory_roofline: FLOP/s over FLOP per byte of device memory, under the measured roof."""

import numpy as np

from roofline.analysis.tokens import compared
from roofline.operations.shapes import shape_text
from roofline.report.format import flops_text, rate_text
from roofline.report.plots import theme
from roofline.report.plots.theme import DARK, GREY, MARKERS
from roofline.report.throughput import summary
from roofline.store.run import AGAIN
from roofline.store.stats import geometric_mean
from roofline.theory.bounds import Roof

ISOLINES = (0.5, 0.75, 0.9)

MANY = "many shapes"
"""The name of all shapes where there are more of them than marks: they look alike."""

ROOFS = {
    "datasheet": {"color": GREY, "ls": "--", "lw": 1.3},
    "measured": {"color": DARK, "lw": 2},
}
"""Roofs, by their name in the `attrs` of a frame, and how each is drawn."""


def memory_roofline(frame):
    """The figure, a panel for each dtype; None where no case computes from device memory."""
    cases = frame[frame["analysis"] == "throughput"]
    cases = cases[cases["contender"] != cases["baseline"] + AGAIN]  # it lies on the baseline's points
    if cases.empty:
        return None
    weights = cases.apply(shape_text, axis=1)  # a layer at its tp, or the shape of a file
    cases = cases.assign(weights=MANY if weights.nunique() > len(MARKERS) else weights)
    of_dtypes = cases.groupby("dtype", sort=False)
    figure = theme.new(12.5, 5.8 * len(of_dtypes) + 0.6, frame, finding(cases))
    looks = {
        "palette": theme.colours(cases["contender"].unique()),
        "markers": dict(zip(cases["weights"].unique(), MARKERS, strict=False)),
    }
    every_axes = figure.subplots(len(of_dtypes), squeeze=False)[:, 0]
    for axes, (dtype, rows) in zip(every_axes, of_dtypes, strict=True):
        for name in ROOFS:
            if roof := frame.attrs.get(name, {}).get(dtype):
                _roof(axes, rows, name, roof)
        _points(axes, rows, looks)
    return figure


def finding(cases) -> str:
    """How fast the contender of the best geometric mean is beside the baseline."""
    rivals = compared(cases[cases["rival"].eq(True)])
    if rivals.empty:
        return f"FLOP/s of {cases['contender'].iloc[0]}"
    means = rivals.groupby("contender", sort=False)["ratio_to_baseline"].agg(geometric_mean)
    (text,) = summary(rivals[rivals["contender"] == means.idxmax()])
    return text


def _roof(axes, rows, name: str, roof: Roof) -> None:
    """A roof over all points and around its ridge, and fractions of the measured one."""
    xs = sorted([*rows["device_intensity"], roof.ridge / 8, roof.ridge, 2 * roof.ridge])
    ys = [roof.at(x) / 1e12 for x in xs]
    rates = f"{flops_text(roof.flops / 1e12)}, {rate_text(roof.read_bytes_per_s / 1e9)} GB/s"
    axes.plot(xs, ys, label=f"{name}: {rates}, ridge at {rate_text(roof.ridge)}", **ROOFS[name])
    if name == "measured":
        look = {"color": GREY, "lw": 0.7, "alpha": 0.7, "zorder": 1}
        axes.plot(xs, np.outer(ys, ISOLINES), **look)
        axes.plot([], [], label="50, 75 and 90 % of it", **look)


def _points(axes, rows, looks: dict) -> None:
    """Points with their intervals, and in the legend how many cases had their clock held down."""
    import seaborn

    axes.set(xscale="log", yscale="log")
    axes.margins(0.08, 0.15)
    x, y = "device_intensity", "tflops"
    axes.errorbar(rows[x], rows[y], theme.interval(rows, y), **theme.BARS)
    seaborn.scatterplot(
        rows,
        x=x,
        y=y,
        hue="contender",
        style="weights",
        ax=axes,
        **looks,
        s=42,
        edgecolor=DARK,
        linewidth=0.6,
        zorder=4,
    )
    of_tokens = rows.dropna(subset="m")
    names = "M " + of_tokens["m"].astype("string")
    theme.name_points(axes, of_tokens.assign(name=names), x, y, side="top")
    theme.plain_numbers(axes)
    axes.set(xlabel="arithmetic intensity (FLOP per byte of device memory)", ylabel="")
    axes.yaxis.set_major_formatter(lambda tflops, place: flops_text(tflops))
    title = f"{rows['dtype'].iloc[0]}, 95 % intervals"
    if hot := rows["throttled"].eq(True).sum():
        title += f"; throttled in {hot} of {len(rows)}"
    axes.legend(loc="lower right", fontsize=9.5, title=title, title_fontsize=8.5)
