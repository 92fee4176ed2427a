"""The figure memory_roofline: FLOP/s over FLOP per byte of device memory, under the measured roof; and beside it the
bytes/s of few rows, which a roofline hides."""

from dataclasses import dataclass
from itertools import cycle
from typing import Any

import numpy as np

from roofline.analysis.memory_roof import Roof
from roofline.operations.matmul import SHAPE
from roofline.operations.shapes import shape_text
from roofline.report.format import percent_text, rate_text
from roofline.report.plots import theme
from roofline.report.plots.theme import DARK, EDGE, GREY, MARKERS
from roofline.store.run import AGAIN
from roofline.store.stats import geometric_mean
from roofline.theory.bounds import balance

ISOLINES = (0.5, 0.75, 0.9)
MODELLED = "hollow: each byte moved once"
COUNTED = "filled: bytes counted, from a cold cache"

FEW_ROWS = 64
"""Cases of up to so many rows, and those under the ridge, stand in the panel of bytes/s too."""

MARKS = (*MARKERS, "<", ">", "p")
"""Marks that tell layers at a tp, and shapes of a file, from one another."""

MANY = "shapes of a file"
"""The name of all shapes where there are more of them than marks: they look alike."""

APART = 1.15
"""Intensities of the same rows that differ by more than this factor have a label each."""

THROTTLED = {
    "marker": "o",
    "markersize": 13,
    "fillstyle": "none",
    "color": DARK,
    "markeredgewidth": 0.8,
}


@dataclass
class Panel:
    """One dtype's panel: its cases, its roofs, and the looks that all panels share."""

    rows: Any
    roof: Roof | None
    datasheet: Roof | None
    unit: float
    """FLOP/s of the axis."""
    colours: dict
    """{contender: colour}."""
    marks: dict
    """{split: mark}, a split being a layer at a tp, or a shape of a file."""


def memory_roofline(frame):
    """The figure, a row of panels for each dtype; None where no case computes from device memory."""
    run_frame = frame
    frame = frame[frame["analysis"] == "throughput"]
    frame = frame[frame["contender"] != frame["baseline"] + AGAIN]  # it lies on the baseline's points
    if frame.empty:
        return None
    frame = frame.assign(split=_splits(frame))
    by_dtype = frame.groupby("dtype", sort=False)
    colours = theme.colours(frame["contender"].unique())
    marks = dict(zip(frame["split"].unique(), cycle(MARKS)))
    figure = theme.new(12.5, 5.8 * len(by_dtype) + 0.6)
    theme.about(figure, run_frame, finding(frame))
    axes = figure.subplots(len(by_dtype), 2, squeeze=False, width_ratios=(5, 3))
    labels = []
    for (left, right), (dtype, rows) in zip(axes, by_dtype, strict=True):
        roof = run_frame.attrs.get("roofs", {}).get(dtype)
        datasheet = run_frame.attrs.get("datasheet", {}).get(dtype)
        unit = _unit(rows, roof)
        panel = Panel(_placed(rows, unit), roof, datasheet, unit, colours, marks)
        labels.append(_draw(left, panel))
        few = _few(panel)
        if len(few):
            _few_rows(right, panel, few)
        else:
            right.remove()
            grid = left.get_gridspec()
            row = left.get_subplotspec().rowspan.start
            left.set_subplotspec(grid[row, :])
    theme.separate(figure, labels)
    return figure


def _splits(frame):
    """The meaning of each case's mark: its layer and tp, or the shape of a file."""
    shapes = frame.apply(shape_text, axis=1)
    if shapes[shapes != ""].nunique() > len(MARKS):
        shapes = shapes.where(shapes == "", MANY)
    layers = frame["layer"] + ", tp=" + frame["tp"].astype("string")
    return layers.fillna("").mask(shapes != "", shapes)


