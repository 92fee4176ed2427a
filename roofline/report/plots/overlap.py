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
ROW_IN, AROUND_IN = 0.44, 2.3
"""Inches of a row, and of all that is above and below the rows."""

APART = 0.22
"""Distance between the arms of one shape, in rows. A shape with more of them than fit takes more than one row."""

SHAPE, WIRE, RATIO = -265, -175, -10
"""Where the words left of the axes stand, in points from their left side."""

HEADER, HIDDEN, BEST = 10, 44, 50
"""Where the words right of the axes stand, in points from their right side: the header of what is hidden, how much,
and by which arm."""

ROOM_FOR_BOTH = 1.7
"""So much of the axis may be shown for the words at 1 and at 2 to stand on one line."""

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
    left = min(0.95, 0.97 * drawn["over_low"].min())
    right = max(2.0, drawn["over_high"].max()) * 1.03
    axes.set_xlim(left, right)
    axes.axvline(1, color=DARK, linewidth=2)
    _headers(axes)
    firsts = {row.shape: row for row in drawn.drop_duplicates("shape").itertuples()}
    rows = []
    top = -0.5
    for op, of_op in drawn.groupby("op", sort=False):
        _word(axes, SHAPE, top + 0.65, op, "left", weight="bold")
        top += 1
        ranked = of_op.sort_values("ratio", kind="stable")
        for shape, arms in ranked.groupby("shape", sort=False):
            height = max(1.0, APART * len(arms) + 0.34)
            middle = top + height / 2
            steps = np.arange(len(arms)) - (len(arms) - 1) / 2
            rows.append(arms.assign(y=middle + APART * steps))
            _draw_row(axes, firsts[shape], middle, height - 0.28)
            _words(axes, firsts[shape], middle, arms, drawn, looks)
            top += height
    figure.set_figheight(ROW_IN * (top + 1.5) + AROUND_IN)
    axes.set_ylim(top, -0.8)
    axes.set_yticks([])
    placed = pandas.concat(rows)
    for arm, look in looks.items():
        _points(axes, arm, placed[placed["contender"] == arm], look)
    theme.about(figure, frame, "What each arm still pays of the shorter of matmul and wire")
    links = style.link_text(drawn[~drawn["own_fabric"]])
    left_out = style.left_out(cases, void=False)
    style.title(axes, "", links, *left_out, left=-SHAPE, above=32)
    axes.set_xlabel("time over the longer of T_gemm and T_comm")
    axes.spines["left"].set_visible(False)
    _legend(axes)
    theme.lay_out(figure, w_pad=0.08)
    return figure


def _headers(axes) -> None:
    """Headers of the columns beside the axes, and the meaning of 1 and 2 on them."""
    for points, side, text in (
        (SHAPE, "left", "shape"),
        (WIRE, "left", "wire"),
        (RATIO, "right", "T_gemm / T_comm"),
        (HEADER, "left", "hidden by the best arm"),
    ):
        _word(axes, points, -0.8, text, side, color=GREY, va="bottom")
    left, right = axes.get_xlim()
    look = {"of": ("data", "axes fraction"), "va": "bottom", "fontsize": 9.5}
    above = 4 if right - left < ROOM_FOR_BOTH else 18  # a line higher
    theme.note(axes, "\u25c0 pays the longer one", (1, 1), (-4, 4), ha="left", **look)
    both = min(2, right), 1
    theme.note(axes, "pays both, in turn \u25b6", both, (4, above), ha="right", **look)


def _word(axes, points: float, y: float, text: str, side: str, *, va: str = "center", **look) -> None:
    """Text beside the axes at row `y`: so many points from the left side if they are below 0, else from the right."""
    edge = 1.0 if points > 0 else 0.0
    of = "axes fraction", "data"
    theme.note(axes, text, (edge, y), (points, 0), of, ha=side, va=va, **look)


def _draw_row(axes, first, y: float, height: float) -> None:
    """The band of one shape."""
    both = (first.t_gemm_s + first.t_comm_s) / first.ideal_s
    faint = 0.5 if first.void else 1
    axes.barh(y, both - 1, height, left=1, color=BAND, alpha=faint)
    axes.vlines(both, y - height / 2, y + height / 2, DARK, linewidth=1.5)


def _words(axes, first, y: float, arms, drawn, looks: dict) -> None:
    """The words of one shape, left and right of its band."""
    _word(axes, SHAPE, y, style.label(first, drawn), "left")
    _word(axes, WIRE, y, first.wire, "left")
    _word(axes, RATIO, y, f"{first.ratio:.2f}", "right")
    if first.void:
        _word(axes, HEADER, y, style.void_text(first), "left", color=GREY)
        return
    hidden = overlapping(arms).set_index("contender")["hidden_fraction"].dropna()
    if len(hidden):
        best = hidden.idxmax()
        _word(axes, HIDDEN, y, f"{100 * hidden[best]:.0f} %", "right", weight="bold")
        _word(axes, BEST, y, best, "left", color=looks[best]["color"])


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


def _legend(axes) -> None:
    """The legend under the axes, which explains ticks and bands too."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles, names = axes.get_legend_handles_labels()
    handles.append(Line2D([], [], color=GREY, **OWN_IDEAL))
    names.append("own ideal: what its schedule allows")
    handles.append(Patch(color=BAND))
    names.append("what overlapping can hide")
    style.legend(axes, handles, names, columns=3)
