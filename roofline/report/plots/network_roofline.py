"""The figure network_roofline: what overlapping buys over multiples of the threshold, a panel for the layer in tensor
parallelism (what comes before it, what goes behind it, and both) and one for the weight prefetch.

The threshold is the balance at which a case's own unsplit matmul and its link take equally long. FLOP per received byte
over that is T_gemm / T_comm, so that all wires have one roof, min(1, x), and one bound for what runs one after the
other, x / (1 + x). An arm that multiplies on more cores than T_gemm is left to the figure overlap: its roof is another.
"""

import numpy as np

from roofline.operations.format import percent_text
from roofline.operations.gathering import exercise
from roofline.report.plots import style, theme
from roofline.report.plots.theme import DARK, GREY
from roofline.theory.arms import ALL_CORES, LAYER, is_serial
from roofline.theory.wires import EXERCISE_BALANCE
from roofline.theory.wires import parse as parse_wire
from roofline.theory.work import ITEMSIZE

PANEL_IN, MORE_IN = 3.6, 0.8
"""Inches of a panel of one operation, and what each further one takes."""


def network_roofline(frame):
    """Return the figure; None where no case has T_gemm and T_comm."""
    run_frame, frame = frame, style.prepared(frame)
    if not frame["timed"].any():
        return None
    frame = frame.assign(panel=frame["op"].where(~frame["op"].isin(LAYER), "layer"))
    own_roof = frame["own_fabric"] | (frame["contender"] == ALL_CORES)
    valid = frame[frame["timed"] & ~own_roof & ~frame["void"]]
    arms = valid.groupby("op")["contender"]
    rank, count = arms.transform(lambda rows: rows.map([*rows.unique()].index)), arms.transform("nunique")
    valid = valid.assign(aside=0.004 * (rank - (count - 1) / 2))
    looks, of_panel = style.styles(valid["contender"]), dict(list(frame.groupby("panel", sort=False)))
    heights = [PANEL_IN + MORE_IN * (rows["op"].nunique() - 1) for rows in of_panel.values()]
    best, figure = _best(valid), theme.new(11, sum(heights) + 2.2)
    gains = " and ".join(f"{row.ratio_to_baseline:.2f} x in {row.op}" for row in best.values())
    nothing = "No arm is faster than serial beyond its interval" if len(valid) else "Nothing that can be compared"
    theme.about(figure, run_frame, f"Overlapping buys, over serial, {gains}" if gains else nothing)
    panels = figure.subplots(len(heights), sharex=True, sharey=True, squeeze=False, height_ratios=heights)[:, 0]
    left, right = min([0.6, *valid["ratio"]]) / 1.5, max([1.6, *valid["ratio"]]) * 1.5
    panels[0].set_xscale("log", base=2)
    panels[0].set(xlim=(left, right), ylim=(0, 1.15))
    panels[0].xaxis.set_major_formatter("{x:g}")
    ticks = [tick for tick in panels[0].get_xticks() if left <= tick <= right]
    top = panels[0].secondary_xaxis("top")
    top.set_xticks(ticks, [f"{EXERCISE_BALANCE * tick:g}" for tick in ticks], fontsize=9, color=GREY)
    top.minorticks_off()
    top.set_xlabel("FLOP per received byte on the exercise's chip", loc="right", fontsize=9, color=GREY)
    panels[-1].set_xlabel("T_gemm / T_comm: FLOP per received byte over the balance of matmul and link")
    labels = [
        _panel(axes, valid[valid["panel"] == panel], rows, looks, best.get(panel))
        for axes, (panel, rows) in zip(panels, of_panel.items(), strict=True)
    ]
    handles = {name: handle for axes in panels for handle, name in zip(*axes.get_legend_handles_labels(), strict=True)}
    style.legend(panels[-1], [*handles.values()], [*handles], 4, title="95 % intervals", title_fontsize=8.5)
    theme.separate(figure, labels)
    return figure


def _best(valid) -> dict:
    """Return {panel: its overlapping arm whose gain over serial begins highest, by its interval, and above 1}."""
    won = valid[~valid["contender"].map(is_serial).astype(bool) & (valid["ratio_low"] > 1)]
    best = won.sort_values("ratio_low").drop_duplicates("panel", keep="last").sort_index()
    return {row.panel: row for row in best.itertuples()}


