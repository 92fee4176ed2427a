"""The figure timeline: what link and chip did in one run of each arm, on the shape nearest to the ridge.

What the chip waits for has one colour on both lanes: a chunk, or all pieces of a row block. Each arm is shown by the
sample of median time, so that the figure tells how an arm behaves, not how fast it is. One whose kernel waits on the
chip is shown by a traced call: its chip is an image with a row for each program.
"""

import math
from itertools import accumulate
from typing import NamedTuple

from roofline.analysis.base import records_of
from roofline.analysis.overlap import style, timeline_raster
from roofline.analysis.overlap.arms import PERSISTENT, base_arm
from roofline.report import theme
from roofline.report.theme import BEHIND_TEXT, DARK
from roofline.store.run import Run

LANE_IN, AROUND_IN = 0.3, 1.9
"""Inches of a lane, and of what is around all lanes of a panel."""

HEIGHT = 0.8
"""Of a block, in lanes."""

RASTER, BINS = 3.0, 1200
"""Height of an image of all programs, in lanes, and how many columns it has: about one for each dot of the figure."""

HOME_UNIT, WAITS = -1, -2
HOME, MATMUL, IDLE = "#cccccc", "#999999", "#f2f2f2"
SHORTEST = 2e-3
"""Blocks and gaps of less than this share of the axis are not drawn: the time it takes to look at a flag."""


class Block(NamedTuple):
    """What a lane did for a while. `unit` is the chunk or row block, `HOME_UNIT` for the chunk that needs no transfer,
    None for the whole matmul, `WAITS` for a wait."""

    start_s: float
    end_s: float
    unit: int | None
    text: str


def arms_of(run: Run, shape_id: str) -> list[str]:
    """The arms on a shape whose timeline shows transfers that took time."""
    timelines = run.shapes[shape_id].timelines
    return [arm for arm in run.measured(shape_id) if arm in timelines and any(timelines[arm]["arrivals_s"])]


def is_there(run: Run) -> bool:
    """Whether any arm has a timeline to show."""
    return any(arms_of(run, shape) for shape in run.shapes)


def draw(run: Run, frame):
    records = records_of(frame)
    chosen = _nearest_to_the_ridge(run, records)
    shown = {name: arms_of(run, name) for name in chosen}
    lanes = [_tops(run.shapes[name].timelines, own)[-1] for name, own in shown.items()]
    figure = theme.new(11, sum(LANE_IN * count + AROUND_IN for count in lanes) + 0.6)
    traced = any(run.shapes[name].timelines[arm].get("runs") for name, own in shown.items() for arm in own)
    median = "" if traced else ", of median time"
    figure.suptitle(f"{run.metadata['title']}: one run of each arm{median}", x=0.01, ha="left", fontsize=13)
    figure.get_layout_engine().set(h_pad=0.1)
    panels = figure.subplots(len(chosen), squeeze=False, height_ratios=lanes)[:, 0]
    texts = []
    for axes, shape_id in zip(panels, chosen, strict=True):
        texts += _panel(axes, run, shape_id, chosen[shape_id], style.styles(records), records)
    theme.footer(figure, run.metadata["footer"])
    _drop_too_wide(figure, texts)
    return figure


def _nearest_to_the_ridge(run: Run, records: list[dict]) -> dict[str, dict]:
    """{shape id: a record of it}, one for each operation: on the wire `ridge` if there is one, never a void one where
    there are others."""

    def distance(item: tuple[str, dict]) -> tuple:
        record = item[1]
        away = abs(math.log(style.balance_of(record))) if style.is_timed(record) else math.inf
        return record["link_off_pace"] is not None, record["wire"] != "ridge", away

    firsts = {name: own[0] for name, own in style.by_shape(records).items() if arms_of(run, name)}
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
        if base_arm(arm) in (style.SERIAL, "overlapped"):
            blocks.append(Block(start_s, end_s, None, "matmul"))
        elif count:
            unit = timeline["transfers"][count - 1][by_block]
            blocks.append(Block(start_s, end_s, unit, str(unit)))
        elif not by_block:
            blocks.append(Block(start_s, end_s, HOME_UNIT, "own"))
    return blocks


def _is_by_block(timeline: dict) -> bool:
    return any(block for _, block in timeline["transfers"])


def _tops(timelines: dict, shown: list[str]) -> list[float]:
    """Where the lanes of each arm begin, counted in lanes from the top, and where the last ones end."""
    sizes = [1.7 + (RASTER if timelines[arm].get("runs") else HEIGHT) for arm in shown]
    return [0.0, *accumulate(sizes)]


