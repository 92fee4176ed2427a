"""The figure attention: time forward and backward, and the bytes that are kept, over the length, with each line's
slope."""

from itertools import cycle

import numpy as np

from roofline.operations.format import number_text
from roofline.report.plots import theme

PANELS = (
    ("time_s", "forward", 1e-3, "forward, ms"),
    ("time_s", "backward", 1e-3, "backward, ms"),
    ("saved_bytes", "forward", 1e6, "kept for the backward pass, MB"),
)
"""(field, part, unit, label) of each panel."""


def attention(frame):
    """The figure, a row of panels for each mask, of the width and batch that have the most lengths; None where no
    attention was measured."""
    import pandas
    import seaborn

    cases = frame[frame["op"] == "attention"]
    if cases.empty:
        return None
    of_size = cases.groupby(["batch", "heads", "width"], sort=True)
    lengths = of_size["m"].nunique()
    size = lengths[lengths == lengths.max()].index[-1]
    rows = of_size.get_group(size)
    points = pandas.concat([_panel(rows, *panel) for panel in PANELS], ignore_index=True)
    colours = theme.colours(rows["contender"].unique())
    theme.use()
    grid = seaborn.relplot(
        points,
        kind="line",
        x="m",
        y="value",
        row="mask",
        col="panel",
        hue="contender",
        style="contender",
        palette=colours,
        markers=dict(zip(colours, cycle(theme.MARKERS))),
        dashes=False,
        markersize=6,
        estimator=None,
        height=4.6,
        aspect=0.9,
        facet_kws={"sharex": False, "sharey": False, "legend_out": False},
    )
    batch, heads, width = size
    plural = "s" if heads > 1 else ""
    figure = theme.of_grid(grid, f"{{row_name}}, batch {batch}, {heads} head{plural} of {width}")
    theme.about(figure, frame, finding(rows))
    grid.set(xscale="log", yscale="log")
    grid.set_xlabels("length")
    seaborn.move_legend(grid.axes[0, 0], "upper left", title=None, frameon=False, fontsize=9)
    slopes = []
    for (mask, label), axes in grid.axes_dict.items():
        axes.set_ylabel(label)
        shown = points[(points["mask"] == mask) & (points["panel"] == label)]
        slopes.append(_slopes(axes, shown, colours))
    theme.separate(figure, slopes)
    return figure


def _panel(rows, field: str, part: str, unit: float, label: str):
    """The points of a panel: those of `rows` whose `field` was measured in this part."""
    measured = rows[(rows["part"] == part) & rows[field].notna()]
    points = measured[["mask", "contender"]].copy()
    points["m"] = measured["m"].astype(float)
    points["panel"] = label
    points["value"] = measured[field] / unit
    return points


def _slopes(axes, points, colours: dict) -> list:
    """Write the slope of each line behind its end; a single point has none. Returns the labels."""
    slopes = []
    for name, line in points.groupby("contender", sort=False):
        line = line.sort_values("m")
        xs = line["m"].to_numpy()
        ys = line["value"].to_numpy()
        if len(xs) > 1:
            text = f"{slope(xs, ys):.1f}"
            label = theme.note(axes, text, (xs[-1], ys[-1]), (9, 0), color=colours[name], va="center", fontsize=8.5)
            slopes.append(label)
    axes.margins(x=0.25, y=0.1)
    axes.autoscale_view()
    theme.plain_numbers(axes)
    lengths = sorted(points["m"].unique())
    axes.set_xticks(lengths, [f"{length:.0f}" for length in lengths])
    axes.xaxis.minorticks_off()
    return slopes


def slope(xs, ys) -> float:
    """The power of the length by which the last two points grow."""
    growth = np.log(ys[-1]) - np.log(ys[-2])
    return float(growth / (np.log(xs[-1]) - np.log(xs[-2])))


def finding(rows) -> str:
    """By how much more is kept of what keeps the most than of what keeps the least, at the greatest length."""
    kept = rows.dropna(subset=["saved_bytes"])
    longest = kept[kept["m"] == kept["m"].max()].sort_values("saved_bytes")
    if len(longest) < 2:
        return "Attention over lengths"
    least = longest.iloc[0]
    most = longest.iloc[-1]
    ratio = number_text(most["saved_bytes"] / least["saved_bytes"], 2)
    text = f"At a length of {most['m']} {most['contender']} keeps {ratio} x the bytes of {least['contender']}"
    if rows["m"].nunique() > 1:
        text += "; beside each line the power of the length by which it grows"
    return text
