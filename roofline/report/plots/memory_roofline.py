"""The figure memory_roofline: FLOP/s over FLOP per byte of device memory, under the measured roof; and beside it the
bytes/s of few rows, which a roofline hides."""

from dataclasses import dataclass
from itertools import cycle
from typing import Any

import numpy as np

from roofline.operations.matmul import SHAPE
from roofline.operations.shapes import shape_text
from roofline.report.format import flops_text, percent_text, rate_text
from roofline.report.plots import style, theme
from roofline.report.plots.theme import DARK, GREY, MARKERS
from roofline.store.run import AGAIN
from roofline.store.stats import geometric_mean
from roofline.theory.bounds import Roof

ISOLINES = (0.5, 0.75, 0.9)

FEW_ROWS = 64
"""Cases of up to so many rows, and those under the ridge, stand in the panel of bytes/s too."""

MARKS = (*MARKERS, "<", ">", "p")
"""Marks that tell layers at a tp, and shapes of a file, from one another."""

MANY = "shapes of a file"
"""The name of all shapes where there are more of them than marks: they look alike, and no line joins them."""

APART = 1.15
"""Intensities of the same rows that differ by more than this factor have a label each."""

LOOKS = {"datasheet": {"color": GREY, "ls": "--", "lw": 1.3}, "measured": {"color": DARK, "lw": 2}}
"""How each kind of roof is drawn."""
THROTTLED = {"marker": "o", "markersize": 13, "fillstyle": "none", "color": DARK, "markeredgewidth": 0.8}


@dataclass
class Panel:
    """One dtype's panel: its cases, its roofs, and the looks that all panels share."""

    rows: Any
    roofs: dict[str, Roof]
    """Of `LOOKS` those that are known, in that order."""
    colours: dict
    """{contender: colour}."""
    marks: dict
    """{split: look}, a split being a layer at a tp, or a shape of a file."""

    @property
    def few(self):
        """The cases of few rows, and those under the ridge."""
        ridge = self.roofs["measured"].ridge if "measured" in self.roofs else 0
        rows = self.rows[self.rows["m"].notna()]
        return rows[rows["m"].le(FEW_ROWS) | rows["x"].lt(ridge)]


def memory_roofline(frame):
    """The figure, a row of panels for each dtype; None where no case computes from device memory."""
    run_frame = frame
    frame = frame[frame["analysis"] == "throughput"]
    frame = frame[frame["contender"] != frame["baseline"] + AGAIN]  # it lies on the baseline's points
    if frame.empty:
        return None
    frame = frame.assign(split=_splits(frame), x=frame["device_intensity"])
    for end in ("", "_low", "_high"):
        frame[f"y{end}"] = 1e12 * frame[f"tflops{end}"]
    colours = theme.colours(frame["contender"].unique())
    marks = {}
    for split, mark in zip(frame["split"].unique(), cycle(MARKS)):
        marks[split] = {"marker": mark}
    marks[MANY] = {"marker": "o", "ls": "none"}
    known = {"datasheet": run_frame.attrs.get("datasheet", {}), "measured": run_frame.attrs.get("roofs", {})}
    panels = []
    for dtype, rows in frame.groupby("dtype", sort=False):
        roofs = {}
        for name, of_dtype in known.items():
            if dtype in of_dtype:
                roofs[name] = of_dtype[dtype]
        panels.append(Panel(rows, roofs, colours, marks))
    figure = theme.new(12.5, 5.8 * len(panels) + 0.6)
    theme.about(figure, run_frame, finding(frame))
    widths = (5, 3) if any(len(panel.few) for panel in panels) else (5,)
    every_axes = figure.subplots(len(panels), len(widths), squeeze=False, width_ratios=widths)
    labels = []
    for (left, *right), panel in zip(every_axes, panels, strict=True):
        labels.append(_draw(left, panel))
        for axes in right:
            _few_rows(axes, panel)
    theme.separate(figure, labels)
    return figure


def _splits(frame):
    """The meaning of each case's mark: its layer and tp, or the shape of a file."""
    shapes = frame.apply(shape_text, axis=1)
    if shapes[shapes != ""].nunique() > len(MARKS):
        shapes = shapes.where(shapes == "", MANY)
    layers = frame["layer"] + ", tp=" + frame["tp"].astype("string")
    return layers.fillna("").mask(shapes != "", shapes)


def finding(frame) -> str:
    """The contender of the best geometric mean beside the baseline, and its fraction of the roof at its most rows."""
    is_rival = frame["rival"].eq(True).fillna(False)
    others = frame[is_rival & frame["ratio_to_baseline"].notna()]
    means = others.groupby("contender", sort=False)["ratio_to_baseline"].agg(geometric_mean)
    name = frame["contender"].iloc[0]
    text = f"FLOP/s of {name}"
    if len(means):
        name = means.idxmax()
        rows = others[others["contender"] == name]
        baseline = rows["baseline"].iloc[0]
        text = f"{name} is {means[name]:.2f} x as fast as {baseline} in the geometric mean over {len(rows)} shapes"
    rows = frame[(frame["contender"] == name) & frame["of_roof"].notna()]
    most = rows[rows["m"].eq(rows["m"].max()).fillna(False)]
    if len(most):
        fraction = percent_text(geometric_mean(most["of_roof"]))
        text += f"; {fraction} of the roof at M = {most['m'].iloc[0]}"
    return text


def _draw(axes, panel: Panel) -> list:
    """FLOP/s over intensity; returns the labels."""
    _roofs(axes, panel)
    _points(axes, panel, panel.rows)
    labels = _labels(axes, panel.rows)
    axes.set_xlabel("arithmetic intensity (FLOP per byte of device memory)")
    axes.yaxis.set_major_formatter(lambda flops, place: flops_text(flops))
    _legend(axes, panel)
    return labels


