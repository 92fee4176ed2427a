"""The figure network_roofline: FLOP/s over FLOP per byte that comes over the wire, and every wire in one panel.

A roof needs one bandwidth, so an operation's panel shows only the shapes that share the wire of most. The last panel
has them all: over T_gemm / T_comm they have one roof, and one bound for what runs one after the other.
"""

import math
from statistics import median

from roofline.analysis.base import records_of
from roofline.analysis.overlap import style
from roofline.operations.gathering import exercise
from roofline.report import theme
from roofline.report.format import rate_text
from roofline.report.theme import BEHIND_TEXT, DARK, GREY
from roofline.store.run import Run
from roofline.theory.wires import EXERCISE_BALANCE
from roofline.theory.wires import parse as parse_wire
from roofline.theory.work import ITEMSIZE

ROOF_NAME = "ideal: only the longer of matmul and gather"
ROOF = {"color": DARK, "linestyle": "-", "linewidth": 2, "zorder": 2, "label": ROOF_NAME}
BOUND = {"color": DARK, "linestyle": "--", "linewidth": 1.3, "zorder": 2, "label": "both, one after the other"}
ALONE = {
    "linestyle": "none", "marker": "_", "markersize": 20, "markeredgewidth": 3, "color": "#cc78bc", "zorder": 3,
    "label": "matmul alone, no gather",
}  # fmt: skip
CURVE = 200
"""Points of a curved line."""


def draw(run: Run, frame):
    records = records_of(frame)
    shapes = {name: own for name, own in style.by_shape(records).items() if style.is_timed(own[0])}
    drawn = [record for own in shapes.values() for record in style.over_the_link(own)]
    valid = [record for record in drawn if record["link_off_pace"] is None]
    styles, sweeps = style.styles(drawn), _sweeps(valid)
    rows = [sweeps[i : i + 2] for i in range(0, len(sweeps), 2)]
    figure = theme.new(11, 5.2 * (len(rows) + 1) + 1.1)
    figure.suptitle(run.metadata["title"], x=0.01, ha="left", fontsize=14)
    grid = figure.add_gridspec(len(rows) + 1, 2)
    figure.get_layout_engine().set(h_pad=0.1)
    labels = []
    for row, panels in enumerate(rows):
        for column, sweep in enumerate(panels):
            axes = figure.add_subplot(grid[row, column] if len(panels) > 1 else grid[row, :])
            labels.append(_sweep_panel(axes, run, sweep, styles))
    labels.append(_every_wire(figure.add_subplot(grid[-1, :]), run, records, valid, styles))
    theme.footer(figure, run.metadata["footer"])
    for of_axes in labels:
        theme.separate(figure, of_axes)
    return figure


def _sweeps(records: list[dict]) -> list[list[dict]]:
    """For each operation and dtype the records on the wire that most of its shapes share. The wire `ridge` has another
    bandwidth on each shape, and so no roof but for one of them."""
    found = []
    for op, dtype in dict.fromkeys((r["op"], r["dtype"]) for r in records):
        groups: dict[tuple, list[dict]] = {}
        for record in records:
            if (record["op"], record["dtype"]) == (op, dtype):
                groups.setdefault((record["wire"], record["link"], record["ranks"]), []).append(record)
        one_roof = [g for (wire, *_), g in groups.items() if parse_wire(wire).kind != "ridge" or len(_firsts(g)) == 1]
        if one_roof:
            found.append(max(one_roof, key=lambda group: len(_firsts(group))))
    return found


def _firsts(records: list[dict]) -> list[dict]:
    """One record of each shape."""
    return [own[0] for own in style.by_shape(records).values()]


