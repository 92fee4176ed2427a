"""The figure network_roofline: FLOP/s over FLOP per byte that comes over the wire, and every wire in one panel.

A roof needs one bandwidth, so an operation's panel shows only the shapes that share the wire of most. The last panel
has them all: over T_gemm / T_comm they have one roof, and one bound for what runs one after the other. An arm that
multiplies on more cores than T_gemm is left to the figure overlap: its roof is another.
"""

from functools import partial

import numpy as np

from roofline.analysis.overlap import style
from roofline.analysis.overlap.arms import ALL_CORES
from roofline.operations.gathering import exercise
from roofline.report import theme
from roofline.report.theme import BEHIND_TEXT, DARK, GREY
from roofline.store.run import Run
from roofline.theory.wires import EXERCISE_BALANCE
from roofline.theory.wires import parse as parse_wire
from roofline.theory.work import ITEMSIZE

ROOF_NAME = "ideal: only the longer of matmul and gather"
BOUND = {"color": DARK, "linestyle": "--", "linewidth": 1.3, "zorder": 2, "label": "both, one after the other"}
ALONE = {
    "linestyle": "none", "marker": "_", "markersize": 20, "markeredgewidth": 3, "color": "#cc78bc", "zorder": 3,
    "label": "matmul alone, no gather",
}  # fmt: skip
CURVE = 200
"""Points of a curved line."""


def draw(run: Run, frame):
    frame = style.prepared(frame)
    own_roof = frame["own_fabric"] | (frame["arm"] == ALL_CORES)
    valid = frame[frame["timed"] & ~own_roof & ~frame["void"]]
    looks, sweeps = style.styles(valid["arm"]), _sweeps(valid)
    last = len(sweeps)
    places = [*range(last), *[last - 1] * (last % 2), last, last]  # two panels a row; one that is alone takes all of it
    figure = theme.new(11, 5.2 * len(places) / 2 + 1.1)
    figure.suptitle(run.metadata["title"], x=0.01, ha="left", fontsize=14)
    figure.get_layout_engine().set(h_pad=0.1)
    panels = figure.subplot_mosaic([places[i : i + 2] for i in range(0, len(places), 2)])
    labels = [_sweep_panel(panels[i], run, sweep, looks) for i, sweep in enumerate(sweeps)]
    labels.append(_every_wire(panels[last], run, frame, valid, sweeps, looks))
    for axes in panels.values():
        axes.spines[["top", "right"]].set_visible(False)
    theme.footer(figure, run.metadata["footer"])
    theme.separate(figure, labels)
    return figure


def _sweeps(valid) -> list:
    """For each operation and dtype the rows on the wire that most of its shapes share. The wire `ridge` has another
    bandwidth on each shape, and so no roof but for one of them."""
    found = []
    for _, of_op in valid.groupby(["op", "dtype"], sort=False):
        groups = [own for _, own in of_op.groupby(["wire", "link", "ranks"], sort=False)]
        one_roof = [g for g in groups if parse_wire(g["wire"].iloc[0]).kind != "ridge" or g["shape"].nunique() == 1]
        if one_roof:
            found.append(max(one_roof, key=lambda group: group["shape"].nunique()))
    return found


def _sweep_panel(axes, run: Run, sweep, looks: dict) -> list:
    """Roof, bound, points and labels of shapes on one wire; returns the labels of the shapes."""
    shapes = sweep.drop_duplicates("shape")
    first, alone, xs = next(shapes.itertuples()), shapes["flop"] / shapes["t_gemm_s"], shapes["wire_intensity"]
    flops = alone.max()
    bytes_per_s = shapes["link_bytes_per_s"].fillna(shapes["wire_bytes"] / shapes["t_comm_s"]).median()
    ends = [*xs, flops / bytes_per_s]
    axes.set(xscale="log", yscale="log", xlabel="FLOP per byte received over the wire", ylabel="TFLOP/s")
    axes.set(xlim=(min(ends) / 2.2, max(ends) * 2.2), ylim=(sweep["tflops_low"].min() / 2, flops / 1e12 * 1.7))
    theme.few_ticks(axes)
    theme.roof(axes, flops, bytes_per_s, part=0.06, label=ROOF_NAME)
    theme.ridge(axes, flops, bytes_per_s)
    curve = np.geomspace(*axes.get_xlim(), CURVE + 1)
    axes.plot(curve, 1e-12 / (1 / flops + 1 / (curve * bytes_per_s)), **BOUND)
    _asked(axes, first)
    axes.plot(xs, alone / 1e12, **ALONE)
    _points(axes, sweep, "wire_intensity", "tflops", looks, 1.03)
    style.title(axes, first.op, f"{style.source_text(run)}, wire {first.wire}:", style.link_text(shapes))
    name = partial(style.label, among=sweep)
    return theme.name_lowest(axes, sweep, "shape", "wire_intensity", "tflops_low", name)


