"""Theme, colours and words of all figures of a report, and the way they are saved."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path

MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DARK = "#222222"
GREY = "#777777"
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
    "figure.dpi": 150,  # all texts are measured once, for the layout and for the file
    "savefig.dpi": "figure",
    "svg.fonttype": "none",
    "svg.hashsalt": "roofline",
}


def new(width: float, height: float):
    """An empty figure of so many inches, in the theme. Its canvas knows how wide a text is."""
    import seaborn
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    seaborn.set_theme(style="ticks", context="notebook", rc=LOOK)
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    return figure


def lay_out(figure):
    """Give the axes of a finished figure all the room that words and legends leave. It is done once: an engine on the
    figure would do it again for each file that is written. Returns what knows how wide a text is."""
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    figure.set_layout_engine(None)
    ConstrainedLayoutEngine().execute(figure)
    return figure.canvas.get_renderer()


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


def about(figure, frame, finding: str) -> None:
    """Write above the figure what it shows and, smaller, of what run. The words of the run are in the `attrs` of
    `frame`, if it has any."""
    from matplotlib.text import Annotation

    title = figure.suptitle(f"{finding}\n\n", x=0.01, ha="left", fontsize=13)
    run = "\n".join(frame.attrs.get(name, "") for name in ("title", "footer"))
    figure.add_artist(Annotation(run, (0, 0), xycoords=title, va="bottom", fontsize=8.5, color=GREY))


def legend(figure, title: str = "95 % intervals") -> None:
    """A legend under the figure of what its axes show, each thing once."""
    handles = {}
    for axes in figure.axes:
        for handle in axes.get_legend_handles_labels()[0]:
            handles[handle.get_label()] = handle
    look = {"loc": "outside lower center", "ncols": 4, "fontsize": 9, "frameon": False}
    figure.legend(handles=[*handles.values()], title=title, title_fontsize=8.5, **look)


def name_rows(axes, words: dict[float, str]) -> None:
    """Write {y: its words} left of axes whose rows are no numbers."""
    axes.set_yticks(list(words), list(words.values()), fontsize=9)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def points(axes, xs, ys, look: dict, **errors) -> None:
    """Markers, with the intervals that `errors` (xerr, yerr) tell, and maybe a `label`."""
    look = {"ls": "none", "markersize": 6.5, "markeredgecolor": DARK, "markeredgewidth": 0.6} | look
    axes.errorbar(xs, ys, **errors, **look, ecolor=DARK, elinewidth=0.9, capsize=2, zorder=4)


def plain_numbers(axes) -> None:
    """Write the ticks of logarithmic axes, whose limits are set, as 10, 100, 1000 instead of powers of ten; at 1, 2 and
    5 of each decade where these are few."""
    from matplotlib.ticker import LogLocator, NullFormatter

    for axis in (axes.xaxis, axes.yaxis):
        low, high = axis.get_view_interval()
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 1000 * low else (1,)))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter(NullFormatter())


def note(axes, text: str, at: tuple[float, float], by: tuple[float, float], of="data", **look):
    """Write `text` so many points (x, y) away from `at`, which is in the coordinates `of`; on data, on a white ground.
    Returns the annotation."""
    words = {"fontsize": 9, "color": DARK, "annotation_clip": False}
    if of == "data":
        words["bbox"] = BEHIND_TEXT
        words["zorder"] = 2.5
    words.update(look)
    return axes.annotate(text, at, by, xycoords=of, textcoords="offset points", **words)


def name_lowest(axes, frame, by: str | list[str], x: str, low: str, text: Callable) -> list:
    """Write `text(row)` under the lowest point (columns `x`, `low`) of each group `by`, where it is not empty; returns
    the labels, from left to right."""
    lowest = frame.loc[frame.groupby(by)[low].idxmin()]
    labels = []
    for row in lowest.sort_values(x, kind="stable").itertuples():
        label = text(row)
        if label:
            at = getattr(row, x), getattr(row, low)
            labels.append(note(axes, label, at, (0, -7), fontsize=8.5, ha="center", va="top"))
    return labels


def save(figure, folder: Path, name: str) -> list[Path]:
    """Write `figure` as name.svg and name.png: without the date, so that the same data gives the same files, and the
    picture in 256 colours, which makes it a third as large."""
    from PIL import Image

    svg = folder / f"{name}.svg"
    png = folder / f"{name}.png"
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", pil_kwargs={"compress_level": 0})
    with Image.open(drawn) as image:
        image.convert("RGB").quantize(kmeans=1).save(png, optimize=True)
    figure.savefig(svg, metadata={"Date": None})
    return [svg, png]


def _taken(axes, labels: Sequence, renderer) -> list:
    """The boxes of the points of `axes`, and of its words but `labels` and those along a line."""
    from matplotlib.transforms import Bbox

    half = 4 * axes.figure.dpi / 72  # of a point's marker
    boxes = []
    for line in axes.get_lines():
        if line.get_marker() not in ("None", None):
            for at in line.get_transform().transform(line.get_xydata()):
                boxes.append(Bbox([at - half, at + half]))
    for text in axes.texts:
        if text not in labels and not text.get_rotation():
            boxes.append(text.get_window_extent(renderer))
    return boxes


STEP = 4
"""Points."""


def separate(figure, groups: Sequence[Sequence]) -> None:
    """Lay out the figure, then move each label (an annotation offset in points) of the groups, one of each axes, down
    to where it touches neither points nor words, but those along a line; a thin line leads to one that is far."""
    renderer = lay_out(figure)
    point = figure.dpi / 72
    for labels in filter(None, groups):
        axes = labels[0].axes
        taken = _taken(axes, labels, renderer)
        for label in labels:
            box = label.get_window_extent(renderer).padded(0.75 * point)
            steps = 0
            while box.count_overlaps(taken):
                box = box.translated(0, -STEP * point)
                steps += 1
            taken.append(box)
            x, y = label.xyann
            label.xyann = x, y - STEP * steps
            if steps > 2:
                line = {"arrowstyle": "-", "color": GREY, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 5}
                axes.annotate("", label.xy, label.xyann, textcoords="offset points", arrowprops=line, zorder=2)