def _sweep_panel(axes, run: Run, records: list[dict], styles: dict) -> list:
    """Roof, bound, points and labels of shapes on one wire; returns the labels of the shapes."""
    shapes = _firsts(records)
    flops = max(r["flop"] / r["t_gemm_s"] for r in shapes)
    bytes_per_s = median(r["link_bytes_per_s"] or r["wire_bytes"] / r["t_comm_s"] for r in shapes)
    ridge = flops / bytes_per_s
    xs = [r["wire_intensity"] for r in shapes]
    ys = [r["tflops_low"] for r in records]
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(min(*xs, ridge) / 2.2, max(*xs, ridge) * 2.2)
    axes.set_ylim(min(ys) / 2, flops / 1e12 * 1.7)
    theme.few_ticks(axes)
    _roof(axes, flops, bytes_per_s)
    _asked(axes, shapes[0])
    axes.plot(xs, [r["flop"] / r["t_gemm_s"] / 1e12 for r in shapes], **ALONE)
    present = [arm for arm in styles if arm in {record["arm"] for record in records}]
    for index, arm in enumerate(present):
        own = [record for record in records if record["arm"] == arm]
        aside = 1.03 ** (index - (len(present) - 1) / 2)
        errors = style.interval(own, lambda record, suffix: record[f"tflops{suffix}"])
        at = ([r["wire_intensity"] * aside for r in own], [r["tflops"] for r in own])
        style.draw_points(axes, *at, styles[arm], label=arm, yerr=errors)
    style.title(axes, shapes[0]["op"], f"{style.source_text(run)}, wire {shapes[0]['wire']}:", style.link_text(shapes))
    axes.set_xlabel("FLOP per byte received over the wire")
    axes.set_ylabel("TFLOP/s")
    axes.spines[["top", "right"]].set_visible(False)
    return _name_shapes(axes, records, lambda r: r["wire_intensity"], lambda r: r["tflops_low"], _label_of(records))


def _roof(axes, flops: float, bytes_per_s: float) -> None:
    left, right = axes.get_xlim()
    ridge = flops / bytes_per_s
    axes.plot([left, ridge, right], [min(flops, x * bytes_per_s) / 1e12 for x in (left, ridge, right)], **ROOF)
    xs = [left * (right / left) ** (i / CURVE) for i in range(CURVE + 1)]
    axes.plot(xs, [1e-12 / (1 / flops + 1 / (x * bytes_per_s)) for x in xs], **BOUND)
    axes.plot([ridge], [flops / 1e12], marker="o", color=DARK, markersize=6, zorder=3)
    words = {"textcoords": "offset points", "color": DARK, "fontsize": 9, "bbox": BEHIND_TEXT, "zorder": 2.5}
    axes.annotate(
        f"ridge {_digits(ridge)} FLOP/byte", (ridge, flops / 1e12), (-6, 6), ha="right", va="bottom", **words
    )  # fmt: skip
    axes.annotate(
        f"{rate_text(flops / 1e12)} TFLOP/s", (right, flops / 1e12), (-2, 4), ha="right", va="bottom", **words
    )
    start = max(left, axes.get_ylim()[0] * 1e12 / bytes_per_s)
    x = start * (ridge / start) ** 0.06
    y = x * bytes_per_s / 1e12
    axes.text(
        x, y * 1.1, f"{bytes_per_s / 1e9:.3g} GB/s", color=DARK, fontsize=9, va="bottom", bbox=BEHIND_TEXT, zorder=2.5,
        rotation=math.degrees(math.atan2(y, x)), transform_rotates_text=True, rotation_mode="anchor",
    )  # fmt: skip


