"""A report is a list of sections, which a terminal and report.md show in their own ways."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from roofline.report.format import ABOVE_ALL
from roofline.report.tables import TABLES, texts

if TYPE_CHECKING:
    from pandas import DataFrame

ABOVE = (
    f"{ABOVE_ALL.strip()} above 100 %: it was faster than what the roof was measured by, or that came out too low, or "
    "its data lay in a cache"
)


class Section(NamedTuple):
    """A heading, what must be known to read it (Markdown of ours), names of figures, a table of texts, and lines below
    it. Any of these may be empty."""

    title: str
    about: str = ""
    figures: Sequence[str] = ()
    table: DataFrame | None = None
    lines: Sequence[str] = ()
    long: bool = False
    """It has a row for each case, and a terminal shows its lines alone."""

    @property
    def has_table(self) -> bool:
        return self.table is not None and len(self.table) > 0

    def explained(self) -> Section:
        """The section with a line that says what a mark in its table means, if there is one."""
        if self.table is None:
            return self
        is_marked = any(cell.endswith(ABOVE_ALL) for cell in self.table.to_numpy().ravel())
        return self._replace(lines=[*self.lines, ABOVE]) if is_marked else self


def declared(name: str, frame: DataFrame, lines: Sequence[str] = ()) -> Section:
    """A section of `tables.toml`: a row for each case of `frame` that has its field, and is of its operation if it has
    one, and `lines` below them."""
    entry = TABLES["sections"][name]
    rows = frame.dropna(subset=entry["of"])
    if "op" in entry:
        rows = rows[rows["op"] == entry["op"]]
    table = texts(rows, entry["columns"])
    return Section(entry["title"], entry["about"], entry.get("figures", ()), table, lines, entry.get("long", False))