def _panel(axes, run: Run, shape_id: str, record: dict, styles: dict, records: list[dict]) -> list:
    """The lanes of every arm on one shape; returns (text, bar) of what must fit into its block."""
    shape, timelines = run.shapes[shape_id], run.shapes[shape_id].timelines
    shown = [arm for arm in styles if arm in arms_of(run, shape_id)]
    marks_s = _marks(record) if style.is_timed(record) else {}
    last_s = max([timelines[arm]["end_s"] for arm in shown] + list(marks_s.values()))
    shortest_s, tops, texts, ticks = SHORTEST * last_s, _tops(timelines, shown), [], {}
    axes.set_xlim(0, 1e3 * last_s * 1.1)
    axes.set_ylim(tops[-1], -0.4)
    traced = any(timelines[arm].get("runs") for arm in shown)
    for arm, top, below in zip(shown, tops, tops[1:], strict=False):
        timeline, link_y, chip_y = timelines[arm], top + 0.5, (top + below + 0.4) / 2
        ticks |= {link_y: "link", chip_y: "chip"}
        colours = _colours(timeline)
        texts += _bars(axes, link_y, _longer(link_blocks(timeline), shortest_s), colours)
        if timeline.get("runs"):
            ticks[chip_y] = f"chip,\n{_image(axes, chip_y, timeline, shape.facts['row_tiles'])}\nprograms"
        else:
            blocks = _longer(chip_blocks(arm, timeline), shortest_s)
            gaps = _longer(_gaps(blocks, timeline["end_s"]), shortest_s)
            texts += _bars(axes, chip_y, blocks + gaps, colours)
        end_ms = 1e3 * timeline["end_s"]
        words = {"va": "center", "weight": "bold"}
        axes.text(end_ms, chip_y, f" {_digits(end_ms)} ms", fontsize=9.5, bbox=BEHIND_TEXT, zorder=6, **words)
        name = arm.replace(PERSISTENT, f"\n{PERSISTENT}")  # the lanes want the width
        axes.annotate(
            name, (0, (top + below - 0.54) / 2), (-60 if traced else -40, 0), xycoords=("axes fraction", "data"),
            textcoords="offset points", ha="right", fontsize=10, color=styles[arm]["color"], annotation_clip=False,
            **words,
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


def _image(axes, y: float, timeline: dict, row_tiles: int) -> int:
    """Draw what each program did, around `y`, and beside it how much they waited; returns how many there are."""
    from matplotlib.colors import to_rgb

    runs = timeline["runs"]
    colours = {unit: to_rgb(colour) for unit, colour in _colours(timeline).items()}
    pixels = timeline_raster.image(runs, _unit_of(timeline, row_tiles), colours, colours[WAITS], BINS)
    end_ms = 1e-6 * timeline_raster.end_ns(runs)
    extent = (0, end_ms, y + RASTER / 2, y - RASTER / 2)
    axes.imshow(pixels, aspect="auto", interpolation="none", extent=extent, zorder=3)
    axes.annotate(
        f"programs wait\n{100 * timeline_raster.waited_share(runs):.0f} % of the time", (1, y), (4, 0), fontsize=9,
        va="center", xycoords=("axes fraction", "data"), textcoords="offset points", annotation_clip=False,
    )  # fmt: skip
    return len(pixels)


def _unit_of(timeline: dict, row_tiles: int):
    """unit(m, position): what a product of row tile m with the chunk at `position` of the arrival order needs."""
    transfers = timeline["transfers"]
    blocks = 1 + max(block for _, block in transfers)
    order = [HOME_UNIT, *(chunk for chunk, _ in transfers)]
    return lambda m, position: m * blocks // row_tiles if blocks > 1 else order[position]


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
    return {None: MATMUL, HOME_UNIT: HOME, WAITS: IDLE} | shades


def _gaps(blocks: list[Block], end_s: float) -> list[Block]:
    """When the chip waited."""
    starts = [0.0, *(block.end_s for block in blocks)]
    ends = [*(block.start_s for block in blocks), end_s]
    return [Block(start, end, WAITS, "waits") for start, end in zip(starts, ends, strict=True)]


def _longer(blocks: list[Block], shortest_s: float) -> list[Block]:
    return [block for block in blocks if block.end_s - block.start_s > shortest_s]


def _bars(axes, y: float, blocks: list[Block], colours: dict) -> list:
    """Draw `blocks` on the lane at `y`; returns their texts with where each has to fit."""
    texts = []
    for block in blocks:
        width_ms = 1e3 * (block.end_s - block.start_s)
        (bar,) = axes.barh(
            y, width_ms, left=1e3 * block.start_s, height=HEIGHT, color=colours[block.unit], edgecolor="white",
            linewidth=0.6, zorder=3,
        )  # fmt: skip
        dark = sum(share * part for share, part in zip((0.3, 0.59, 0.11), bar.get_facecolor(), strict=False)) < 0.55
        text = axes.text(
            1e3 * block.start_s + width_ms / 2, y, block.text, fontsize=8, ha="center", va="center", zorder=4,
            color="white" if dark else DARK,
        )  # fmt: skip
        texts.append((text, bar))
    return texts


def _titles(axes, run: Run, shape_id: str, record: dict, shown: list[str], records: list[dict]) -> None:
    balance = f", T_gemm / T_comm = {style.balance_of(record):.2f}" if style.is_timed(record) else ""
    void = "" if record["link_off_pace"] is None else f"; void: {style.void_text(record)}"
    lost = [arm for arm in run.measured(shape_id) if arm not in shown]
    timelines = run.shapes[shape_id].timelines
    below = [f"{style.source_text(run)}, {style.link_text([record])}{void}"]
    if record["op"] == "weight_prefetch":
        below.append("numbers: shares of the next layer's weights, gathered while this layer multiplies")
    else:
        by_block = " and ".join(dict.fromkeys(base_arm(arm) for arm in shown if _is_by_block(timelines[arm])))
        of_blocks = f", in {by_block} its row blocks" if by_block else ""
        below.append(f"numbers: chunks of x{of_blocks}; on the chip, the one it waited for")
    if traced := [arm for arm in shown if timelines[arm].get("runs")]:
        others = "; others: run of median time" if len(shown) > len(traced) else ""
        below.append(f"{', '.join(traced)}: traced call, a row for each program (grey: own chunk, pale: waits){others}")
    if lost:
        below.append(f"no timeline of {', '.join(lost)}")
    text = f"{record['op']}, {style.label(record, records)}, wire {record['wire']}{balance}"
    style.title(axes, text, *below, above=34)


def _drop_too_wide(figure, texts: list) -> None:
    """Take away the words that do not fit into their blocks."""
    figure.draw_without_rendering()
    renderer = figure.canvas.get_renderer()
    for text, bar in texts:
        if text.get_window_extent(renderer).width > bar.get_window_extent(renderer).width - 2:
            text.remove()
