"""The figure timeline: what link and chip did in one run of each arm, on the shape nearest to the ridge.

What the chip waits for has one colour on both lanes: a chunk, or all pieces of a row block. Each arm is shown by the
sample of median time, so that the figure tells how an arm behaves, not how fast it is. A kernel that waits on the chip
is one block there: it does not tell when its programs waited.
"""

import numpy as np

from roofline.analysis.records import frame as frame_of
from roofline.operations.format import rate_text
from roofline.report.plots import style, theme
from roofline.report.plots.theme import BEHIND_TEXT, DARK
from roofline.report.timelines import (  # fmt: skip
    HOME_UNIT,
    WAITS,
    Block,
    between,
    chip_blocks,
    is_by_block,
    link_blocks,
    timelines_of,
    units_of,
)
from roofline.store.run import Run
from roofline.theory.arms import BOTH, PERSISTENT, SCATTERED, base_arm

LANE_IN, AROUND_IN = 0.3, 1.9
"""Inches of a lane, and of what is around all lanes of a panel."""

EACH, HEIGHT = 2.5, 0.8
"""Of an arm and of a block, in lanes."""

HOME, MATMUL, IDLE = "#cccccc", "#999999", "#f2f2f2"
SHORTEST = 2e-3
"""Blocks and gaps of less than this share of the axis are not drawn: the time it takes to look at a flag."""


def timeline(run: Run):
    """Return the figure; None where no arm has a timeline."""
    run_frame = frame_of(run)
    frame = style.prepared(run_frame)
    looks = style.styles(frame["contender"])
    rows = nearest_to_the_ridge(run, frame)
    if not rows:
        return None
    panels = [
        {arm: of_shape[arm] for arm in looks if arm in of_shape}
        for of_shape in (timelines_of(run, row.shape) for row in rows)
    ]
    lanes = [EACH * len(timelines) for timelines in panels]
    figure = theme.new(11, sum(LANE_IN * count + AROUND_IN for count in lanes) + 0.6)
    theme.about(figure, run_frame, "What link and chip do in one run of each arm, of median time")
    every = figure.subplots(len(rows), squeeze=False, height_ratios=lanes)[:, 0]
    texts = []
    for axes, row, timelines in zip(every, rows, panels, strict=True):
        texts += _panel(axes, run, row, timelines, looks)
        _titles(axes, run, row, timelines, frame)
    _drop_too_wide(figure, texts)
    return figure


def nearest_to_the_ridge(run: Run, frame) -> list:
    """Return a row of one shape for each operation: on the wire `ridge` if there is one, never a void one where there
    are others."""
    firsts = frame.drop_duplicates("shape")
    shown = firsts[firsts["shape"].map(lambda shape: bool(timelines_of(run, shape))).astype(bool)]
    ranked = shown.assign(elsewhere=shown["wire"] != "ridge", away=np.log(shown["ratio"]).abs())
    nearest = ranked.sort_values(["void", "elsewhere", "away"]).drop_duplicates("op")
    return list(nearest.sort_index().itertuples())