def _unit(rows, roof: Roof | None) -> float:
    """FLOP/s of the axis: tera where there is as much, else giga."""
    highest = 1e12 * rows["tflops"].max()
    if roof:
        highest = max(highest, roof.flops)
    return 1e12 if highest >= 1e12 else 1e9


def _placed(rows, unit: float):
    """The cases with the places of their points, and the ends of their intervals."""
    rows = rows.assign(x=rows["device_intensity"], counted=rows["counted_intensity"])
    for end in ("", "_low", "_high"):
        rows[f"y{end}"] = rows[f"tflops{end}"] * 1e12 / unit
    return rows


def finding(frame) -> str:
    """The contender of the best geometric mean beside the baseline, and its fraction of the roof at its most rows."""
    is_rival = frame["rival"].eq(True).fillna(False)
    others = frame[is_rival & frame["ratio_to_baseline"].notna()]
    means = others.groupby("contender", sort=False)["ratio_to_baseline"].agg(geometric_mean)
    name = means.idxmax() if len(means) else frame["contender"].iloc[0]
    reached = _reached(frame[frame["contender"] == name])
    if len(means):
        rows = others[others["contender"] == name]
        baseline = rows["baseline"].iloc[0]
        text = f"{name} is {means[name]:.2f} x as fast as {baseline} in the geometric mean over {len(rows)} shapes"
        return f"{text}; {reached}" if reached else text
    return f"{name} reaches {reached}" if reached else "FLOP/s over arithmetic intensity"


def _reached(rows) -> str:
    """The fraction of the roof at the most rows; no text where it has no rows or no roof."""
    rows = rows[rows["of_roof"].notna()]
    tokens = rows["m"]
    most = rows[tokens.eq(tokens.max()).fillna(False)]
    if most.empty:
        return ""
    fraction = percent_text(geometric_mean(most["of_roof"]))
    return f"{fraction} of the roof at M = {most['m'].iloc[0]}"


def _draw(axes, panel: Panel) -> list:
    """FLOP/s over intensity; returns the labels."""
    _roofs(axes, panel)
    _points(axes, panel, panel.rows)
    labels = _labels(axes, panel.rows)
    axes.set_xlabel("arithmetic intensity (FLOP per byte of device memory)")
    axes.set_ylabel(theme.UNITS[panel.unit])
    _legend(axes, panel)
    return labels


def _roofs(axes, panel: Panel) -> None:
    """Limits that hold all points and roofs, and the roofs."""
    unit = panel.unit
    xs = [*panel.rows["x"], *panel.rows["counted"].dropna()]
    ys = [*panel.rows["y"]]
    for roof in (panel.datasheet, panel.roof):
        if roof:
            xs += [balance(*roof) / 8, 2 * balance(*roof)]
            ys.append(roof.flops / unit)
    axes.set(xscale="log", yscale="log")
    axes.set_xlim(min(xs) / 1.6, max(xs) * 3.5)
    axes.set_ylim(min(ys) / 2.2, max(ys) * 2.2)
    theme.plain_numbers(axes)
    if panel.datasheet:  # its words stand where those of the measured one do not
        theme.roof(
            axes,
            panel.datasheet,
            unit,
            "datasheet: ",
            part=0.55,
            at_ridge=True,
            color=GREY,
            ls="--",
            lw=1.3,
        )
    if panel.roof:
        for fraction in ISOLINES:
            _isoline(axes, panel, fraction)
        theme.roof(axes, panel.roof, unit, "measured: ", part=0.12, lw=2)


def _isoline(axes, panel: Panel, fraction: float) -> None:
    flops, bytes_per_s = panel.roof
    xs, ys = theme.bend(axes, fraction * flops, fraction * bytes_per_s, panel.unit)
    axes.plot(
        xs,
        ys,
        color=GREY,
        linewidth=0.7,
        alpha=0.7,
        zorder=1,
    )
    words = f"{100 * fraction:.0f} %"
    theme.note(
        axes,
        words,
        (xs[-1], ys[-1]),
        (-2, 0),
        fontsize=8,
        color=GREY,
        ha="right",
        va="center",
    )


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


