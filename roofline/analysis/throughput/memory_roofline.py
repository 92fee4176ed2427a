"""The figure memory_roofline: TFLOP/s over FLOP per byte of device memory, under the measured roof."""

import math

from roofline.analysis.throughput.metrics import roof_of
from roofline.report import theme
from roofline.report.format import rate_text
from roofline.report.theme import BEHIND_TEXT, DARK, GREY, MARKERS
from roofline.store.run import Run
from roofline.theory.bounds import balance

ISOLINES = (0.5, 0.75, 0.9)
MODELLED, COUNTED = "hollow: each byte moved once", "filled: bytes counted, from a cold cache"


def draw(run: Run, frame):
    """A panel per dtype."""
    contenders, panels = frame["contender"].unique(), frame.groupby("dtype", sort=False)
    colours = theme.colours(contenders)
    figure = theme.new(9.5, 6.4 * len(panels))
    labels = []
    for axes, (dtype, own) in zip(figure.subplots(len(panels), squeeze=False)[:, 0], panels, strict=True):
        _limits(axes, own, run, dtype)
        _roofs(axes, run, dtype)
        _points(axes, own, colours)
        labels.append(_tokens(axes, own))
        axes.set_title(f"{run.metadata['title']}, {dtype}", loc="left", fontsize=13)
        axes.set_xlabel("arithmetic intensity (FLOP per byte of device memory)")
        axes.set_ylabel("TFLOP/s")
        entries = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))  # one entry for each label
        entries = {name: entries[name] for name in (*contenders, MODELLED, COUNTED, "throttled") if name in entries}
        axes.legend(
            entries.values(), entries.keys(), loc="lower right", fontsize=10, title="contender (95 % interval)",
            title_fontsize=9,
        )  # fmt: skip
        axes.spines[["top", "right"]].set_visible(False)
    theme.footer(figure, run.metadata["footer"])
    for of_axes in labels:
        theme.separate(figure, of_axes)
    return figure


def _datasheet(run: Run, dtype: str) -> tuple[float | None, float | None]:
    """The chip's FLOP/s in `dtype` and bytes/s, where its datasheet has them."""
    datasheet = run.metadata["machine"]["datasheet"] or {}
    return datasheet.get("flops", {}).get(dtype), datasheet.get("memory_bandwidth_bytes_per_s")


def _limits(axes, own, run: Run, dtype: str) -> None:
    xs, ys = [*own["device_intensity"], *own["counted_intensity"].dropna()], [*own["tflops"]]
    roof = roof_of(run.ceilings, dtype)
    for flops, bandwidth in (_datasheet(run, dtype), (roof and roof.flops, roof and roof.read_bytes_per_s)):
        if flops and bandwidth:
            xs.append(2 * balance(flops, bandwidth))
            ys.append(flops / 1e12)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(min(xs) / 1.6, max(xs) * 3.5)
    axes.set_ylim(min(ys) / 1.8, max(ys) * 2.2)
    theme.plain_numbers(axes)


def _roofs(axes, run: Run, dtype: str) -> None:
    roof = roof_of(run.ceilings, dtype)
    sheet_flops, sheet_bytes = _datasheet(run, dtype)
    if sheet_flops and sheet_bytes:
        _roof_line(axes, sheet_flops, sheet_bytes, "datasheet", color=GREY, linestyle="--", linewidth=1.3, above=True)
    if roof:
        for share in ISOLINES:
            x, y = _corner(axes, share * roof.flops, share * roof.read_bytes_per_s)
            axes.plot(x, y, color=GREY, linewidth=0.7, alpha=0.7, zorder=1)
            axes.annotate(
                f"{100 * share:.0f} %", (axes.get_xlim()[1], y[-1]), (-2, 0), textcoords="offset points",
                fontsize=8, color=GREY, ha="right", va="center", bbox=BEHIND_TEXT,
            )  # fmt: skip
        _roof_line(axes, roof.flops, roof.read_bytes_per_s, "measured", color=DARK, linestyle="-", linewidth=2)
        ridge = balance(roof.flops, roof.read_bytes_per_s)
        axes.plot([ridge], [roof.flops / 1e12], marker="o", color=DARK, markersize=5, zorder=3)
        axes.annotate(
            f"ridge {ridge:.3g} FLOP/byte", (ridge, roof.flops / 1e12), (-10, 5), textcoords="offset points",
            fontsize=9, color=DARK, ha="right", va="bottom", bbox=BEHIND_TEXT, zorder=2.5,
        )  # fmt: skip


