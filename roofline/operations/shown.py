"""What an operation shows in records and reports, beside what stands there of every one: fields, tables and figures.

An operation declares them, and the journal of its run has them as plain values. So a report can be drawn where the
operation is not known, without what its code computes and draws.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Field:
    """One field of a record, with its unit and what it means. Table columns have a `header`; `format` names a function
    of `report.format`."""

    name: str
    meaning: str
    unit: str = ""
    header: str = ""
    format: str = ""
    ends: tuple[str, ...] = ()
    """The fields of the two ends of its interval."""
    of: Any = None
    """A function of an `analysis.fields.MeasuredCase`, which returns the value, an interval where the field has `ends`,
    or None. Without it the value is what the case, its facts or the contender's have under the name."""


@dataclass(frozen=True)
class Table:
    """A table of a report: a row for each case of the operation that has the field `of`."""

    title: str
    of: str
    columns: tuple[str, ...]
    """Names of fields."""
    about: str = ""
    """What must be known to read it."""
    long: bool = False
    """It is left out on a terminal."""


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What an operation shows."""

    fields: tuple[Field, ...] = ()
    tables: tuple[Table, ...] = ()
    figures: Mapping[str, Any] = field(default_factory=dict)
    """{name: a function from a run to its figure of matplotlib, or to None where there is nothing to draw}. It may be a
    path, `package.module:function`, which is imported where it is drawn."""

    @property
    def plain(self) -> dict:
        """What the journal has of it. Of what is computed it says that it is."""
        return {
            "fields": [vars(each) | {"of": bool(each.of)} for each in self.fields],
            "tables": list(map(vars, self.tables)),
            "figures": dict.fromkeys(self.figures),
        }
