"""What all figures of a report share: their theme, colours, the way they are saved, labels that do not touch."""

from collections.abc import Sequence
from pathlib import Path

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


def save(figure, folder: Path, name: str) -> list[Path]:
    """Write `figure` as name.svg and name.png: without the date, so that the same data gives the same files."""
    import matplotlib

    paths = [folder / f"{name}.{ending}" for ending in ENDINGS]
    for path in paths:
        stamp = {"Date": None} if path.suffix == ".svg" else {"Software": f"matplotlib {matplotlib.__version__}"}
        figure.savefig(path, dpi=150, metadata=stamp)
    return paths


def separate(figure, labels: Sequence) -> None:
    """Move each label (an annotation offset in points) down by lines until it touches none of those before it."""
    figure.draw_without_rendering()
    renderer = figure.canvas.get_renderer()
    for index, label in enumerate(labels):
        while any(label.get_window_extent(renderer).overlaps(o.get_window_extent(renderer)) for o in labels[:index]):
            label.xyann = (label.xyann[0], label.xyann[1] - 4)
