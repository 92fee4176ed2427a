"""The fields of records as `fields.toml` declares them: unit, meaning, and how a table shows each; and the
measured case that they are formed of."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from roofline.store.run import Run, Shape
from roofline.store.stats import Interval
from roofline.theory.data import tables_of

ENDS = {
    "interval": ("low end of the 95 % interval of `{}`", "its high end"),
    "look": ("low end of its interval: by all looks together, 99 % hold", "its high end"),
}
"""Kind of spread, as a field of `fields.toml` has one -> what the fields of its low and of its high end mean."""


@dataclass(frozen=True)
class Field:
    """One field of a record. Table columns have a `header`; `format` names a function of `report.format`."""

    name: str
    meaning: str
    unit: str = ""
    header: str = ""
    format: str = ""
    ends: tuple[str, ...] = ()
    """The fields of the two ends of its interval."""


def _with_fields_of_ends(declared: dict[str, dict]) -> dict[str, Field]:
    """{name: field} of a group of `fields.toml`. Fields of ends follow the one that names them."""
    fields = {}
    for name, entry in declared.items():
        ends = {}
        for kind, meanings in ENDS.items():
            for end, meaning in zip(entry.pop(kind, ()), meanings, strict=False):
                ends[end] = Field(end, meaning.format(name), entry["unit"])
        fields[name] = Field(name, ends=tuple(ends), **entry)
        fields |= ends
    return fields


GROUPS = {group: _with_fields_of_ends(declared) for group, declared in tables_of(__file__, "fields.toml").items()}
FIELDS = GROUPS["every"] | GROUPS["wire"]
"""Those of a record: of every one, and of one over a wire. The group `tokens` has the columns of `analysis.tokens`."""


@dataclass(frozen=True)
class MeasuredCase:
    """A contender on a shape of a run, with samples."""

    run: Run
    shape: Shape
    contender: str

    @property
    def entrant(self) -> dict:
        """The journal's entry of the contender on this shape."""
        return self.shape.entrants[self.contender]

    @cached_property
    def times_s(self) -> dict[int, float]:
        """{round: seconds}."""
        return self.shape.times_s(self.contender)

    @cached_property
    def time(self) -> Any:
        """Its typical time, told beside the baseline's."""
        return self.shape.time(self.contender)


def with_ends(name: str, interval: Interval | None, declared: dict[str, Field] = FIELDS) -> dict[str, float]:
    """The field `name` and those of its ends, as far as they are known; {} without an interval."""
    names = name, *declared[name].ends
    return {name: value for name, value in zip(names, interval or (), strict=False) if not math.isnan(value)}
