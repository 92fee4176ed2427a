"""The figures of a transformer's training step: step_shares, what its time goes to; step_memory, what lives when."""

import numpy as np

from roofline.format import percent_text
from roofline.plots import theme

KINDS = ("matmul", "attention", "softmax", "elementwise", "loss", "optimizer", "copies", "unattributed", "idle")
"""In the order in which a bar stacks them."""
PHASES = ("forward", "backward", "optimizer")


def step_shares(frame):
    """Return the figure, a panel for each size and a bar for each case; None where no call was looked at."""
    rows = frame[frame["idle_share"].notna()]
    if rows.empty:
        return None
    rows = rows.assign(size=rows["shape"].str.extract(r"-(l\d.*)-\w+-\w+$")[0])
    sizes, looks = list(rows.groupby("size", sort=False)), theme.colours(KINDS[:-1]) | {"idle": "#dddddd"}
    figure = theme.new(7 * len(sizes), 2.2 + 0.32 * max(len(of) for _, of in sizes))
    for axes, (size, of) in zip(figure.subplots(1, len(sizes), squeeze=False)[0], sizes, strict=True):
        names = (of["part"] + ", " + of["dtype"] + ", " + of["contender"]).tolist()
        ms, ends = 1e3 * of["time_s"].to_numpy(), np.zeros(len(of))
        for kind in KINDS:
            parts = ms * of[f"{kind}_share"].fillna(0).to_numpy()
            if parts.any():
                axes.barh(names, parts, left=ends, color=looks[kind], label=kind)
            ends = ends + parts
        for name, end, share in zip(names, ends, of["matmul_share"], strict=True):
            theme.note(axes, percent_text(share), (end, name), (4, 0), va="center", fontsize=8)
        axes.invert_yaxis()
        axes.set_title(size, loc="left", fontsize=11)
        axes.set(xlabel="ms of a call; the share of matmul")
    handles = {name: bar for ax in figure.axes for bar, name in zip(*ax.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles, loc="outside right center", frameon=False, fontsize=9)
    alike = rows[(rows[["size", "dtype", "contender"]] == rows.iloc[0][["size", "dtype", "contender"]]).all(axis=1)]
    words = ", ".join(f"{percent_text(row.matmul_share)} of {row.part}" for row in alike.itertuples())
    theme.about(figure, frame, f"matmul takes {words}, in {alike.iloc[0]['dtype']}, {alike.iloc[0]['contender']}")
    return figure


def step_memory(run):
    """Return the figure of the widest model, with a line for each mode and contender whose whole step was looked at;
    None where none was."""
    kept = {
        (shape.params["width"], shape.dtype, name): (shape, about)
        for shape, name in run.cases()
        for about in [shape.entrants[name].get("costs", {})]
        if "optimizer" in about.get("memory_timeline", {})
    }
    if not kept:
        return None
    lines = {key[1:]: kept[key] for key in kept if key[0] == max(kept)[0]}
    figure, colours = theme.new(10, 5), theme.colours(list(dict.fromkeys(mode for mode, _ in lines)))
    axes, peaks = figure.add_subplot(xlim=(0, len(PHASES)), ylabel="bytes in memory, MB"), []
    for (mode, name), (shape, about) in lines.items():
        timeline, base = about["memory_timeline"], about["weight_bytes"] + about["optimizer_bytes"]
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
    about, size = run.metadata, "-".join(shape.id.split("-")[1:5])
    figure.suptitle(f"Peaks of a step of {size}: {'; '.join(peaks[:2])}", x=0.01, ha="left", fontsize=13)
    where = f"{about['title']}, {about['machine']['source'].upper()} run | {about['footer']}"
    figure.supxlabel(where, fontsize=8, color=theme.GREY, x=0.01, ha="left")
    return figure
