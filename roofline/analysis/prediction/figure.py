"""The figure prediction: predicted over measured times, ours beside the plain roofline's, a point for each case."""

from roofline.analysis.overlap import style
from roofline.analysis.overlap.metrics import is_gathered
from roofline.analysis.prediction.text import scores
from roofline.report import theme
from roofline.report.format import error_text, time_text
from roofline.report.theme import DARK, MARKERS
from roofline.store.run import Run

NAME = "prediction"
BANDS = ((0.25, "#e6e6e6"), (0.1, "#c8c8c8"))
"""Errors whose bands are shaded about the diagonal."""
PANELS = (
    ("constants fitted on other token counts", "predicted_s", "median", "p95"),
    ("plain roofline", "roofline_s", "roofline_median", "roofline_p95"),
)
"""Title, and the names of what a panel shows."""


def draw(run: Run, scored: list[dict]):
    """Two panels on the same axes."""
    figure = theme.new(12, 6.8)
    figure.set_layout_engine("compressed")
    errors = scores(scored)["all"]
    times = [one[name] for one in scored for name in ("predicted_s", "time_s", "roofline_s")]
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    for axes, (title, field, middle, far) in zip(panels, PANELS, strict=True):
        _frame(axes, min(times) / 1.6, max(times) * 1.6)
        for look, label, own in _groups(scored):
            xs, ys = [one["time_s"] for one in own], [one[field] for one in own]
            axes.plot(xs, ys, linestyle="none", markersize=6.5, label=label, zorder=4, **look)
            if field == "predicted_s":
                axes.vlines(xs, *([one[f"predicted_{end}_s"] for one in own] for end in ("low", "high")), DARK, lw=0.7)
        text = f"median error {error_text(errors[middle])}\n95th percentile {error_text(errors[far])}"
        axes.annotate(text, (0.04, 0.97), xycoords="axes fraction", va="top", fontsize=12.5, color=DARK)
        axes.set_title(title, loc="left", fontsize=12)
        axes.set_xlabel("measured time")
    panels[0].set_ylabel("predicted time")
    panels[0].legend(loc="lower right", fontsize=9, frameon=False)
    ours, plain = (error_text(errors[middle]) for _, _, middle, _ in PANELS)
    theme.about(figure, run, f"Predicted times are off by {ours} in the median, a plain roofline's by {plain}")
    return figure


def _frame(axes, low: float, high: float) -> None:
    """Logarithmic axes of equal length, the diagonal, and the bands about it."""
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high), box_aspect=1)
    theme.plain_numbers(axes)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: time_text(value))
    axes.plot([low, high], [low, high], color=DARK, linewidth=1.3, zorder=2, label="as measured")
    for band, colour in BANDS:
        edges = [[time * (1 + sign * band) for time in (low, high)] for sign in (-1, 1)]
        axes.fill_between([low, high], *edges, color=colour, linewidth=0, zorder=1, label=f"within {100 * band:.0f} %")


def _groups(scored: list[dict]):
    """(look, label, cases) of each contender, filled and in its colour of the memory roofline; of each arm, hollow."""
    plain = [one for one in scored if not is_gathered(one)]
    names = list(dict.fromkeys(one["contender"] for one in plain))
    for (name, colour), marker in zip(theme.colours(names).items(), MARKERS * len(names), strict=False):
        look = {"color": colour, "marker": marker, "markeredgecolor": DARK, "markeredgewidth": 0.6}
        yield look, name, [one for one in plain if one["contender"] == name]
    for arm, look in style.styles(one["arm"] for one in scored if is_gathered(one)).items():
        hollow = {"markerfacecolor": "white", "markeredgecolor": look["color"], "markeredgewidth": 1.6}
        if "fillstyle" in look:
            hollow |= style.PERSISTENT_LOOK | {"markerfacecoloralt": look["color"]}
        yield {"marker": look["marker"]} | hollow, f"arm {arm}", [one for one in scored if one.get("arm") == arm]
