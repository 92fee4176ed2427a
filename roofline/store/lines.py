"""Which fields the lines of a journal must have, by `lines.toml`, and how a text is put on one line."""

import json

from roofline.theory.data import tables_of

LINES = tables_of(__file__, "lines.toml")
"""Kind -> the fields that each line of it has."""

LONGEST_TEXT = 4000
"""Characters of a text, which is cut there."""


def problem_of(line: dict) -> str | None:
    """The fault of a line, in words; None if it can be read."""
    for name in LINES[line["kind"]]:
        if name not in line:
            return f"without {name!r}"
    return None


def _printable(character: str) -> str:
    if character.isprintable():
        return character
    return " " if character.isspace() else ascii(character)[1:-1]


def plain(text: str) -> str:
    """`text` on one line: what cannot be printed is a space, or its escape, as in `\x1b`."""
    if len(text) > LONGEST_TEXT:
        text = f"{text[: LONGEST_TEXT - 3]}..."
    return "".join(map(_printable, text))


def as_read(line: dict) -> dict:
    """`line` as a journal that has it is read back: lists for tuples, texts for keys."""
    return json.loads(json.dumps(line))
