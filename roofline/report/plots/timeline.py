"""The figure timeline: what link and chip did in one run of each arm that gathers or scatters, on the shape
nearest to the ridge.

What the chip waits for has one colour on both lanes: a chunk, or all pieces of a row block. Each arm is shown by the
sample of median time, so that the figure tells how an arm behaves, not how fast it is. A kernel that waits on the chip
is one block there: it does not tell when its programs waited.
"""

from typing import NamedTuple

import numpy as np

from roofline.analysis.records import frame as frame_of
from roofline.report.format import time_text
from roofline.report.plots import gathers, theme
from roofline.report.plots.theme import BEHIND_TEXT, DARK
from roofline.store.run import Run
from roofline.store.stats import grouped
from roofline.theory.arms import BOTH, base_arm, is_serial

LANE_IN, AROUND_IN = 0.3, 1.0
"""Inches of a lane, and of what is around all lanes of a panel."""

EACH, HEIGHT = 2.5, 0.8
"""Height of an arm with the room below it, and of a block, in lanes."""

HOME = "#bbbbbb"
"""The colour of a block that is of nothing that comes over the link."""

PALETTE = "blend:#5fb3d4,#ffe27a"
"""The colours of what comes over the link, in the order in which it arrives."""

LETTER = 0.01
"""Width of a letter in a block, with room around it, of that of the axes."""

NUMBERS = (
    "numbers: chunks, row blocks or ranks on the link, on the chip what it waited for, or sends; light: it waits\n"
    "dashed: the longer of T_gemm and T_comm, and their sum"
)

WAITS = "#f2f2f2"
"""The colour of a chip's lane where it waits."""


class Block(NamedTuple):
    """The work of a lane for a while. `unit` is the chunk or row block, None for the whole matmul, or what of it needs
    no transfer. `text` stands on it, or else its unit."""

    start_s: float
    end_s: float
    unit: int | None
    text: str = ""


def link_blocks(timeline: dict) -> list[Block]:
    """The transfers, one after another; the pieces of a row block, or of a part, together."""
    arrivals_s = timeline["arrivals_s"]
    ready_s = timeline.get("ready_s") or [0.0] * len(arrivals_s)
    blocks: dict[int, Block] = {}
    free_s = 0.0
    for unit, piece_ready_s, end_s in zip(units_of(timeline), ready_s, arrivals_s, strict=False):
        start_s = blocks[unit].start_s if unit in blocks else max(free_s, piece_ready_s)
        blocks[unit] = Block(start_s, end_s, unit)
        free_s = end_s
    return list(blocks.values())


def chip_blocks(arm: str, timeline: dict) -> list[Block]:
    """The chip's work: before, between and after its waits. The unit is the last that it had waited for, so that
    a launch which took more along (a CPU takes what is here) has the colour of the one it waited for; of a part that
    goes away, the rank that it goes to."""
    units = units_of(timeline)
    waits = timeline["waits"]
    is_whole = not waits or is_serial(arm) or base_arm(arm) == "overlapped"
    count = 0
    start_s = 0.0
    blocks = []
    for next_count, wait_s, resumes_s in (*waits, (None, timeline["end_s"], None)):
        if count and timeline.get("ready_s"):
            blocks.append(Block(start_s, wait_s, None, "add"))
        elif is_whole:
            blocks.append(Block(start_s, wait_s, None, "matmul"))
        else:
            blocks += _part_blocks(timeline, start_s, wait_s)
            if blocks:
                start_s = max(start_s, blocks[-1].end_s)
            if count:
                blocks.append(Block(start_s, wait_s, units[count - 1]))
            elif not is_by_block(timeline):
                blocks.append(Block(start_s, wait_s, None, "own"))
        count = next_count
        start_s = resumes_s
    return blocks


def _part_blocks(timeline: dict, start_s: float, end_s: float) -> list[Block]:
    """The blocks of parts that were ready to go away between two times. Those of one launch go together."""
    pairs = zip(timeline.get("ready_s", ()), units_of(timeline), strict=False)
    blocks = []
    for ready_s, ranks in grouped(pairs).items():
        if start_s < ready_s <= end_s:
            text = " ".join(map(str, ranks))
            blocks.append(Block(start_s, ready_s, ranks[0], text))
            start_s = ready_s
    return blocks


