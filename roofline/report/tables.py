"""Tables of a report: a DataFrame of texts, aligned for a terminal or written as Markdown; and the sections of those
that `tables.toml` and operations declare. A report is a list of sections, which a terminal and report.md show in their
own ways."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from roofline.analysis.fields import FIELDS
from roofline.operations.shown import Field, Table
from roofline.report.format import ABOVE_ALL, FORMATS, WITH_ENDS
from roofline.theory.data import tables_of
from roofline.theory.words import nearest

if TYPE_CHECKING:
    from pandas import DataFrame

TABLES = {name: Table(**entry) for name, entry in tables_of(__file__, "tables.toml").items()}
MOST_NAMED = 4
"""Cases named for one reason; the journal has them all."""
ABOVE = (
    f"{ABOVE_ALL.strip()} above 100 %: it was faster than what the roof was measured by, or that came out too low, or "
    "its data lay in a cache"
)
NUMBER = re.compile(r"([-+>] ?)?\d|-$")


class Section(NamedTuple):
    """A heading, what must be known to read it (Markdown of ours), names of figures, a table of texts, and lines below
    it. Any of these may be empty."""

    title: str
    about: str = ""
    figures: Sequence[str] = ()
    table: Any = ()
    lines: Sequence[str] = ()
    long: bool = False
    """It has a row for each case, and a terminal shows its lines alone."""

    @property
    def has_table(self) -> bool:
        return len(self.table) > 0

    @property
    def below(self) -> Sequence[str]:
        """The lines below the table: `lines`, and what a mark in it means, if there is one."""
        is_marked = self.has_table and any(cell.endswith(ABOVE_ALL) for cell in self.table.to_numpy().ravel())
        return [*self.lines, ABOVE] if is_marked else self.lines


def section(table: Table, frame: DataFrame, lines: Sequence[str] = (), fields: Mapping[str, Field] = FIELDS) -> Section:
    """The section of a table: a row for each case of `frame` that has its field, and `lines` below them."""
    cells = texts(frame.dropna(subset=table.of), table.columns, fields)
    return Section(table.title, table.about, (), cells, lines, table.long)


def texts(frame: DataFrame, names: Iterable[str], fields: Mapping[str, Field] = FIELDS) -> DataFrame:
    """The texts of the `fields` of these names under their headers. A field that no row has is left out."""
    import pandas

    columns = {}
    for name in names:
        if name not in fields:
            raise ValueError(f"a table has the column {name!r}, which is no field; {nearest(name, fields)}declare it")
        field = fields[name]
        ends_shown = field.ends if field.format in WITH_ENDS else ()
        write = (FORMATS | WITH_ENDS)[field.format]
        cells = []
        for value, *ends in frame[[name, *ends_shown]].to_numpy(object):
            cells.append("-" if pandas.isna(value) else write(value, *ends))
        if {*cells} - {"", "-"}:
            columns[field.header] = cells
    return pandas.DataFrame(columns, index=frame.index)


def written(rows: Iterable[dict[str, str]]) -> DataFrame:
    """A table of rows, {header: text} each. A column without any text is left out."""
    import pandas

    table = pandas.DataFrame(rows)
    return table.loc[:, table.ne("").any()]


def sides(table: DataFrame) -> list[str]:
    """On which side each column stands: `>` where every cell begins as a number does, else `<`."""
    sides = []
    for cells in table.to_numpy().T:
        are_numbers = all(map(NUMBER.match, filter(None, cells)))
        sides.append(">" if are_numbers else "<")
    return sides


def aligned(rows: Sequence[Sequence[str]], sides: Sequence[str]) -> list[str]:
    """Lines of cells under each other, each column at its side: `<` or `>`."""
    forms = []
    for side, *cells in zip(sides, *rows, strict=True):
        width = max(map(len, cells))
        forms.append(f"{{:{side}{width}}}")
    form = "  ".join(forms)
    return [form.format(*row).rstrip() for row in rows]


def terminal(table: DataFrame) -> list[str]:
    """Aligned lines, the header first."""
    return aligned([list(table), *table.to_numpy()], sides(table))


def markdown(table: DataFrame, *, trusted: bool = False) -> str:
    """The table in Markdown. Cells are a run's words, and escaped, unless they are `trusted`."""
    rule = ["--:" if side == ">" else ":--" for side in sides(table)]
    if not trusted:
        table = table.map(escaped).rename(columns=escaped)
    lines = []
    for row in [list(table), rule, *table.to_numpy()]:
        cells = [text.replace("|", r"\|") for text in row]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def escaped(text: str) -> str:
    """`text` as Markdown that says just that, on one line: no HTML, link, code or formula.

    >>> print(escaped("<b> [a](b) $c"), escaped("0.9 [0.8, 1.0]"))
    &lt;b> [a]\\(b) \\$c 0.9 [0.8, 1.0]
    """
    text = re.sub(r"[\\`$]|(?<=])[(\[]", r"\\\g<0>", " ".join(text.split()))
    return text.replace("<", "&lt;")


def named(cases: Sequence[str]) -> str:
    """The first of `cases`, and how many more there are.

    >>> named(["a", "b", "c", "d", "e", "f"])
    'a, b, c, d and 2 more'
    """
    text = ", ".join(cases[:MOST_NAMED])
    more = len(cases) - MOST_NAMED
    return f"{text} and {more} more" if more > 0 else text


def by_reason(cases: Iterable[tuple[str, str, str]]) -> list[str]:
    """A line for each word and reason of `cases`, (word, reason, case) each."""
    cases_of: dict[tuple[str, str], list[str]] = {}
    for word, reason, case in cases:
        cases_of.setdefault((word, reason), []).append(case)
    lines = []
    for (word, reason), of_reason in cases_of.items():
        lines.append(f"{word}: {named(of_reason)}: {reason}")
    return lines
