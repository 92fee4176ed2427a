"""Three figures of `roofline account --plot`: where chips and wires cross, the bound over X and Y, and utilisation."""

import textwrap
from dataclasses import replace
from functools import partial
from pathlib import Path

from roofline.account import splits
from roofline.account.command import Question
from roofline.account.communication_bound import Setting
from roofline.account.utilisation import over_chips, step_s
from roofline.report import theme
from roofline.report.theme import BEHIND_TEXT, DARK, GREY

CURVE = 160
WIDTH = 105
"""Letters of a line under a figure."""

TOKENS = 2**24
"""Of a step in the figure of utilisation, where the question names none: as Llama 3 405B was trained with."""

ASSUMED = """\
A simulation, nothing here was measured. Assumed: the same {tokens:,} tokens a step on any number of chips, split over
fsdp X and tp Y (the small numbers) as is fastest for each; matmuls at {flops:.4g} FLOP/s; no latency, attention or
optimizer step; memory not looked at. Serial: every gather, then the matmul. Overlapped: weights beside the block
before, activations chunk by chunk beside their own matmul."""


def draw(question: Question, folder: Path) -> list[Path]:
    """Write pace, bound_map and utilisation (.svg, .png) into `folder`, which is made; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    return [*_pace(question, folder), *_bound_map(question, folder), *_utilisation(question, folder)]


def _title(question: Question, setting: Setting) -> str:
    sharding = setting.sharding
    degrees = ", ".join(f"{kind} {getattr(sharding, kind):g}" for kind in sharding.used) or "one device"
    return f"{setting.model.name} on {sharding.devices:,.0f} x {question.chip.name}: {degrees}"


def _constants(question: Question) -> str:
    given = ", ".join(f"{name} {value:g}" for name, value in question.given.items())
    return textwrap.fill(f"Computed from {question.chip.source}" + (f"; given: {given}" if given else ""), WIDTH)


def _pace(question: Question, folder: Path) -> list[Path]:
    """Time of a block over tokens on a device, of matmuls, wires, and both."""
    setting = question.setting
    devices = setting.sharding.devices
    bound = setting.bound().tokens
    marks = [tokens / devices for tokens in (bound, question.tokens) if tokens]
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
            times_ms = [seconds(step, each * devices) * 1e3 for each in tokens]
            axes.plot(tokens, times_ms, label=label, **look)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlim(low, high)
        own = setting.bound(step)
        if own.tokens:
            _crossing(axes, own.tokens / devices, setting.math_s(step, own.tokens) * 1e3)
        else:
            who = "the wires" if own.tokens is None else "the chips"
            axes.annotate(
                f"{who} set the pace\nat any number of tokens", (0.97, 0.05), xycoords="axes fraction", fontsize=10,
                ha="right", va="bottom", bbox=BEHIND_TEXT,
            )  # fmt: skip
        axes.set_title(f"{step} pass", loc="left", fontsize=11)
        axes.set_xlabel("tokens on each device")
        axes.set_ylabel("ms for one block")
        axes.spines[["top", "right"]].set_visible(False)
        theme.plain_numbers(axes)
        axes.legend(loc="upper left", fontsize=10)
    figure.suptitle(_title(question, setting), x=0.01, ha="left", fontsize=13)
    theme.footer(figure, _constants(question))
    return theme.save(figure, folder, "pace")


def _crossing(axes, tokens: float, time_ms: float) -> None:
    axes.axvspan(axes.get_xlim()[0], tokens, color="#d55e00", alpha=0.07, linewidth=0)
    axes.plot([tokens], [time_ms], marker="o", color=DARK, markersize=7, zorder=5)
    axes.annotate(
        f"{tokens:,.0f} tokens a device:\nfrom here on the chips set the pace", (tokens, time_ms), (10, -12),
        textcoords="offset points", fontsize=10, va="top", bbox=BEHIND_TEXT, zorder=4,
    )  # fmt: skip


def _bound_map(question: Question, folder: Path) -> list[Path]:
    """The bound, in tokens on a device, over X and Y in powers of two."""
    from matplotlib.colors import LogNorm
    from matplotlib.patches import Rectangle
    from matplotlib.ticker import LogLocator

    setting, sharding = question.setting, question.setting.sharding
    together = sharding.fsdp * sharding.tp
    most = max(64, 2 ** round(together - 1).bit_length())
    xs = [2**i for i in range(min(most.bit_length(), 15))]
    ys = [2**i for i in range(min(most.bit_length(), 9)) if setting.model.d_ff % 2**i == 0]
    values = [[_on_device(setting, x, y) for x in xs] for y in ys]
    figure = theme.new(max(9.5, 1.5 + 0.85 * len(xs)), 2.4 + 0.55 * len(ys))
    axes = figure.subplots()
    shown = [[value or float("nan") for value in row] for row in values]
    known = [value for row in values for value in row if value]
    norm = LogNorm(min(known), max(known)) if known and min(known) < max(known) else None
    image = axes.imshow(shown, origin="lower", aspect="auto", cmap="viridis_r", norm=norm)
    axes.set_facecolor("#cccccc")
    for row, values_of_y in enumerate(values):
        for column, value in enumerate(values_of_y):
            text = (
                "wire" if value is None else "any" if not value else f"{value:,.0f}" if value >= 10 else f"{value:.2g}"
            )
            dark = value and norm and norm(value) > 0.55
            if value == 0:
                axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, color="#fff8d0", linewidth=0))
            axes.annotate(
                text, (column, row), ha="center", va="center", fontsize=8.5, color="white" if dark else DARK
            )  # fmt: skip
    best = splits.least_bound(setting)
    for split, style in ((setting, "-"), (best and best.setting, "--")):
        if split and split.sharding.fsdp in xs and split.sharding.tp in ys:
            at = (xs.index(split.sharding.fsdp) - 0.5, ys.index(split.sharding.tp) - 0.5)
            frame = {"edgecolor": "#d55e00", "linewidth": 2.4, "linestyle": style, "clip_on": False}
            axes.add_patch(Rectangle(at, 1, 1, fill=False, zorder=5, **frame))
    axes.set_xticks(range(len(xs)), [f"{x:,}" for x in xs])
    axes.set_yticks(range(len(ys)), [f"{y}" for y in ys])
    axes.set_xlabel("fsdp X")
    axes.set_ylabel("tp Y")
    axes.set_title(
        f"Tokens on a device from which the chips set the pace: {setting.model.name} on {question.chip.name}, "
        f"{setting.step}", loc="left", fontsize=12, pad=34,
    )  # fmt: skip
    axes.annotate(
        f"frame: as asked; dashed frame: the least where X Y = {together:,.0f}\n"
        "wire: it sets the pace at any number of tokens; any: the chips do",
        (0, 1), (0, 6), xycoords="axes fraction", textcoords="offset points", fontsize=9, color=GREY, va="bottom",
    )  # fmt: skip
    if norm:
        bar = figure.colorbar(image, ax=axes, pad=0.01)
        bar.set_label("tokens on each device")
        bar.ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        bar.ax.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        bar.ax.minorticks_off()
    theme.footer(figure, _constants(question))
    return theme.save(figure, folder, "bound_map")


def _on_device(setting: Setting, x: int, y: int) -> float | None:
    """Tokens of the bound on each device, 0 for any number, None for none."""
    own = replace(setting, sharding=replace(setting.sharding, fsdp=x, tp=y))
    tokens = own.bound().tokens
    return None if tokens is None else tokens / own.sharding.devices


def _utilisation(question: Question, folder: Path) -> list[Path]:
    """Model FLOP utilisation over the number of chips."""
    setting, tokens = question.setting, question.tokens or TOKENS
    points = over_chips(setting, tokens)
    figure = theme.new(9.5, 6)
    axes = figure.subplots()
    looks = {
        "serial": {"color": "#666666", "marker": "o", "below": True},
        "overlapped": {"color": "#029e73", "marker": "D", "below": False},
    }
    for arm, look in looks.items():
        own = [point for point in points if point.arm == arm]
        xs, ys = [point.chips for point in own], [100 * point.utilisation for point in own]
        axes.plot(xs, ys, color=look["color"], marker=look["marker"], linewidth=2, markersize=6, label=f"{arm} gathers")
        for x, y, point in zip(xs, ys, own, strict=True):
            axes.annotate(
                f"{point.setting.sharding.tp:g}", (x, y), (-2, -14) if look["below"] else (5, 7),
                textcoords="offset points", fontsize=8.5, color=look["color"], ha="center",
            )  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_xticks([point.chips for point in points if point.arm == "serial"])
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.minorticks_off()
    axes.tick_params(axis="x", labelrotation=45)
    axes.set_ylim(0, 109)
    axes.set_xlabel("chips")
    axes.set_ylabel("model FLOP utilisation (%)")
    axes.set_title(
        f"Simulation: {setting.model.name} on {question.chip.name}, {setting.step}, {tokens:,} tokens a step",
        loc="left", fontsize=13,
    )  # fmt: skip
    axes.legend(loc="lower left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    theme.footer(figure, ASSUMED.format(tokens=tokens, flops=setting.flops) + f"\n{_constants(question)}")
    return theme.save(figure, folder, "utilisation")
