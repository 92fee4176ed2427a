"""The figure network_roofline: what overlapping buys over multiples of the threshold, a panel for the layer in tensor
parallelism (what comes before it, what goes behind it, and both) and one for the weight prefetch.

The threshold is the balance at which a case's own unsplit matmul and its link take equally long. FLOP per received byte
over that is T_gemm / T_comm, so that all wires have one roof, min(1, x), and one bound for what runs one after the
other, x / (1 + x). An arm that multiplies on more cores than T_gemm is left to the figure overlap: its roof is another.
"""

import numpy as np

from roofline.analysis.overlap import overlapping
from roofline.report.plots import style, theme
from roofline.report.plots.theme import DARK, GREY
from roofline.theory.arms import ALL_CORES, LAYER
from roofline.theory.wires import EXERCISE_BALANCE

PANEL_IN, MORE_IN = 3.6, 0.8
"""Inches of a panel of one operation, and what each further one takes."""

ASIDE = 0.004
"""Distance between the arms of one shape, of the width of the axes."""


def network_roofline(frame):
    """The figure; None where no case has T_gemm and T_comm."""
    cases = style.prepared(frame)
    if not cases["timed"].any():
        return None
    cases["panel"] = cases["op"].where(~cases["op"].isin(LAYER), "layer")
    valid = _comparable(cases)
    best = _best(valid)
    panels = cases.groupby("panel", sort=False)
    heights = [PANEL_IN + MORE_IN * (rows["op"].nunique() - 1) for _, rows in panels]
    figure = theme.new(11, sum(heights) + 2.2)
    theme.about(figure, frame, _finding(valid, best))
    every_axes = figure.subplots(len(heights), sharex=True, sharey=True, squeeze=False, height_ratios=heights)[:, 0]
    _scales(every_axes, valid)
    looks = style.styles(valid["contender"])
    labels = []
    for axes, (name, rows) in zip(every_axes, panels, strict=True):
        drawn = valid[valid["panel"] == name]
        _bounds(axes)
        _points(axes, drawn, looks)
        _titles(axes, rows, drawn, best.get(name))
        if len(drawn):
            labels.append(_labels(axes, drawn))
    theme.legend(figure)
    theme.separate(figure, labels)
    return figure


def _comparable(cases):
    """The cases that this roof holds for, with how far each stands `aside` of its shape's place."""
    has_own_roof = cases["own_fabric"] | (cases["contender"] == ALL_CORES)
    valid = cases[cases["timed"] & ~has_own_roof & ~cases["void"]]
    rank = valid.groupby("op")["contender"].transform(lambda arms: arms.factorize()[0])
    middle = rank.groupby(valid["op"]).transform("max") / 2
    return valid.assign(aside=ASIDE * (rank - middle))


def _best(valid) -> dict:
    """{panel: its overlapping arm whose gain over serial begins highest, by its interval, and above 1}."""
    won = overlapping(valid).query("ratio_low > 1").sort_values("ratio_low")
    best = won.drop_duplicates("panel", keep="last").sort_index()
    return {row.panel: row for row in best.itertuples()}


def _finding(valid, best: dict) -> str:
    if valid.empty:
        return "Nothing that can be compared"
    if not best:
        return "No arm is faster than serial beyond its interval"
    gains = [f"{row.ratio_to_baseline:.2f} x in {row.op}" for row in best.values()]
    return f"Overlapping buys, over serial, {' and '.join(gains)}"


def _scales(every_axes, valid) -> None:
    """Limits and ticks that all panels share, and above the first what they are on the exercise's chip."""
    first = every_axes[0]
    left = min([0.6, *valid["ratio"]]) / 1.5
    right = max([1.6, *valid["ratio"]]) * 1.5
    first.set_xscale("log", base=2)
    first.set(xlim=(left, right), ylim=(0, 1.15))
    first.xaxis.set_major_formatter("{x:g}")
    ticks = [tick for tick in first.get_xticks() if left <= tick <= right]
    intensities = [f"{EXERCISE_BALANCE * tick:g}" for tick in ticks]
    top = first.secondary_xaxis("top")
    top.set_xticks(ticks, intensities, fontsize=9, color=GREY)
    top.minorticks_off()
    top.set_xlabel(
        "FLOP per received byte on the exercise's chip, of 275 TFLOP/s and 100 GB/s",
        loc="right",
        fontsize=9,
        color=GREY,
    )
    every_axes[-1].set_xlabel("T_gemm / T_comm: below 1 the wire sets the pace, above it the matmul")


def _bounds(axes) -> None:
    """The roof, the bound of what runs one after the other, and the threshold."""
    low, high = axes.get_xlim()
    xs = np.sort([1, *np.geomspace(low, high, 200)])
    axes.plot(xs, np.minimum(1, xs), color=DARK, lw=2, label="ideal: only the longer of matmul and wire")
    axes.plot(xs, xs / (1 + xs), color=DARK, lw=1.3, ls="--", label="both, one after the other")
    axes.axvline(1, color=GREY, linewidth=0.9, zorder=1)
    axes.set_ylabel("share of the lone matmul's speed")


def _points(axes, valid, looks: dict) -> None:
    """The arms of each shape, a little apart, on a line from the slowest to the fastest."""
    cases = valid.groupby("shape").agg({"ratio": "first", "share": ["min", "max"]})
    axes.vlines(*cases.to_numpy().T, GREY, linewidth=0.9, zorder=1)
    left, right = axes.get_xlim()
    for arm, look in looks.items():
        rows = valid[valid["contender"] == arm]
        if len(rows):
            xs = rows["ratio"] * (right / left) ** rows["aside"]
            ends = style.interval(rows, "share")
            theme.points(axes, xs, rows["share"], look, label=arm, yerr=ends)


def _titles(axes, rows, drawn, best) -> None:
    """Where the panel's best arm gains so much, and below that the links and what is left out."""
    layer_of = dict(rows[["op", "layer"]].drop_duplicates("op").to_numpy())
    below = []
    if len(drawn):
        wire = drawn["wire"].mode()[0]
        balances = style.range_of(drawn["balance"][drawn["wire"] == wire])
        below.append(style.link_text(drawn))
        below.append(f"1 is {balances} FLOP/byte here, measured on wire {wire}, each by its own matmul")
    if len(layer_of) > 1:
        below.append(", ".join(f"{layer}: {op}" for op, layer in layer_of.items()))
    others = rows[rows["own_fabric"]].drop_duplicates("contender")
    if len(others):
        fabrics = [f"{row.contender}, over {row.link}" for row in others.itertuples()]
        below.append(f"left out, these wires do not count for it: {'; '.join(fabrics)}")
    below += style.left_out(rows, void=True)
    title = ", ".join(layer_of)
    if best:
        title = f"{best.op} at T_gemm / T_comm = {best.ratio:.2f}"
        if best.gain_all_cores > 0:
            title += f", {best.gain_all_cores:.2f} x over serial on all cores"
    axes.set_title("\n".join([title, *below]))


def _labels(axes, drawn) -> list:
    """A word under each shape's lowest point that tells it from the others."""
    wire = drawn["wire"].mode()[0]
    ranks = drawn["ranks"].mode()[0]
    usual = drawn[drawn["ranks"] == ranks]

    def name(row) -> str:
        text = style.label(row, usual)
        if row.wire != wire:
            text = row.wire
        elif row.ranks != ranks:
            text = f"P={row.ranks}"
        return f"{row.layer} {text}" if drawn["op"].nunique() > 1 else text

    return theme.name_lowest(axes, drawn, "shape", "ratio", "share_low", name)