def _corner(axes, flops: float, bytes_per_s: float) -> tuple[list[float], list[float]]:
    """The bent line of a roof across the axes, in their units (FLOP/byte, TFLOP/s)."""
    left, right = axes.get_xlim()
    ridge = flops / bytes_per_s
    xs = [left, ridge, right] if left < ridge < right else [left, right]
    return xs, [min(flops, x * bytes_per_s) / 1e12 for x in xs]


def _roof_line(axes, flops: float, bytes_per_s: float, name: str, *, above: bool = False, **style) -> None:
    """One roof with its two values written along it."""
    axes.plot(*_corner(axes, flops, bytes_per_s), zorder=2, **style)
    left, right = axes.get_xlim()
    bottom = axes.get_ylim()[0] * 1e12
    # The datasheet's value stands at the ridge, the measured one at the far end, so that they never meet.
    spot, side = ((flops / bytes_per_s, flops / 1e12), "left") if above else ((right, flops / 1e12), "right")
    axes.annotate(
        f"{name}: {rate_text(flops / 1e12)} TFLOP/s", spot, (4 if above else -4, 4), textcoords="offset points",
        color=style["color"], fontsize=9.5, ha=side, va="bottom", bbox=BEHIND_TEXT, zorder=2.5,
    )  # fmt: skip
    start = max(left, bottom / bytes_per_s)
    x = start * (flops / bytes_per_s / start) ** (0.55 if above else 0.12)
    y = x * bytes_per_s / 1e12
    text = f"{bytes_per_s / 1e12:.3g} TB/s" if bytes_per_s >= 1e12 else f"{bytes_per_s / 1e9:.3g} GB/s"
    # The slope is y = x * bandwidth in these units: the text turns with it, whatever the size of the figure.
    axes.text(
        x, y * 1.08, f"{name}: {text}", color=style["color"], fontsize=9.5, va="bottom", bbox=BEHIND_TEXT, zorder=2.5,
        rotation=math.degrees(math.atan2(y, x)), transform_rotates_text=True, rotation_mode="anchor",
    )  # fmt: skip


def _points(axes, frame, colours: dict) -> None:
    """Points by contender; they share an intensity at each shape, so neighbours step a little to the side.

    Where bytes were counted, all points at modelled intensities are hollow, and a filled one at the counted intensity
    is joined to its own: how far to the left it lies is what was moved beyond the least.
    """
    hollow = frame["counted_intensity"].notna().any()
    edge = {"markeredgecolor": DARK, "markeredgewidth": 0.6}
    for index, (name, colour) in enumerate(colours.items()):
        points = {"linestyle": "none", "marker": MARKERS[index % len(MARKERS)], "markersize": 6.5, "color": colour}
        modelled = {"markerfacecolor": "white", "markeredgecolor": colour, "markeredgewidth": 1.4}
        own = frame[frame["contender"] == name]
        shift = 1.035 ** (index - (len(colours) - 1) / 2)
        xs, ys, counted = own["device_intensity"] * shift, own["tflops"], own["counted_intensity"] * shift
        axes.errorbar(
            xs, ys, yerr=[ys - own["tflops_low"], own["tflops_high"] - ys], ecolor=DARK, elinewidth=0.9, capsize=2,
            label=name, zorder=4, **points, **(modelled if hollow else edge),
        )  # fmt: skip
        for x, far, y in zip(xs, counted, ys, strict=True):
            if far == far:  # not NaN
                axes.plot([x, far], [y, y], color=colour, linewidth=1.2, zorder=3.5)
                axes.plot([far], [y], zorder=4.5, **points, **edge)
        hot = own["throttled"].eq(True).fillna(False)
        if hot.any():
            axes.plot(
                xs[hot], ys[hot], linestyle="none", marker="o", markersize=13, fillstyle="none", color=DARK,
                markeredgewidth=0.8, label="throttled", zorder=3,
            )  # fmt: skip
    for label, face in ((MODELLED, "white"), (COUNTED, GREY)) if hollow else ():
        axes.plot([], [], linestyle="none", marker="o", color=GREY, markerfacecolor=face, label=label)


def _tokens(axes, frame) -> list:
    """A label for each m, where cases have one, under the lowest of its points; returns them."""
    if "m" not in frame:
        return []
    words = {"textcoords": "offset points", "fontsize": 8.5, "color": DARK, "ha": "center", "va": "top"}
    lowest = frame.loc[frame.groupby("m")["tflops_low"].idxmin()]
    places = zip(lowest["m"], lowest["device_intensity"], lowest["tflops_low"], strict=True)
    return [axes.annotate(f"M={m}", (x, y), (0, -8), bbox=BEHIND_TEXT, zorder=2.5, **words) for m, x, y in places]
