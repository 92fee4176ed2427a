"""The figure timeline: what link and chip did in one run of each arm, on the shape nearest to the ridge.

What the chip waits for has one colour on both lanes: a chunk, or all pieces of a row block. Each arm is shown by the
sample of median time, so that the figure tells how an arm behaves, not how fast it is. A kernel that waits on the chip
is one block there: it does not tell when its programs waited.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from roofline.analysis.records import frame as frame_of
from roofline.operations.format import rate_text
from roofline.report import timelines
from roofline.report.plots import style, theme
from roofline.report.plots.theme import BEHIND_TEXT, DARK
from roofline.report.timelines import HOME_UNIT, WAITS, Block
from roofline.store.run import Run
from roofline.theory.arms import BOTH, PERSISTENT, SCATTERED, base_arm

LANE_IN, AROUND_IN = 0.3, 1.9
"""Inches of a lane, and of what is around all lanes of a panel."""

EACH, HEIGHT = 2.5, 0.8
"""What an arm takes with the room below it, and how high a block is, in lanes."""

HOME, MATMUL, IDLE = "#cccccc", "#999999", "#f2f2f2"
SHORTEST = 2e-3
"""Blocks and gaps of less than this share of the axis are not drawn: the time it takes to look at a flag."""

BRIGHTNESS = (0.3, 0.59, 0.11)
"""How bright red, green and blue are to an eye."""


@dataclass
class Panel:
    """The timelines of one shape on its axes."""

    axes: Any
    row: Any
    """A row of the frame, of this shape."""
    timelines: dict[str, dict]
    last_s: float = 0.0
    """When all has ended."""
    texts: list[tuple] = field(default_factory=list)
    """(text, bar) of what must fit into its block."""


def timeline(run: Run):
    """The figure; None where no arm has a timeline."""
    run_frame = frame_of(run)
    cases = style.prepared(run_frame)
    looks = style.styles(cases["contender"])
    rows = nearest_to_the_ridge(run, cases)
    if not rows:
        return None
    of_shapes = []
    for row in rows:
        of_shape = timelines.timelines_of(run, row.shape)
        of_shapes.append({arm: of_shape[arm] for arm in looks if arm in of_shape})
    lanes = [EACH * len(of_shape) for of_shape in of_shapes]
    figure = theme.new(11, LANE_IN * sum(lanes) + AROUND_IN * len(lanes) + 0.6)
    theme.about(figure, run_frame, "What link and chip do in one run of each arm, of median time")
    every_axes = figure.subplots(len(rows), squeeze=False, height_ratios=lanes)[:, 0]
    panels = []
    for axes, row, of_shape in zip(every_axes, rows, of_shapes, strict=True):
        panel = Panel(axes, row, of_shape)
        panels.append(panel)
        _draw(panel, looks)
        _titles(panel, run, cases)
    theme.lay_out(figure, h_pad=0.1)
    for panel in panels:
        _drop_too_wide(panel)
    return figure


def nearest_to_the_ridge(run: Run, frame) -> list:
    """A row of one shape for each operation: on the wire `ridge` if there is one, never a void one where there are
    others."""
    firsts = frame.drop_duplicates("shape")
    has_timelines = firsts["shape"].map(lambda shape: bool(timelines.timelines_of(run, shape)))
    shown = firsts[has_timelines.astype(bool)]
    away = np.log(shown["ratio"]).abs()
    ranked = shown.assign(elsewhere=shown["wire"] != "ridge", away=away)
    nearest = ranked.sort_values(["void", "elsewhere", "away"]).drop_duplicates("op")
    return list(nearest.sort_index().itertuples())


def _draw(panel: Panel, looks: dict) -> None:
    """Draw the lanes of every arm on one shape, and what they are to be compared with."""
    axes = panel.axes
    marks_s = _marks_s(panel.row)
    ends_s = [timeline["end_s"] for timeline in panel.timelines.values()]
    panel.last_s = max([*marks_s.values(), *ends_s])
    axes.set_xlim(0, 1e3 * panel.last_s * 1.1)
    axes.set_ylim(EACH * len(panel.timelines), -0.4)
    ticks = {}
    for index, arm in enumerate(panel.timelines):
        link_y = EACH * index + 0.5
        chip_y = link_y + 0.95
        ticks[link_y] = "link"
        ticks[chip_y] = "chip"
        _draw_arm(panel, arm, link_y, chip_y)
        name = arm.replace(PERSISTENT, f"\n{PERSISTENT}")  # or too wide
        words = {
            "va": "center",
            "ha": "right",
            "weight": "bold",
            "fontsize": 10,
            "color": looks[arm]["color"],
        }
        theme.note(axes, name, (0, link_y + 0.48), (-40, 0), ("axes fraction", "data"), **words)
    above = 3
    for text, mark_s in marks_s.items():
        mark_ms = 1e3 * mark_s
        axes.axvline(
            mark_ms,
            color=DARK,
            linestyle="--",
            linewidth=1.2,
            zorder=5,
        )
        words = f"{text}: {rate_text(mark_ms)} ms"
        theme.note(axes, words, (mark_ms, 1), (0, above), ("data", "axes fraction"), ha="right", va="bottom")
        above += 12
    axes.set_yticks(list(ticks), list(ticks.values()), fontsize=9)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("ms from the start", fontsize=10)


def _marks_s(row) -> dict[str, float]:
    """The times that an arm's is compared with, in words; none where matmul and link were not both measured."""
    if not row.timed:
        return {}
    longer = "T_gemm" if row.t_gemm_s >= row.t_comm_s else "T_comm"
    return {f"the longer one, {longer}": row.ideal_s, "both, T_gemm + T_comm": row.t_gemm_s + row.t_comm_s}


