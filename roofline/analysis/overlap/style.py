"""What the figures of gathering operations share: shapes and their arms, the colours of these, words for a link."""

from itertools import cycle
from statistics import median

from roofline.analysis.overlap.arms import ARMS, PERSISTENT, base_arm
from roofline.analysis.overlap.metrics import is_gathered
from roofline.report import theme
from roofline.report.theme import DARK, GREY, MARKERS
from roofline.store.run import Run

SERIAL = "serial"
PERSISTENT_LOOK = {"fillstyle": "left", "markerfacecoloralt": "white"}
"""Half of a marker: the same arm by our persistent matmul."""

MARKERSIZE = 6.5
MOST_NAMED = 3
"""Shapes that are named where some are left out."""

LINKS = {"paced": "paced (emulated)", "preset": "preset (all is here before the start)"}


def by_shape(records: list[dict]) -> dict[str, list[dict]]:
    """{shape id: the records of its arms}, of what gathers over a wire. What has a fabric of its own comes last, so
    that the first tells of the shape's link."""
    found: dict[str, list[dict]] = {}
    for record in filter(is_gathered, records):
        found.setdefault(record["case"].removesuffix("-" + record["contender"]), []).append(record)
    return {shape: sorted(own, key=lambda record: record["own_fabric"]) for shape, own in found.items()}


def over_the_link(records: list[dict]) -> list[dict]:
    """Those of arms that use the shape's link, and no fabric of their own."""
    return [record for record in records if not record["own_fabric"]]


def is_timed(record: dict) -> bool:
    """Whether both the unsplit matmul and the link alone were measured beside this arm."""
    return bool(record["t_gemm_s"] and record["t_comm_s"])


def is_serial(arm: str) -> bool:
    return base_arm(arm) == SERIAL


def balance_of(record: dict) -> float:
    """T_gemm over T_comm: 1 at the ridge, below it the wire sets the pace."""
    return record["t_gemm_s"] / record["t_comm_s"]


def over_ideal(record: dict, suffix: str = "") -> float:
    """An arm's time over the longer of T_gemm and T_comm; with `_low` and `_high` the ends of its interval.

    By the hidden fraction, which is formed within each round, so that what all met alike cancels. A case that is void
    has none, nor has an arm over a fabric of its own: its time stands over the medians.
    """
    ideal_s, shorter_s = (pick(record["t_gemm_s"], record["t_comm_s"]) for pick in (max, min))
    hidden = record[{"": "hidden_fraction", "_low": "hidden_high", "_high": "hidden_low"}[suffix]]
    if hidden is None:
        return record["time_s" if not suffix else f"time{suffix}_s"] / ideal_s
    return 1 + (1 - hidden) * shorter_s / ideal_s


def styles(records: list[dict]) -> dict[str, dict]:
    """{arm: how its points are drawn}, of those that `records` have."""
    found = dict.fromkeys(record["arm"] for record in filter(is_gathered, records))
    known = {
        name: look
        for arm, spec in ARMS.items()
        for own in [{"color": spec.color, "marker": spec.marker}]
        for name, look in ((arm, own), (arm + PERSISTENT, own | PERSISTENT_LOOK))
    }
    others = theme.colours([arm for arm in found if arm not in known])
    looks = {arm: {"color": colour, "marker": mark} for (arm, colour), mark in zip(others.items(), cycle(MARKERS))}
    return {arm: look for arm, look in (known | looks).items() if arm in found}


def draw_points(axes, xs, ys, style: dict, *, label: str, **errors) -> None:
    """Markers of one arm, with the intervals that `errors` (xerr, yerr) tell."""
    axes.errorbar(
        xs, ys, **errors, linestyle="none", markersize=MARKERSIZE, markeredgecolor=DARK, markeredgewidth=0.6,
        ecolor=DARK, elinewidth=0.9, capsize=2, label=label, zorder=4, **style,
    )  # fmt: skip


def legend(axes, handles: list, names: list[str], columns: int, **words) -> None:
    """A legend under the axes and their label, in at most so many columns."""
    from matplotlib.transforms import ScaledTranslation

    under = axes.transAxes + ScaledTranslation(0, -50 / 72, axes.figure.dpi_scale_trans)
    axes.legend(
        handles, names, loc="upper center", bbox_to_anchor=(0.5, 0), bbox_transform=under, fontsize=9, frameon=False,
        ncols=columns if len(names) > 4 else len(names), **words,
    )  # fmt: skip


