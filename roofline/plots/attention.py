"""The figure attention: time forward and backward, and the bytes that are kept, over the length, with each line's
slope."""

from itertools import cycle

import numpy as np

from roofline.format import number_text
from roofline.plots import theme

PANELS = (
    ("time_s", "forward", 1e-3, "forward, ms"),
    ("time_s", "backward", 1e-3, "backward, ms"),
    ("saved_bytes", "forward", 1e6, "kept for the backward pass, MB"),
)
"""Of each panel: the field, the part, the unit and the label."""


def attention(frame):
    """Return the figure, a row of panels for each mask, of the width and batch that have the most lengths; None where
    no attention was measured."""
    frame = frame[frame["op"] == "attention"]
    if frame.empty:
        return None
    counts = frame.groupby(["batch", "heads", "width"], sort=True)["m"].nunique()
    sizes = counts[counts == counts.max()].index[-1]
    rows = frame[(frame[["batch", "heads", "width"]] == list(sizes)).all(axis=1)]
    colours, masks = theme.colours(rows["contender"].unique()), rows["mask"].unique()
    looks = {
        name: {"color": colour, "marker": mark, "markersize": 6, "markeredgecolor": "white"}
        for (name, colour), mark in zip(colours.items(), cycle(theme.MARKERS))
    }
    figure = theme.new(12.5, 4.2 * len(masks) + 0.8)
    theme.about(figure, frame, finding(rows))
    panels, slopes = figure.subplots(len(masks), len(PANELS), squeeze=False), []
    for line, mask in zip(panels, masks, strict=True):
        for axes, (field, part, unit, label) in zip(line, PANELS, strict=True):
            axes.set(xscale="log", yscale="log", xlabel="length", ylabel=label)
            size = f"{sizes[1]} head{'s' * int(sizes[1] > 1)} of {sizes[2]}"
            axes.set_title(f"{mask}, batch {sizes[0]}, {size}", loc="left", fontsize=10)
            slopes.append(_lines(axes, rows[(rows["mask"] == mask) & (rows["part"] == part)], field, unit, looks))
    panels[0, 0].legend(loc="upper left", frameon=False, fontsize=9)
    theme.separate(figure, slopes)
    return figure


def _lines(axes, rows, field: str, unit: float, looks: dict) -> list:
    """Return the labels of the lines' slopes."""
    slopes = []
    for name, of_name in rows.dropna(subset=[field]).groupby("contender", sort=False):
        of_name = of_name.sort_values("m")
        xs, ys = of_name["m"].astype(float).to_numpy(), of_name[field].to_numpy() / unit
        axes.plot(xs, ys, label=name, **looks[name])
        look = {"color": looks[name]["color"], "va": "center", "fontsize": 8.5}
        slopes.append(theme.note(axes, f"{slope(xs, ys):.1f}", (xs[-1], ys[-1]), (9, 0), **look))
    axes.margins(x=0.25, y=0.1)
    axes.autoscale_view()
    theme.plain_numbers(axes)
    lengths = sorted(rows["m"].unique())
    axes.set_xticks(lengths, [f"{length}" for length in lengths])
    axes.xaxis.minorticks_off()
    return slopes


def slope(xs, ys) -> float:
    """Return the power of the length by which the last two points grow; NaN of a single one."""
    return float(np.diff(np.log(ys[-2:]))[-1] / np.diff(np.log(xs[-2:]))[-1]) if len(xs) > 1 else float("nan")


def finding(rows) -> str:
    """Return how the bytes grow of what keeps the most and the least at the greatest length."""
    kept = rows.dropna(subset=["saved_bytes"])
    longest = kept[kept["m"] == kept["m"].max()].sort_values("saved_bytes")
    if len(longest) < 2:
        return "Attention over lengths"
    least, most = longest.iloc[0], longest.iloc[-1]
    ratio = number_text(most["saved_bytes"] / least["saved_bytes"], 2)
    return (
        f"At a length of {most['m']} {most['contender']} keeps {ratio} x the bytes of {least['contender']}; "
        "beside each line the power of the length by which it grows"
    )