def _mark(panel: Panel, split: str) -> dict:
    """The mark of a split's points. Those that look alike have no line."""
    return {"marker": "o", "ls": "none"} if split == MANY else {"marker": panel.marks[split]}


def _points(axes, panel: Panel, frame, line: str = "none") -> None:
    """Points by contender and split; they share an x at each shape, so neighbours step a little to the side.

    Where bytes were counted, all points at modelled intensities are hollow, and a filled one at the counted intensity
    is joined to its own: how far to the left it lies is what was moved beyond the least.
    """
    is_hollow = frame["counted_intensity"].notna().any()
    names = list(panel.colours)
    for (name, split), rows in frame.groupby(["contender", "split"], sort=False):
        colour = panel.colours[name]
        look = {"ls": line, "lw": 0.6, "markersize": 6.5, "color": colour} | _mark(panel, split)
        face = {"markerfacecolor": "white", "markeredgecolor": colour, "markeredgewidth": 1.4} if is_hollow else {}
        shift = 1.035 ** (names.index(name) - (len(names) - 1) / 2)
        xs = rows["x"] * shift
        ys = rows["y"]
        ends = [ys - rows["y_low"], rows["y_high"] - ys]
        theme.points(axes, xs, ys, look | face, yerr=ends)
        counted = rows["counted"].dropna() * shift
        heights = ys[counted.index]
        modelled = xs[counted.index]
        axes.plot([modelled, counted], [heights, heights], color=colour, linewidth=1.2, zorder=3.5)
        axes.plot(counted, heights, zorder=4.5, **look, **EDGE)
        hot = rows["throttled"].eq(True).fillna(False)
        axes.plot(xs[hot], ys[hot], ls="none", zorder=3, **THROTTLED)


def _legend(axes, panel: Panel) -> None:
    """Colours of contenders, marks of splits, and what else the points are."""
    rows = panel.rows
    looks = {name: {"color": colour} for name, colour in panel.colours.items()}
    for split in rows["split"].unique():
        if split:
            looks[split] = _mark(panel, split)
    if rows["counted"].notna().any():
        looks[MODELLED] = {"markerfacecolor": "white"}
        looks[COUNTED] = {}
    if rows["throttled"].eq(True).any():
        looks["throttled"] = THROTTLED
    handles = []
    for look in looks.values():
        look = {"ls": "none", "marker": "o", "color": GREY} | look
        handles += axes.plot([], [], **look)
    title = f"{rows['dtype'].iloc[0]}, 95 % intervals"
    axes.legend(
        handles,
        looks,
        loc="lower right",
        fontsize=9.5,
        title=title,
        title_fontsize=8.5,
    )


def _few(panel: Panel):
    """The cases of few rows, and those under the ridge."""
    ridge = balance(*panel.roof) if panel.roof else 0
    rows = panel.rows[panel.rows["m"].notna()]
    return rows[rows["m"].le(FEW_ROWS) | rows["x"].lt(ridge)]


def _few_rows(axes, panel: Panel, rows) -> None:
    """GB/s over rows, each byte once, under what was read and what the matmul roof leaves of it."""
    rows = rows.sort_values("m")
    rows = rows.assign(x=rows["m"].astype(float), counted=np.nan)
    for name in ("y", "y_low", "y_high"):
        rows[name] *= panel.unit / 1e9 / rows["device_intensity"]
    ticks = 2.0 ** np.arange(-1, 12)
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xlim(rows["x"].min() / 2.2, rows["x"].max() * 2.2)
    axes.set(xlabel="M, rows of x", ylabel="GB/s of device memory")
    axes.set_title("few rows: bytes, each once, over time", loc="left", fontsize=11)
    _points(axes, panel, rows, "-")
    if panel.roof:
        _roof_of_few(axes, panel.roof, rows)
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
