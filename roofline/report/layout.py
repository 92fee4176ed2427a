"""What a report is laid out from: columns, tables, figures and sections. Tables, frame and schema follow from them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


@dataclass(frozen=True)
class Column:
    """One field of a record, and what tables show of it; declared once. It is in the record where it has a `doc`, and
    in a table where it has a `header`.

    `unit` is that of a number, `1` of a share, a ratio or a count; words have none. `text` writes a value that is not
    None, `of_row` a cell that needs more of its row than the value.
    """

    name: str = ""
    doc: str = ""
    unit: str = ""
    header: str = ""
    text: Callable[[Any], str] = str
    of_row: Callable[[Any], str] | None = None
    right: bool = True
    """Where it stands in a table: numbers to the right, words to the left."""
    shown: Callable[[dict], bool] | None = None
    """A column is left out of a table in which this holds of no row."""

    def cell(self, row: Any) -> str:
        if self.of_row:
            return self.of_row(row)
        return "-" if row[self.name] is None else self.text(row[self.name])


@dataclass(frozen=True)
class Figure:
    """A figure of a report: drawn where some row has a value of every column that it needs."""

    name: str
    needs: frozenset[str]
    draw: Callable
    """`draw(run, frame)` -> a matplotlib figure of the rows of its analysis, as in `analyses.frame`."""
    there: Callable[..., bool] = lambda run: True
    """`there(run)`: whether the run has what it needs beside the columns."""

    def is_drawn(self, run, records: list[dict]) -> bool:
        has_fields = any(all(record[name] is not None for name in self.needs) for record in records)
        return has_fields and self.there(run)


@dataclass(frozen=True)
class Table:
    """A table of a report besides the one of an analysis' columns, with what must be known to read it."""

    title: str
    about: str
    columns: tuple[Column, ...]
    rows: Callable[[Any, list[dict]], list[dict]]
    """`rows(run, records)`: what it has of all records."""
    lines: Callable[[list[dict]], list[str]] = lambda rows: []
    """What its rows come to, below it."""
    long: bool = False
    """It has a row for each case, and is left to the report: a terminal shows its lines alone."""


class Section(NamedTuple):
    """Of a report. Any of these may be empty: a heading, what must be known to read it (Markdown), figures, a table,
    and lines below it."""

    title: str = ""
    about: str = ""
    figures: Sequence[Figure] = ()
    rows: Sequence = ()
    columns: tuple[Column, ...] = ()
    lines: Sequence[str] = ()
    long: bool = False
    """Its table is not for a terminal."""
    drawn: Sequence[dict] = ()
    """The records that its figures show."""


@dataclass(frozen=True)
class Analysis:
    """How the cases of one analysis are shown."""

    name: str
    columns: tuple[Column, ...]
    """Their names are the keys of its records."""
    figures: tuple[Figure, ...]
    """The first stands beside the table `brief`."""
    brief: Table
    """What most want to know, on one screen."""
    summary: Callable[[list[dict]], list[str]]
    """Lines that sum up its records."""
    tables: tuple[Table, ...] = ()
