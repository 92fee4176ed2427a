"""The figure memory_roofline: FLOP/s over FLOP per byte of device memory, under the measured roof; and beside it the
bytes/s of few rows, which a roofline hides."""

import numpy as np

from roofline.analysis.tokens import compared
from roofline.operations.matmul import SHAPE
from roofline.operations.shapes import shape_text
from roofline.report.format import flops_text, rate_text
from roofline.report.plots import style, theme
from roofline.report.plots.theme import DARK, GREY, MARKERS
from roofline.report.throughput import summary
from roofline.store.run import AGAIN
from roofline.store.stats import geometric_mean
from roofline.theory.bounds import Roof

ISOLINES = (0.5, 0.75, 0.9)

FEW_ROWS = 64
"""Cases of up to so many rows, and those under the ridge, stand in the panel of bytes/s too."""

MARKS = (*MARKERS, "<", ">", "p")
"""Marks that tell layers at a tp, and shapes of a file, from one another."""

MANY = "many shapes"
"""The name of all shapes where there are more of them than marks: they look alike, and no line joins them."""

APART = 1.15
"""Intensities of the same rows that differ by more than this factor have a label each."""

ASIDE = 1.035
"""The factor between the places of two contenders on one shape, which share an intensity."""

ROOFS = {"datasheet": {"color": GREY, "ls": "--", "lw": 1.3}, "measured": {"color": DARK, "lw": 2}}
"""Roofs, by their name in the `attrs` of a frame, and how each is drawn."""


def memory_roofline(frame):
    """The figure, a row of panels for each dtype; None where no case computes from device memory."""
    cases = frame[frame["analysis"] == "throughput"]
    cases = cases[cases["contender"] != cases["baseline"] + AGAIN]  # it lies on the baseline's points
    if cases.empty:
        return None
    cases = _placed(cases)
    panels = []
    for dtype, rows in cases.groupby("dtype", sort=False):
        roofs = {}
        for name in ROOFS:
            if roof := frame.attrs.get(name, {}).get(dtype):
                roofs[name] = roof
        panels.append((rows, roofs, _few(rows, roofs)))
    figure = theme.new(12.5, 5.8 * len(panels) + 0.6)
    theme.about(figure, frame, finding(cases))
    widths = (5, 3) if any(len(few) for _, _, few in panels) else (5,)
    every_axes = figure.subplots(len(panels), len(widths), squeeze=False, width_ratios=widths)
    labels = []
    for (left, *right), (rows, roofs, few) in zip(every_axes, panels, strict=True):
        labels.append(_draw(left, rows, roofs))
        for axes in right:
            _few_rows(axes, few, roofs)
    theme.separate(figure, labels)
    return figure


def _placed(cases):
    """The `cases` with where each stands, `x` and `y`, a little `aside`, and its look: `color` by contender, `marker`
    by `split`, its layer and tp or the shape of a file."""
    names = list(cases["contender"].unique())
    ranks = cases["contender"].map(names.index)
    splits = cases.apply(shape_text, axis=1)
    if splits.nunique() > len(MARKS):
        splits[:] = MANY
    marks = dict(zip(splits.unique(), MARKS, strict=False))
    cases = cases.assign(
        split=splits,
        color=cases["contender"].map(theme.colours(names)),
        marker=splits.map(marks),
        aside=ASIDE ** (ranks - (len(names) - 1) / 2),
        x=cases["device_intensity"],
    )
    for end in ("", "_low", "_high"):
        cases[f"y{end}"] = 1e12 * cases[f"tflops{end}"].fillna(cases["tflops"])
    return cases


def _few(rows, roofs: dict[str, Roof]):
    """The cases of few rows, and those under the ridge."""
    ridge = roofs["measured"].ridge if "measured" in roofs else 0
    rows = rows[rows["m"].notna()]
    return rows[rows["m"].le(FEW_ROWS) | rows["x"].lt(ridge)]


def finding(cases) -> str:
    """How fast the contender of the best geometric mean is beside the baseline."""
    rivals = compared(cases[cases["rival"].eq(True).fillna(False)])
    if rivals.empty:
        return f"FLOP/s of {cases['contender'].iloc[0]}"
    means = rivals.groupby("contender", sort=False)["ratio_to_baseline"].agg(geometric_mean)
    (text,) = summary(rivals[rivals["contender"] == means.idxmax()])
    return text