def _roofs(axes, panel: Panel) -> None:
    """Limits that hold all points and roofs, the roofs, and fractions of the measured one."""
    xs = [*panel.rows["x"]]
    ys = [*panel.rows["y"]]
    for roof in panel.roofs.values():
        xs += [roof.ridge / 8, 2 * roof.ridge]
        ys.append(roof.flops)
    left, right = min(xs) / 1.6, max(xs) * 3.5
    axes.set(xscale="log", yscale="log", xlim=(left, right), ylim=(min(ys) / 2.2, max(ys) * 2.2))
    theme.plain_numbers(axes)
    for name, roof in panel.roofs.items():
        xs = [left, roof.ridge, right]
        ys = np.array([roof.at(x) for x in xs])
        rates = f"{flops_text(roof.flops)}, {rate_text(roof.read_bytes_per_s / 1e9)} GB/s"
        axes.plot(xs, ys, label=f"{name}: {rates}", **LOOKS[name])
    if "measured" not in panel.roofs:
        return
    ridge = roof.ridge
    axes.plot(ridge, ys[1], marker="o", color=DARK, markersize=6, zorder=3)
    theme.note(axes, f"ridge {rate_text(ridge)} FLOP/byte", (ridge, ys[1]), (-8, 6), ha="right", va="bottom")
    look = {"color": GREY, "fontsize": 8, "ha": "right", "va": "center"}
    for fraction in ISOLINES:
        axes.plot(xs, fraction * ys, color=GREY, linewidth=0.7, alpha=0.7, zorder=1)
        theme.note(axes, f"{100 * fraction:.0f} %", (right, fraction * ys[2]), (-2, 0), **look)


def _labels(axes, rows) -> list:
    """M under each cluster of points, with tp or shape where that puts those of an M apart; returns the labels."""
    of_m = rows.groupby("m")["x"]
    is_apart = of_m.transform("max") > APART * of_m.transform("min")
    place = "\ntp=" + rows["tp"].astype("string")
    place = place.fillna("").mask(rows["layer"] == SHAPE, "\n" + rows["split"])
    place = place.where(is_apart & (rows["split"] != MANY), "")
    bottom = 1.5 * axes.get_ylim()[0]  # a wide interval may end below the axes
    rows = rows.assign(place=place, y_low=rows["y_low"].clip(lower=bottom))
    return theme.name_lowest(axes, rows, ["m", "place"], "x", "y_low", lambda row: f"M={row.m}{row.place}")


def _points(axes, panel: Panel, frame, line: str = "none") -> None:
    """Points by contender and split; they share an x at each shape, so neighbours step a little to the side."""
    names = list(panel.colours)
    for (name, split), rows in frame.groupby(["contender", "split"], sort=False):
        look = {"ls": line, "lw": 0.6, "color": panel.colours[name]} | panel.marks[split]
        xs = rows["x"] * 1.035 ** (names.index(name) - (len(names) - 1) / 2)
        theme.points(axes, xs, rows["y"], look, yerr=style.interval(rows, "y"))
        hot = rows["throttled"].eq(True).fillna(False)
        axes.plot(xs[hot], rows["y"][hot], ls="none", zorder=3, **THROTTLED)


def _legend(axes, panel: Panel) -> None:
    """Roofs, colours of contenders, marks of splits, and what else the points are."""
    rows = panel.rows
    looks = {name: {"color": colour} for name, colour in panel.colours.items()}
    for split in rows["split"].unique():
        if split:
            looks[split] = panel.marks[split]
    if rows["throttled"].eq(True).any():
        looks["throttled"] = THROTTLED
    for name, look in looks.items():
        look = {"ls": "none", "marker": "o", "color": GREY} | look
        axes.plot([], [], label=name, **look)
    title = f"{rows['dtype'].iloc[0]}, 95 % intervals"
    axes.legend(loc="lower right", fontsize=9.5, title=title, title_fontsize=8.5)


def _few_rows(axes, panel: Panel) -> None:
    """GB/s over rows, each byte once, under what was read and what the matmul roof leaves of it."""
    rows = panel.few.sort_values("m")
    if rows.empty:
        axes.set_axis_off()
        return
    rows = rows.assign(x=rows["m"].astype(float))
    for name in ("y", "y_low", "y_high"):
        rows[name] /= 1e9 * rows["device_intensity"]
    axes.set_xscale("log", base=2)
    axes.set_xticks(rows["x"].unique())
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlim(rows["x"].min() / 2.2, rows["x"].max() * 2.2)
    axes.set(xlabel="M, rows of x", ylabel="GB/s of device memory")
    axes.set_title("few rows: bytes, each once, over time")
    _points(axes, panel, rows, "-")
    if "measured" in panel.roofs:
        _roof_of_few(axes, panel.roofs["measured"], rows)
    axes.set_ylim(0, 1.08 * axes.get_ylim()[1])


def _roof_of_few(axes, roof: Roof, rows) -> None:
    """The rate at which memory was read, less where the matmul takes longer than that."""
    intensity = rows.groupby("x")["device_intensity"].median()
    left = axes.get_xlim()[0]
    xs = np.geomspace(left, rows["x"].max(), 200)
    intensities = np.interp(xs, [0, *intensity.index], [0, *intensity])
    read = roof.read_bytes_per_s / 1e9
    ys = np.minimum(roof.flops / 1e9 / intensities, read)
    axes.plot(xs, ys, color=DARK, linewidth=2)
    theme.note(axes, f"measured: {rate_text(read)} GB/s", (xs[0], ys[0]), (4, 4), va="bottom")
