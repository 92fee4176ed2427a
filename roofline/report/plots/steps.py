"""The figures of a transformer's training step: step_shares, what its time goes to; step_memory, what lives when."""

import numpy as np

from roofline.analysis.records import frame as frame_of
from roofline.operations.format import percent_text
from roofline.report.plots import theme

KINDS = ("matmul", "attention", "softmax", "elementwise", "loss", "optimizer", "copies", "unattributed", "idle")
"""In the order in which a bar stacks them."""
PHASES = ("forward", "backward", "optimizer")


def step_shares(frame):
    """Return the figure, a panel for each size and a bar for each case; None where no call was looked at."""
    import seaborn

    rows = frame[frame["idle_share"].notna()]
    if rows.empty:
        return None
    rows = rows.assign(size=rows["shape"].str.extract(r"-(l\d.*)-\w+-\w+$")[0])
    rows = rows.assign(bar=rows["part"] + ", " + rows["dtype"] + ", " + rows["contender"])
    ms = rows[[f"{kind}_share" for kind in KINDS]].set_axis(KINDS, axis=1).mul(1e3 * rows["time_s"], axis=0)
    kinds = [kind for kind in KINDS if ms[kind].any()]
    parts = rows[["size", "bar"]].join(ms).melt(["size", "bar"], kinds, "kind", "ms").fillna({"ms": 0})
    height = 2.2 + 0.32 * rows["size"].value_counts().max()
    theme.use()
    grid = seaborn.displot(
        parts, y="bar", weights="ms", hue="kind", col="size", multiple="stack", shrink=0.8, alpha=1,
        hue_order=kinds[::-1], palette=theme.colours(KINDS[:-1]) | {"idle": "#dddddd"},
        height=height, aspect=7 / height, facet_kws={"sharex": False, "sharey": False},
    )  # fmt: skip
    figure = theme.of_grid(grid, "{col_name}")
    grid.set_axis_labels("ms of a call; the share of matmul", "")
    seaborn.move_legend(grid, "outside right center", title=None, frameon=False, fontsize=9, reverse=True)
    for size, axes in grid.axes_dict.items():
        shown = rows[rows["size"] == size]
        axes.set_ylim(len(shown) - 0.4, -0.6)
        for at, (end_ms, share) in enumerate(zip(ms.loc[shown.index].sum(axis=1), shown["matmul_share"], strict=True)):
            theme.note(axes, percent_text(share), (end_ms, at), (4, 0), va="center", fontsize=8)
    (_, dtype, contender), alike = next(iter(rows.groupby(["size", "dtype", "contender"], sort=False)))
    words = ", ".join(f"{percent_text(row.matmul_share)} of {row.part}" for row in alike.itertuples())
    theme.about(figure, frame, f"matmul takes {words}, in {dtype}, {contender}")
    theme.lay_out(figure)
    return figure


def _whole_steps(run) -> dict[tuple, tuple]:
    """{(dtype, contender): (shape, costs)} of the widest model, where a whole step was looked at."""
    steps = {}
    for shape, name in run.cases():
        costs = shape.entrants[name].get("costs", {})
        if "optimizer" in costs.get("memory_timeline", {}):
            steps[shape.params["width"], shape.dtype, name] = shape, costs
    return {key[1:]: step for key, step in steps.items() if key[0] == max(steps)[0]}


def step_memory(run):
    """Return the figure of the widest model, with a line for each mode and contender whose whole step was looked at;
    None where none was."""
    lines = _whole_steps(run)
    if not lines:
        return None
    figure = theme.new(10, 5)
    colours = theme.colours(list(dict.fromkeys(mode for mode, _ in lines)))
    axes = figure.add_subplot(xlim=(0, len(PHASES)), ylabel="bytes in memory, MB")
    peaks = []
    for (mode, name), (shape, about) in lines.items():
        timeline = about["memory_timeline"]
        base = about["weight_bytes"] + about["optimizer_bytes"]
        xs = np.concatenate([at + np.linspace(0, 1, len(timeline[phase])) for at, phase in enumerate(PHASES)])
        ys = (base + np.concatenate([timeline[phase] for phase in PHASES])) / 1e6
        line = "-" if name == shape.baseline else "--"
        axes.plot(xs, ys, line, color=colours[mode], label=f"{mode}, {name}")
        peaks.append(f"{ys.max():,.0f} MB in {mode}, {name}")
    axes.axhline(base / 1e6, color=theme.GREY, linestyle=":", label="weights and optimizer")
    axes.set_ylim(bottom=0)
    axes.set_xticks(np.arange(len(PHASES)) + 0.5, PHASES)
    for at in range(1, len(PHASES)):
        axes.axvline(at, color=theme.GREY, linewidth=0.8)
    axes.legend(frameon=False, fontsize=9)
    size = "-".join(shape.id.split("-")[1:5])
    theme.about(figure, frame_of(run), f"Peaks of a step of {size}: {'; '.join(peaks[:2])}")
    theme.lay_out(figure)
    return figure
