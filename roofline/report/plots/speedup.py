"""The figure speedup: each contender's speed over the baseline's, by rows of x, M. It says who wins where, and how near
the roof that is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roofline.analysis.tokens import compared
from roofline.operations.shapes import shape_text
from roofline.report.format import small_text
from roofline.report.plots import theme
from roofline.report.plots.theme import DARK, GREY
from roofline.store.run import AGAIN

if TYPE_CHECKING:
    from pandas import DataFrame

LINES = {True: "-", False: ":"}
"""The line of a rival of the baseline, ours or the user's, and of a library."""
FILLS = None, "white"
"""The fill of a run's points: of a second one they are hollow."""
CHOSEN = {"ls": "none", "marker": "o", "markersize": 12, "mfc": "none", "mec": DARK, "zorder": 5}
"""A ring around what `kernels.matmul` takes."""


def speedup(frame: DataFrame, new: DataFrame | None = None):
    """The figure: for each layer at a tp, shape of a file and dtype that has several M, the ratios to the baseline, and
    below them the shares of the roof. None where there is no such. With `new`, the frame of another run, its ratios are
    beside those of `frame`, by hollow points."""
    import pandas

    runs = [frame] if new is None else [frame, new]
    placed = []
    for number, of_run in enumerate(runs):
        placed.append(_placed(of_run).assign(run=number))
    rows = pandas.concat(placed, ignore_index=True)
    panels = [panel for _, panel in rows.groupby("panel", sort=False) if panel["m"].nunique() > 1]
    if not panels:
        return None
    columns = min(len(panels), 2)
    lines = -(-len(panels) // columns)
    title = finding(rows[rows["run"] == 0])
    figure = theme.new(3.7 * columns, 3.6 * lines + 2.2, frame, title)
    grid = figure.subplots(
        2 * lines,
        columns,
        squeeze=False,
        sharex="col",
        sharey="row",
        height_ratios=[5, 2] * lines,
    )
    places = grid.reshape(lines, 2, columns).swapaxes(1, 2).reshape(-1, 2)
    looks = theme.looks(rows["contender"].unique())
    machines = [of_run.attrs.get("footer", "").partition(",")[0] for of_run in runs]
    for panel, (above, below) in zip(panels, places, strict=False):
        _draw(above, below, panel, looks, machines)
    for axes in places[len(panels) :].flat:
        axes.set_visible(False)
    theme.legend(figure, columns=3)
    return figure


def _placed(frame: DataFrame) -> DataFrame:
    """The rows with a ratio, each in its panel."""
    rows = compared(frame[frame["analysis"] == "throughput"].dropna(subset="m"))
    rows = rows[rows["contender"] != rows["baseline"] + AGAIN]
    panel = [_panel(row) for _, row in rows.iterrows()]
    return rows.assign(panel=panel, ratio=rows["ratio_to_baseline"])


def _panel(row) -> str:
    """The layer, tp and dtype of a row; of another operation than a matmul its id, without M."""
    if layer := shape_text(row):
        return f"{layer}, {row['dtype']}"
    return row["shape"].replace(f"-m{row['m']:g}", "")


def finding(rows: DataFrame) -> str:
    """On how many shapes the fastest beside the baseline beats it, and where it does worst."""
    rivals = rows[rows["rival"].eq(True)]
    best = (rows if rivals.empty else rivals).sort_values("ratio").drop_duplicates("shape", keep="last")
    least = best.iloc[0]
    wins = (best["ratio"] > 1).sum()
    text = f"The fastest beats {least['baseline']} on {wins} of {len(best)} shapes"
    return f"{text}; least {small_text(least['ratio'])}, {least['panel'].partition(',')[0]}, M {least['m']:g}"


def _draw(above, below, panel: DataFrame, looks: dict[str, dict], machines: list[str]) -> None:
    """The ratios of a panel, and the shares of the roof."""
    above.axhline(1, color=GREY, lw=1.2, label=panel["baseline"].iloc[0])
    if len(machines) > 1:
        for machine, fill in zip(machines, FILLS, strict=True):
            above.plot([], [], "o-", color=GREY, mfc=fill, label=machine)
    for (run, contender, is_rival), rows in panel.groupby(["run", "contender", "rival"], sort=False):
        rows = rows.sort_values("m")
        look = looks[contender] | {"ls": LINES[bool(is_rival)], "mfc": FILLS[run], "label": contender}
        points = theme.BARS | theme.POINTS | look
        above.errorbar(rows["m"], rows["ratio"], theme.interval(rows, "ratio"), **points)
        below.plot(rows["m"], 100 * rows["of_roof"], **look | {"markersize": 4, "label": ""})
    chosen = panel[panel["contender"].eq(panel["dispatched"])]
    if len(chosen):
        above.plot(chosen["m"], chosen["ratio"], label="what kernels.matmul takes", **CHOSEN)
    sizes = sorted(panel["m"].unique())
    above.set(xscale="log", title=panel["panel"].iloc[0])
    below.set_xticks(sizes, [f"{size:g}" for size in sizes], rotation=60)
    below.minorticks_off()
    above.set_ylabel(f"speed over {panel['baseline'].iloc[0]}'s", fontsize=10)
    below.set_ylabel("% of roof", fontsize=10)
    below.set_xlabel("M, rows of x")
    for axes in (above, below):
        axes.label_outer()
