"""The figure timeline: what link and chip did in one run of each arm, on the shape nearest to the ridge.

What the chip waits for has one colour on both lanes: a chunk, or all pieces of a row block. Each arm is shown by the
sample of median time, so that the figure tells how an arm behaves, not how fast it is.
"""

import math
from pathlib import Path
from typing import NamedTuple

from roofline.report import arms, figures
from roofline.report.figures import BEHIND_TEXT, DARK
from roofline.report.journal import Run

LANE_IN, AROUND_IN = 0.3, 1.9
"""Inches of a lane, and of what is around all lanes of a panel."""

HEIGHT = 0.8
"""Of a block, in lanes."""

HOME_UNIT = -1
HOME, MATMUL, IDLE = "#cccccc", "#999999", "#f2f2f2"
UNITS = {
    "all_gather_matmul": "numbers: chunks of x, in row_block its row blocks; on the chip, the one it waited for",
    "weight_prefetch": "numbers: shares of the next layer's weights, gathered while this layer multiplies",
}
SHORTEST = 2e-3
"""Blocks and gaps of less than this share of the axis are not drawn: the time it takes to look at a flag."""


class Block(NamedTuple):
    """What a lane did for a while. `unit` is the chunk or row block, `HOME_UNIT` for the chunk that needs no transfer,
    None for the whole matmul."""

    start_s: float
    end_s: float
    unit: int | None
    text: str


def arms_of(run: Run, shape_id: str) -> list[str]:
    """The arms on a shape whose timeline shows transfers that took time."""
    timelines = run.shapes[shape_id]["timelines"]
    return [arm for arm in run.measured(shape_id) if arm in timelines and any(timelines[arm]["arrivals_s"])]


def draw(run: Run, records: list[dict], folder: Path) -> list[Path]:
    """Write timeline.svg and .png."""
    chosen = _nearest_to_the_ridge(run, records)
    counts = [len(arms_of(run, shape_id)) for shape_id in chosen]
    heights = [2.5 * LANE_IN * count + AROUND_IN for count in counts]
    figure = figures.new(11, sum(heights) + 0.6)
    figure.suptitle(f"{run.head['title']}: one run of each arm, of median time", x=0.01, ha="left", fontsize=13)
    figure.get_layout_engine().set(h_pad=0.1)
    panels = figure.subplots(len(chosen), squeeze=False, height_ratios=heights)[:, 0]
    texts = []
    for axes, shape_id in zip(panels, chosen, strict=True):
        texts += _panel(axes, run, shape_id, chosen[shape_id], arms.styles(records), records)
    figures.footer(figure, run.head["footer"])
    _drop_too_wide(figure, texts)
    return figures.save(figure, folder, "timeline")


def _nearest_to_the_ridge(run: Run, records: list[dict]) -> dict[str, dict]:
    """{shape id: a record of it}, one for each operation: on the wire `ridge` if there is one, never a void one where
    there are others."""

    def distance(item: tuple[str, dict]) -> tuple:
        record = item[1]
        away = abs(math.log(arms.balance_of(record))) if arms.is_timed(record) else math.inf
        return record["link_off_pace"] is not None, record["wire"] != "ridge", away

    firsts = {name: own[0] for name, own in arms.by_shape(records).items() if arms_of(run, name)}
    ops = dict.fromkeys(record["op"] for record in firsts.values())
    return dict(min(((n, r) for n, r in firsts.items() if r["op"] == op), key=distance) for op in ops)


def link_blocks(timeline: dict) -> list[Block]:
    """The transfers, one after another; the pieces of a row block together."""
    by_block = _is_by_block(timeline)
    blocks: list[Block] = []
    began = 0.0
    for transfer, arrival in zip(timeline["transfers"], timeline["arrivals_s"], strict=False):
        unit = transfer[by_block]
        if by_block and blocks and blocks[-1].unit == unit:
            blocks[-1] = blocks[-1]._replace(end_s=arrival)
        else:
            blocks.append(Block(began, arrival, unit, str(unit)))
        began = arrival
    return blocks


def chip_blocks(arm: str, timeline: dict) -> list[Block]:
    """What the chip computed: before, between and after its waits. The unit is the last that it had waited for, so that
    a launch which took more along (a CPU takes what is here) has the colour of the one it waited for."""
    waits, by_block = timeline["waits"], _is_by_block(timeline)
    starts = [0.0, *(ended for _, _, ended in waits)]
    ends = [*(began for _, began, _ in waits), timeline["end_s"]]
    blocks = []
    for count, start_s, end_s in zip([None, *(count for count, *_ in waits)], starts, ends, strict=True):
        if arm in (arms.SERIAL, "overlapped"):
            blocks.append(Block(start_s, end_s, None, "matmul"))
        elif count:
            unit = timeline["transfers"][count - 1][by_block]
            blocks.append(Block(start_s, end_s, unit, str(unit)))
        elif not by_block:
            blocks.append(Block(start_s, end_s, HOME_UNIT, "own"))
    return blocks


def _is_by_block(timeline: dict) -> bool:
    return any(block for _, block in timeline["transfers"])


