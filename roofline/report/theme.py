"""What all figures of a report share: their theme, colours, words, roofs, the way they are saved."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

from roofline.report.format import rate_text

MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DARK, GREY = "#222222", "#777777"
BEHIND_TEXT = {"facecolor": "white", "alpha": 0.85, "pad": 0.5, "lw": 0}
ENDINGS = ("svg", "png")


def new(width: float, height: float):
    """An empty figure of so many inches, in the theme. Its canvas knows how wide a text is."""
    import seaborn
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    seaborn.set_theme(style="ticks", context="notebook", rc={"svg.fonttype": "none", "svg.hashsalt": "roofline"})
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def colours(names: Sequence[str]) -> dict:
    """{name: colour}, which the colour-blind can tell apart."""
    import seaborn

    return dict(zip(names, seaborn.color_palette("colorblind", len(names)), strict=True))


def footer(figure, text: str) -> None:
    figure.supxlabel(text, fontsize=8, color=GREY, x=0.01, ha="left")


def plain_numbers(axes) -> None:
    """Write the ticks of logarithmic axes as 10, 100, 1000 instead of powers of ten."""
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:g}")


def few_ticks(axes) -> None:
    """Plain numbers at 1, 2 and 5 of each decade, so that a short logarithmic axis has some."""
    from matplotlib.ticker import LogLocator, NullLocator

    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_minor_locator(NullLocator())
    plain_numbers(axes)


def note(axes, text: str, at: tuple[float, float], by: tuple[float, float], of="data", **look):
    """Write `text` so many points (x, y) away from `at`, which is in the coordinates `of`; on data, on a white ground.
    Returns the annotation."""
    usual = {"fontsize": 9, "color": DARK, "annotation_clip": False}
    on_data = {"bbox": BEHIND_TEXT, "zorder": 2.5} if of == "data" else {}
    return axes.annotate(text, at, by, xycoords=of, textcoords="offset points", **usual | on_data | look)


def bend(axes, flops: float, bytes_per_s: float) -> tuple[tuple, list[float]]:
    """The bent line of a roof from side to side of logarithmic axes of FLOP/byte and TFLOP/s."""
    left, right = axes.get_xlim()
    xs = left, min(max(left, flops / bytes_per_s), right), right
    return xs, [min(flops, x * bytes_per_s) / 1e12 for x in xs]


def roof(
    axes, flops: float, bytes_per_s: float, name: str = "", *, part: float, at_ridge: bool = False,
    color: str = DARK, linestyle: str = "-", linewidth: float = 2, **look,
) -> None:  # fmt: skip
    """A roof, its bytes/s along its slope, `part` of the way up, its FLOP/s at the right end or `at_ridge`."""
    axes.plot(*bend(axes, flops, bytes_per_s), color=color, linestyle=linestyle, linewidth=linewidth, zorder=2, **look)
    (left, right), ridge = axes.get_xlim(), flops / bytes_per_s
    x, by, side = (ridge, 4, "left") if at_ridge else (right, -4, "right")
    note(
        axes, f"{name}{rate_text(flops / 1e12)} TFLOP/s", (x, flops / 1e12), (by, 4), color=color, ha=side, va="bottom"
    )
    start = max(left, axes.get_ylim()[0] * 1e12 / bytes_per_s)
    x = start * (ridge / start) ** part
    y = x * bytes_per_s / 1e12
    text = f"{bytes_per_s / 1e12:.3g} TB/s" if bytes_per_s >= 1e12 else f"{bytes_per_s / 1e9:.3g} GB/s"
    # The slope is y = x * bandwidth in these units: the text turns with it, whatever the size of the figure.
    axes.text(
        x, y * 1.09, name + text, color=color, fontsize=9, va="bottom", bbox=BEHIND_TEXT, zorder=2.5,
        rotation=math.degrees(math.atan2(y, x)), transform_rotates_text=True, rotation_mode="anchor",
    )  # fmt: skip


def ridge(axes, flops: float, bytes_per_s: float) -> None:
    """A point at the bend of a roof, and its intensity."""
    at = flops / bytes_per_s, flops / 1e12
    axes.plot(*at, marker="o", color=DARK, markersize=6, zorder=3)
    words = f"{at[0]:.0f}" if at[0] >= 100 else f"{at[0]:.3g}"
    note(axes, f"ridge {words} FLOP/byte", at, (-8, 6), ha="right", va="bottom")


def name_lowest(axes, frame, by: str, x: str, low: str, text: Callable) -> list:
    """Write `text(row)` under the lowest point (columns `x`, `low`) of each group `by`, where it is not empty; returns
    the labels, from left to right."""
    lowest = frame.loc[frame.groupby(by)[low].idxmin()].sort_values(x, kind="stable").itertuples()
    words = {"fontsize": 8.5, "ha": "center", "va": "top"}
    named = [(said, (getattr(row, x), getattr(row, low))) for row in lowest if (said := text(row))]
    return [note(axes, said, at, (0, -7), **words) for said, at in named]


def save(figure, folder: Path, name: str) -> list[Path]:
    """Write `figure` as name.svg and name.png: without the date, so that the same data gives the same files."""
    import matplotlib

    paths = [folder / f"{name}.{ending}" for ending in ENDINGS]
    for path in paths:
        stamp = {"Date": None} if path.suffix == ".svg" else {"Software": f"matplotlib {matplotlib.__version__}"}
        figure.savefig(path, dpi=150, metadata=stamp)
    return paths


def separate(figure, groups: Sequence[Sequence]) -> None:
    """Move each label (an annotation offset in points) down until it touches none of those before it in its group."""
    figure.draw_without_rendering()
    renderer = figure.canvas.get_renderer()

    def box(label):
        return label.get_window_extent(renderer)

    for labels in groups:
        for index, label in enumerate(labels):
            while box(label).count_overlaps(map(box, labels[:index])):
                label.xyann = (label.xyann[0], label.xyann[1] - 4)
