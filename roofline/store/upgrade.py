"""Journals of older schemas, brought to the newest line by line.

Schema 1 lacks `cases` in its first line, counts late samples in each contender's entry, and has no line of the kinds
`visit`, `steady` and `resumed`. Schema 2 has no `timeline`, and no contenders with a `role`. Schema 4 has no
`counters`, `kernels`, `saved` and `note`. Schema 5 has no `trying`. All of them have a `sample` for each contender in
place of a `round`, and `RENAMED` has what some of them call otherwise.
"""

from collections.abc import Iterable, Iterator
from sys import intern

OLDER = (1, 2, 3, 4, 5)

RENAMED = {3: {"row_block": "row_block_launches"}}
"""Schema -> what its journals call otherwise: {contender then: contender now}."""

SHAPE = (
    *("shape", "op", "model", "layer", "tp", "m", "n", "k", "dtype", "flop", "device_bytes", "vendor"),
    *("stopped_by", "rounds", "cache", "telemetry", "contenders"),
)
REQUIRED = {
    "shape": SHAPE,
    "visit": ("shape", "visit", "stopped_by", "rounds", "telemetry", "late"),
    "sample": ("shape", "contender", "round", "time_s"),
}
"""Fields without which a line cannot be upgraded, of the kinds that are not as they were."""

PARAMS = ("model", "layer", "tp", "m", "dtype", "ranks", "wire")
WORK = ("flop", "device_bytes", "wire_bytes")
NO_FACTS = {*SHAPE, *PARAMS, *WORK, "seed", "visit", "late", "kind"} - {"n", "k"}
SAMPLE = {"kind", "shape", "contender", "round", "position", "time_s"}
"""Fields of every sample; what else it has are values read beside its time."""


def upgrade(lines: Iterable[dict]) -> Iterator[dict]:
    """`lines` of a journal of any schema, in the newest one. Samples become rounds as soon as another line follows."""
    lines = iter(lines)
    first = next(lines, None)
    if first is None:
        return
    if names := RENAMED.get(first["schema"]):
        first, lines = _renamed(first, names), (_renamed(line, names) for line in lines)
    yield first
    if first["schema"] not in OLDER:
        yield from lines
        return
    passes, rounds = {}, {}  # of the shape by now; {round: line} that was not handed on yet
    for line in lines:
        if line["kind"] == "sample":
            _add(rounds, line, passes.get(line["shape"], 1))
            continue
        yield from rounds.values()
        rounds.clear()
        if line["kind"] in ("shape", "visit"):
            passes[line["shape"]] = line.get("visit", 1)
            line = _shape(line) if line["kind"] == "shape" else _pass(line)
        yield line
    yield from rounds.values()


def _renamed(line: dict, names: dict[str, str]) -> dict:
    """`line` with the contenders' names of today, which also end the ids of cases."""

    def now(name):
        if isinstance(name, dict):
            return {now(key): value for key, value in name.items()}
        if isinstance(name, list):
            return [now(one) for one in name]
        shape, dash, contender = str(name).rpartition("-")
        return shape + dash + names.get(contender, contender)

    named = ("contender", "contenders", "late", "case", "cases")
    return line | {field: now(line[field]) for field in named if line.get(field)}


def _add(rounds: dict[int, dict], sample: dict, pass_index: int) -> None:
    index, name = sample["round"], intern(sample["contender"])  # each line has a string of its own
    line = rounds.get(index)
    if line is None:
        line = rounds[index] = {"kind": "round", "shape": sample["shape"], "index": index, "order": [], "time_s": {}}
        line |= {"values": {}, "pass_index": pass_index}
    line["order"].append(name)
    line["time_s"][name] = sample["time_s"]
    if len(sample) > len(SAMPLE) and (values := {key: own for key, own in sample.items() if key not in SAMPLE}):
        line["values"][name] = values


def _pass(line: dict) -> dict:
    same = {key: line[key] for key in ("shape", "stopped_by", "telemetry", "late")}
    return {"kind": "pass", "passes": line["visit"], "round_count": line["rounds"]} | same


def _shape(line: dict) -> dict:
    entrants = line["contenders"]
    params = {key: line[key] for key in PARAMS if key in line}
    return {
        "kind": "shape",
        "id": line["shape"],
        "op": line["op"],
        "analysis": "overlap" if "ranks" in line else "throughput",
        "params": params,
        "dtype": line["dtype"],
        "work": {key: line[key] for key in WORK if key in line},
        "baseline": line["vendor"],
        "seed": line.get("seed", 0),
        "cache": line["cache"],
        "entrants": entrants,
        "facts": {key: value for key, value in line.items() if key not in NO_FACTS},
        "passes": line.get("visit", 1),
        "stopped_by": line["stopped_by"],
        "round_count": line["rounds"],
        "telemetry": line["telemetry"],
        "late": line.get("late") or {name: own.get("late", 0) for name, own in entrants.items()},
    }