def _draw_arm(panel: Panel, arm: str, link_y: float, chip_y: float) -> None:
    """The lanes of link and chip of one arm, and its time."""
    timeline = panel.timelines[arm]
    colours = _colours(timeline)
    _lane(panel, link_y, timelines.link_blocks(timeline), colours)
    computed = _lane(panel, chip_y, timelines.chip_blocks(arm, timeline), colours)
    spans = [(block.start_s, block.end_s) for block in computed]
    waits = []
    for start_s, end_s in timelines.between(spans, timeline["end_s"]):
        waits.append(Block(start_s, end_s, WAITS, "waits"))
    _lane(panel, chip_y, waits, colours)
    end_ms = 1e3 * timeline["end_s"]
    words = {
        "va": "center",
        "weight": "bold",
        "fontsize": 9.5,
        "bbox": BEHIND_TEXT,
        "zorder": 6,
    }
    panel.axes.text(end_ms, chip_y, f" {rate_text(end_ms)} ms", **words)


def _lane(panel: Panel, y: float, blocks: list[Block], colours: dict) -> list[Block]:
    """Draw what is long enough of a lane, and return that."""
    drawn = []
    for block in blocks:
        if block.end_s - block.start_s > SHORTEST * panel.last_s:
            drawn.append(block)
            panel.texts.append(_bar(panel.axes, y, block, colours[block.unit]))
    return drawn


def _bar(axes, y: float, block: Block, colour) -> tuple:
    """Draw a block on the lane at `y`; returns its text, and the bar in which it has to fit."""
    from matplotlib.colors import to_rgb

    start_ms = 1e3 * block.start_s
    end_ms = 1e3 * block.end_s
    look = {
        "height": HEIGHT,
        "color": colour,
        "edgecolor": "white",
        "linewidth": 0.6,
        "zorder": 3,
    }
    (bar,) = axes.barh(y, end_ms - start_ms, left=start_ms, **look)
    is_dark = np.dot(BRIGHTNESS, to_rgb(colour)) < 0.55
    words = {"ha": "center", "va": "center", "color": "white" if is_dark else DARK}
    text = axes.text((start_ms + end_ms) / 2, y, block.text, fontsize=8, zorder=4, **words)
    return text, bar


def _colours(timeline: dict) -> dict:
    """{unit: colour}, in the order of arrival from dark to light."""
    from matplotlib import colormaps

    units = dict.fromkeys(timelines.units_of(timeline))
    colours = {None: MATMUL, HOME_UNIT: HOME, WAITS: IDLE}
    places = np.linspace(0, 1, len(units) + 2)[1:-1]
    colours.update(zip(units, colormaps["viridis"](places), strict=True))
    return colours


def _titles(panel: Panel, run: Run, frame) -> None:
    """Which shape the panel is of, and what its colours and numbers mean."""
    row = panel.row
    link = style.link_text(frame[frame.index == row.Index])
    if row.void:
        link += f"; {style.void_text(row)}"
    if run.shapes[row.shape].requested_by_round:
        link += "; an arm's own round has its own pace"
    below = [link, f"numbers: {_meaning_of_numbers(row.op, panel.timelines)}"]
    lost = [arm for arm in run.measured(row.shape) if arm not in panel.timelines]
    if lost:
        below.append(f"no timeline of {', '.join(lost)}")
    title = f"{row.op}, {style.label(row, frame)}, wire {row.wire}"
    if row.timed:
        title += f", T_gemm / T_comm = {row.ratio:.2f}"
    style.title(panel.axes, title, *below, above=34)


def _meaning_of_numbers(op: str, of_shape: dict) -> str:
    if op == "weight_prefetch":
        return "shares of the next layer's weights, gathered while this layer multiplies"
    if op in SCATTERED:
        return "the rank whose part arrives, and on the chip the part that is sent for it"
    if op in BOTH:
        return "the rank whose rows come, then whose part goes; on the chip its rows, by up, then by down"
    by_block = {}
    for arm, timeline in of_shape.items():
        if timelines.is_by_block(timeline):
            by_block[base_arm(arm)] = True
    of_blocks = f", in {' and '.join(by_block)} its row blocks" if by_block else ""
    return f"chunks of x{of_blocks}; on the chip, the one it waited for"


def _drop_too_wide(panel: Panel) -> None:
    """Take away the words that do not fit into their blocks."""
    renderer = panel.axes.figure.canvas.get_renderer()
    for text, bar in panel.texts:
        if text.get_window_extent(renderer).width > bar.get_window_extent(renderer).width - 2:
            text.remove()
