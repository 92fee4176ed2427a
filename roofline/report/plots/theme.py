"""Theme, colours and words of all figures of a report, and the way they are saved."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from textwrap import wrap

import numpy as np

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p")
DARK = "#222222"
GREY = "#777777"
BARS = {"ls": "none", "ecolor": DARK, "elinewidth": 0.9, "capsize": 2, "zorder": 4}
"""The look of error bars."""
POINTS = {"markersize": 6.5, "markeredgecolor": DARK, "markeredgewidth": 0.6}
LETTERS = 15
"""So many of the words of a run stand on an inch."""
PLACES = 60
"""So many upright names stand beside one another."""
BEHIND_TEXT = {"facecolor": "white", "alpha": 0.85, "pad": 0.5, "lw": 0}

LOOK = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 9.5,
    "text.parse_math": False,  # a `$` is no formula
    "text.usetex": False,
    "text.hinting": "none",
    "figure.constrained_layout.h_pad": 0.08,
    "figure.constrained_layout.w_pad": 0.08,
    "figure.dpi": 150,
    "svg.fonttype": "none",
    "svg.hashsalt": "roofline",
}


def new(width: float, height: float, frame, finding: str):
    """An empty figure of so many inches, in the theme. Above it stands what it shows and, smaller, of what run: the
    words of the run are in the `attrs` of `frame`, if it has any."""
    import seaborn
    from matplotlib.figure import Figure
    from matplotlib.text import Annotation

    seaborn.set_theme(style="ticks", context="notebook", rc=LOOK)
    figure = Figure(figsize=(width, height), layout="constrained")
    lines = []
    for name in ("title", "footer"):
        for whole in frame.attrs.get(name, "").splitlines():
            lines += wrap(whole, round(LETTERS * width), break_on_hyphens=False)
    room = "\n" * max(len(lines), 2)
    title = figure.suptitle(finding + room, x=0.01, ha="left", fontsize=13)
    run = "\n".join(lines)
    below = Annotation(run, (0, 0), xycoords=title, va="bottom", fontsize=8.5, color=GREY)
    figure.add_artist(below)
    return figure


def colours(names: Sequence, palette: str = "colorblind") -> dict:
    """{name: colour}. The colour-blind can tell them apart."""
    import seaborn

    return dict(zip(names, seaborn.color_palette(palette, len(names)), strict=True))


def looks(names: Sequence[str]) -> dict[str, dict]:
    """{name: colour and marker}."""
    looks = {}
    for (name, colour), marker in zip(colours(names).items(), cycle(MARKERS)):
        looks[name] = {"color": colour, "marker": marker}
    return looks


def legend(figure, columns: int = 4, title: str = "95 % intervals") -> None:
    """A legend under the figure of what its axes show, each thing once."""
    handles: dict = {}
    for axes in figure.axes:
        for handle in axes.get_legend_handles_labels()[0]:
            handles.setdefault(handle.get_label(), handle)
    figure.legend(
        handles=[*handles.values()],
        title=title,
        title_fontsize=8.5,
        loc="outside lower center",
        ncols=columns,
        fontsize=9,
        frameon=False,
    )


def name_rows(axes, words: dict[float, str]) -> None:
    """Write {y: its words} left of axes whose rows are no numbers."""
    axes.set_yticks(list(words), list(words.values()), fontsize=9)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def interval(frame, name: str) -> list:
    """Lengths of error bars of the column `name`, whose interval is in `name`_low and `name`_high."""
    below = frame[name] - frame[f"{name}_low"]
    above = frame[f"{name}_high"] - frame[name]
    return [below.clip(lower=0), above.clip(lower=0)]


def plain_numbers(axes) -> None:
    """Write the ticks of logarithmic axes, whose limits are set, as 10, 100, 1000 instead of powers of ten; at 1, 2 and
    5 of each decade where these are few."""
    from matplotlib.ticker import LogLocator, NullFormatter

    for axis in (axes.xaxis, axes.yaxis):
        low, high = axis.get_view_interval()
        steps = (1, 2, 5) if high < 1000 * low else (1,)
        axis.set_major_locator(LogLocator(subs=steps))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter(NullFormatter())


def name_points(axes, rows, x: str, y: str, side: str) -> None:
    """Write the `name` of each point at (`x`, `y`) of `rows`, upright: with its "top" as its `side` below the lowest,
    with its "bottom" above the highest. Names that would overlap share a place."""
    left, right = np.log(axes.get_xlim())
    fraction = (np.log(rows[x]) - left) / (right - left)
    rows = rows.assign(place=(PLACES * fraction).round())
    edge, points_away = ("min", -7) if side == "top" else ("max", 7)
    for place, at in rows.groupby("place"):
        text = ", ".join(at.sort_values(x)["name"].unique())
        middle = np.exp(left + place / PLACES * (right - left))
        axes.annotate(
            text,
            (middle, at[y].agg(edge)),
            (0, points_away),
            textcoords="offset points",
            rotation=90,
            ha="center",
            va=side,
            fontsize=8.5,
            bbox=BEHIND_TEXT,
            zorder=1.5,
        )


def save(figure, folder: Path, name: str) -> list[Path]:
    """Write `figure` as name.svg and name.png: without the date, so that the same data gives the same files."""
    svg = folder / f"{name}.svg"
    png = folder / f"{name}.png"
    figure.savefig(png)
    figure.savefig(svg, metadata={"Date": None})
    return [svg, png]
