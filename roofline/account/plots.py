"""Three figures of `roofline account --plot`: where chips and wires cross, the bound over X and Y, and utilisation."""

import math
import textwrap
from dataclasses import replace
from functools import partial
from pathlib import Path

from roofline.account import splits
from roofline.account.command import Question
from roofline.account.utilisation import ASSUMED, over_chips, step_s, utilisation
from roofline.report import theme
from roofline.report.theme import BEHIND_TEXT, DARK, GREY

CURVE = 160
WIDTH = 105
"""Letters of a line under a figure."""

TOKENS = 2**24
"""Of a step in the figure of utilisation, where the question names none: as Llama 3 405B was trained with."""


def draw(question: Question, folder: Path) -> list[Path]:
    """Write pace, bound_map and utilisation (.svg, .png) into `folder`, which is made; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    given = ", ".join(f"{name} {value:g}" for name, value in question.given.items())
    source = textwrap.fill(f"Computed from {question.chip.source}" + (f"; given: {given}" if given else ""), WIDTH)
    tokens = question.tokens or TOKENS
    assumed = ASSUMED.format(tokens=tokens, flops=question.setting.flops)
    figures = {
        "pace": (_pace(question), source),
        "bound_map": (_bound_map(question), source),
        "utilisation": (_utilisation(question, tokens), f"{assumed}\n{source}"),
    }
    paths = []
    for name, (figure, footer) in figures.items():
        theme.footer(figure, footer)
        paths += theme.save(figure, folder, name)
    return paths


def _pace(question: Question):
    """Time of a block over tokens on a device, of matmuls, wires, and both."""
    setting, sharding = question.setting, question.setting.sharding
    devices, bound = sharding.devices, setting.bound().tokens
    marks = [tokens / devices for tokens in (bound, question.tokens) if 0 < tokens < math.inf]
    low, high = (min(marks) / 30, max(marks) * 30) if marks else (1, 1e4)
    tokens = [low * (high / low) ** (i / CURVE) for i in range(CURVE + 1)]
    lines = {
        "matmuls": (setting.math_s, {"color": "#0173b2", "linewidth": 2.4}),
        "wires": (setting.wire_s, {"color": "#d55e00", "linewidth": 2.4}),
        "one after the other": (partial(step_s, setting, arm="serial"), {"color": DARK, "linestyle": "--"}),
        "overlapped": (partial(step_s, setting, arm="overlapped"), {"color": DARK, "linestyle": ":"}),
    }
    figure = theme.new(6.6 * len(setting.steps) + 1.2, 5.6)
    for axes, step in zip(figure.subplots(1, len(setting.steps), squeeze=False)[0], setting.steps, strict=True):
        for label, (seconds, look) in lines.items():
            axes.loglog(tokens, [seconds(step, each * devices) * 1e3 for each in tokens], label=label, **look)
        own = setting.bound(step).tokens
        if 0 < own < math.inf:
            at = own / devices, setting.math_s(step, own) * 1e3
            axes.axvspan(low, at[0], color="#d55e00", alpha=0.07, linewidth=0)
            axes.plot(*at, marker="o", color=DARK, markersize=7, zorder=5)
            axes.annotate(
                f"{at[0]:,.0f} tokens a device:\nfrom here on the chips set the pace", at, (10, -12),
                textcoords="offset points", fontsize=10, va="top", bbox=BEHIND_TEXT, zorder=4,
            )  # fmt: skip
        else:
            axes.annotate(
                f"the {'wires' if own else 'chips'} set the pace\nat any number of tokens", (0.97, 0.05),
                xycoords="axes fraction", fontsize=10, ha="right", va="bottom", bbox=BEHIND_TEXT,
            )  # fmt: skip
        axes.set_title(f"{step} pass", loc="left", fontsize=11)
        axes.set(xlim=(low, high), xlabel="tokens on each device", ylabel="ms for one block")
        theme.plain_numbers(axes)
        axes.legend(loc="upper left", fontsize=10)
    degrees = ", ".join(f"{kind} {getattr(sharding, kind):g}" for kind in sharding.used) or "one device"
    title = f"{setting.model.name} on {devices:,.0f} x {question.chip.name}: {degrees}"
    figure.suptitle(title, x=0.01, ha="left", fontsize=13)
    return figure


def _bound_map(question: Question):
    """The bound, in tokens on a device, over X and Y in powers of two."""
    import seaborn
    from matplotlib import colormaps
    from matplotlib.colors import LogNorm
    from matplotlib.patches import Rectangle
    from matplotlib.ticker import LogLocator, NullLocator

    setting, sharding = question.setting, question.setting.sharding
    together = sharding.fsdp * sharding.tp
    most = max(64, 2 ** round(together - 1).bit_length())
    xs = [2**i for i in range(min(most.bit_length(), 15))]
    ys = [2**i for i in range(min(most.bit_length(), 9)) if setting.model.d_ff % 2**i == 0]

    def on_device(x: int, y: int) -> float:
        own = replace(setting, sharding=replace(sharding, fsdp=x, tp=y))
        return own.bound().tokens / own.sharding.devices

    def text(value: float) -> str:
        named = {0: "any", math.inf: "wire"}
        return named.get(value) or (f"{value:,.0f}" if value >= 10 else f"{value:.2g}")

    values = [[on_device(x, y) for x in xs] for y in ys]
    known = [value for row in values for value in row if 0 < value < math.inf]
    low, high = min(known, default=1), max(known, default=1)
    norm = LogNorm(low, max(high, 1.01 * low))
    figure = theme.new(max(9.5, 1.5 + 0.85 * len(xs)), 2.4 + 0.55 * len(ys))
    axes = figure.subplots()
    seaborn.heatmap(
        [[min(max(value, low / 2), 2 * high) for value in row] for row in values],
        cmap=colormaps["viridis_r"].with_extremes(under="#fff8d0", over="#cccccc"), norm=norm, ax=axes,
        annot=[[text(value) for value in row] for row in values], fmt="", annot_kws={"fontsize": 8.5},
        xticklabels=[f"{x:,}" for x in xs], yticklabels=ys, cbar=low < high,
        cbar_kws={"pad": 0.01, "label": "tokens on each device", "format": "{x:,.0f}"},
    )  # fmt: skip
    axes.invert_yaxis()
    axes.tick_params(labelrotation=0)
    if bar := axes.collections[0].colorbar:
        bar.ax.yaxis.set(major_locator=LogLocator(subs=(1, 2, 5)), minor_locator=NullLocator())
    best = splits.best_whole(setting)
    for split, style in ((setting, "-"), (best and best.setting, "--")):
        if split and split.sharding.fsdp in xs and split.sharding.tp in ys:
            at = xs.index(split.sharding.fsdp), ys.index(split.sharding.tp)
            frame = {"edgecolor": "#d55e00", "linewidth": 2.4, "linestyle": style, "clip_on": False}
            axes.add_patch(Rectangle(at, 1, 1, fill=False, zorder=5, **frame))
    axes.set(xlabel="fsdp X", ylabel="tp Y")
    axes.set_title(
        f"Tokens on a device from which the chips set the pace: {setting.model.name} on {question.chip.name}, "
        f"{setting.step}", loc="left", fontsize=12, pad=34,
    )  # fmt: skip
    axes.annotate(
        f"frame: as asked; dashed frame: the least where X Y = {together:,.0f}\n"
        "wire: it sets the pace at any number of tokens; any: the chips do",
        (0, 1), (0, 6), xycoords="axes fraction", textcoords="offset points", fontsize=9, color=GREY, va="bottom",
    )  # fmt: skip
    return figure


def _utilisation(question: Question, tokens: int):
    """Model FLOP utilisation over the number of chips."""
    setting = question.setting
    fastest = over_chips(setting, tokens)
    figure = theme.new(9.5, 6)
    axes = figure.subplots()
    for arm, color, marker, offset in (("serial", "#666666", "o", (-2, -14)), ("overlapped", "#029e73", "D", (5, 7))):
        chips = [split.sharding.devices for split in fastest[arm]]
        shares = [100 * utilisation(split, tokens, arm) for split in fastest[arm]]
        axes.plot(chips, shares, color=color, marker=marker, linewidth=2, markersize=6, label=f"{arm} gathers")
        for split, *at in zip(fastest[arm], chips, shares, strict=True):
            axes.annotate(
                f"{split.sharding.tp:g}", at, offset,
                textcoords="offset points", fontsize=8.5, color=color, ha="center",
            )  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_xticks(chips, [f"{count:,}" for count in chips], rotation=45)
    axes.minorticks_off()
    axes.set(ylim=(0, 109), xlabel="chips", ylabel="model FLOP utilisation (%)")
    axes.set_title(
        f"Simulation: {setting.model.name} on {question.chip.name}, {setting.step}, {tokens:,} tokens a step",
        loc="left", fontsize=13,
    )  # fmt: skip
    axes.legend(loc="lower left", fontsize=10)
    return figure
