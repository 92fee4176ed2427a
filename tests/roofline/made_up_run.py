"""Journals written by hand, for tests of what is derived from them."""

import json

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


def shape(m, times, *, throttled=False, stopped_by="width", rounds=30):
    """Lines of a shape of 1024 x 1024 weights. `times` is {contender: seconds in every round, or a list of them}."""
    name = f"matmul-1024x1024-up-tp1-m{m}-bf16"
    line = {
        "kind": "shape", "shape": name, "op": "matmul", "model": "1024x1024", "layer": "up", "tp": 1, "m": m, "n": 1024,
        "k": 1024, "dtype": "bf16", "flop": 2 * m * 1024**2, "device_bytes": 2 * (2 * m * 1024 + 1024**2),
        "wire_bytes": 0, "vendor": "cublas", "seed": 0, "rounds": 30, "stopped_by": stopped_by, "cache": "cold",
        "telemetry": {"throttled": throttled, "throttle_reasons": "power cap" if throttled else ""},
        "contenders": {c: {"config": "known", "relative_error": 1e-3, "late": 0} for c in times},
    }  # fmt: skip
    samples = [
        {"kind": "sample", "shape": name, "contender": c, "round": r, "position": 0, "time_s": t}
        for c, t in times.items()
        for r, t in enumerate(t if isinstance(t, list) else [t] * rounds)
    ]
    return [line, *samples]


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