def is_by_block(timeline: dict) -> bool:
    has_blocks = any(block for _, block in timeline["transfers"])
    return has_blocks and not timeline.get("ready_s")


def units_of(timeline: dict) -> list[int]:
    """The unit of each transfer: a chunk, or a piece of a row block."""
    by_block = is_by_block(timeline)
    return [transfer[by_block] for transfer in timeline["transfers"]]


def timeline(run: Run):
    """The figure; None where no arm has a timeline on a shape that can be compared with its T_gemm and T_comm."""
    cases = gathers.prepared(frame_of(run))
    cases = cases[~cases["op"].isin(BOTH)]
    rows = run.rows
    timelines = []
    for shape, arm in cases[["shape", "contender"]].to_numpy():
        timelines.append(rows[shape, arm].timelines.get(arm))
    cases = cases.assign(timeline=timelines).dropna(subset="timeline")
    if cases.empty:
        return None
    cases = cases[cases["shape"].isin(nearest_to_the_ridge(cases))]
    lanes = EACH * cases.groupby("op", sort=False).size()
    finding = "What link and chip do in one run of each arm, of median time"
    figure, panels = gathers.panels(cases, finding, LANE_IN * lanes + AROUND_IN)
    for axes, rows in panels:
        _draw(axes, rows)
    figure.axes[-1].set_xlabel(NUMBERS, fontsize=9)
    return figure


def nearest_to_the_ridge(cases):
    """The shape of each operation that is on the wire `ridge`, or else nearest to where that would be."""
    is_ridge = cases["wire"] == "ridge"
    away = np.log(cases["ratio"]).abs().mask(is_ridge, -1)
    return cases.loc[away.groupby(cases["op"]).idxmin(), "shape"]


def _draw(axes, rows) -> None:
    """Draw the lanes of every arm on one shape, and what they are to be compared with."""
    from matplotlib.ticker import EngFormatter

    first = rows.iloc[0]
    marks_s = [first["ideal_s"], first["t_gemm_s"] + first["t_comm_s"]]
    ends_s = [timeline["end_s"] for timeline in rows["timeline"]]
    axes.set_xlim(0, 1.1 * max(marks_s + ends_s))
    axes.set_ylim(EACH * len(rows), -0.4)
    ticks = {}
    for index, (arm, timeline) in enumerate(rows[["contender", "timeline"]].to_numpy()):
        link_y = EACH * index + 0.5
        chip_y = link_y + 0.95
        ticks[link_y] = f"{arm}: link"
        ticks[chip_y] = "chip"
        end_s = timeline["end_s"]
        lane = axes.barh(chip_y, end_s, HEIGHT, color=WAITS)
        axes.bar_label(
            lane,
            [time_text(end_s)],
            padding=3,
            fontsize=9.5,
            weight="bold",
            bbox=BEHIND_TEXT,
            zorder=6,
        )
        units = list(dict.fromkeys(units_of(timeline)))
        colours = theme.colours(units, PALETTE) | {None: HOME}
        _bars(axes, link_y, link_blocks(timeline), colours)
        _bars(axes, chip_y, chip_blocks(arm, timeline), colours)
    for mark_s in marks_s:
        axes.axvline(mark_s, color=DARK, linestyle="--", linewidth=1.2, zorder=5)
    theme.name_rows(axes, ticks)
    axes.xaxis.set_major_formatter(EngFormatter("s"))
    axes.set_title(f"{axes.get_title('left')}\n{first['name']}, T_gemm / T_comm = {first['ratio']:.2f}")


def _bars(axes, y: float, blocks: list[Block], colours: dict) -> None:
    """Draw the blocks of a lane, with their words where these fit in."""
    narrow_s = LETTER * axes.get_xlim()[1]
    for block in blocks:
        text = block.text or str(block.unit)
        width_s = block.end_s - block.start_s
        bar = axes.barh(
            y,
            width_s,
            HEIGHT,
            left=block.start_s,
            color=colours[block.unit],
            edgecolor="white",
            linewidth=0.6,
            zorder=3,
        )
        if width_s > narrow_s * len(text):
            axes.bar_label(bar, [text], label_type="center", fontsize=8, color=DARK, zorder=4)
