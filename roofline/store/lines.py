"""The lines of a journal, but for `Shape` and `Round`, which are in `store.run`: what each kind must have, and may.

results/README.md documents them. How a text is put on one line, too.
"""

from dataclasses import dataclass, field

from roofline.store import typed

LONGEST_TEXT = 4000
"""Characters of a text, which is cut there."""


class Line:
    """A line of the kind that its class is called by."""


@dataclass
class Head:
    """The first line: what the run was measured on, and what was planned."""

    method_version: int
    title: str
    footer: str
    notes: list[str]
    machine: dict
    cases: list[str] = field(default_factory=list)
    options: dict = field(default_factory=dict)
    ranks: dict = field(default_factory=dict)
    shown: dict[str, dict] = field(default_factory=dict)


@dataclass
class Resumed(Line):
    """The run was gone on with."""


@dataclass
class End(Line):
    """It came to its end."""


@dataclass
class Idle(Line):
    empty_call_s: float | None


@dataclass
class Links(Line):
    case: str
    links: list[dict]


@dataclass
class Ceiling(Line):
    ceiling: str
    dtype: str | None
    when: str
    probe: str
    value: float
    low: float | None = None
    high: float | None = None


@dataclass
class Note(Line):
    about: str
    text: str


@dataclass
class Process(Line):
    process: int
    seconds: float
    planned: bool


@dataclass
class Pass(Line):
    """The sum of the passes over a shape by now."""

    passes: int
    stopped_by: str
    round_count: int
    telemetry: dict
    late: dict[str, int]
    processes: int = 1
    entrants: dict[str, dict] = field(default_factory=dict)


@dataclass
class Kernels(Line):
    kernel_names: dict[str, str]
    binaries: dict[str, str] = field(default_factory=dict)


@dataclass
class Costs(Line):
    shape: str
    contender: str
    costs: dict


@dataclass
class Steady(Line):
    shape: str
    contender: str
    block: int
    time_s: float


@dataclass
class Timeline(Line):
    shape: str
    contender: str
    transfers: list[list[int]]
    arrivals_s: list[float]
    waits: list[list[float]]
    end_s: float


@dataclass
class Counters(Line):
    shape: str
    contender: str
    dram_bytes: float | None
    l2_bytes: float | None
    counter_source: dict


def _printable(character: str) -> str:
    if character.isprintable():
        return character
    return " " if character.isspace() else ascii(character)[1:-1]


def plain(text: str) -> str:
    """`text` on one line: what cannot be printed is a space, or its escape, as in `\x1b`."""
    if len(text) > LONGEST_TEXT:
        text = f"{text[: LONGEST_TEXT - 3]}..."
    return "".join(map(_printable, text))


def as_read(line: dict) -> dict:
    """`line` as a journal that has it is read back: lists for tuples, texts for keys."""
    return typed.decoded(typed.encoded(line))
