"""The figures of a transformer's training step: step_shares, what its time goes to; step_memory, what lives when."""

import numpy as np

from roofline.analysis.records import frame as frame_of
from roofline.operations.format import percent_text
from roofline.report.plots import theme

KINDS = ("matmul", "attention", "softmax", "elementwise", "loss", "optimizer", "copies", "unattributed", "idle")
"""In the order in which a bar stacks them."""
PHASES = ("forward", "backward", "optimizer")


def step_shares(frame):
    """The figure, a panel for each size and a bar for each case; None where no call was looked at."""
    rows = frame[frame["idle_share"].notna()]
    if rows.empty:
        return None
    rows = rows.assign(size=rows["shape"].str.extract(r"-(l\d.*)-\w+-\w+$")[0])
    of_sizes = rows.groupby("size", sort=False)
    ms = rows[[f"{kind}_share" for kind in KINDS]].set_axis(KINDS, axis=1).fillna(0)
    ms = ms.mul(1e3 * rows["time_s"], axis=0)
    kinds = [kind for kind in KINDS if ms[kind].any()]
    colours = theme.colours(KINDS) | {"idle": "#dddddd"}
    figure = theme.new(7.2 * len(of_sizes) + 1, 2.2 + 0.32 * of_sizes.size().max())
    theme.about(figure, frame, _finding(rows))
    for axes, (size, shown) in zip(figure.subplots(1, len(of_sizes), squeeze=False)[0], of_sizes, strict=True):
        bars = shown["part"] + ", " + shown["dtype"] + ", " + shown["contender"]
        ends_ms = np.zeros(len(shown))
        for kind in kinds:
            of_kind_ms = ms.loc[shown.index, kind]
            axes.barh(bars, of_kind_ms, left=ends_ms, color=colours[kind], label=kind)
            ends_ms = ends_ms + of_kind_ms
        for y, (end_ms, share) in enumerate(zip(ends_ms, shown["matmul_share"], strict=True)):
            theme.note(axes, percent_text(share), (end_ms, y), (4, 0), va="center", fontsize=8)
        axes.set_ylim(len(shown) - 0.4, -0.6)
        axes.set_xlabel("ms of a call; the share of matmul")
        axes.set_title(size, loc="left", size=10.5)
    handles, names = axes.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside right center", frameon=False, fontsize=9)
    theme.lay_out(figure)
    return figure


def _finding(rows) -> str:
    """What matmul takes of each part, of the first size, dtype and contender."""
    (_, dtype, contender), alike = next(iter(rows.groupby(["size", "dtype", "contender"], sort=False)))
    fractions = [f"{percent_text(row.matmul_share)} of {row.part}" for row in alike.itertuples()]
    return f"matmul takes {', '.join(fractions)}, in {dtype}, {contender}"


def _whole_steps(run) -> dict[tuple, tuple]:
    """{(dtype, contender): (shape, costs)} of the widest model, where a whole step was looked at."""
    steps = {}
    widest = 0
    for shape, name in run.cases():
        costs = shape.entrants[name].get("costs", {})
        width = shape.params.get("width", 0)
        if "optimizer" not in costs.get("memory_timeline", {}) or width < widest:
            continue
        if width > widest:
            steps.clear()
            widest = width
        steps[shape.dtype, name] = shape, costs
    return steps


def step_memory(run):
    """The figure of the widest model, with a line for each mode and contender whose whole step was looked at; None
    where none was."""
    steps = _whole_steps(run)
    if not steps:
        return None
    figure = theme.new(10, 5)
    colours = theme.colours(list(dict.fromkeys(mode for mode, _ in steps)))
    axes = figure.add_subplot(xlim=(0, len(PHASES)), ylabel="bytes in memory, MB")
    peaks = []
    for (mode, name), (shape, costs) in steps.items():
        kept_bytes = costs["weight_bytes"] + costs["optimizer_bytes"]
        xs = []
        ys = []
        for start, phase in enumerate(PHASES):
            timeline = costs["memory_timeline"][phase]
            xs += list(start + np.linspace(0, 1, len(timeline)))
            ys += [(kept_bytes + live) / 1e6 for live in timeline]
        line = "-" if name == shape.baseline else "--"
        axes.plot(xs, ys, line, color=colours[mode], label=f"{mode}, {name}")
        peaks.append(f"{max(ys):,.0f} MB in {mode}, {name}")
    axes.axhline(kept_bytes / 1e6, color=theme.GREY, linestyle=":", label="weights and optimizer")
    axes.set_ylim(bottom=0)
    axes.set_xticks(np.arange(len(PHASES)) + 0.5, PHASES)
    for start in range(1, len(PHASES)):
        axes.axvline(start, color=theme.GREY, linewidth=0.8)
    axes.legend(frameon=False, fontsize=9)
    size = "-".join(shape.id.split("-")[1:5])
    theme.about(figure, frame_of(run), f"Peaks of a step of {size}: {'; '.join(peaks[:2])}")
    theme.lay_out(figure)
    return figure