def _points(axes, frame, x: str, y: str, looks: dict, step: float) -> None:
    """Points of each arm with their intervals; arms share an intensity at each shape, so they step to the side."""
    present = [arm for arm in looks if arm in set(frame["arm"])]
    for index, arm in enumerate(present):
        own, aside = frame[frame["arm"] == arm], step ** (index - (len(present) - 1) / 2)
        style.draw_points(axes, own[x] * aside, own[y], looks[arm], label=arm, yerr=style.interval(own, y))


def _asked(axes, row) -> None:
    """A line at the balance that the wire was asked to give, and where that comes from."""
    wire = parse_wire(row.wire)
    if wire.kind != "balance":
        return
    text = f"balance {wire.value:.4g} asked for"
    if wire.value == EXERCISE_BALANCE:
        text += ":\nthe exercise's"
    elif row.wire == exercise(row.model, row.dtype):
        divisor, itemsize = row.model.partition("/")[2], ITEMSIZE[row.dtype]
        parts = [str(EXERCISE_BALANCE), *([divisor] if divisor else []), *([f"{itemsize / 2:g}"] * (itemsize != 2))]
        text += f"\n= {' / '.join(parts)}:\nthe exercise's, scaled"
    axes.axvline(wire.value, color=GREY, linewidth=0.9, zorder=1)
    words = {"fontsize": 8.5, "color": GREY, "va": "bottom", "linespacing": 1.15, "bbox": BEHIND_TEXT, "zorder": 1.5}
    theme.note(axes, text, (wire.value, 0), (4, 4), ("data", "axes fraction"), **words)


def _every_wire(axes, run: Run, frame, valid, sweeps: list, looks: dict) -> list:
    """All shapes as shares of the unsplit matmul's speed; returns the labels of those on other wires."""
    best = valid["ratio"].clip(upper=1)
    valid = valid.assign(
        share=best / valid["over"], share_low=best / valid["over_high"], share_high=best / valid["over_low"]
    )
    left, right = min([0.6, *valid["ratio"]]) / 1.5, max([1.6, *valid["ratio"]]) * 1.5
    axes.set_xscale("log", base=2)
    axes.set(xlim=(left, right), ylim=(0, 1.15), xlabel="T_gemm / T_comm (1 is the ridge)")
    axes.set_ylabel("share of the lone matmul's speed")
    theme.plain_numbers(axes)
    xs = np.sort([1, *np.geomspace(left, right, CURVE + 1)])
    axes.plot(xs, np.minimum(1, xs), color=DARK, linewidth=2, zorder=2, label=ROOF_NAME)
    axes.plot(xs, xs / (1 + xs), **BOUND)
    axes.axvline(1, color=GREY, linewidth=0.9, zorder=1)
    for who, by, side in (("wire", -8, "right"), ("matmul", 8, "left")):
        words = {"color": GREY, "ha": side, "va": "bottom"}
        theme.note(axes, f"the {who} sets the pace", (1, 0), (by, 6), ("data", "axes fraction"), **words)
    _points(axes, valid, "ratio", "share", looks, (right / left) ** 0.004)
    below = [f"{style.source_text(run)}, {style.link_text(valid)}"] if len(valid) else []
    others = frame[frame["own_fabric"]].drop_duplicates("arm")
    if fabrics := [f"{row.arm}, over {row.link}" for row in others.itertuples()]:
        below.append(f"left out, these wires do not count for it: {'; '.join(fabrics)}")
    style.title(axes, "every shape on every wire, against its own matmul", *below, *style.left_out(frame, void=True))
    axes.plot([], [], **ALONE)
    style.legend(axes, *axes.get_legend_handles_labels(), columns=4, title="95 % intervals", title_fontsize=8.5)
    shared = {name for sweep in sweeps for name in sweep["shape"]}
    usual = {(row.op, row.ranks) for sweep in sweeps for row in sweep.itertuples()}

    def wire(row) -> str:
        more = "" if (row.op, row.ranks) in usual else f", P={row.ranks}"
        return "" if row.shape in shared else row.wire + more

    return theme.name_lowest(axes, valid, "shape", "ratio", "share_low", wire)
