"""The figure attention: time forward and backward, and the bytes that are kept, over the length, with each line's
slope."""

import numpy as np

from roofline.plots import theme
from roofline.report.format import number_text

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
    figure = theme.new(12.5, 4.2 * len(masks) + 0.8)
    theme.about(figure, frame, finding(rows))
    panels = figure.subplots(len(masks), len(PANELS), squeeze=False)
    for line, mask in zip(panels, masks, strict=True):
        for axes, (field, part, unit, label) in zip(line, PANELS, strict=True):
            axes.set(xscale="log", yscale="log", xlabel="length", ylabel=label)
            axes.set_title(f"{mask}, batch {sizes[0]}, {sizes[1]} heads of {sizes[2]}", loc="left", fontsize=10)
            _lines(axes, rows[(rows["mask"] == mask) & (rows["part"] == part)], field, unit, colours)
            axes.margins(x=0.25)
    handles = [axes.plot([], [], color=colour, marker="o")[0] for colour in colours.values()]
    figure.legend(handles, colours, loc="outside lower center", ncols=len(colours), frameon=False, fontsize=9.5)
    return figure


def _lines(axes, rows, field: str, unit: float, colours: dict) -> None:
    lengths = sorted(rows["m"].unique())
    for name, of_name in rows.dropna(subset=[field]).groupby("contender", sort=False):
        of_name = of_name.sort_values("m")
        xs, ys = of_name["m"].astype(float).to_numpy(), of_name[field].to_numpy() / unit
        axes.plot(xs, ys, color=colours[name], marker="o", markersize=5)
        words = number_text(slope(xs, ys), 2)
        theme.note(axes, words, (xs[-1], ys[-1]), (6, 0), color=colours[name], va="center", fontsize=8)
    axes.set_xticks(lengths, [f"{length}" for length in lengths])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter("{x:g}")


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
