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
"""Of each panel: the field, the part, the unit and the label."""


def attention(frame):
    """Return the figure, a row of panels for each mask, of the width and batch that have the most lengths; None where
    no attention was measured."""
    import pandas
    import seaborn

    frame = frame[frame["op"] == "attention"]
    if frame.empty:
        return None
    of_size = frame.groupby(["batch", "heads", "width"], sort=True)
    counts = of_size["m"].nunique()
    batch, heads, width = counts[counts == counts.max()].index[-1]
    rows = of_size.get_group((batch, heads, width))
    points = pandas.concat([_panel(rows, *panel) for panel in PANELS], ignore_index=True)
    colours = theme.colours(rows["contender"].unique())
    theme.use()
    grid = seaborn.relplot(
        points, kind="line", x="m", y="value", row="mask", col="panel", hue="contender", style="contender",
        palette=colours, markers=dict(zip(colours, cycle(theme.MARKERS))), dashes=False, markersize=6, estimator=None,
        height=4.6, aspect=0.9, facet_kws={"sharex": False, "sharey": False, "legend_out": False},
    )  # fmt: skip
    figure = theme.of_grid(grid, f"{{row_name}}, batch {batch}, {heads} head{'s' * int(heads > 1)} of {width}")
    theme.about(figure, frame, finding(rows))
    grid.set(xscale="log", yscale="log")
    grid.set_xlabels("length")
    seaborn.move_legend(grid.axes[0, 0], "upper left", title=None, frameon=False, fontsize=9)
    slopes = []
    for (mask, label), axes in grid.axes_dict.items():
        axes.set_ylabel(label)
        slopes.append(_slopes(axes, points[(points["mask"] == mask) & (points["panel"] == label)], colours))
    theme.separate(figure, slopes)
    return figure


def _panel(rows, field: str, part: str, unit: float, label: str):
    """The points of a panel: those of `rows` whose `field` was measured in this part."""
    points = rows.loc[(rows["part"] == part) & rows[field].notna(), ["mask", "contender", "m"]]
    return points.assign(m=points["m"].astype(float), panel=label, value=rows[field] / unit)


def _slopes(axes, points, colours: dict) -> list:
    """Write the slope of each line behind its end; a single point has none. Returns the labels."""
    slopes = []
    for name, line in points.groupby("contender", sort=False):
        line = line.sort_values("m")
        xs, ys = line["m"].to_numpy(), line["value"].to_numpy()
        if len(xs) < 2:
            continue
        look = {"color": colours[name], "va": "center", "fontsize": 8.5}
        slopes.append(theme.note(axes, f"{slope(xs, ys):.1f}", (xs[-1], ys[-1]), (9, 0), **look))
    axes.margins(x=0.25, y=0.1)
    axes.autoscale_view()
    theme.plain_numbers(axes)
    lengths = sorted(points["m"].unique())
    axes.set_xticks(lengths, [f"{length:.0f}" for length in lengths])
    axes.xaxis.minorticks_off()
    return slopes


def slope(xs, ys) -> float:
    """Return the power of the length by which the last two points grow."""
    return float(np.diff(np.log(ys[-2:]))[-1] / np.diff(np.log(xs[-2:]))[-1])


def finding(rows) -> str:
    """Return how the bytes grow of what keeps the most and the least at the greatest length."""
    kept = rows.dropna(subset=["saved_bytes"])
    longest = kept[kept["m"] == kept["m"].max()].sort_values("saved_bytes")
    if len(longest) < 2:
        return "Attention over lengths"
    least, most = longest.iloc[0], longest.iloc[-1]
    ratio = number_text(most["saved_bytes"] / least["saved_bytes"], 2)
    text = f"At a length of {most['m']} {most['contender']} keeps {ratio} x the bytes of {least['contender']}"
    is_line = rows["m"].nunique() > 1
    return text + "; beside each line the power of the length by which it grows" * is_line
