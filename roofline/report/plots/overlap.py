"""The figure overlap: how much of matmul and gather each arm still pays for one after the other, a row for each shape.

Time is told over the longer of the two, T_gemm and T_comm: 1 is what nothing can beat, and a grey band reaches from
there to their sum, which is what serial pays.
"""

import numpy as np

from roofline.report.plots import style, theme
from roofline.report.plots.theme import DARK, GREY
from roofline.theory.arms import is_serial

BAND = "#dddddd"
ROW_IN, AROUND_IN = 0.44, 2.3
"""Inches of a row, and of all that is above and below the rows."""

APART = 0.22
"""How far the arms of one shape stand apart, in rows. A shape with more of them than fit takes more than one row."""

COLUMNS = ((-265, "left", "shape"), (-175, "left", "wire"), (-10, "right", "T_gemm / T_comm"))
BEST = 10, 44, 50
"""Where the words beside the axes stand, in points from its left and from its right side: the header of what is hidden,
how much, and by which arm."""

ROOM_FOR_BOTH = 1.7
"""So much of the axis may be shown for the words at 1 and at 2 to stand on one line."""

OWN_IDEAL = {"linestyle": "none", "marker": "|", "markersize": 11, "markeredgewidth": 2}


def overlap(frame):
    """Return the figure; None where no case has T_gemm and T_comm."""
    import pandas

    run_frame, frame = frame, style.prepared(frame)
    drawn = frame[frame["timed"]]
    if drawn.empty:
        return None
    names, rows, end = _rows(drawn)
    looks, placed = style.styles(drawn["contender"]), pandas.concat(rows)
    figure = theme.new(11, ROW_IN * (end + 1.5) + AROUND_IN)
    axes = figure.add_subplot()
    left, right = min(0.95, 0.97 * drawn["over_low"].min()), max(2.0, drawn["over_high"].max()) * 1.03
    axes.set(xlim=(left, right), ylim=(end, -0.8), yticks=[])
    axes.axvline(1, color=DARK, linewidth=2, zorder=2)
    for at, side, text in (*COLUMNS, (BEST[0], "left", "hidden by the best arm")):
        _word(axes, at, -0.8, text, side, color=GREY, va="bottom")
    for y, name in names.items():
        _word(axes, COLUMNS[0][0], y, name, "left", weight="bold")
    for rows_of_shape in rows:
        _row(axes, rows_of_shape, drawn, looks)
    words = {"of": ("data", "axes fraction"), "va": "bottom", "fontsize": 9.5}
    theme.note(axes, "\u25c0 pays the longer one", (1, 1), (-4, 4), ha="left", **words)
    above = 4 if right - left < ROOM_FOR_BOTH else 18  # a line higher
    theme.note(axes, "pays both, in turn \u25b6", (min(2, right), 1), (4, above), ha="right", **words)
    for arm, look in looks.items():
        _points(axes, arm, placed[placed["contender"] == arm], look)
    theme.about(figure, run_frame, "What each arm still pays of the shorter of matmul and wire")
    below = style.link_text(drawn[~drawn["own_fabric"]]), *style.left_out(frame, void=False)
    style.title(axes, "", *below, left=-COLUMNS[0][0], above=32)
    axes.set_xlabel("time over the longer of T_gemm and T_comm")
    axes.spines["left"].set_visible(False)
    _legend(axes)
    theme.lay_out(figure, w_pad=0.08)
    return figure


def _rows(drawn) -> tuple[dict, list, float]:
    """Return {y: operation} of the names above its shapes; the arms of each shape with `y`, its `middle` and its
    `height`, by T_gemm / T_comm; and where the last one ends."""
    names, rows, top = {}, [], -0.5
    for op, of_op in drawn.groupby("op", sort=False):
        names[top + 0.65] = op
        top += 1
        for _, rows_of_shape in of_op.sort_values("ratio", kind="stable").groupby("shape", sort=False):
            height = max(1.0, APART * len(rows_of_shape) + 0.34)
            middle, steps = top + height / 2, np.arange(len(rows_of_shape)) - (len(rows_of_shape) - 1) / 2
            rows.append(rows_of_shape.assign(y=middle + APART * steps, middle=middle, height=height))
            top += height
    return names, rows, top


def _word(axes, points: float, y: float, text: str, side: str, **look) -> None:
    """Text beside the axes at row `y`: so many points from the left side if they are below 0, else from the right."""
    look = {"va": "center", "ha": side} | look
    theme.note(axes, text, (float(points > 0), y), (points, 0), ("axes fraction", "data"), **look)


def _row(axes, rows_of_shape, drawn, looks: dict) -> None:
    """Band and words of one shape."""
    first = next(rows_of_shape.itertuples())
    both, height, y = (first.t_gemm_s + first.t_comm_s) / first.ideal_s, first.height - 0.28, first.middle
    axes.barh(y, both - 1, left=1, height=height, color=BAND, alpha=0.5 if first.void else 1, zorder=1)
    axes.plot([both, both], [y - height / 2, y + height / 2], color=DARK, linewidth=1.5, zorder=2)
    for (at, side, _), text in zip(COLUMNS, (style.label(first, drawn), first.wire, f"{first.ratio:.2f}"), strict=True):
        _word(axes, at, y, text, side)
    hidden = rows_of_shape.set_index("contender")["hidden_fraction"].dropna()
    hidden = hidden[~hidden.index.map(is_serial).astype(bool)]
    if first.void:
        _word(axes, BEST[0], y, style.void_text(first), "left", color=GREY)
    elif len(hidden):
        best = hidden.idxmax()
        _word(axes, BEST[1], y, f"{100 * hidden[best]:.0f} %", "right", weight="bold")
        _word(axes, BEST[2], y, best, "left", color=looks[best]["color"])


def _points(axes, arm: str, rows, look: dict) -> None:
    """Times of one arm with their intervals, and ticks at its own ideals."""
    fabric = f", over {rows['link'].iloc[0]}" if rows["own_fabric"].any() else ""
    style.draw_points(axes, rows["over"], rows["y"], look, label=arm + fabric, xerr=style.interval(rows, "over"))
    if not is_serial(arm):
        axes.plot(rows["t_own_ideal_s"] / rows["ideal_s"], rows["y"], color=look["color"], zorder=3, **OWN_IDEAL)


def _legend(axes) -> None:
    """What is what, under the axes."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles, names = axes.get_legend_handles_labels()
    handles += [Line2D([], [], color=GREY, **OWN_IDEAL), Patch(color=BAND)]
    names += ["own ideal: what its schedule allows", "what overlapping can hide"]
    style.legend(axes, handles, names, columns=3)