def _digits(value: float) -> str:
    """Three of them, or all before the point."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _asked(axes, record: dict) -> None:
    """A line at the balance that the wire was asked to give, and where that comes from."""
    wire = parse_wire(record["wire"])
    if wire.kind != "balance":
        return
    text = f"balance {wire.value:.4g} asked for"
    if wire.value == EXERCISE_BALANCE:
        text += ":\nthe exercise's"
    elif record["wire"] == exercise(record["model"], record["dtype"]):
        divisor, itemsize = record["model"].partition("/")[2], ITEMSIZE[record["dtype"]]
        parts = [str(EXERCISE_BALANCE), *([divisor] if divisor else []), *([f"{itemsize / 2:g}"] * (itemsize != 2))]
        text += f"\n= {' / '.join(parts)}:\nthe exercise's, scaled"
    axes.axvline(wire.value, color=GREY, linewidth=0.9, zorder=1)
    axes.annotate(
        text, (wire.value, 0), (4, 4), xycoords=("data", "axes fraction"), textcoords="offset points", fontsize=8.5,
        color=GREY, ha="left", va="bottom", linespacing=1.15, bbox=BEHIND_TEXT, zorder=1.5,
    )  # fmt: skip


def _label_of(records: list[dict]):
    return lambda record: style.label(record, records)


def _name_shapes(axes, records: list[dict], x, low, name) -> list:
    """A label under the lowest point of each shape that `name` has a word for; returns them."""
    words = {"textcoords": "offset points", "fontsize": 8.5, "color": DARK, "bbox": BEHIND_TEXT, "zorder": 2.5}
    shapes = sorted(style.by_shape(records).values(), key=lambda own: x(own[0]))
    lowest = [(record, name(record)) for own in shapes for record in [min(own, key=low)]]
    return [
        axes.annotate(text, (x(record), low(record)), (0, -6), ha="center", va="top", **words)
        for record, text in lowest
        if text
    ]


def _every_wire(axes, run: Run, records: list[dict], valid: list[dict], styles: dict) -> list:
    """All shapes as shares of the unsplit matmul's speed; returns the labels of those on other wires."""
    ratios = [style.balance_of(record) for record in valid]
    axes.set_xscale("log", base=2)
    axes.set_xlim(min([0.6, *ratios]) / 1.5, max([1.6, *ratios]) * 1.5)
    axes.set_ylim(0, 1.15)
    theme.plain_numbers(axes)
    left, right = axes.get_xlim()
    xs = sorted([1, *(left * (right / left) ** (i / CURVE) for i in range(CURVE + 1))])
    axes.plot(xs, [min(1, x) for x in xs], **ROOF)
    axes.plot(xs, [x / (1 + x) for x in xs], **BOUND)
    axes.axvline(1, color=GREY, linewidth=0.9, zorder=1)
    words = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points", "fontsize": 9, "color": GREY}
    axes.annotate("the wire sets the pace", (1, 0), (-8, 6), ha="right", va="bottom", **words)
    axes.annotate("the matmul sets the pace", (1, 0), (8, 6), ha="left", va="bottom", **words)

    def share(record: dict, suffix: str) -> float:
        slowest_first = {"": "", "_low": "_high", "_high": "_low"}[suffix]
        return min(1, style.balance_of(record)) / style.over_ideal(record, slowest_first)

    for index, (arm, look) in enumerate(styles.items()):
        own = [record for record in valid if record["arm"] == arm]
        aside = (right / left) ** (0.004 * (index - (len(styles) - 1) / 2))
        at = ([style.balance_of(r) * aside for r in own], [share(r, "") for r in own])
        style.draw_points(axes, *at, look, label=arm, yerr=style.interval(own, share))
    below = [f"{style.source_text(run)}, {style.link_text(valid)}"] if valid else []
    if others := {f"{r['arm']}, over {r['link']}": None for r in records if r.get("own_fabric")}:
        below.append(f"left out, these wires do not count for it: {'; '.join(others)}")
    style.title(axes, "every shape on every wire, against its own matmul", *below, *style.left_out(records, void=True))
    axes.set_xlabel("T_gemm / T_comm (1 is the ridge)")
    axes.set_ylabel("share of the lone matmul's speed")
    axes.plot([], [], **ALONE)
    style.legend(axes, *axes.get_legend_handles_labels(), columns=4, title="95 % intervals", title_fontsize=8.5)
    axes.spines[["top", "right"]].set_visible(False)
    shared = [record for sweep in _sweeps(valid) for record in sweep]
    usual = {(record["op"], record["ranks"]) for record in shared}

    def wire(record: dict) -> str:
        more = "" if (record["op"], record["ranks"]) in usual else f", P={record['ranks']}"
        return "" if record in shared else record["wire"] + more

    return _name_shapes(axes, valid, style.balance_of, lambda r: share(r, "_low"), wire)