def _panel(axes, run: Run, shape_id: str, record: dict, styles: dict, records: list[dict]) -> list:
    """The lanes of every arm on one shape; returns (text, from, to) of what must fit into its block."""
    timelines = run.shapes[shape_id]["timelines"]
    shown = [arm for arm in styles if arm in arms_of(run, shape_id)]
    marks_s = _marks(record) if arms.is_timed(record) else {}
    last_s = max([timelines[arm]["end_s"] for arm in shown] + list(marks_s.values()))
    shortest_s, texts = SHORTEST * last_s, []
    axes.set_xlim(0, 1e3 * last_s * 1.1)
    axes.set_ylim(2.5 * len(shown), -0.4)
    ticks = {}
    for index, arm in enumerate(shown):
        timeline, top = timelines[arm], 2.5 * index
        lanes = {"link": link_blocks(timeline), "chip": chip_blocks(arm, timeline)}
        colours = _colours(timeline)
        for lane, (name, blocks) in enumerate(lanes.items()):
            y = top + 0.5 + lane * 0.95
            ticks[y] = name
            blocks = [block for block in blocks if block.end_s - block.start_s > shortest_s]
            if lane:
                gaps = [gap for gap in _gaps(blocks, timeline["end_s"]) if gap.end_s - gap.start_s > shortest_s]
                texts += _bars(axes, y, gaps, lambda unit: IDLE)
            texts += _bars(axes, y, blocks, colours.get)
        end_ms = 1e3 * timeline["end_s"]
        words = {"va": "center", "weight": "bold"}
        axes.text(end_ms, top + 1.45, f" {_digits(end_ms)} ms", fontsize=9.5, bbox=BEHIND_TEXT, zorder=6, **words)
        axes.annotate(
            arm, (0, top + 0.98), (-40, 0), xycoords=("axes fraction", "data"), textcoords="offset points", ha="right",
            fontsize=10, color=styles[arm]["color"], annotation_clip=False, **words,
        )  # fmt: skip
    for index, (text, at_s) in enumerate(marks_s.items()):
        axes.axvline(1e3 * at_s, color=DARK, linestyle="--", linewidth=1.2, zorder=5)
        axes.annotate(
            f"{text}: {_digits(1e3 * at_s)} ms", (1e3 * at_s, 1), (0, 3 + 12 * index), ha="right", va="bottom",
            fontsize=9, xycoords=("data", "axes fraction"), textcoords="offset points", annotation_clip=False,
        )  # fmt: skip
    axes.set_yticks(list(ticks), list(ticks.values()), fontsize=9)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_xlabel("ms from the start", fontsize=10)
    _titles(axes, run, shape_id, record, shown, records)
    return texts


def _digits(value: float) -> str:
    """Three of them: `40.0`, not `40`."""
    return f"{value:#.3g}".rstrip(".")


def _marks(record: dict) -> dict[str, float]:
    """Words for the two times that all is measured against."""
    gemm_s, comm_s = record["t_gemm_s"], record["t_comm_s"]
    longer = "T_gemm" if gemm_s >= comm_s else "T_comm"
    return {f"the longer one, {longer}": max(gemm_s, comm_s), "both, T_gemm + T_comm": gemm_s + comm_s}


def _colours(timeline: dict) -> dict:
    """{unit: colour}, in the order of arrival from dark to light."""
    import seaborn

    units = list(dict.fromkeys(transfer[_is_by_block(timeline)] for transfer in timeline["transfers"]))
    shades = dict(zip(units, seaborn.color_palette("viridis", len(units)), strict=True))
    return {None: MATMUL, HOME_UNIT: HOME} | shades


def _gaps(blocks: list[Block], end_s: float) -> list[Block]:
    """When the chip waited."""
    starts = [0.0, *(block.end_s for block in blocks)]
    ends = [*(block.start_s for block in blocks), end_s]
    return [Block(start, end, None, "waits") for start, end in zip(starts, ends, strict=True)]


def _bars(axes, y: float, blocks: list[Block], colour) -> list:
    """Draw `blocks` on the lane at `y`; returns their texts with where each has to fit."""
    texts = []
    for block in blocks:
        fill = colour(block.unit)
        width_ms = 1e3 * (block.end_s - block.start_s)
        (bar,) = axes.barh(
            y, width_ms, left=1e3 * block.start_s, height=HEIGHT, color=fill, edgecolor="white", linewidth=0.6, zorder=3
        )  # fmt: skip
        dark = sum(share * part for share, part in zip((0.3, 0.59, 0.11), bar.get_facecolor(), strict=False)) < 0.55
        text = axes.text(
            1e3 * block.start_s + width_ms / 2, y, block.text, fontsize=8, ha="center", va="center", zorder=4,
            color="white" if dark else DARK,
        )  # fmt: skip
        texts.append((text, bar))
    return texts


def _titles(axes, run: Run, shape_id: str, record: dict, shown: list[str], records: list[dict]) -> None:
    balance = f", T_gemm / T_comm = {arms.balance_of(record):.2f}" if arms.is_timed(record) else ""
    void = "" if record["link_off_pace"] is None else f"; void: {arms.void_text(record)}"
    lost = [arm for arm in run.measured(shape_id) if arm not in shown]
    below = [f"{arms.source_text(run)}, {arms.link_text([record])}{void}", UNITS.get(record["op"], "numbers: chunks")]
    if lost:
        below.append(f"no timeline of {', '.join(lost)}")
    text = f"{record['op']}, {arms.label(record, records)}, wire {record['wire']}{balance}"
    arms.title(axes, text, *below, above=34)


def _drop_too_wide(figure, texts: list) -> None:
    """Take away the words that do not fit into their blocks."""
    figure.draw_without_rendering()
    renderer = figure.canvas.get_renderer()
    for text, bar in texts:
        if text.get_window_extent(renderer).width > bar.get_window_extent(renderer).width - 2:
            text.remove()
