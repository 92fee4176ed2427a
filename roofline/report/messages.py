"""The wire between real ranks, alone: bandwidth over message size, as a latency and a bandwidth bound it."""

from statistics import median
from typing import NamedTuple

import numpy as np

from roofline.report import theme
from roofline.report.format import binary_text, rate_text, time_text
from roofline.store.run import Run
from roofline.theory.wires import HOW

PATTERNS = {"all": ("all ranks at once", "o"), "pair": ("one pair alone", "s")}


class Wire(NamedTuple):
    """How long messages took: `latency_s` + bytes / `bytes_per_s`."""

    latency_s: float
    bytes_per_s: float

    def __str__(self) -> str:
        return f"{rate_text(self.bytes_per_s / 1e9)} GB/s that a rank receives, latency {time_text(self.latency_s)}"


def is_there(run: Run) -> bool:
    return bool(run.messages) and not run.void


def fit(messages: list[dict]) -> Wire:
    """By the medians of the smallest and the largest; what lies between tells how far a wire is as simple as that."""
    points = sorted((one["received_bytes"], median(one["times_s"])) for one in messages)
    (few, short_s), (many, long_s) = points[0], points[-1]
    bytes_per_s = (many - few) / max(long_s - short_s, 1e-9)
    return Wire(max(0.0, short_s - few / bytes_per_s), bytes_per_s)


def of(run: Run) -> dict[str, Wire]:
    """{pattern: what fits its messages}; none over loopback."""
    found = {name: [one for one in run.messages if one["pattern"] == name] for name in PATTERNS}
    return {name: fit(own) for name, own in found.items() if len(own) > 1 and not run.void}


def how(run: Run) -> str:
    """What carries the messages."""
    kind = run.messages[0].get("link", "gloo")
    return HOW.get(kind, kind)


def lines(run: Run) -> list[str]:
    """A line per pattern."""
    found = of(run).items()
    return [f"wire, {PATTERNS[name][0]}: {wire} ({how(run)})" for name, wire in found]


def draw(run: Run, frame):
    """The figure message_roofline."""
    from matplotlib.ticker import LogLocator

    figure, about = theme.new(8.5, 5), run.metadata["ranks"]
    axes, found = figure.add_subplot(), of(run)
    axes.set(xscale="log", yscale="log", xlabel="bytes of a message", ylabel="GB/s that a rank receives")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.minorticks_off()
    theme.plain_numbers(axes)
    axes.set_xticks([2**power for power in range(12, 26, 2)])
    axes.xaxis.set_major_formatter(lambda size, _: binary_text(size))
    for (name, wire), color in zip(found.items(), theme.colours([*found]).values(), strict=True):
        own = [one for one in run.messages if one["pattern"] == name]
        sizes, received = (np.array([one[key] for one in own]) for key in ("nbytes", "received_bytes"))
        low, rate, high = (received / 1e9 / [end(one["times_s"]) for one in own] for end in (max, median, min))
        label = f"{PATTERNS[name][0]}: {wire}"
        look = {"color": color, "marker": PATTERNS[name][1], "label": label}
        axes.errorbar(sizes, rate, [rate - low, high - rate], linestyle="none", capsize=2, **look)
        xs = np.geomspace(received[0], received[-1], 200)
        axes.plot(xs * sizes[0] / received[0], xs / (wire.latency_s + xs / wire.bytes_per_s) / 1e9, color=color)
    axes.legend(loc="lower right", frameon=False, title="medians, with the range; lines: latency + bytes / bandwidth")
    axes.set_title(f"The wire alone: {about['world']} ranks on {about['nodes']} nodes, {how(run)}", loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    theme.footer(figure, run.metadata["footer"])
    return figure
