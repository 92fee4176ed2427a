"""The figure step_memory: what lives when in a transformer's training step."""

import numpy as np

from roofline.analysis.records import frame as frame_of
from roofline.report.plots import theme

PHASES = ("forward", "backward", "optimizer")


def _whole_steps(run) -> list[tuple]:
    """(shape, contender, costs) of each whole step that was looked at, of the widest model."""
    steps_of_width: dict[int, list] = {}
    for shape, name in run.cases():
        costs = shape.entrants[name].get("costs", {})
        if "optimizer" in costs.get("memory_timeline", {}):
            steps_of_width.setdefault(shape.params["width"], []).append((shape, name, costs))
    return steps_of_width[max(steps_of_width)] if steps_of_width else []


def step_memory(run):
    """The figure of the widest model, with a line for each mode and contender whose whole step was looked at; None
    where none was."""
    steps = _whole_steps(run)
    if not steps:
        return None
    size = "-".join(steps[-1][0].id.split("-")[1:5])
    figure = theme.new(10, 5, frame_of(run), f"Memory over a step of {size}")
    colours = theme.colours(list(dict.fromkeys(shape.dtype for shape, _, _ in steps)))
    axes = figure.add_subplot(xlim=(0, len(PHASES)), ylabel="bytes in memory, MB")
    for shape, name, costs in steps:
        mode = shape.dtype
        kept_bytes = costs["weight_bytes"] + costs["optimizer_bytes"]
        xs = []
        ys = []
        for start, phase in enumerate(PHASES):
            timeline = costs["memory_timeline"][phase]
            xs += list(start + np.linspace(0, 1, len(timeline)))
            ys += [(kept_bytes + live) / 1e6 for live in timeline]
        line = "-" if name == shape.baseline else "--"
        axes.plot(xs, ys, line, color=colours[mode], label=f"{mode}, {name}: {max(ys):,.0f} MB at most")
    axes.axhline(kept_bytes / 1e6, color=theme.GREY, linestyle=":", label="weights and optimizer")
    axes.set_ylim(bottom=0)
    axes.set_xticks(range(len(PHASES)), PHASES, ha="left")
    axes.grid(axis="x")
    axes.legend(frameon=False, fontsize=9)
    return figure
