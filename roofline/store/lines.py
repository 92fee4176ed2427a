"""The kinds of lines of a journal: the fields without which one cannot be read, and what each must be.

results/README.md documents them for people.
"""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

MOST = 1e300
"""Above all that is measured, of numbers that are still floats: a whole number in JSON may be larger."""


class Check(NamedTuple):
    """What a field must be. A line of which that does not hold has a field that is `wrong`, in words."""

    holds: Callable[[Any], bool]
    wrong: str = ""


def table(*keys: str) -> Check:
    def holds(value: Any) -> bool:
        return isinstance(value, dict) and value.keys() >= {*keys}

    return Check(holds, f"is no table of {', '.join(sorted(keys)) or 'values'}")


def _is_positive(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_is_positive, value.values()))
    return isinstance(value, (float, int)) and 0 < value < MOST


ANY = Check(lambda value: True)
TEXT = Check(lambda value: isinstance(value, str), "is no text")
TEXTS = Check(lambda value: isinstance(value, list) and {*map(type, value)} <= {str}, "is no list of texts")
TABLES = Check(
    lambda value: isinstance(value, dict) and {*map(type, value.values())} <= {dict}, "is no table of tables"
)
TIMES = Check(lambda value: isinstance(value, dict) and _is_positive(value), "is no number above 0 for each entrant")
POSITIVE = Check(_is_positive, "is no number above 0")
"""Of a number, or of all in a table."""

LINES: dict[str, dict[str, Check]] = {
    "run": {
        "method_version": ANY,
        "title": TEXT,
        "footer": TEXT,
        "notes": TEXTS,
        "machine": table("chip", "source", "datasheet"),
    },
    "resumed": {"started": ANY},
    "idle": {"empty_call_s": ANY, "idle_power_w": ANY},
    "links": {"case": TEXT, "links": ANY},
    "ceiling": {
        "ceiling": ANY,
        "dtype": ANY,
        "when": ANY,
        "probe": TEXT,
        "value": POSITIVE,
        "low": POSITIVE,
        "high": POSITIVE,
    },
    "shape": {
        "id": TEXT,
        "op": TEXT,
        "analysis": TEXT,
        "params": table(),
        "dtype": ANY,
        "baseline": TEXT,
        "work": table("flop", "device_bytes"),
        "cache": TEXT,
        "entrants": TABLES,
        "stopped_by": ANY,
        "round_count": POSITIVE,
        "telemetry": table(),
        "late": table(),
    },
    "pass": {
        "shape": TEXT,
        "passes": ANY,
        "stopped_by": ANY,
        "round_count": POSITIVE,
        "telemetry": table(),
        "late": table(),
    },
    "round": {"shape": TEXT, "index": ANY, "order": TEXTS, "time_s": TIMES},
    "steady": {"shape": TEXT, "contender": TEXT, "block": ANY, "time_s": POSITIVE},
    "timeline": {"shape": TEXT, "contender": TEXT, "transfers": ANY, "arrivals_s": ANY, "waits": ANY, "end_s": ANY},
    "counters": {
        "shape": TEXT,
        "contender": TEXT,
        "dram_bytes": ANY,
        "l2_bytes": ANY,
        "counter_source": table("tool", "version", "metrics"),
    },
    "kernels": {"shape": TEXT, "kernel_names": table()},
    "costs": {"shape": TEXT, "contender": TEXT, "costs": table()},
    "process": {"process": ANY, "seconds": POSITIVE, "planned": ANY},
    "note": {"about": TEXT, "text": TEXT},
    "not_measured": {"case": TEXT, "outcome": TEXT, "reason": TEXT},
    "end": {},
}
"""Kind -> {field that each line of it has: what it must be}."""

ANALYSIS_NAMES = "throughput", "overlap"
"""What an operation may be judged by."""

LONGEST_TEXT = 4000
"""Characters of a text, which is cut there."""


def problem_of(line: dict) -> str | None:
    """What a line lacks, or has of another type, in words; None if it can be read."""
    for name, check in LINES[line["kind"]].items():
        if name not in line:
            return f"without {name!r}"
        if not check.holds(line[name]):
            return f"whose {name!r} {check.wrong}"
    return None


def _printable(character: str) -> str:
    if character.isprintable():
        return character
    return " " if character.isspace() else ascii(character)[1:-1]


def plain(value):
    """`value`, of JSON, with each text on one line: what cannot be printed is a space, or its escape, as in `\x1b`."""
    match value:
        case str():
            shown = value if len(value) <= LONGEST_TEXT else f"{value[: LONGEST_TEXT - 3]}..."
            return shown if shown.isprintable() else "".join(map(_printable, shown))
        case dict():
            shown = {}
            for key, inner in value.items():
                shown[plain(key)] = plain(inner)
            return shown
        case list():
            return list(map(plain, value))
    return value


def as_read(line: dict) -> dict:
    """`line` as a journal that has it is read back: lists for tuples, texts for keys, each text on one line."""
    return plain(json.loads(json.dumps(line)))
