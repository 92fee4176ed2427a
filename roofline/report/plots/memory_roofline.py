"""The figure memory_roofline: FLOP/s over FLOP per byte of device memory, under the measured roof; and beside it the
bytes/s of few rows, which a roofline hides."""

from itertools import cycle

import numpy as np

from roofline.analysis.throughput import Roof
from roofline.operations.format import percent_text, rate_text, shape_text
from roofline.operations.matmul import SHAPE
from roofline.report.plots import theme
from roofline.report.plots.theme import DARK, GREY, MARKERS
from roofline.store.run import AGAIN
from roofline.store.stats import geometric_mean
from roofline.theory.bounds import balance

ISOLINES = (0.5, 0.75, 0.9)
MODELLED, COUNTED = "hollow: each byte moved once", "filled: bytes counted, from a cold cache"

FEW_ROWS = 64
"""Cases of up to so many rows, and those under the ridge, stand in the panel of bytes/s too."""

MARKS, MANY, ALIKE = (*MARKERS, "<", ">", "p"), "shapes of a file", {"marker": "o", "ls": "none"}
"""The marks of layers at a tp, and of a file's shapes, which look alike where there are more of them."""

APART = 1.15
"""Intensities of the same rows that differ by more than this factor have a label each."""

THROTTLED = {"marker": "o", "markersize": 13, "fillstyle": "none", "color": DARK, "markeredgewidth": 0.8}


def memory_roofline(frame):
    """Return the figure, a row of panels for each dtype; None where no case computes from device memory."""
    frame = frame[frame["analysis"] == "throughput"]
    frame = frame[frame["contender"] != frame["baseline"] + AGAIN]  # it lies on the baseline's points
    if frame.empty:
        return None
    shapes = frame.apply(shape_text, axis=1)
    if len({*shapes} - {""}) > len(MARKS):
        shapes = shapes.where(shapes == "", MANY)
    split = (frame["layer"] + ", tp=" + frame["tp"].astype("string")).fillna("").mask(shapes != "", shapes)
    by_dtype = frame.assign(split=split).groupby("dtype", sort=False)
    looks = (
        {name: {"color": colour} for name, colour in theme.colours(frame["contender"].unique()).items()},
        {name: {"marker": mark} for name, mark in zip(split.unique(), cycle(MARKS))} | {MANY: ALIKE},
    )
    figure = theme.new(12.5, 5.8 * len(by_dtype) + 0.6)
    theme.about(figure, frame, finding(frame))
    panels, labels = figure.subplots(len(by_dtype), 2, squeeze=False, width_ratios=(5, 3)), []
    for (axes, beside), (dtype, rows) in zip(panels, by_dtype, strict=True):
        roof, sheet = (frame.attrs.get(name, {}).get(dtype) for name in ("roofs", "datasheet"))
        unit = 1e12 if max(rows["tflops"].max() * 1e12, roof.flops if roof else 0) >= 1e12 else 1e9
        rates = {f"y{end}": rows[f"tflops{end}"] * 1e12 / unit for end in ("", "_low", "_high")}
        rows = rows.assign(x=rows["device_intensity"], counted=rows["counted_intensity"], **rates)
        _roofs(axes, rows, roof, sheet, unit)
        _points(axes, rows, *looks)
        labels.append(_labels(axes, rows))
        axes.set(xlabel="arithmetic intensity (FLOP per byte of device memory)", ylabel=theme.UNITS[unit])
        _legend(axes, rows, *looks)
        few = rows["m"].le(FEW_ROWS) | rows["x"].lt(balance(*roof) if roof else 0)
        if (few & rows["m"].notna()).any():
            _few_rows(beside, rows[few & rows["m"].notna()], roof, unit, looks)
        else:
            beside.remove()
            axes.set_subplotspec(axes.get_gridspec()[axes.get_subplotspec().rowspan.start, :])
    theme.separate(figure, labels)
    return figure


def finding(frame) -> str:
    """Return the contender of the best geometric mean beside the baseline, and the share of the roof at its most
    rows."""
    others = frame[frame["rival"].eq(True).fillna(False) & frame["ratio_to_baseline"].notna()]
    means = others.groupby("contender", sort=False)["ratio_to_baseline"].agg(geometric_mean)
    name = means.idxmax() if len(means) else frame["contender"].iloc[0]
    rows, share = frame[(frame["contender"] == name) & frame["of_roof"].notna()], ""
    if len(most := rows[rows["m"].eq(rows["m"].max()).fillna(False)]):
        share = f"{percent_text(geometric_mean(most['of_roof']))} of the roof at M = {most['m'].iloc[0]}"
    if len(means):
        mean, rows = means[name], others[others["contender"] == name]
        than = rows["baseline"].iloc[0]
        text = f"{name} is {mean:.2f} x as fast as {than} in the geometric mean over {len(rows)} shapes"
        return text + bool(share) * f"; {share}"
    return f"{name} reaches {share}" if share else "FLOP/s over arithmetic intensity"


