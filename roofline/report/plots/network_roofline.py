"""The figure network_roofline: what overlapping buys over multiples of the threshold, a panel for each operation.

The threshold is the balance at which a case's own unsplit matmul and its link take equally long. FLOP per received byte
over that is T_gemm / T_comm, so that all wires have one roof, min(1, x), and one bound for what runs one after the
other, x / (1 + x). An arm that multiplies on more cores than T_gemm, or has a link of its own, is left to the figure
overlap: its roof is another.
"""

import numpy as np

from roofline.analysis.overlap import overlapping
from roofline.report.plots import gathers, theme
from roofline.report.plots.theme import DARK, GREY
from roofline.theory.arms import ALL_CORES
from roofline.theory.wires import EXERCISE_BALANCE

PANEL_IN = 4

ASIDE = 1.012
"""The factor between the places of two arms on one shape."""


def network_roofline(frame):
    """The figure; None where no case can be compared with its T_gemm and T_comm."""
    cases = gathers.prepared(frame)
    cases = cases[~cases["own_fabric"] & (cases["contender"] != ALL_CORES)]
    if cases.empty:
        return None
    heights_in = [PANEL_IN] * cases["op"].nunique()
    figure, panels = gathers.panels(cases, _finding(cases), heights_in, sharex=True, sharey=True)
    _scales(figure.axes, cases)
    for axes, rows in panels:
        _bounds(axes)
        _points(axes, rows)
    theme.legend(figure)
    return figure


def _finding(cases) -> str:
    """How much the overlapping arm gains over serial whose gain begins highest, by its interval, and above 1."""
    won = overlapping(cases).query("ratio_low > 1")
    if won.empty:
        return "No arm is faster than serial beyond its interval"
    best = won.loc[won["ratio_low"].idxmax()]
    text = f"Overlapping buys {best['ratio_to_baseline']:.2f} x over serial in {best['op']}"
    if best["gain_all_cores"] > 0:
        text += f", {best['gain_all_cores']:.2f} x over serial on all cores"
    return text


def _scales(every_axes, cases) -> None:
    """Limits and ticks that all panels share, and above the first what they are on the exercise's chip."""
    from matplotlib.ticker import LogLocator

    first = every_axes[0]
    first.set_xscale("log", base=2)
    lowest = min([0.6, *cases["ratio"]])
    highest = max([1.6, *cases["ratio"]])
    first.set_xlim(lowest / 1.5, 1.5 * highest)
    first.set_ylim(0, 1.8)
    first.set_yticks(np.linspace(0, 1, 6))
    first.xaxis.set_major_formatter("{x:g}")
    top = first.secondary_xaxis("top")
    top.xaxis.set_major_locator(LogLocator(base=2))
    top.xaxis.set_major_formatter(lambda x, place: f"{EXERCISE_BALANCE * x:g}")
    top.minorticks_off()
    top.tick_params(labelsize=9, labelcolor=GREY)
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
    xs = np.geomspace(low, high, 500)
    axes.plot(xs, np.minimum(1, xs), color=DARK, lw=2, label="ideal: only the longer of matmul and wire")
    axes.plot(xs, xs / (1 + xs), color=DARK, lw=1.3, ls="--", label="both, one after the other")
    axes.axvline(1, color=GREY, linewidth=0.9, zorder=1)
    axes.set_ylabel("share of the lone\nmatmul's speed")


def _points(axes, rows) -> None:
    """The arms of each shape, a little apart, on a line from the slowest to its name on the roof."""
    rank, _ = rows["contender"].factorize()
    ratio = rows["ratio"]
    rows = rows.assign(roof=ratio.clip(upper=1), x=ratio * ASIDE**rank)
    shapes = rows.groupby("shape").agg({"ratio": "first", "share": "min", "roof": "first"})
    axes.vlines(*shapes.to_numpy().T, GREY, linewidth=0.9, zorder=1)
    theme.name_points(axes, rows, "ratio", "roof", "bottom")
    gathers.points(axes, rows, "x", "share", "share")
