"""The fields of records as `fields.toml` and a run's operations declare them: unit, meaning, and how a table shows
each; and the measured case that they are formed of."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from roofline.operations.base import OPERATIONS, Operation
from roofline.operations.shown import Field, Shown
from roofline.store import typed
from roofline.store.run import Run, Shape
from roofline.store.stats import Interval
from roofline.theory.data import tables_of

ENDS = {
    "interval": ("low end of the 95 % interval of `{}`", "its high end"),
    "look": ("low end of its interval: by all looks together, 99 % hold", "its high end"),
}
"""Kind of spread, as a field of `fields.toml` has one -> what the fields of its low and of its high end mean."""


def _with_fields_of_ends(declared: dict[str, dict]) -> dict[str, Field]:
    """{name: field} of a group of `fields.toml`. Fields of ends follow the one that names them."""
    fields: dict[str, Field] = {}
    for name, entry in declared.items():
        spread = {kind: entry.pop(kind) for kind in ENDS if kind in entry}
        ends = tuple(end for of_kind in spread.values() for end in of_kind)
        fields |= _with_ends_of(Field(name, ends=ends, **entry), *spread)
    return fields


def _with_ends_of(field: Field, kind: str = "interval") -> dict[str, Field]:
    """`field` by its name, and behind it those of its ends."""
    fields = {field.name: field}
    for end, meaning in zip(field.ends, ENDS[kind], strict=False):
        fields[end] = Field(end, meaning.format(field.name), field.unit)
    return fields


GROUPS = {group: _with_fields_of_ends(declared) for group, declared in tables_of(__file__, "fields.toml").items()}
FIELDS = GROUPS["every"] | GROUPS["wire"]
"""Those of a record: of every one, and of one over a wire. The group `tokens` has the columns of `analysis.tokens`."""


def own(shown: Shown) -> dict[str, Field]:
    """The fields that an operation declares, by name, with those of their ends."""
    fields: dict[str, Field] = {}
    for field in shown.fields:
        fields |= _with_ends_of(field)
    return fields


def shown(run: Run, op: str) -> Shown:
    """What an operation of `run` shows: as it is declared here, or else as the journal has it, which names no code."""
    if op in OPERATIONS:
        return OPERATIONS[op]
    of_journal = typed.read(Shown, run.metadata.get("shown", {}).get(op, {}))
    return replace(of_journal, figures=dict.fromkeys(of_journal.figures))


def operations_of(run: Run) -> list[str]:
    """The names of the operations of `run`, in its order."""
    return list(dict.fromkeys(shape.op for shape in run.shapes.values()))


def fields_of(run: Run) -> dict[str, Field]:
    """The fields of the records of `run`: `FIELDS`, and behind them those of its operations."""
    fields = dict(FIELDS)
    for op in operations_of(run):
        for name, field in own(shown(run, op)).items():
            fields.setdefault(name, field)
    return fields


def refuse_taken(operation: Operation) -> None:
    """Raise ValueError for a field of an operation that has the name of one of every record."""
    if taken := FIELDS.keys() & own(operation):
        raise ValueError(f"operation {operation.name!r}: every record has a field {min(taken)!r}; choose another name")


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
        return self.shape.estimate(float, self.times_s)


def with_ends(name: str, interval: Interval | None, declared: Mapping[str, Field] = FIELDS) -> dict[str, float]:
    """The field `name` and those of its ends, as far as they are known; {} without an interval."""
    names = name, *declared[name].ends
    return {name: value for name, value in zip(names, interval or (), strict=False) if not math.isnan(value)}