def _roofs(axes, rows, measured: Roof | None, sheet: Roof | None, unit: float) -> None:
    """Limits that hold all points and roofs, and the roofs."""
    xs, ys = [*rows["x"], *rows["counted_intensity"].dropna()], [*rows["y"]]
    for roof in filter(None, (sheet, measured)):
        xs += [balance(*roof) / 8, 2 * balance(*roof)]
        ys.append(roof.flops / unit)
    axes.set(xscale="log", yscale="log", xlim=(min(xs) / 1.6, max(xs) * 3.5), ylim=(min(ys) / 2.2, max(ys) * 2.2))
    theme.plain_numbers(axes)
    if sheet:  # its words stand where those of the measured one do not
        theme.roof(axes, *sheet, unit, "datasheet: ", part=0.55, at_ridge=True, color=GREY, ls="--", lw=1.3)
    if measured:
        for share in ISOLINES:
            xs, ys = theme.bend(axes, *(share * rate for rate in measured), unit)
            axes.plot(xs, ys, color=GREY, linewidth=0.7, alpha=0.7, zorder=1)
            end, words = (xs[-1], ys[-1]), f"{100 * share:.0f} %"
            theme.note(axes, words, end, (-2, 0), fontsize=8, color=GREY, ha="right", va="center")
        theme.roof(axes, *measured, unit, "measured: ", part=0.12, lw=2)


def _labels(axes, rows) -> list:
    """M under each cluster of points, with tp or shape where that puts those of an M apart; returns the labels."""
    of_m = rows.groupby("m")["x"]
    apart = of_m.transform("max") > APART * of_m.transform("min")
    place = ("\ntp=" + rows["tp"].astype("string")).fillna("").mask(rows["layer"] == SHAPE, "\n" + rows["split"])
    low = rows["y_low"].clip(lower=1.5 * axes.get_ylim()[0])  # a wide interval may end below the axes
    rows = rows.assign(place=place.where(apart & (rows["split"] != MANY), ""), y_low=low)
    return theme.name_lowest(axes, rows, ["m", "place"], "x", "y_low", lambda row: f"M={row.m}{row.place}")


def _points(axes, frame, colours: dict, marks: dict, line: str = "none") -> None:
    """Points by contender and split; they share an x at each shape, so neighbours step a little to the side.

    Where bytes were counted, all points at modelled intensities are hollow, and a filled one at the counted intensity
    is joined to its own: how far to the left it lies is what was moved beyond the least.
    """
    hollow = frame["counted_intensity"].notna().any()
    edge = {"markeredgecolor": DARK, "markeredgewidth": 0.6}
    for (name, split), rows in frame.groupby(["contender", "split"], sort=False):
        colour = colours[name]["color"]
        points = {"ls": line, "lw": 0.6, "markersize": 6.5} | colours[name] | marks[split]
        face = {"markerfacecolor": "white", "markeredgecolor": colour, "markeredgewidth": 1.4} if hollow else edge
        shift = 1.035 ** ([*colours].index(name) - (len(colours) - 1) / 2)
        xs, ys, counted = rows["x"] * shift, rows["y"], rows["counted"] * shift
        axes.errorbar(
            xs, ys, yerr=[ys - rows["y_low"], rows["y_high"] - ys], ecolor=DARK, elinewidth=0.9, capsize=2, zorder=4,
            **points, **face,
        )  # fmt: skip
        there, hot = counted.notna(), rows["throttled"].eq(True).fillna(False)
        axes.plot([xs[there], counted[there]], [ys[there]] * 2, color=colour, linewidth=1.2, zorder=3.5)
        axes.plot(counted[there], ys[there], zorder=4.5, **points, **edge)
        axes.plot(xs[hot], ys[hot], ls="none", zorder=3, **THROTTLED)


def _legend(axes, rows, colours: dict, marks: dict) -> None:
    """Colours of contenders, marks of splits, and what else the points are."""
    looks = colours | {split: marks[split] for split in rows["split"].unique() if split}
    if rows["counted_intensity"].notna().any():
        looks |= {MODELLED: {"markerfacecolor": "white"}, COUNTED: {}}
    looks |= {"throttled": THROTTLED} if rows["throttled"].eq(True).any() else {}
    handles = [axes.plot([], [], **{"ls": "none", "marker": "o", "color": GREY} | look)[0] for look in looks.values()]
    axes.legend(
        handles,
        looks,
        loc="lower right",
        fontsize=9.5,
        title=f"{rows['dtype'].iloc[0]}, 95 % intervals",
        title_fontsize=8.5,
    )


def _few_rows(axes, rows, roof: Roof | None, unit: float, looks: tuple) -> None:
    """GB/s over rows, each byte once, under what was read and what the matmul roof leaves of it."""
    rows, scale = rows.sort_values("m"), unit / 1e9 / rows["device_intensity"]
    rows = rows.assign(x=rows["m"].astype(float), **{name: rows[name] * scale for name in ("y", "y_low", "y_high")})
    axes.set_xscale("log", base=2)
    axes.set_xticks(2.0 ** np.arange(-1, 12), [f"{2.0**power:g}" for power in range(-1, 12)])
    axes.set(xlim=(rows["x"].min() / 2.2, rows["x"].max() * 2.2), xlabel="M, rows of x", ylabel="GB/s of device memory")
    axes.set_title("few rows: bytes, each once, over time", loc="left", fontsize=11)
    _points(axes, rows.assign(counted=np.nan), *looks, "-")
    if roof:
        at, read = rows.groupby("x")["device_intensity"].median(), roof.read_bytes_per_s / 1e9
        xs = np.geomspace(axes.get_xlim()[0], rows["x"].max(), 200)
        ys = np.minimum(roof.flops / 1e9 / np.interp(xs, [0, *at.index], [0, *at]), read)
        axes.plot(xs, ys, color=DARK, linewidth=2, zorder=2)
        theme.note(axes, f"measured: {rate_text(read)} GB/s", (xs[0], ys[0]), (4, 4), va="bottom")
    axes.set_ylim(0, 1.08 * axes.get_ylim()[1])
