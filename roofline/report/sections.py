"""A report is a list of sections, which a terminal, report.md and report.html show in their own ways."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pandas import DataFrame


class Section(NamedTuple):
    """A heading, what must be known to read it (Markdown of ours), names of figures, a table of texts, and lines below
    it. Any of these may be empty."""

    title: str
    about: str = ""
    figures: tuple[str, ...] = ()
    table: DataFrame | None = None
    lines: tuple[str, ...] = ()
    long: bool = False
    """It has a row for each case, and a terminal shows its lines alone."""
