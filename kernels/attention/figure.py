"""The figure attention: time forward and backward, and the bytes that are kept, over the length, with each line's
slope."""

import numpy as np

from roofline.analysis.records import frame as frame_of
from roofline.report.plots import theme

PANELS = (
    ("time_s", "forward", 1e-3, "forward, ms"),
    ("time_s", "backward", 1e-3, "backward, ms"),
    ("saved_bytes", "forward", 1e6, "kept for the backward pass, MB"),
)
"""(field, part, unit, label) of each panel."""


def attention(run):
    """The figure of `run`; None where it has no attention."""
    return over_lengths(frame_of(run))


def over_lengths(frame):
    """The figure of a frame, a row of panels for each mask, of the width and batch that have the most lengths; None
    where no attention was measured."""
    cases = frame[frame["op"] == "attention"]
    if cases.empty:
        return None
    of_size = cases.groupby(["batch", "heads", "width"], sort=True)
    lengths = of_size["m"].nunique()
    size = lengths[lengths == lengths.max()].index[-1]
    rows = of_size.get_group(size)
    looks = theme.looks(rows["contender"].unique())
    masks = rows["mask"].unique()
    finding = "Attention over lengths, and the power of the length by which each line grows"
    figure = theme.new(12.5, 4.6 * len(masks), frame, finding)
    words = "batch {}, heads {}, width {}".format(*size)
    for mask, axes_of_mask in zip(masks, figure.subplots(len(masks), len(PANELS), squeeze=False), strict=True):
        for axes, panel in zip(axes_of_mask, PANELS, strict=True):
            axes.set_title(f"{mask}, {words}")
            _panel(axes, rows[rows["mask"] == mask], looks, *panel)
    return figure


def _panel(axes, rows, looks: dict, field: str, part: str, unit: float, label: str) -> None:
    """A line for each contender whose `field` was measured in this part, and in the legend the power of the length by
    which its last two points grow; a single point has none."""
    points = rows[(rows["part"] == part) & rows[field].notna()].sort_values("m")
    axes.set(xscale="log", yscale="log", xlabel="length", ylabel=label)
    for name, line in points.groupby("contender", sort=False):
        xs = line["m"].to_numpy(float)
        ys = line[field].to_numpy() / unit
        words = name
        if len(xs) > 1:
            power = np.diff(np.log(ys[-2:])) / np.diff(np.log(xs[-2:]))
            words += f": {power.item():.1f}"
        axes.plot(xs, ys, **looks[name], markersize=6, markeredgecolor="white", label=words)
    theme.plain_numbers(axes)
    axes.set_xticks(points["m"].unique())
    axes.legend(loc="upper left", frameon=False, fontsize=8.5)
