"""The figure memory_roofline: TFLOP/s over FLOP per byte of device memory, under the measured roof."""

from roofline.analysis.throughput.metrics import Roof, roof_of
from roofline.report import theme
from roofline.report.theme import DARK, GREY, MARKERS
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
        _roofs(axes, own, roof_of(run, dtype), _datasheet(run, dtype))
        _points(axes, own, colours)
        labels.append(theme.name_lowest(axes, own, "m", "device_intensity", "tflops_low", lambda row: f"M={row.m}"))
        axes.set_title(f"{run.metadata['title']}, {dtype}", loc="left", fontsize=13)
        axes.set(xlabel="arithmetic intensity (FLOP per byte of device memory)", ylabel="TFLOP/s")
        entries = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))  # one entry for each label
        entries = {name: entries[name] for name in (*contenders, MODELLED, COUNTED, "throttled") if name in entries}
        axes.legend(
            entries.values(), entries.keys(), loc="lower right", fontsize=10, title="contender (95 % interval)",
            title_fontsize=9,
        )  # fmt: skip
        axes.spines[["top", "right"]].set_visible(False)
    theme.footer(figure, run.metadata["footer"])
    theme.separate(figure, labels)
    return figure


def _datasheet(run: Run, dtype: str) -> Roof | None:
    """The roof that the chip's datasheet has for `dtype`."""
    sheet = run.metadata["machine"]["datasheet"] or {}
    flops, bytes_per_s = sheet.get("flops", {}).get(dtype), sheet.get("memory_bandwidth_bytes_per_s")
    return Roof(flops, bytes_per_s) if flops and bytes_per_s else None


def _roofs(axes, own, measured: Roof | None, sheet: Roof | None) -> None:
    """Limits that hold all points and roofs, and the roofs."""
    xs, ys = [*own["device_intensity"], *own["counted_intensity"].dropna()], [*own["tflops"]]
    for roof in filter(None, (sheet, measured)):
        xs.append(2 * balance(*roof))
        ys.append(roof.flops / 1e12)
    axes.set(xscale="log", yscale="log", xlim=(min(xs) / 1.6, max(xs) * 3.5), ylim=(min(ys) / 1.8, max(ys) * 2.2))
    theme.plain_numbers(axes)
    if sheet:  # its words stand where those of the measured one do not
        theme.roof(axes, *sheet, "datasheet: ", part=0.55, at_ridge=True, color=GREY, linestyle="--", linewidth=1.3)
    if measured:
        for share in ISOLINES:
            xs, ys = theme.bend(axes, *(share * rate for rate in measured))
            axes.plot(xs, ys, color=GREY, linewidth=0.7, alpha=0.7, zorder=1)
            at_end = {"fontsize": 8, "color": GREY, "ha": "right", "va": "center"}
            theme.note(axes, f"{100 * share:.0f} %", (xs[-1], ys[-1]), (-2, 0), **at_end)
        theme.roof(axes, *measured, "measured: ", part=0.12)
        theme.ridge(axes, *measured)


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
        there = counted.notna()
        axes.plot([xs[there], counted[there]], [ys[there]] * 2, color=colour, linewidth=1.2, zorder=3.5)
        axes.plot(counted[there], ys[there], zorder=4.5, **points, **edge)
        hot = own["throttled"].eq(True).fillna(False)
        if hot.any():
            axes.plot(
                xs[hot], ys[hot], linestyle="none", marker="o", markersize=13, fillstyle="none", color=DARK,
                markeredgewidth=0.8, label="throttled", zorder=3,
            )  # fmt: skip
    for label, face in ((MODELLED, "white"), (COUNTED, GREY)) if hollow else ():
        axes.plot([], [], linestyle="none", marker="o", color=GREY, markerfacecolor=face, label=label)
