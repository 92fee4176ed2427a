"""The figure overlap: how much of matmul and gather each arm still pays for one after the other, a row for each shape.

Time is told over the longer of the two, T_gemm and T_comm: 1 is what nothing can beat, and a grey band reaches from
there to their sum, which is what serial pays.
"""

import numpy as np

from roofline.analysis.overlap import overlapping
from roofline.report.plots import gathers, theme
from roofline.report.plots.theme import DARK, GREY

BAND = "#dddddd"
ARM_IN = 0.1
"""Inches of an arm."""

GAP, AROUND = 2, 4
"""The room between shapes, and what is above and below those of an operation, in arms."""

OWN_IDEAL = {"linestyle": "none", "marker": "|", "markersize": 11, "markeredgewidth": 2}


def overlap(frame):
    """The figure; None where no case can be compared with its T_gemm and T_comm."""
    cases = gathers.prepared(frame)
    if cases.empty:
        return None
    of_ops = cases.groupby("op", sort=False)["shape"]
    heights_in = ARM_IN * (of_ops.size() + GAP * of_ops.nunique() + AROUND)
    finding = "What each arm still pays of the shorter of matmul and wire"
    figure, panels = gathers.panels(cases, finding, heights_in, sharex=True)
    for axes, rows in panels:
        _draw(axes, rows.sort_values(["ratio", "shape"]))
    last = figure.axes[-1]
    last.set_xlabel(
        "time over the longer of T_gemm and T_comm\nat 1 an arm pays that alone, where the band ends both in turn"
    )
    last.plot([], [], color=GREY, **OWN_IDEAL, label="own ideal: what its schedule allows")
    last.fill_between([], [], color=BAND, label="what overlapping can hide")
    theme.legend(figure)
    return figure


def _draw(axes, rows) -> None:
    """The shapes of an operation, from that of the least T_gemm / T_comm down, and the arms of each below another."""
    shape, _ = rows["shape"].factorize()
    rows = rows.assign(y=np.arange(len(rows)) + GAP * shape)
    words = {}
    for _, arms in rows.groupby("shape", sort=False):
        words[arms["y"].mean()] = _draw_shape(axes, arms)
    theme.name_rows(axes, words)
    axes.axvline(1, color=DARK, linewidth=2)
    axes.set(ylim=(rows["y"].max() + GAP, -GAP))
    axes.use_sticky_edges = False
    gathers.points(axes, rows, "over", "y", "over")
    for arm in overlapping(rows).itertuples():
        own_ideal = arm.t_own_ideal_s / arm.ideal_s
        axes.plot(own_ideal, arm.y, color=arm.look["color"], zorder=3, **OWN_IDEAL)


def _draw_shape(axes, arms) -> str:
    """The band of one shape, and right of it who hides the most; returns the words to the left."""
    first = arms.iloc[0]
    y = arms["y"].mean()
    both = (first["t_gemm_s"] + first["t_comm_s"]) / first["ideal_s"]
    axes.barh(y, both - 1, len(arms) + 0.5, left=1, color=BAND)
    hiding = overlapping(arms).dropna(subset="hidden_fraction")
    if len(hiding):
        best = hiding.loc[hiding["hidden_fraction"].idxmax()]
        text = f"{best['contender']} hides {100 * best['hidden_fraction']:.0f} %"
        axes.text(
            1.01,
            y,
            text,
            transform=axes.get_yaxis_transform(),
            color=best["look"]["color"],
            weight="bold",
            fontsize=9,
            va="center",
        )
    return f"{first['name']}, T_gemm / T_comm {first['ratio']:.2f}"
