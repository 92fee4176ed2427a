"""Theme, colours, words and roofs of all figures of a report, and the way they are saved."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from itertools import cycle, product
from pathlib import Path
from typing import TYPE_CHECKING

from roofline.report.format import rate_text

if TYPE_CHECKING:
    from PIL import Image

MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DARK = "#222222"
GREY = "#777777"
BEHIND_TEXT = {"facecolor": "white", "alpha": 0.85, "pad": 0.5, "lw": 0}
EDGE = {"markeredgecolor": DARK, "markeredgewidth": 0.6}
UNITS = {1e12: "TFLOP/s", 1e9: "GFLOP/s"}

COMMONEST = 64
"""So many of a picture's commonest colours are in its palette as they are."""

LOOK = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.parse_math": False,  # a `$` is no formula
    "text.usetex": False,
    "text.hinting": "none",
    "figure.dpi": 150,  # all texts are measured once, for the layout and for the file
    "savefig.dpi": "figure",
    "svg.fonttype": "none",
    "svg.hashsalt": "roofline",
}


def use() -> None:
    """Set the theme of the figures that are made from now on."""
    import seaborn

    seaborn.set_theme(style="ticks", context="notebook", rc=LOOK)


def new(width: float, height: float):
    """An empty figure of so many inches, in the theme. Its canvas knows how wide a text is."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    use()
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    return figure


def lay_out(figure, **pads: float):
    """Give the axes of a finished figure all the room that words and legends leave. It is done once: an engine on the
    figure would do it again for each file that is written. Returns what knows how wide a text is."""
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    figure.set_layout_engine(None)
    ConstrainedLayoutEngine(**pads).execute(figure)
    return figure.canvas.get_renderer()


def colours(names: Sequence[str]) -> dict:
    """{name: colour}, which the colour-blind can tell apart."""
    import seaborn

    palette = seaborn.color_palette("colorblind", len(names))
    return dict(zip(names, palette, strict=True))


def looks(names: Sequence[str]) -> dict[str, dict]:
    """{name: colour and marker}."""
    looks = {}
    for (name, colour), marker in zip(colours(names).items(), cycle(MARKERS)):
        looks[name] = {"color": colour, "marker": marker}
    return looks


def about(figure, frame, finding: str) -> None:
    """Write above the figure what it shows and, smaller, of what run, and the footer below it. The words of the run
    are in the `attrs` of `frame`, if it has any."""
    from matplotlib.text import Annotation

    title = figure.suptitle(f"{finding}\n", x=0.01, ha="left", fontsize=13)
    run = frame.attrs.get("title", "")
    figure.add_artist(
        Annotation(
            run,
            (0, 0),
            xycoords=title,
            va="bottom",
            fontsize=10.5,
            color=GREY,
        )
    )
    footer = frame.attrs.get("footer", "")
    figure.supxlabel(
        footer,
        fontsize=8,
        color=GREY,
        x=0.01,
        ha="left",
    )


def points(axes, xs, ys, look: dict, **errors) -> None:
    """Markers, with the intervals that `errors` (xerr, yerr) tell, and maybe a `label`."""
    look = {"ls": "none", "markersize": 6.5} | EDGE | look
    axes.errorbar(xs, ys, **errors, **look, ecolor=DARK, elinewidth=0.9, capsize=2, zorder=4)


def plain_numbers(axes) -> None:
    """Write the ticks of logarithmic axes, whose limits are set, as 10, 100, 1000 instead of powers of ten; at 1, 2 and
    5 of each decade, or at more, where that is what makes three of them."""
    from matplotlib.ticker import LogLocator, NullFormatter

    for axis in (axes.xaxis, axes.yaxis):
        low, high = axis.get_view_interval()
        subs = (1, 1.5, 2, 3, 5, 7)
        if high >= 1000 * low:
            subs = (1,)
        elif high >= 10 * low:
            subs = (1, 2, 5)
        axis.set_major_locator(LogLocator(subs=subs))
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


def bend(axes, flops: float, bytes_per_s: float, unit: float) -> tuple[tuple, list[float]]:
    """The bent line of a roof from side to side of logarithmic axes of FLOP/byte and `unit` FLOP/s."""
    left, right = axes.get_xlim()
    ridge = min(max(left, flops / bytes_per_s), right)
    xs = left, ridge, right
    return xs, [min(flops, x * bytes_per_s) / unit for x in xs]


def roof(axes, roof, unit: float, name: str, *, part: float, at_ridge: bool = False, color: str = DARK, **look) -> None:
    """A roof (its FLOP/s and bytes/s) in `unit` FLOP/s, its bytes/s along its slope, `part` of the way up, its FLOP/s
    at the right end and a point at its ridge; or its FLOP/s `at_ridge`, and no point."""
    flops, bytes_per_s = roof
    xs, ys = bend(axes, flops, bytes_per_s, unit)
    axes.plot(xs, ys, color=color, **look)
    ridge = flops / bytes_per_s
    height = flops / unit
    words = f"{name}{rate_text(height)} {UNITS[unit]}"
    if at_ridge:
        note(axes, words, (ridge, height), (4, 4), color=color, ha="left", va="bottom")
    else:
        note(axes, words, (xs[-1], height), (-4, 4), color=color, ha="right", va="bottom")
        axes.plot(
            ridge,
            height,
            marker="o",
            color=color,
            markersize=6,
            zorder=3,
        )
        digits = f"{ridge:.0f}" if ridge >= 100 else f"{ridge:.3g}"
        note(axes, f"ridge {digits} FLOP/byte", (ridge, height), (-8, 6), ha="right", va="bottom")
    bottom = axes.get_ylim()[0]
    start = max(xs[0], bottom * unit / bytes_per_s)
    x = start * (ridge / start) ** part
    y = x * bytes_per_s / unit
    slope = f"{name}{bytes_per_s / 1e9:.3g} GB/s"
    if bytes_per_s >= 1e12:
        slope = f"{name}{bytes_per_s / 1e12:.3g} TB/s"
    words = axes.text(
        x,
        y * 1.09,
        slope,
        color=color,
        fontsize=9,
        va="bottom",
        bbox=BEHIND_TEXT,
        zorder=2.5,
    )
    # The slope is y = x * bandwidth in these units: the text turns with it, whatever the size of the figure.
    words.set_rotation(math.degrees(math.atan2(y, x)))
    words.set_transform_rotates_text(True)
    words.set_rotation_mode("anchor")


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
    """Write `figure` as name.svg and name.png: without the date, so that the same data gives the same files."""
    from PIL import Image

    svg = folder / f"{name}.svg"
    png = folder / f"{name}.png"
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", pil_kwargs={"compress_level": 0})
    with Image.open(drawn) as image:
        with_palette(image.convert("RGB")).save(png, optimize=True)
    figure.savefig(svg, metadata={"Date": None})
    return [svg, png]


def with_palette(image: Image.Image) -> Image.Image:
    """An RGB `image` in 256 colours, a third as large in a file. Areas and lines keep theirs: the commonest ones are in
    the palette. Of the others, as at the rims of letters, red, green and blue are off by 19 of 255 at most in the
    committed pictures."""
    import numpy
    from PIL import Image

    counted = sorted(image.getcolors(image.width * image.height), reverse=True)
    colours = numpy.array([colour for _, colour in counted])
    chosen = image.quantize(256 - COMMONEST, Image.Quantize.MAXCOVERAGE)
    palette = numpy.concatenate([colours[:COMMONEST], numpy.reshape(chosen.getpalette(), (-1, 3))])
    distances = (palette**2).sum(axis=1) - 2 * colours @ palette.T  # squared, less that of the colour to black
    nearest = numpy.zeros((256, 256, 256), numpy.uint8)  # place in the palette, by red, green and blue
    nearest[tuple(colours.T)] = distances.argmin(axis=1)
    red, green, blue = numpy.moveaxis(numpy.asarray(image), 2, 0)
    places = Image.fromarray(nearest[red, green, blue])
    places.putpalette(palette.astype(numpy.uint8).tobytes())
    return places


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


def _distance(by: tuple[int, int]) -> float:
    right, down = by
    return 2.5 * abs(right) + down


ASIDE = sorted(product(range(-6, 7), range(25)), key=_distance)
"""Steps to the right and down from the place under a point, the nearest first."""

STEP = 4
"""Points."""


def separate(figure, groups: Sequence[Sequence]) -> None:
    """Lay out the figure, then move each label (an annotation offset in points) of the groups, one of each axes, to the
    nearest place under its point where it touches neither points nor words, but those along a line; a thin line leads
    to one that is far."""
    renderer = lay_out(figure)
    point = figure.dpi / 72
    gap = 0.75 * point  # between words
    step = STEP * point
    for labels in filter(None, groups):
        axes = labels[0].axes
        taken = _taken(axes, labels, renderer)
        for label in labels:
            place = label.get_window_extent(renderer).padded(gap)
            for right, down in ASIDE:
                box = place.translated(right * step, -down * step)
                if not box.count_overlaps(taken):
                    break
            taken.append(box)
            x, y = label.xyann
            label.xyann = x + STEP * right, y - STEP * down
            if max(abs(right), down) > 2:
                line = {
                    "arrowstyle": "-",
                    "color": GREY,
                    "linewidth": 0.6,
                    "shrinkA": 0,
                    "shrinkB": 5,
                }
                axes.annotate("", label.xy, label.xyann, textcoords="offset points", arrowprops=line, zorder=2)
