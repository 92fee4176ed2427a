"""The figure overlap: how much of matmul and gather each arm still pays for one after the other, a row for each shape.

Time is told over the longer of the two, T_gemm and T_comm: 1 is what nothing can beat, and a grey band reaches from
there to their sum, which is what serial pays.
"""

from itertools import accumulate

from roofline.analysis.base import records_of
from roofline.analysis.overlap import style
from roofline.report import theme
from roofline.report.theme import DARK, GREY
from roofline.store.run import Run

BAND = "#dddddd"
BAND_NAME = "what overlapping can hide"
ROW_IN, AROUND_IN = 0.44, 2.3
"""Inches of a row, and of all that is above and below the rows."""

APART = 0.22
"""How far the arms of one shape stand apart, in rows. A shape with more of them than fit takes more than one row."""

COLUMNS = ((-265, "left", "shape"), (-175, "left", "wire"), (-10, "right", "T_gemm / T_comm"))
BEST = 10, 44, 50
"""Where the words beside the axes stand, in points from its left and from its right side: the header of what is hidden,
how much, and by which arm."""


def draw(run: Run, frame):
    records = records_of(frame)
    shapes = [own for own in style.by_shape(records).values() if style.is_timed(own[0])]
    drawn = [record for own in shapes for record in own]
    styles, rows = style.styles(drawn), _rows(shapes)
    end = max(y + _height(row) / 2 for y, row in rows)
    figure = theme.new(11, ROW_IN * (end + 1.5) + AROUND_IN)
    figure.get_layout_engine().set(w_pad=0.08)
    axes = figure.add_subplot()
    longest = max(style.over_ideal(record, "_high") for record in drawn)
    shortest = min(style.over_ideal(record, "_low") for record in drawn)
    axes.set_xlim(min(0.95, 0.97 * shortest), max(2.0, longest) * 1.03)
    axes.set_ylim(end, -0.8)
    axes.axvline(1, color=DARK, linewidth=2, zorder=2)
    for at, side, text in (*COLUMNS, (BEST[0], "left", "hidden by the best arm")):
        _word(axes, at, -0.8, text, side, color=GREY, va="bottom")
    for y, row in rows:
        if isinstance(row, str):
            _word(axes, COLUMNS[0][0], y + 0.15, row, "left", weight="bold")
        else:
            _row(axes, y, row, drawn, styles)
    _directions(axes)
    for arm, look in styles.items():
        _points(axes, arm, [place for y, row in rows for place in _places(row, y, arm, styles)], look)
    subtitle = f"{style.source_text(run)}, {style.link_text(style.over_the_link(drawn))}"
    below = [subtitle, *style.left_out(records, void=False)]
    style.title(axes, run.metadata["title"], *below, left=-COLUMNS[0][0], above=32)
    axes.set_xlabel("time over the longer of T_gemm and T_comm")
    axes.set_yticks([])
    axes.spines[["top", "right", "left"]].set_visible(False)
    _legend(axes)
    theme.footer(figure, run.metadata["footer"])
    return figure


def _rows(shapes: list[list[dict]]) -> list[tuple[float, str | list[dict]]]:
    """The middle of each row, and what stands there: an operation's name above its shapes, these by T_gemm / T_comm."""
    rows: list[str | list[dict]] = []
    for op in dict.fromkeys(own[0]["op"] for own in shapes):
        rows += [op, *sorted((own for own in shapes if own[0]["op"] == op), key=lambda own: style.balance_of(own[0]))]
    ends = accumulate(map(_height, rows), initial=-0.5)
    return [(start + _height(row) / 2, row) for start, row in zip(ends, rows, strict=False)]


def _height(row: str | list[dict]) -> float:
    return 1.0 if isinstance(row, str) else max(1.0, APART * len(row) + 0.34)


def _ideal_s(record: dict) -> float:
    return max(record["t_gemm_s"], record["t_comm_s"])


