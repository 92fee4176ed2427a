"""The fields of records as `fields.toml` and a run's operations declare them: unit, meaning, and how a table shows
each; and the measured case that they are formed of."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from roofline.operations.base import OPERATIONS, Operation
from roofline.operations.shown import Field, Shown
from roofline.store import typed
from roofline.store.run import Run, Shape
from roofline.store.stats import Interval
from roofline.theory.data import tables_of

ENDS = "low end of the 95 % interval of `{}`", "its high end"
"""The meanings of the fields of a low and of a high end."""


def by_name(fields: Iterable[Field]) -> dict[str, Field]:
    """`fields` by their names. Behind each follow those of its ends, which may be declared with words of their own."""
    named: dict[str, Field] = {}
    for field in fields:
        named[field.name] = field
        for end, meaning in zip(field.ends, ENDS, strict=False):
            named[end] = Field(end, meaning.format(field.name), field.unit)
    return named


GROUPS = {
    group: by_name(Field(name, **entry) for name, entry in declared.items())
    for group, declared in tables_of(__file__, "fields.toml").items()
}
FIELDS = GROUPS["every"] | GROUPS["wire"]
"""Those of a record: of every one, and of one over a wire. The group `tokens` has the columns of `analysis.tokens`."""


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
        for name, field in by_name(shown(run, op).fields).items():
            fields.setdefault(name, field)
    return fields


def refuse_taken(operation: Operation) -> None:
    """Raise ValueError for a field of an operation that has the name of one of every record."""
    if taken := FIELDS.keys() & by_name(operation.fields):
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
        """Its typical time, an interval, told beside the baseline's."""
        return self.shape.estimate(float, self.times_s)


def with_ends(name: str, interval: Interval | None, declared: Mapping[str, Field] = FIELDS) -> dict[str, float]:
    """The field `name` and those of its ends, as far as they are known; {} without an interval."""
    names = name, *declared[name].ends
    fields = {}
    for name, value in zip(names, interval or (), strict=False):
        if not math.isnan(value):
            fields[name] = value
    return fields
