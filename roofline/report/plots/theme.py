"""What all figures of a report share: their theme, colours, words, roofs, the way they are saved."""

import math
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path

from roofline.operations.format import rate_text

MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DARK, GREY = "#222222", "#777777"
BEHIND_TEXT = {"facecolor": "white", "alpha": 0.85, "pad": 0.5, "lw": 0}
UNITS = {1e12: "TFLOP/s", 1e9: "GFLOP/s"}


def use() -> None:
    """Set the theme of the figures that are made from now on."""
    import seaborn

    look = {"axes.spines.top": False, "axes.spines.right": False, "svg.fonttype": "none", "svg.hashsalt": "roofline"}
    seaborn.set_theme(style="ticks", context="notebook", rc=look)


def new(width: float, height: float):
    """An empty figure of so many inches, in the theme. Its canvas knows how wide a text is."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    use()
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    return figure


def lay_out(figure, **pads: float) -> None:
    """Give the axes of a finished figure all the room that words and legends leave. It is done once: an engine on the
    figure would do it again for each file that is written."""
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    figure.set_layout_engine(None)
    ConstrainedLayoutEngine(**pads).execute(figure)


def of_grid(grid, title: str):
    """The figure of a grid of seaborn's, with a `title` left above each panel. pyplot, which
    made the figure, forgets it: it would keep it for ever, and a notebook would show it twice."""
    from matplotlib import pyplot
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure = grid.figure
    pyplot.close(figure)
    FigureCanvasAgg(figure)
    grid.set_titles("")  # seaborn's own, in the middle
    grid.set_titles(title, loc="left", size=10.5)
    return figure


def colours(names: Sequence[str]) -> dict:
    """Return {name: colour}, which the colour-blind can tell apart."""
    import seaborn

    return dict(zip(names, seaborn.color_palette("colorblind", len(names)), strict=True))


def about(figure, frame, finding: str) -> None:
    """Add a title that says what the figure shows, under it, smaller, of what run, and the footer, as far as the
    `attrs` of `frame` have them."""
    from matplotlib.text import Annotation

    title = figure.suptitle(f"{finding}\n", x=0.01, ha="left", fontsize=13)
    figure.add_artist(
        Annotation(frame.attrs.get("title", ""), (0, 0), xycoords=title, va="bottom", fontsize=10.5, color=GREY)
    )
    figure.supxlabel(frame.attrs.get("footer", ""), fontsize=8, color=GREY, x=0.01, ha="left")


def plain_numbers(axes) -> None:
    """Write the ticks of logarithmic axes, whose limits are set, as 10, 100, 1000 instead of powers of ten; at 1, 2 and
    5 of each decade, or at more, where that is what makes three of them."""
    from matplotlib.ticker import LogLocator, NullFormatter

    for axis in (axes.xaxis, axes.yaxis):
        low, high = axis.get_view_interval()
        subs = (1,) if high >= 1000 * low else (1, 2, 5) if high >= 10 * low else (1, 1.5, 2, 3, 5, 7)
        axis.set(major_locator=LogLocator(subs=subs), major_formatter="{x:g}", minor_formatter=NullFormatter())


def note(axes, text: str, at: tuple[float, float], by: tuple[float, float], of="data", **look):
    """Write `text` so many points (x, y) away from `at`, which is in the coordinates `of`; on data, on a white ground.
    Returns the annotation."""
    usual = {"fontsize": 9, "color": DARK, "annotation_clip": False}
    on_data = {"bbox": BEHIND_TEXT, "zorder": 2.5} if of == "data" else {}
    return axes.annotate(text, at, by, xycoords=of, textcoords="offset points", **usual | on_data | look)


def bend(axes, flops: float, bytes_per_s: float, unit: float) -> tuple[tuple, list[float]]:
    """Return the bent line of a roof from side to side of logarithmic axes of FLOP/byte and `unit` FLOP/s."""
    left, right = axes.get_xlim()
    xs = left, min(max(left, flops / bytes_per_s), right), right
    return xs, [min(flops, x * bytes_per_s) / unit for x in xs]


def roof(
    axes, flops: float, bytes_per_s: float, unit: float, name: str, *, part: float, at_ridge: bool = False,
    color: str = DARK, **look,
) -> None:  # fmt: skip
    """A roof in `unit` FLOP/s, its bytes/s along its slope, `part` of the way up, its FLOP/s at the right end and a
    point at its ridge; or its FLOP/s `at_ridge`, and no point."""
    axes.plot(*bend(axes, flops, bytes_per_s, unit), color=color, zorder=2, **look)
    (left, right), ridge = axes.get_xlim(), flops / bytes_per_s
    x, by, side = (ridge, 4, "left") if at_ridge else (right, -4, "right")
    words = f"{name}{rate_text(flops / unit)} {UNITS[unit]}"
    note(axes, words, (x, flops / unit), (by, 4), color=color, ha=side, va="bottom")
    if not at_ridge:
        axes.plot(ridge, flops / unit, marker="o", color=color, markersize=6, zorder=3)
        words = f"ridge {ridge:.0f} FLOP/byte" if ridge >= 100 else f"ridge {ridge:.3g} FLOP/byte"
        note(axes, words, (ridge, flops / unit), (-8, 6), ha="right", va="bottom")
    start = max(left, axes.get_ylim()[0] * unit / bytes_per_s)
    x = start * (ridge / start) ** part
    y = x * bytes_per_s / unit
    text = f"{bytes_per_s / 1e12:.3g} TB/s" if bytes_per_s >= 1e12 else f"{bytes_per_s / 1e9:.3g} GB/s"
    # The slope is y = x * bandwidth in these units: the text turns with it, whatever the size of the figure.
    axes.text(
        x, y * 1.09, name + text, color=color, fontsize=9, va="bottom", bbox=BEHIND_TEXT, zorder=2.5,
        rotation=math.degrees(math.atan2(y, x)), transform_rotates_text=True, rotation_mode="anchor",
    )  # fmt: skip


def name_lowest(axes, frame, by: str | list[str], x: str, low: str, text: Callable) -> list:
    """Write `text(row)` under the lowest point (columns `x`, `low`) of each group `by`, where it is not empty; returns
    the labels, from left to right."""
    lowest = frame.loc[frame.groupby(by)[low].idxmin()].sort_values(x, kind="stable").itertuples()
    words = {"fontsize": 8.5, "ha": "center", "va": "top"}
    named = [(label, (getattr(row, x), getattr(row, low))) for row in lowest if (label := text(row))]
    return [note(axes, label, at, (0, -7), **words) for label, at in named]


def save(figure, folder: Path, name: str) -> list[Path]:
    """Write `figure` as name.svg and name.png: without the date, so that the same data gives the same files."""
    import matplotlib

    svg = folder / f"{name}.svg"
    png = folder / f"{name}.png"
    figure.savefig(svg, metadata={"Date": None})
    made_by = {"Software": f"matplotlib {matplotlib.__version__}"}
    fast = {"compress_level": 3}  # in half the time of the usual 6, and 2 % larger
    figure.savefig(png, dpi=150, metadata=made_by, pil_kwargs=fast)
    return [svg, png]


def _taken(axes, labels: Sequence, renderer) -> list:
    """The boxes of the points of `axes`, and of its words but `labels` and those along a line."""
    from matplotlib.transforms import Bbox

    half, boxes = 4 * axes.figure.dpi / 72, []  # of a point's marker
    for line in axes.get_lines():
        if line.get_marker() not in ("None", None):
            for at in line.get_transform().transform(line.get_xydata()):
                boxes.append(Bbox([at - half, at + half]))
    for text in axes.texts:
        if text not in labels and not text.get_rotation():
            boxes.append(text.get_window_extent(renderer))
    return boxes


def separate(figure, groups: Sequence[Sequence]) -> None:
    """Move each label (an annotation offset in points) of the groups, one of each axes, to the nearest place under its
    point where it touches neither points nor words, but those along a line; a thin line leads to one that is far."""
    lay_out(figure)
    renderer = figure.canvas.get_renderer()
    gap = 0.75 * figure.dpi / 72  # between words
    aside = sorted(product(range(-6, 7), range(25)), key=lambda by: 2.5 * abs(by[0]) + by[1])
    for labels in filter(None, groups):
        axes = labels[0].axes
        taken = _taken(axes, labels, renderer)
        for label in labels:
            x, y = label.xyann
            for right, down in aside:
                label.xyann = x + 4 * right, y - 4 * down
                if not (box := label.get_window_extent(renderer).padded(gap)).count_overlaps(taken):
                    break
            taken.append(box)
            if max(abs(right), down) > 2:
                look = {"arrowstyle": "-", "color": GREY, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 5}
                axes.annotate("", label.xy, label.xyann, textcoords="offset points", arrowprops=look, zorder=2)