def _where(row) -> str:
    """Return at which T_gemm / T_comm the arm that the figure's title is about gains so much, and beside what it could
    be."""
    text = f"{row.op} at T_gemm / T_comm = {row.ratio:.2f}"
    text += f", {percent_text(row.of_own_ideal)} of what its schedule allows" if row.of_own_ideal > 0 else ""
    return text + (f", {row.gain_all_cores:.2f} x over serial on all cores" if row.gain_all_cores > 0 else "")


def _panel(axes, valid, every, looks: dict, best) -> list:
    """Roof, bound, points and labels of the shapes of a panel; returns the labels."""
    left, right = axes.get_xlim()
    xs = np.sort([1, *np.geomspace(left, right, 200)])
    axes.plot(xs, np.minimum(1, xs), color=DARK, lw=2, zorder=2, label="ideal: only the longer of matmul and wire")
    axes.plot(xs, xs / (1 + xs), color=DARK, lw=1.3, ls="--", zorder=2, label="both, one after the other")
    axes.axvline(1, color=GREY, linewidth=0.9, zorder=1)
    axes.set_ylabel("share of the lone matmul's speed")
    cases = valid.groupby("shape").agg({"ratio": "first", "share": ["min", "max"]}).to_numpy()
    axes.vlines(*cases.T, GREY, linewidth=0.9, zorder=1)
    ops = every.drop_duplicates("op").set_index("op")["layer"]
    for arm, look in looks.items():
        rows = valid[valid["contender"] == arm]
        if len(rows):
            at = rows["ratio"] * (right / left) ** rows["aside"]
            style.draw_points(axes, at, rows["share"], look, label=arm, yerr=style.interval(rows, "share"))
    below = [style.link_text(valid)] if len(valid) else []
    if len(ops) > 1:
        below.append(", ".join(f"{layer}: {op}" for op, layer in ops.items()))
    others = every[every["own_fabric"]].drop_duplicates("contender")
    if fabrics := [f"{row.contender}, over {row.link}" for row in others.itertuples()]:
        below.append(f"left out, these wires do not count for it: {'; '.join(fabrics)}")
    above = 34 if axes.get_subplotspec().is_first_row() else 6
    title = _where(best) if best else ", ".join(ops.index)
    style.title(axes, title, *below, *style.left_out(every, void=True), above=above)
    if valid.empty:
        return []
    shapes = valid.drop_duplicates("shape")
    wire, ranks = shapes[["wire", "ranks"]].mode().iloc[0]
    _threshold(axes, shapes[shapes["wire"] == wire])

    def name(row) -> str:
        unusual = {row.wire: row.wire != wire, f"P={row.ranks}": row.ranks != ranks}
        text = ", ".join(filter(unusual.get, unusual)) or style.label(row, valid[valid["ranks"] == ranks])
        return f"{row.layer} {text}" if len(ops) > 1 else text

    return theme.name_lowest(axes, valid, "shape", "ratio", "share_low", name)


def _threshold(axes, shapes) -> None:
    """Who sets the pace, and what the threshold is: on the exercise's chip, and here on the wire of most shapes."""
    grey = {"of": ("data", "axes fraction"), "color": GREY, "fontsize": 8.5}
    for side, by, text in (("right", -8, "the wire sets the pace"), ("left", 8, "the matmul sets the pace")):
        theme.note(axes, text, (1, 1), (by, -4), ha=side, va="top", **grey)
    first = next(shapes.itertuples())
    wire, divisor = parse_wire(first.wire), first.model.partition("/")[2]
    text_below = f"1 is {EXERCISE_BALANCE} FLOP/byte on the exercise's chip (275 TFLOP/s, 100 GB/s)"
    text_below += f"\nhere {style.range_of(shapes['balance'])} measured on wire {first.wire}, each by its own matmul"
    if wire.kind == "balance":
        text_below += f"\n{wire.value:g} asked for"
        if first.wire == exercise(first.model, first.dtype) and wire.value != EXERCISE_BALANCE:
            text_below += f": {EXERCISE_BALANCE}" + f" / {divisor} (scaled model)" * bool(divisor)
            text_below += f" / {ITEMSIZE[first.dtype] / 2:g} ({first.dtype})" * (ITEMSIZE[first.dtype] != 2)
    side, by = ("left", 8) if np.prod(axes.get_xlim()) > 1 else ("right", -8)
    theme.note(axes, text_below, (1, 0), (by, 6), ha=side, va="bottom", **grey)
