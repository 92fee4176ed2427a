"""The fields of records as `fields.toml` declares them: unit, meaning, and how a table shows each."""

import tomllib
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

ENDS = {
    "interval": ("low end of the 95 % interval of `{}`", "its high end"),
    "look": ("low end of its interval: by all looks together, 99 % hold", "its high end"),
    "range": ("the least of `{}`", "the greatest"),
}
"""Kind of spread, as a field of `fields.toml` has one -> what the fields of its low and of its high end mean."""


@dataclass(frozen=True)
class Field:
    """One field of a record. Table columns have a `header`; `format` names a function of `operations.format`."""

    name: str
    meaning: str
    unit: str = ""
    header: str = ""
    format: str = ""
    ends: tuple[str, ...] = ()
    """The fields of the two ends of its interval or range."""


def read(text: str) -> dict[str, dict[str, Field]]:
    """{group: {name: field}} of a `fields.toml`. Fields of ends follow the one that names them."""
    groups = {}
    for group, declared in tomllib.loads(text).items():
        fields = groups[group] = {}
        for name, entry in declared.items():
            kinds = list(ENDS.keys() & entry.keys())
            ends = tuple(entry.pop(kinds[0])) if kinds else ()
            field = fields[name] = Field(name, ends=ends, **entry)
            if ends:
                for end, meaning in zip(ends, ENDS[kinds[0]], strict=True):
                    fields[end] = Field(end, meaning.format(name), field.unit)
    return groups


GROUPS = read(Path(__file__).with_name("fields.toml").read_text(encoding="utf-8"))
FIELDS = dict(chain.from_iterable(fields.items() for fields in GROUPS.values()))
