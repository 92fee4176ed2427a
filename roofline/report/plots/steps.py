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
    import seaborn

    rows = frame[frame["idle_share"].notna()]
    if rows.empty:
        return None
    rows = rows.assign(size=rows["shape"].str.extract(r"-(l\d.*)-\w+-\w+$")[0])
    rows["bar"] = rows["part"] + ", " + rows["dtype"] + ", " + rows["contender"]
    ms = rows[[f"{kind}_share" for kind in KINDS]].set_axis(KINDS, axis=1)
    ms = ms.mul(1e3 * rows["time_s"], axis=0)
    kinds = [kind for kind in KINDS if ms[kind].any()]
    parts = rows[["size", "bar"]].join(ms)
    parts = parts.melt(["size", "bar"], kinds, "kind", "ms").fillna({"ms": 0})
    palette = theme.colours(KINDS[:-1])
    palette["idle"] = "#dddddd"
    height = 2.2 + 0.32 * rows["size"].value_counts().max()
    theme.use()
    grid = seaborn.displot(
        parts,
        y="bar",
        weights="ms",
        hue="kind",
        col="size",
        multiple="stack",
        shrink=0.8,
        alpha=1,
        hue_order=kinds[::-1],
        palette=palette,
        height=height,
        aspect=7 / height,
        facet_kws={"sharex": False, "sharey": False},
    )
    figure = theme.of_grid(grid, "{col_name}")
    grid.set_axis_labels("ms of a call; the share of matmul", "")
    seaborn.move_legend(
        grid,
        "outside right center",
        title=None,
        frameon=False,
        fontsize=9,
        reverse=True,
    )
    for size, axes in grid.axes_dict.items():
        shown = rows[rows["size"] == size]
        axes.set_ylim(len(shown) - 0.4, -0.6)
        ends_ms = ms.loc[shown.index].sum(axis=1)
        for y, (end_ms, share) in enumerate(zip(ends_ms, shown["matmul_share"], strict=True)):
            theme.note(axes, percent_text(share), (end_ms, y), (4, 0), va="center", fontsize=8)
    theme.about(figure, frame, _finding(rows))
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
