"""What link and chip did in one run of an arm, in blocks of time: what the figure timeline shows."""

from typing import NamedTuple

from roofline.store.run import Run
from roofline.theory.arms import base_arm, is_serial

HOME_UNIT, WAITS = -1, -2


class Block(NamedTuple):
    """What a lane did for a while. `unit` is the chunk or row block, `HOME_UNIT` for the chunk that needs no transfer,
    None for the whole matmul, `WAITS` for a wait."""

    start_s: float
    end_s: float
    unit: int | None
    text: str


def timelines_of(run: Run, shape_id: str) -> dict[str, dict]:
    """Return {arm: its timeline} on a shape, of arms whose transfers took time."""
    timelines = run.shapes[shape_id].timelines
    return {
        arm: timelines[arm] for arm in run.measured(shape_id) if arm in timelines and any(timelines[arm]["arrivals_s"])
    }


def link_blocks(timeline: dict) -> list[Block]:
    """Return the transfers, one after another; the pieces of a row block, or of a part, together."""
    units, halves = units_of(timeline), [bool(block) and _is_layer(timeline) for _, block in timeline["transfers"]]
    keys = [*zip(halves, units, strict=True)]
    ends_s = dict(zip(keys, timeline["arrivals_s"], strict=False))
    starts_s = [0.0, *ends_s.values()]
    if ready_s := timeline.get("ready_s"):
        first_s = dict(zip(reversed(keys), reversed(ready_s), strict=False))
        starts_s = map(max, starts_s, (first_s[key] for key in ends_s))
    spans = zip(starts_s, ends_s.values(), ends_s, strict=False)
    return [Block(start_s, end_s, unit, str(unit)) for start_s, end_s, (_, unit) in spans]


def chip_blocks(arm: str, timeline: dict) -> list[Block]:
    """Return what the chip computed: before, between and after its waits. The unit is the last that it had waited for,
    so that a launch which took more along (a CPU takes what is here) has the colour of the one it waited for; of a part
    that goes away, the rank that it goes to."""
    units, waits, sent = units_of(timeline), timeline["waits"], _sent(timeline)
    gathered = len(units) - sum(map(len, sent.values()))  # could go from the start
    counts, blocks = [0, *(count for count, *_ in waits)], []
    spans = between([span for _, *span in waits], timeline["end_s"])
    for count, (start_s, end_s) in zip(counts, spans, strict=True):
        if _is_whole(arm, waits, count) or count > gathered:
            blocks.append(Block(start_s, end_s, None, "add" if count > gathered else "matmul"))
            continue
        parts = _part_blocks(sent, start_s, end_s)
        blocks += parts
        start_s = parts[-1].end_s if parts else start_s
        if count and not (sent and start_s >= max(sent)):
            blocks.append(Block(start_s, end_s, units[count - 1], str(units[count - 1])))
        elif not is_by_block(timeline):
            blocks.append(Block(start_s, end_s, HOME_UNIT, "own"))
    return blocks


def _sent(timeline: dict) -> dict[float, list[int]]:
    """The parts that go away, by the time at which they could. Those of one launch go together."""
    sent: dict[float, list[int]] = {}
    for at_s, unit in zip(timeline.get("ready_s", ()), units_of(timeline), strict=False):
        if at_s:
            sent.setdefault(at_s, []).append(unit)
    return sent


def _part_blocks(sent: dict[float, list[int]], start_s: float, end_s: float) -> list[Block]:
    """The blocks of parts that were ready to go between two times."""
    blocks = []
    for at_s, ranks in sent.items():
        if start_s < at_s <= end_s:
            blocks.append(Block(start_s, at_s, ranks[0], " ".join(map(str, ranks))))
            start_s = at_s
    return blocks


def _is_whole(arm: str, waits: list, count: int) -> bool:
    """Whether the chip computes all of a matmul behind so many transfers, and no part of it."""
    if arm == "layer_signalled" and not count:
        return True
    return not waits or is_serial(arm) or base_arm(arm) == "overlapped"


def between(spans: list, end_s: float):
    """Return (start, end) of the times before, between and after `spans`, until `end_s`."""
    return zip([0.0, *(end for _, end in spans)], [*(start for start, _ in spans), end_s], strict=True)


def is_by_block(timeline: dict) -> bool:
    return any(block for _, block in timeline["transfers"]) and not timeline.get("ready_s")


def _is_layer(timeline: dict) -> bool:
    """Return whether it is of a gather and a scatter, whose blocks count from 1."""
    return bool(timeline.get("in_turn"))


def units_of(timeline: dict) -> list[int]:
    """Return what each transfer brings: a chunk, or a piece of a row block. Of a layer the rank whose rows come, or
    whose part goes, in one order."""
    if _is_layer(timeline):
        rows = [chunk for chunk, block in timeline["transfers"] if not block]
        pieces = len(timeline["transfers"]) // len(rows) - 1  # of a part
        return rows + [chunk for chunk in rows for _ in range(pieces)]
    by_block = is_by_block(timeline)
    return [transfer[by_block] for transfer in timeline["transfers"]]