def _places(row: str | list[dict], y: float, arm: str, styles: dict) -> list[tuple[float, dict]]:
    """Where `arm` stands in a row whose middle is `y`, and its record; [] if it is not there."""
    own = [] if isinstance(row, str) else sorted(row, key=lambda record: list(styles).index(record["arm"]))
    return [(y + APART * (i - (len(own) - 1) / 2), r) for i, r in enumerate(own) if r["arm"] == arm]


def _word(axes, points: float, y: float, text: str, side: str, **look) -> None:
    """Text beside the axes at row `y`: so many points from the left side if they are below 0, else from the right."""
    words = {"fontsize": 9, "color": DARK, "va": "center", "ha": side} | look
    axes.annotate(
        text, (float(points > 0), y), (points, 0), xycoords=("axes fraction", "data"), textcoords="offset points",
        annotation_clip=False, **words,
    )  # fmt: skip


def _row(axes, y: float, own: list[dict], drawn: list[dict], styles: dict) -> None:
    """Band and words of one shape."""
    first = own[0]
    both = (first["t_gemm_s"] + first["t_comm_s"]) / _ideal_s(first)
    void = first["link_off_pace"] is not None
    height = _height(own) - 0.28
    axes.barh(y, both - 1, left=1, height=height, color=BAND, alpha=0.5 if void else 1, zorder=1)
    axes.plot([both, both], [y - height / 2, y + height / 2], color=DARK, linewidth=1.5, zorder=2)
    texts = (style.label(first, drawn), first["wire"], f"{style.balance_of(first):.2f}")
    for (at, side, _), text in zip(COLUMNS, texts, strict=True):
        _word(axes, at, y, text, side)
    hiding = [record for record in own if not style.is_serial(record["arm"]) and record["hidden_fraction"] is not None]
    if void:
        _word(axes, BEST[0], y, f"void: {style.void_text(first)}", "left", color=GREY)
    elif hiding:
        best = max(hiding, key=lambda record: record["hidden_fraction"])
        _word(axes, BEST[1], y, f"{100 * best['hidden_fraction']:.0f} %", "right", weight="bold")
        _word(axes, BEST[2], y, best["arm"], "left", color=styles[best["arm"]]["color"])


def _directions(axes) -> None:
    """What the two sides of the axis mean, above it."""
    words = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points", "va": "bottom", "fontsize": 10}
    left, right = 1, axes.get_xlim()[1]
    axes.annotate("\u25c0 pays only the longer one", (left, 1), (-4, 4), ha="left", **words)
    axes.annotate("pays both, one after the other \u25b6", (min(2, right), 1), (4, 4), ha="right", **words)


def _points(axes, arm: str, places: list[tuple[float, dict]], look: dict) -> None:
    """Times of one arm with their intervals, and ticks at its own ideals."""
    if not places:
        return
    ys, own = zip(*places, strict=True)
    xs = [style.over_ideal(record) for record in own]
    fabric = next((f", over {record['link']}" for record in own if record["own_fabric"]), "")
    style.draw_points(axes, xs, ys, look, label=arm + fabric, xerr=style.interval(own, style.over_ideal))
    known = [
        (r["t_own_ideal_s"] / _ideal_s(r), y) for y, r in places if r["t_own_ideal_s"] and not style.is_serial(arm)
    ]
    if known:
        axes.plot(
            *zip(*known, strict=True), linestyle="none", marker="|", markersize=11, markeredgewidth=2,
            color=look["color"], zorder=3,
        )  # fmt: skip


def _legend(axes) -> None:
    """What is what, under the axes."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles, names = axes.get_legend_handles_labels()
    tick = Line2D([], [], linestyle="none", marker="|", markersize=11, markeredgewidth=2, color=GREY)
    handles += [tick, Patch(color=BAND)]
    names += ["own ideal: what its schedule allows", BAND_NAME]
    style.legend(axes, handles, names, columns=3)
