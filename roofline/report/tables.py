"""How a table is laid out: aligned for a terminal, or as Markdown. Its columns are `layout.Column`s."""

import re
from collections.abc import Sequence

MOST_NAMED = 4
"""Cases named for one reason; the journal has them all."""


def cells(rows: Sequence, columns: Sequence) -> tuple[list, list[list[str]]]:
    """Return (columns, texts of each row) of those columns that have a header, and that some row needs."""
    shown = [c for c in columns if c.header and (c.shown is None or any(map(c.shown, rows)))]
    return shown, [[column.cell(row) for column in shown] for row in rows]


def aligned(rows: Sequence[Sequence[str]], sides: Sequence[str]) -> list[str]:
    """Lines of cells under each other, each column at its side: `<` or `>`."""
    form = "  ".join(f"{{:{side}{max(map(len, cells))}}}" for side, *cells in zip(sides, *rows, strict=True))
    return [form.format(*row).rstrip() for row in rows]


def terminal(rows: Sequence, columns: Sequence) -> list[str]:
    """Aligned lines; where rows share their first cell, a blank one between groups of them."""
    shown, texts = cells(rows, columns)
    sides = [">" if column.right else "<" for column in shown]
    header, *body = aligned([[column.header for column in shown], *texts], sides)
    lines = [header]
    grouped = len({row[0] for row in texts}) < len(texts)
    for index, line in enumerate(body):
        lines += [""] * (grouped and index > 0 and texts[index][0] != texts[index - 1][0])
        lines.append(line)
    return lines


class Markup(str):
    """A cell that is Markdown already, and none of a run's own words."""


def escaped(text: str) -> str:
    """Return `text` as Markdown that says just that: no HTML, link, code or formula.

    >>> print(escaped("<b> [a](b) $c"))
    &lt;b> [a]\\(b) \\$c
    """
    return re.sub(r"[\\`$]|^\[|(?<=])[(\[]", r"\\\g<0>", text).replace("<", "&lt;")


def markdown(rows: Sequence, columns: Sequence) -> str:
    """Return the same table in Markdown."""
    shown, texts = cells(rows, columns)
    header, rule = [c.header for c in shown], ["--:" if c.right else ":--" for c in shown]
    body = [[cell if isinstance(cell, Markup) else escaped(cell).replace("|", r"\|") for cell in row] for row in texts]
    return "\n".join("| " + " | ".join(row) + " |" for row in (header, rule, *body))


def named(cases: list[str]) -> str:
    """Return the first of `cases`, and how many more there are."""
    more = len(cases) - MOST_NAMED
    return ", ".join(cases[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
