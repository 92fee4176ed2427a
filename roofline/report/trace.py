"""`timeline.json`: what the figure timeline shows, in Chrome's trace format, for https://ui.perfetto.dev.

A process for each arm, on it a thread for the link and one for the chip.
"""

import json
from itertools import chain, islice
from pathlib import Path

from roofline.analysis.records import frame
from roofline.analysis.timelines import WAITS, Block, chip_blocks, link_blocks, timelines_of, unit_of
from roofline.plots import style
from roofline.plots.timeline import nearest_to_the_ridge
from roofline.store.run import Run

NAME = "timeline.json"
MOST_EVENTS = 100_000
"""Some 12 MB. What comes after them is left out, and counted in `otherData`."""


def write(run: Run, folder: Path) -> Path:
    """Write the timelines that the figure shows; returns the path."""
    shapes = [row.shape for row in nearest_to_the_ridge(run, style.prepared(frame(run)))]
    arms = [
        (shape, arm, timeline_of_arm) for shape in shapes for arm, timeline_of_arm in timelines_of(run, shape).items()
    ]
    every = chain.from_iterable(_process(pid, *about) for pid, about in enumerate(arms, 1))
    events = (event for event in every if event.get("dur", 1))
    kept = list(islice(events, MOST_EVENTS))
    document = {"traceEvents": kept, "otherData": {"title": run.metadata["title"], "left_out": sum(1 for _ in events)}}
    path = folder / NAME
    path.write_text(json.dumps(document, separators=(",", ":")) + "\n", encoding="utf-8")
    return path


def _process(pid: int, shape: str, arm: str, timeline_of_arm: dict):
    """The events of an arm: names of it and of its lanes, then what these did, in us."""
    yield {"ph": "M", "pid": pid, "tid": 0, "name": "process_name", "args": {"name": f"{arm}, {shape}"}}
    for tid, name in enumerate(("link", "chip")):
        yield {"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": name}}
    unit = unit_of(timeline_of_arm)
    for block in link_blocks(timeline_of_arm):
        yield _event(pid, 0, f"{unit} {block.text}", "transfer", block.start_s, block.end_s)
    waits = [Block(*span, WAITS, "waits") for _, *span in timeline_of_arm["waits"]]
    for block in sorted([*chip_blocks(arm, timeline_of_arm), *waits], key=lambda block: block.start_s):
        name = f"with {unit} {block.text}" if block.text.isdigit() else block.text
        yield _event(pid, 1, name, "wait" if block.unit == WAITS else "matmul", block.start_s, block.end_s)


def _event(pid: int, tid: int, name: str, category: str, start_s: float, end_s: float) -> dict:
    times = {"ts": round(1e6 * start_s, 3), "dur": max(0.0, round(1e6 * (end_s - start_s), 3))}
    return {"ph": "X", "pid": pid, "tid": tid, "name": name, "cat": category, **times}
