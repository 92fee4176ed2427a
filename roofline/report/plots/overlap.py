"""The figure overlap: how much of matmul and gather each arm still pays for one after the other, a row for each shape.

Time is told over the longer of the two, T_gemm and T_comm: 1 is what nothing can beat, and a grey band reaches from
there to their sum, which is what serial pays.
"""

import numpy as np

from roofline.analysis.overlap import overlapping
from roofline.report.plots import style, theme
from roofline.report.plots.theme import DARK, GREY
from roofline.theory.arms import is_serial

BAND = "#dddddd"
ARM_IN, AROUND_IN = 0.1, 2.5
"""Inches of an arm, and of all that is above and below the arms."""

GAP, OF_OP = 2, 3
"""The room between shapes, in arms, and what there is more between operations."""

HEADERS = -6
"""Where the headers beside the axes stand, in arms."""

OWN_IDEAL = {"linestyle": "none", "marker": "|", "markersize": 11, "markeredgewidth": 2}


def overlap(frame):
    """The figure; None where no case has T_gemm and T_comm."""
    cases = style.prepared(frame)
    if not cases["timed"].any():
        return None
    drawn = _placed(cases[cases["timed"]])
    looks = style.styles(drawn["contender"])
    bottom = drawn["y"].max() + GAP
    figure = theme.new(11, ARM_IN * (bottom - HEADERS) + AROUND_IN)
    theme.about(figure, frame, "What each arm still pays of the shorter of matmul and wire")
    axes = figure.add_subplot(ylim=(bottom, HEADERS))
    axes.use_sticky_edges = False
    axes.axvline(1, color=DARK, linewidth=2)
    words = {HEADERS: "shape, wire, T_gemm / T_comm"}
    _word(axes, HEADERS, "hidden by the best arm")
    for op, of_op in drawn.groupby("op", sort=False):
        words[of_op["y"].min() - OF_OP] = f"{op}:"
        for _, arms in of_op.groupby("shape", sort=False):
            words[arms["y"].mean()] = _draw_shape(axes, arms, drawn, looks)
    theme.name_rows(axes, words)
    for arm, look in looks.items():
        _points(axes, arm, drawn[drawn["contender"] == arm], look)
    links = style.link_text(drawn[~drawn["own_fabric"]])
    axes.set_title("\n".join([links, *style.left_out(cases, void=False)]))
    axes.set_xlabel(
        "time over the longer of T_gemm and T_comm\nat 1 an arm pays that alone, where the band ends both in turn"
    )
    axes.plot([], [], color=GREY, **OWN_IDEAL, label="own ideal: what its schedule allows")
    axes.fill_between([], [], color=BAND, label="what overlapping can hide")
    theme.legend(figure)
    theme.lay_out(figure)
    return figure


def _placed(timed):
    """The cases by operation and ratio, with `y`, the place of each: an arm below another."""
    op, _ = timed["op"].factorize()
    placed = timed.assign(y=OF_OP * op).sort_values(["y", "ratio", "shape"])
    shape, _ = placed["shape"].factorize()
    placed["y"] += np.arange(len(placed)) + GAP * shape
    return placed


def _word(axes, y: float, text: str, **look) -> None:
    """Text to the right of row `y`."""
    theme.note(axes, text, (1, y), (10, 0), ("axes fraction", "data"), va="center", **look)


def _draw_shape(axes, arms, drawn, looks: dict) -> str:
    """The band of one shape, and the words right of it; returns those to the left."""
    first = next(arms.itertuples())
    y = arms["y"].mean()
    both = (first.t_gemm_s + first.t_comm_s) / first.ideal_s
    axes.barh(y, both - 1, len(arms) + 0.5, left=1, color=BAND, alpha=0.5 if first.void else 1)
    if first.void:
        _word(axes, y, style.void_text(first), color=GREY)
    hidden = overlapping(arms).set_index("contender")["hidden_fraction"].dropna()  # a void one has none
    if len(hidden):
        best = hidden.idxmax()
        _word(axes, y, f"{100 * hidden[best]:.0f} % {best}", color=looks[best]["color"], weight="bold")
    return f"{style.label(first, drawn)}, {first.wire}, {first.ratio:.2f}"


def _points(axes, arm: str, placed, look: dict) -> None:
    """Times of one arm with their intervals, and ticks at its own ideals."""
    label = arm
    if placed["own_fabric"].any():
        label += f", over {placed['link'].iloc[0]}"
    ends = style.interval(placed, "over")
    theme.points(axes, placed["over"], placed["y"], look, label=label, xerr=ends)
    if not is_serial(arm):
        ideals = placed["t_own_ideal_s"] / placed["ideal_s"]
        axes.plot(ideals, placed["y"], color=look["color"], zorder=3, **OWN_IDEAL)