def interval(records: list[dict], value) -> list[list[float]]:
    """Error bars of `value(record, suffix)`, whose suffix is "", "_low" or "_high"."""
    return [
        [max(0.0, value(r, "") - value(r, "_low")) for r in records],
        [max(0.0, value(r, "_high") - value(r, "")) for r in records],
    ]


def label(record: dict, among: list[dict]) -> str:
    """What tells a shape from the others of its operation: `tp=16`, `M=172`, `tp=16, P=4`."""
    others = [r for r in among if r["op"] == record["op"]]
    first = "m" if record["op"] == "weight_prefetch" else "tp"
    words = {"tp": f"tp={record['tp']}", "m": f"M={record['m']}", "ranks": f"P={record['ranks']}"}
    words["dtype"] = record["dtype"]
    return ", ".join(words[key] for key in words if key == first or len({r[key] for r in others}) > 1)


def link_text(records: list[dict]) -> str:
    """Kind, bandwidth and ranks of the links: `paced (emulated) link, 1.05 GB/s reached of 1.07 asked, P = 8 ranks`."""
    parts = []
    for kind in dict.fromkeys(record["link"] for record in records):
        own = [record for record in records if record["link"] == kind]
        reached, asked = (_range([r[key] for r in own]) for key in ("link_bytes_per_s", "link_bytes_per_s_requested"))
        text = f"{LINKS.get(kind, kind)} link"
        if reached:
            text += f", {reached} GB/s reached"
        if asked:
            text += f" of {asked} asked" if reached else f", {asked} GB/s asked"
        ranks = " or ".join(str(count) for count in sorted({record["ranks"] for record in own}))
        parts.append(f"{text}, P = {ranks} ranks")
    return "; ".join(parts)


def _range(rates: list[float | None]) -> str:
    """The least and the greatest of bytes/s, in GB/s, or their median where they are the same within 1 %."""
    found = sorted(rate / 1e9 for rate in rates if rate)
    if found and found[-1] <= 1.01 * found[0]:
        found = [median(found)]
    return " to ".join(dict.fromkeys(f"{rate:.3g}" for rate in (found[:1] + found[-1:])))


def source_text(run: Run) -> str:
    """Where the numbers come from: `CPU run`."""
    return f"{run.metadata['machine']['source'].upper()} run"


def left_out(records: list[dict], *, void: bool) -> list[str]:
    """A line for each reason why shapes are not drawn; those whose link was off its pace only if `void`."""
    firsts = [own[0] for own in by_shape(records).values()]
    reasons = {
        "T_gemm or T_comm was not measured": [r for r in firsts if not is_timed(r)],
        "link off its pace": [r for r in firsts if void and is_timed(r) and r["link_off_pace"] is not None],
    }
    lines = []
    for reason, own in reasons.items():
        names = [f"{r['op']} {label(r, records)} {r['wire']}{_pace(r)}" for r in own]
        names[MOST_NAMED:] = [f"{len(names) - MOST_NAMED} more"] * (len(names) > MOST_NAMED)
        lines += [f"left out, {reason}: {'; '.join(names)}"] if names else []
    return lines


def void_text(record: dict) -> str:
    return f"link off its pace{_pace(record)}"


def _pace(record: dict) -> str:
    off = record["link_off_pace"]
    return "" if off is None else f" ({100 * off:+.0f} %)"


def title(axes, text: str, *below: str, left: float = 0, above: float = 6) -> None:
    """A title `above` the axes, from so many points `left` of them on, with smaller lines under it."""
    words = {"xycoords": "axes fraction", "textcoords": "offset points", "va": "bottom", "annotation_clip": False}
    for index, line in enumerate(reversed(below)):
        axes.annotate(line, (0, 1), (-left, above + 13 * index), fontsize=9, color=GREY, **words)
    axes.annotate(text, (0, 1), (-left, above + 13 * len(below) + 2), fontsize=12, color=DARK, **words)