def _panel(axes, run: Run, row, timelines: dict, looks: dict) -> list:
    """Draw the lanes of every arm on one shape; returns (text, bar) of what must fit into its block."""
    marks_s = {}
    if row.timed:
        longer = "T_gemm" if row.t_gemm_s >= row.t_comm_s else "T_comm"
        marks_s |= {f"the longer one, {longer}": row.ideal_s, "both, T_gemm + T_comm": row.t_gemm_s + row.t_comm_s}
    last_s = max([*marks_s.values(), *(timeline["end_s"] for timeline in timelines.values())])
    texts, ticks = [], {}
    axes.set(xlim=(0, 1e3 * last_s * 1.1), ylim=(EACH * len(timelines), -0.4))

    def bars(y: float, blocks: list[Block], colours: dict) -> list[Block]:
        """Draw what is long enough of a lane."""
        long = [block for block in blocks if block.end_s - block.start_s > SHORTEST * last_s]
        texts.extend(_bar(axes, y, block, colours[block.unit]) for block in long)
        return long

    for index, (arm, timeline) in enumerate(timelines.items()):
        link_y, colours = EACH * index + 0.5, _colours(timeline)
        chip_y = link_y + 0.95
        ticks |= {link_y: "link", chip_y: "chip"}
        bars(link_y, link_blocks(timeline), colours)
        computed = bars(chip_y, chip_blocks(arm, timeline), colours)
        waits = between([block[:2] for block in computed], timeline["end_s"])
        bars(chip_y, [Block(*span, WAITS, "waits") for span in waits], colours)
        end_ms, words = 1e3 * timeline["end_s"], {"va": "center", "weight": "bold"}
        axes.text(end_ms, chip_y, f" {rate_text(end_ms)} ms", fontsize=9.5, bbox=BEHIND_TEXT, zorder=6, **words)
        words |= {"ha": "right", "fontsize": 10, "color": looks[arm]["color"]}
        name = arm.replace(PERSISTENT, f"\n{PERSISTENT}")  # or too wide
        theme.note(axes, name, (0, link_y + 0.48), (-40, 0), ("axes fraction", "data"), **words)
    for index, (text, at_s) in enumerate(marks_s.items()):
        axes.axvline(1e3 * at_s, color=DARK, linestyle="--", linewidth=1.2, zorder=5)
        words = {"of": ("data", "axes fraction"), "ha": "right", "va": "bottom"}
        theme.note(axes, f"{text}: {rate_text(1e3 * at_s)} ms", (1e3 * at_s, 1), (0, 3 + 12 * index), **words)
    axes.set_yticks(list(ticks), list(ticks.values()), fontsize=9)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("ms from the start", fontsize=10)
    return texts


def _bar(axes, y: float, block: Block, colour) -> tuple:
    """Draw a block on the lane at `y`; returns its text, and the bar in which it has to fit."""
    from matplotlib.colors import to_rgb

    start_ms, end_ms = 1e3 * block.start_s, 1e3 * block.end_s
    look = {"height": HEIGHT, "color": colour, "edgecolor": "white", "linewidth": 0.6, "zorder": 3}
    (bar,) = axes.barh(y, end_ms - start_ms, left=start_ms, **look)
    words = {
        "ha": "center",
        "va": "center",
        "color": "white" if np.dot((0.3, 0.59, 0.11), to_rgb(colour)) < 0.55 else DARK,
    }
    return axes.text((start_ms + end_ms) / 2, y, block.text, fontsize=8, zorder=4, **words), bar


def _colours(timeline: dict) -> dict:
    """Return {unit: colour}, in the order of arrival from dark to light."""
    import seaborn

    units = dict.fromkeys(units_of(timeline))
    shades = dict(zip(units, seaborn.color_palette("viridis", len(units)), strict=True))
    return {None: MATMUL, HOME_UNIT: HOME, WAITS: IDLE} | shades


def _titles(axes, run: Run, row, timelines: dict, frame) -> None:
    """Which shape the panel is of, and what its colours and numbers mean."""
    below = [style.link_text(frame[frame.index == row.Index]) + (f"; {style.void_text(row)}" if row.void else "")]
    if run.shapes[row.shape].requested_by_round:
        below[0] += "; an arm's own round has its own pace"
    below.append(f"numbers: {_meaning_of_numbers(row.op, timelines)}")
    if lost := [arm for arm in run.measured(row.shape) if arm not in timelines]:
        below.append(f"no timeline of {', '.join(lost)}")
    balance = f", T_gemm / T_comm = {row.ratio:.2f}" if row.timed else ""
    style.title(axes, f"{row.op}, {style.label(row, frame)}, wire {row.wire}{balance}", *below, above=34)


def _meaning_of_numbers(op: str, timelines: dict) -> str:
    if op == "weight_prefetch":
        return "shares of the next layer's weights, gathered while this layer multiplies"
    if op in SCATTERED:
        return "the rank whose part arrives, and on the chip the part that is sent for it"
    if op in BOTH:
        return "the rank whose rows come, then whose part goes; on the chip its rows, by up, then by down"
    by_block = dict.fromkeys(base_arm(arm) for arm, timeline in timelines.items() if is_by_block(timeline))
    of_blocks = f", in {' and '.join(by_block)} its row blocks" if by_block else ""
    return f"chunks of x{of_blocks}; on the chip, the one it waited for"


def _drop_too_wide(figure, texts: list) -> None:
    """Take away the words that do not fit into their blocks."""
    theme.lay_out(figure, h_pad=0.1)
    renderer = figure.canvas.get_renderer()
    for text, bar in texts:
        if text.get_window_extent(renderer).width > bar.get_window_extent(renderer).width - 2:
            text.remove()
