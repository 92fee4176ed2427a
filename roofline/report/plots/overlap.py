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
ROW_IN, AROUND_IN = 0.44, 2.5
"""Inches of a row, and of all that is above and below the rows."""

APART = 0.22
"""Distance between the arms of one shape, in rows. A shape with more of them than fit takes more than one row."""

HEADERS = -0.8
"""The row of the headers beside the axes."""

OWN_IDEAL = {"linestyle": "none", "marker": "|", "markersize": 11, "markeredgewidth": 2}


def overlap(frame):
    """The figure; None where no case has T_gemm and T_comm."""
    import pandas

    cases = style.prepared(frame)
    drawn = cases[cases["timed"]]
    if drawn.empty:
        return None
    looks = style.styles(drawn["contender"])
    figure = theme.new(11, AROUND_IN)
    axes = figure.add_subplot()
    axes.use_sticky_edges = False
    axes.axvline(1, color=DARK, linewidth=2)
    rows = []
    words = {HEADERS: "shape, wire, T_gemm / T_comm"}
    top = -0.5
    for op, of_op in drawn.groupby("op", sort=False):
        words[top + 0.65] = f"{op}:"
        top += 1
        ranked = of_op.sort_values("ratio", kind="stable")
        for _, arms in ranked.groupby("shape", sort=False):
            height = max(1.0, APART * len(arms) + 0.34)
            middle = top + height / 2
            steps = np.arange(len(arms)) - (len(arms) - 1) / 2
            rows.append(arms.assign(y=middle + APART * steps))
            words[middle] = _draw_row(axes, middle, height - 0.28, arms, drawn, looks)
            top += height
    figure.set_figheight(ROW_IN * (top + 1.5) + AROUND_IN)
    axes.set_ylim(top, HEADERS)
    axes.set_yticks([*words], [*words.values()], fontsize=9)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    _word(axes, HEADERS, "hidden by the best arm")
    placed = pandas.concat(rows)
    for arm, look in looks.items():
        _points(axes, arm, placed[placed["contender"] == arm], look)
    theme.about(figure, frame, "What each arm still pays of the shorter of matmul and wire")
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


def _word(axes, y: float, text: str, **look) -> None:
    """Text to the right of row `y`."""
    theme.note(axes, text, (1, y), (10, 0), ("axes fraction", "data"), va="center", **look)


def _draw_row(axes, y: float, height: float, arms, drawn, looks: dict) -> str:
    """The band of one shape, and the words right of it; returns those to the left."""
    first = next(arms.itertuples())
    both = (first.t_gemm_s + first.t_comm_s) / first.ideal_s
    axes.barh(y, both - 1, height, left=1, color=BAND, alpha=0.5 if first.void else 1)
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
