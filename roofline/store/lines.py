"""What the lines of a journal must hold, by `lines.toml`, and how their texts are made safe to print."""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from roofline.theory.data import beside

ANALYSIS_NAMES = "throughput", "overlap"
"""What an operation may be judged by."""

MOST = 1e300
"""Above all that is measured, of numbers that are still floats: a whole number in JSON may be larger."""


class Check(NamedTuple):
    """What a field must be, and in words what is `wrong` of one that does not hold."""

    holds: Callable[[Any], bool]
    wrong: str = ""


def _is_positive(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_is_positive, value.values()))
    return isinstance(value, (float, int)) and 0 < value < MOST


CHECKS = {
    "any": Check(lambda value: True),
    "text": Check(lambda value: isinstance(value, str), "is no text"),
    "texts": Check(lambda value: isinstance(value, list) and {*map(type, value)} <= {str}, "is no list of texts"),
    "tables": Check(
        lambda value: isinstance(value, dict) and {*map(type, value.values())} <= {dict}, "is no table of tables"
    ),
    "times": Check(
        lambda value: isinstance(value, dict) and _is_positive(value), "is no number above 0 for each entrant"
    ),
    "positive": Check(_is_positive, "is no number above 0"),
    "analysis": Check(lambda value: value in ANALYSIS_NAMES, f"is none of {', '.join(ANALYSIS_NAMES)}"),
}


def _check(words: str | list[str]) -> Check:
    """The check that `lines.toml` names, or that of a table which has these keys."""
    if isinstance(words, str):
        return CHECKS[words]
    return Check(
        lambda value: isinstance(value, dict) and value.keys() >= {*words},
        f"is no table of {', '.join(sorted(words)) or 'values'}",
    )


LINES = {
    kind: {name: _check(words) for name, words in fields.items()}
    for kind, fields in beside(__file__, "lines.toml").items()
}
"""Kind -> {field that each line of it has: what it must be}."""

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
            return {plain(key): plain(inner) for key, inner in value.items()}
        case list():
            return list(map(plain, value))
    return value


def as_read(line: dict) -> dict:
    """`line` as a journal that has it is read back: lists for tuples, texts for keys, each text on one line."""
    return plain(json.loads(json.dumps(line)))