def _draw(axes, rows, roofs: dict[str, Roof]) -> list:
    """FLOP/s over intensity; returns the labels."""
    _roofs(axes, rows, roofs)
    _points(axes, rows)
    labels = _labels(axes, rows)
    axes.set_xlabel("arithmetic intensity (FLOP per byte of device memory)")
    axes.yaxis.set_major_formatter(lambda flops, place: flops_text(flops))
    _legend(axes, rows)
    return labels


def _roofs(axes, rows, roofs: dict[str, Roof]) -> None:
    """Limits that hold all points and roofs, the roofs, and fractions of the measured one."""
    xs = [*rows["x"]]
    ys = [*rows["y"]]
    for roof in roofs.values():
        xs += [roof.ridge / 8, 2 * roof.ridge]
        ys.append(roof.flops)
    left, right = min(xs) / 1.6, max(xs) * 3.5
    axes.set(xscale="log", yscale="log", xlim=(left, right), ylim=(min(ys) / 2.2, max(ys) * 2.2))
    theme.plain_numbers(axes)
    for name, roof in roofs.items():
        xs = [left, roof.ridge, right]
        ys = [roof.at(x) for x in xs]
        rates = f"{flops_text(roof.flops)}, {rate_text(roof.read_bytes_per_s / 1e9)} GB/s"
        axes.plot(xs, ys, label=f"{name}: {rates}, ridge at {rate_text(roof.ridge)}", **ROOFS[name])
    if "measured" in roofs:
        look = {"color": GREY, "lw": 0.7, "alpha": 0.7, "zorder": 1}
        axes.plot(xs, np.outer(ys, ISOLINES), **look)
        axes.plot([], [], label="50, 75 and 90 % of it", **look)


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


def _points(axes, cases, line: str = "none") -> None:
    """Points with their intervals; a `line` joins those of a contender on one split."""
    for (_, split), rows in cases.groupby(["contender", "split"], sort=False):
        look = {"lw": 0.6, "ls": "none" if split == MANY else line}
        look |= rows[["color", "marker"]].iloc[0].to_dict()
        theme.points(axes, rows["x"] * rows["aside"], rows["y"], look, yerr=style.interval(rows, "y"))


def _legend(axes, rows) -> None:
    """Roofs, colours of contenders, marks of splits, and how many cases had their clock held down."""
    look = {"ls": "none", "marker": "o", "color": GREY}
    for name, color in rows[["contender", "color"]].drop_duplicates("contender").to_numpy():
        axes.plot([], [], label=name, **look | {"color": color})
    for split, marker in rows[["split", "marker"]].drop_duplicates().to_numpy():
        if split:
            axes.plot([], [], label=split, **look | {"marker": marker})
    title = f"{rows['dtype'].iloc[0]}, 95 % intervals"
    if hot := rows["throttled"].eq(True).sum():
        title += f"; throttled in {hot} of {len(rows)}"
    axes.legend(loc="lower right", fontsize=9.5, title=title, title_fontsize=8.5)


def _few_rows(axes, rows, roofs: dict[str, Roof]) -> None:
    """GB/s over rows, each byte once, under what was read and what the matmul roof leaves of it."""
    if rows.empty:
        axes.set_axis_off()
        return
    rows = rows.sort_values("m").assign(x=rows["m"].astype(float))
    for name in ("y", "y_low", "y_high"):
        rows[name] /= 1e9 * rows["device_intensity"]
    axes.set_xscale("log", base=2)
    axes.set_xticks(rows["x"].unique())
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set(xlabel="M, rows of x", ylabel="GB/s of device memory")
    axes.set_title("few rows: bytes, each once, over time")
    _points(axes, rows, "-")
    if "measured" in roofs:
        known = rows.groupby("x")["device_intensity"].median()
        xs = np.geomspace(known.index[0], known.index[-1], 200)
        intensities = np.interp(xs, known.index, known)
        bounds = [roofs["measured"].at(intensity) / intensity / 1e9 for intensity in intensities]
        axes.plot(xs, bounds, color=DARK, linewidth=2)
    axes.set_ylim(bottom=0)
