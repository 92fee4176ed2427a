"""Journals written by hand, for tests of what is derived from them, and where words of their figures stand."""

import json
from dataclasses import asdict, fields
from itertools import combinations

from roofline.operations.matmul import Matmul
from roofline.store.journal import SCHEMA
from roofline.store.run import Round, Shape

DATASHEET = {"name": "H200", "flops": {"bf16": 989.4e12}, "memory_bandwidth_bytes_per_s": 4.8e12}
HEAD = {
    "kind": "run",
    "schema": SCHEMA,
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


def lines_of(
    case, times, *, baseline, about=None, rounds=30, wobble=1.0, without=(), throttled=False, stopped_by="width",
    **facts,
):  # fmt: skip
    """Return the lines of the shape of `case`: its own, and its rounds.

    `times` is {entrant: seconds in every round, or a list of them}; in a round all take as many times as long, which is
    by turns 1 / `wobble`, 1 and `wobble`. `about` are further fields of entrants, `facts` those of the shape. Entrants
    of `without` have no samples.
    """
    about = about or {}
    params = {field.name: getattr(case, field.name) for field in fields(case)}
    entrants = {name: {"config": "known", "relative_error": 0.0} | about.get(name, {}) for name in times}
    of_case = Shape(
        case.id, case.op, "overlap" if "ranks" in params else "throughput", params, case.dtype, case.work,
        baseline, "cold", entrants, facts=case.facts | facts, stopped_by=stopped_by, round_count=rounds,
        telemetry={"throttled": throttled, "throttle_reasons": "power cap" if throttled else ""},
        late=dict.fromkeys(times, 0),
    )  # fmt: skip
    series = {name: times_s if isinstance(times_s, list) else [times_s] * rounds for name, times_s in times.items()}
    round_lines = []
    for index in range(max(map(len, series.values()))):
        order = [name for name, times_s in series.items() if index < len(times_s) and name not in without]
        turn = {name: series[name][index] * wobble ** (index % 3 - 1) for name in order}
        round_lines.append(round_line(case.id, Round(index, order, turn)))
    return [shape_line(of_case), *round_lines]


def shape_line(shape):
    return {"kind": "shape"} | asdict(shape)


def round_line(shape, round_):
    return {"kind": "round", "shape": shape} | asdict(round_)


def shape(m, times, **more):
    """Return the lines of a shape of 1024 x 1024 weights."""
    return lines_of(Matmul("1024x1024", "up", 1, m, "bf16"), times, baseline="cublas", **more)


def lines_with_probe(m, times, probe_s, amount=1e9):
    """Return lines of a shape beside which a probe of the matmul ceiling took turns, with calls of `amount` FLOP. What
    a round does to all does not count."""
    line, *samples = shape(m, times | {"probe matmul": probe_s}, wobble=1.5)
    line["entrants"]["probe matmul"] |= {"role": "probe", "ceiling": "matmul", "amount": amount}
    return [line, *samples]


END = {"kind": "end", "finished": "2026-01-01T00:00:00+00:00"}
LINES = [
    HEAD,
    ceiling("matmul", 700e12, dtype="bf16"),
    ceiling("matmul", 750e12, "end", dtype="bf16"),
    ceiling("read", 4.0e12),
    ceiling("copy", 3.9e12),
    *shape(16, {"cublas": 2e-6, "tiled": 4e-6}),
    *shape(8192, {"cublas": 30e-6, "tiled": 25e-6}, throttled=True),
    {"kind": "not_measured", "case": "matmul-1024x1024-up-tp1-m16-bf16-other", "outcome": "skipped", "reason": "why"},
    END,
]


def save(folder, lines):
    folder.mkdir(exist_ok=True)
    (folder / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def boxes_of(axes):
    """Return (text, where it is drawn) of all words on the axes, which were drawn."""
    return [(text.get_text(), text.get_window_extent()) for text in axes.texts if text.get_text()]


def touching_pairs(axes):
    return [(a, b) for (a, box), (b, other) in combinations(boxes_of(axes), 2) if box.overlaps(other)]


def words_on_points(axes):
    """Return the words that lie on a point of their axes."""
    lines = [line for line in axes.get_lines() if line.get_linestyle() == "None" and line.get_marker() != "None"]
    points = [at for line in lines for at in line.get_transform().transform(line.get_xydata())]
    return [text for text, box in boxes_of(axes) if any(box.contains(*at) for at in points)]
