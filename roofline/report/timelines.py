"""The work of link and chip in one run of an arm, in blocks of time, for the figure timeline."""

from typing import NamedTuple

from roofline.store.run import Run
from roofline.store.stats import grouped
from roofline.theory.arms import BOTH, base_arm, is_serial

HOME_UNIT = -1


class Block(NamedTuple):
    """The work of a lane for a while. `unit` is the chunk or row block, `HOME_UNIT` for the chunk that needs no
    transfer, None for the whole matmul."""

    start_s: float
    end_s: float
    unit: int | None
    text: str


def timelines_of(run: Run, shape_id: str) -> dict[str, dict]:
    """{arm: its timeline} on a shape, of arms whose transfers took time; {} of a layer, which gathers and scatters."""
    shape = run.made(shape_id)
    if not shape or shape.op in BOTH:
        return {}
    shown = {}
    for arm in run.measured(shape_id):
        timeline = shape.timelines.get(arm)
        if timeline and any(timeline["arrivals_s"]):
            shown[arm] = timeline
    return shown


def link_blocks(timeline: dict) -> list[Block]:
    """The transfers, one after another; the pieces of a row block, or of a part, together."""
    arrivals_s = timeline["arrivals_s"]
    ready_s = timeline.get("ready_s") or [0.0] * len(arrivals_s)
    blocks: dict[int, Block] = {}
    free_s = 0.0
    for unit, piece_ready_s, end_s in zip(units_of(timeline), ready_s, arrivals_s, strict=False):
        start_s = blocks[unit].start_s if unit in blocks else max(free_s, piece_ready_s)
        blocks[unit] = Block(start_s, end_s, unit, str(unit))
        free_s = end_s
    return list(blocks.values())


def chip_blocks(arm: str, timeline: dict) -> list[Block]:
    """The chip's work: before, between and after its waits. The unit is the last that it had waited for, so that
    a launch which took more along (a CPU takes what is here) has the colour of the one it waited for; of a part that
    goes away, the rank that it goes to."""
    units = units_of(timeline)
    waits = timeline["waits"]
    sent = _sent(timeline)
    is_whole = not waits or is_serial(arm) or base_arm(arm) == "overlapped"
    count = 0
    start_s = 0.0
    blocks = []
    for next_count, wait_s, resumes_s in (*waits, (None, timeline["end_s"], None)):
        if sent and count:
            blocks.append(Block(start_s, wait_s, None, "add"))
        elif is_whole:
            blocks.append(Block(start_s, wait_s, None, "matmul"))
        else:
            blocks += _part_blocks(sent, start_s, wait_s)
            if blocks:
                start_s = max(start_s, blocks[-1].end_s)
            if count:
                unit = units[count - 1]
                blocks.append(Block(start_s, wait_s, unit, str(unit)))
            elif not is_by_block(timeline):
                blocks.append(Block(start_s, wait_s, HOME_UNIT, "own"))
        count = next_count
        start_s = resumes_s
    return blocks


def _sent(timeline: dict) -> dict[float, list[int]]:
    """The parts that go away, by the time at which they could. Those of one launch go together."""
    pairs = zip(timeline.get("ready_s", ()), units_of(timeline), strict=False)
    return grouped((ready_s, unit) for ready_s, unit in pairs if ready_s)


def _part_blocks(sent: dict[float, list[int]], start_s: float, end_s: float) -> list[Block]:
    """The blocks of parts that were ready to go between two times."""
    blocks = []
    for ready_s, ranks in sent.items():
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
