"""How a table is laid out: a DataFrame of texts, aligned for a terminal or written as Markdown."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from roofline.analysis.fields import FIELDS
from roofline.operations.format import FORMATS, WITH_ENDS

if TYPE_CHECKING:
    from pandas import DataFrame

MOST_NAMED = 4
"""Cases named for one reason; the journal has them all."""
NUMBER = re.compile(r"([-+>] ?)?\d|-$")


def texts(frame: DataFrame, names: Iterable[str]) -> DataFrame:
    """Return the texts of the fields `names` under their headers. A field that no row has is left out."""
    import pandas

    columns = {}
    for field in map(FIELDS.__getitem__, names):
        with_ends = field.format in WITH_ENDS
        values = frame[[field.name, *(field.ends if with_ends else ())]].to_numpy(object)
        write = (WITH_ENDS if with_ends else FORMATS)[field.format]
        cells = ["-" if pandas.isna(value) else write(value, *ends) for value, *ends in values]
        if any(cell not in ("", "-") for cell in cells):
            columns[field.header] = cells
    return pandas.DataFrame(columns, index=frame.index)


def written(rows: Iterable[Any], columns: dict[str, Callable[[Any], str]]) -> DataFrame:
    """Return the texts of `rows` by `columns`, {header: what writes the cell of a row}. A column without any text is
    left out."""
    import pandas

    cells = {header: [write(row) for row in rows] for header, write in columns.items()}
    return pandas.DataFrame({header: texts for header, texts in cells.items() if any(texts)})


def sides(columns: Iterable[Iterable[str]]) -> list[str]:
    """Return the side on which each column stands: `>` where every cell begins as a number does, else `<`."""
    return [">" if all(map(NUMBER.match, filter(None, cells))) else "<" for cells in columns]


def aligned(rows: Sequence[Sequence[str]], sides: Sequence[str]) -> list[str]:
    """Return lines of cells under each other, each column at its side: `<` or `>`."""
    form = "  ".join(f"{{:{side}{max(map(len, cells))}}}" for side, *cells in zip(sides, *rows, strict=True))
    return [form.format(*row).rstrip() for row in rows]


def terminal(table: DataFrame) -> list[str]:
    """Return aligned lines; where rows share their first cell, with a blank one between groups of them."""
    header, *body = aligned([list(table), *table.to_numpy()], sides(table.to_numpy().T))
    first = list(table.iloc[:, 0])
    grouped, lines = len({*first}) < len(first), [header]
    for index, line in enumerate(body):
        lines += [""] * (grouped and index > 0 and first[index] != first[index - 1])
        lines.append(line)
    return lines


def markdown(table: DataFrame, *, trusted: bool = False) -> str:
    """Return the table in Markdown. Cells are a run's words, and escaped, unless they are `trusted`."""
    rule = ["--:" if side == ">" else ":--" for side in sides(table.to_numpy().T)]
    if not trusted:
        table = table.map(cell).rename(columns=cell)
    return "\n".join("| " + " | ".join(row) + " |" for row in (list(table), rule, *table.to_numpy()))


def cell(text: str) -> str:
    """Return `text` as `escaped`, in one cell of a table."""
    return escaped(text).replace("|", r"\|")


def escaped(text: str) -> str:
    """Return `text` as Markdown that says just that: no HTML, link, code, formula or heading.

    >>> print(escaped("<b> [a](b) $c"), escaped("- [a]: b"), escaped("0.9 [0.8, 1.0]: c"))
    &lt;b> [a]\\(b) \\$c - \\[a]: b 0.9 [0.8, 1.0]: c
    """
    inline = re.sub(r"[\\`$]|(?<=])[(\[]", r"\\\g<0>", text.strip()).replace("<", "&lt;")
    return re.sub(r"^((?:[\s>*+-]|\d+[.)])*)(?=[\[~#])", r"\1\\", inline)


def named(cases: Sequence[str]) -> str:
    """Return the first of `cases`, and how many more there are.

    >>> named(["a", "b", "c", "d", "e", "f"])
    'a, b, c, d and 2 more'
    """
    more = len(cases) - MOST_NAMED
    return ", ".join(cases[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
