"""Journals written by hand, for tests of what is derived from them, and where words of their figures stand."""

import json
from itertools import combinations

from roofline.operations.matmul import Matmul

DATASHEET = {"name": "H200", "flops": {"bf16": 989.4e12}, "memory_bandwidth_bytes_per_s": 4.8e12}
HEAD = {
    "kind": "run",
    "schema": 1,
    "method_version": 1,
    "title": "FFN matmuls of xxl on a made-up chip",
    "footer": "made up for a test",
    "notes": [],
    "machine": {"source": "gpu", "chip": "made up", "datasheet": DATASHEET},
}


def ceiling(kind, value, when="start", dtype=None, spread=0.01):
    return {
        "kind": "ceiling", "ceiling": kind, "dtype": dtype, "when": when, "probe": "made up", "value": value,
        "low": value * (1 - spread), "high": value * (1 + spread), "rounds": 30,
    }  # fmt: skip


def lines_of(case, times, *, about=None, rounds=30, slower=lambda index: 1.0, values=None, **fields):
    """Lines of the shape of `case`: a journal's line of older schemas, and samples round by round.

    `times` is {entrant: seconds in every round, or a list of them}; in a round all take `slower(index)` times as long,
    and so do `values`, {entrant: {field: what was read beside}}. `about` are further fields of entrants, `fields` of
    the shape.
    """
    about, values, work = about or {}, values or {}, case.work
    of_gather = {name: getattr(case, name) for name in ("ranks", "wire") if hasattr(case, name)}
    line = {
        "kind": "shape", "shape": case.id, "op": case.op, "model": case.model, "layer": case.layer, "tp": case.tp,
        "m": case.m, "n": case.n, "k": case.k, "dtype": case.dtype, "flop": work.flop,
        "device_bytes": work.device_bytes, "wire_bytes": work.wire_bytes, "seed": 0, "rounds": rounds,
        "stopped_by": "width", "cache": "cold", "late": dict.fromkeys(times, 0), "visit": 1,
        "telemetry": {"throttled": None, "throttle_reasons": ""},
        "contenders": {name: {"config": "known", "relative_error": 0.0} | about.get(name, {}) for name in times},
    } | of_gather | fields  # fmt: skip
    samples = [
        {"kind": "sample", "shape": case.id, "contender": name, "round": index, "position": 0}
        | {field: value * slower(index) for field, value in ({"time_s": time_s} | values.get(name, {})).items()}
        for name, own in times.items()
        for index, time_s in enumerate(own if isinstance(own, list) else [own] * rounds)
    ]
    return [line, *samples]


def shape(m, times, *, throttled=False, **more):
    """Lines of a shape of 1024 x 1024 weights."""
    telemetry = {"throttled": throttled, "throttle_reasons": "power cap" if throttled else ""}
    case = Matmul("1024x1024", "up", 1, m, "bf16")
    return lines_of(
        case,
        times,
        about={name: {"relative_error": 1e-3} for name in times},
        vendor="cublas",
        telemetry=telemetry,
        **more,
    )


LINES = [
    HEAD,
    ceiling("matmul", 700e12, dtype="bf16"),
    ceiling("matmul", 750e12, "end", dtype="bf16"),
    ceiling("read", 4.0e12),
    ceiling("copy", 3.9e12),
    *shape(16, {"cublas": 2e-6, "tiled": 4e-6}),
    *shape(8192, {"cublas": 30e-6, "tiled": 25e-6}, throttled=True),
    {"kind": "not_measured", "case": "matmul-1024x1024-up-tp1-m16-bf16-other", "outcome": "skipped", "reason": "why"},
    {"kind": "end", "finished": "2026-01-01T00:00:00+00:00"},
]


def save(folder, lines, tail=""):
    folder.mkdir(exist_ok=True)
    (folder / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + tail)
    return folder


def boxes_of(figure, panels=()):
    """(text, where it is drawn) of all words on the axes, or on some of them, that do not run along a line."""
    renderer = figure.canvas.get_renderer()
    texts = [
        text for axes in panels or figure.axes for text in axes.texts if text.get_text() and not text.get_rotation()
    ]
    return [(text.get_text(), text.get_window_extent(renderer)) for text in texts]


def touching(boxes):
    return [(a, b) for (a, box), (b, other) in combinations(boxes, 2) if box.overlaps(other)]


def on_points(figure):
    """Words that lie on a point of their axes, but those that run along a line."""
    found = []
    for axes in figure.axes:
        lines = [line for line in axes.get_lines() if line.get_linestyle() == "None" and line.get_marker() != "None"]
        points = [at for line in lines for at in line.get_transform().transform(line.get_xydata())]
        found += [said for said, box in boxes_of(figure, [axes]) if any(box.contains(*at) for at in points)]
    return found


def numbers_of(axis):
    """The numbers that are written along an axis, within its limits."""
    axis.axes.figure.draw_without_rendering()
    low, high = sorted(axis.get_view_interval())
    ticks = [tick for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
    return [float(tick.label1.get_text() or tick.label2.get_text()) for tick in ticks]
