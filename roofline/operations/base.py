"""What an operation is: the cases it is measured on, what judges them, and who runs them. No torch here.

An operation is declared in one file of this folder and runs in another, `kernels/bench` or `collectives/bench`, found
by its name when benchmarks are generated: by then the pytest plugin has switched Triton's interpreter, so that runners
may import torch and Triton at their top. Reports, comparisons and predictions need the declaration alone.
"""

import difflib
import inspect
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

from roofline.theory.work import Work


class Case(Protocol):
    """One shape of an operation: a frozen dataclass whose fields, its parameters, make it again."""

    op: str
    id: str
    dtype: str
    work: Work
    facts: dict
    """Sizes that follow from its parameters, for the journal: plain values."""


@dataclass(frozen=True)
class Operation:
    """What `test_<name>(ffn_benchmark, shape, contender)` measures: declared here, run by its runner."""

    name: str
    case: type
    """A `Case`."""
    analysis: str
    """Name of the analysis that judges it: `throughput`, `overlap` or `gradients`."""
    sweep: Callable[[Any], list]
    """The cases that the options ask for, in the order of the run."""
    runner: str | type
    """`package.module:Class`, or the class itself."""
    pattern: re.Pattern
    """Reads a case's id behind the operation's name, the fields of `case` as groups, and the group `contender`."""
    example: str
    """An id with a contender."""
    notes: Callable[[Any, list[str]], list[str]] = lambda options, cases: []
    """What a run's report is to say of `cases`, the ids of the shapes that were selected, in sentences."""
    why_not: Callable[[Any], str] = lambda options: ""
    """Why these options have no case of it, in words; empty if they have."""
    contenders: str | Callable[[Any], Any] = ""
    """Likewise, what makes of the options an object that lists the contenders and imports no torch: it has the runner's
    `known`, `here` and `names`. Empty where the runner lists them itself."""

    @property
    def between_ranks(self) -> bool:
        """Return whether all ranks that torchrun started run it together."""
        return self.analysis != "throughput"

    def parse(self, text: str) -> tuple[Any, str | None]:
        """Return the case that `text` names, and its contender; None where it names a shape. Raises ValueError."""
        match = self.pattern.fullmatch(text.removeprefix(f"{self.name}-"))
        if not match:
            raise ValueError(f"case {text!r} is not written as cases are: {self.example}")
        words = match.groupdict()
        contender = words.pop("contender")
        types = self.case.__dataclass_fields__
        try:
            return self.case(**{name: types[name].type(word) for name, word in words.items()}), contender
        except ValueError as error:
            raise ValueError(f"case {text!r}: {error}") from None

    def load_runner(self) -> type:
        """Return the class that runs it. Imports what it needs, torch and Triton among it."""
        return _load(self.runner)

    def load_planner(self) -> Callable[[Any], Any]:
        """Return what makes an object that lists its contenders."""
        return _load(self.contenders or self.runner)


def _load(place):
    if not isinstance(place, str):
        return place
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


OPERATIONS: dict[str, Operation] = {}
"""By name, in the order in which they are known."""


def register(operation: Operation) -> Operation:
    """Make `operation` known. Raises ValueError where its name is taken."""
    if operation.name in OPERATIONS:
        raise ValueError(f"operation {operation.name!r} is known already: choose another name")
    return OPERATIONS.setdefault(operation.name, operation)


def find(name: str) -> Operation:
    """Return the operation `name`, as a case's `op` has it. Raises ValueError."""
    if name in OPERATIONS:
        return OPERATIONS[name]
    near = difflib.get_close_matches(name, OPERATIONS, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise ValueError(f"no operation {name!r}: {hint}known are {', '.join(OPERATIONS)}")


def parse(text: str) -> tuple[Any, str | None]:
    """Return the case that an id names, with or without a contender behind it, and that contender or None.

    >>> parse("matmul-llama-3-70b-up-tp8-m16-bf16-tiled")[1], parse("matmul-xxl/16-down-tp1-m1-fp32")[0].k
    ('tiled', 3328)
    >>> parse("weight_prefetch-xxl-up-p8-tp1-m2750-bf16-ridge1.4-serial")[0].wire
    'ridge1.4'

    Raises ValueError for anything else, with an example, and for sizes that do not fit one another.
    """
    try:
        operation = find(text.partition("-")[0])
    except ValueError as error:
        raise ValueError(f"case {text!r}: {error}") from None
    return operation.parse(text)


def place_of(kind: type) -> str:
    """Return where another process finds a class: `package.module:Class`, or `FILE::Class` of a module in no
    package."""
    name = f"{kind.__module__}:{kind.__qualname__}"
    return name if "." in kind.__module__ else f"{inspect.getsourcefile(kind)}::{kind.__qualname__}"


def places(shapes: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return the operations of `shapes`, by name, each with the places of its runner and of its case."""
    declared = {name: find(name) for name in dict.fromkeys(shape.partition("-")[0] for shape in shapes)}
    return {
        name: (
            operation.runner if isinstance(operation.runner, str) else place_of(operation.runner),
            place_of(operation.case),
        )
        for name, operation in declared.items()
    }


class Runners:
    """The runners of a run's operations, each made when it is first asked for: that imports torch and Triton, and must
    not come before Triton's interpreter was switched. What is given is as `measure.runner` has it."""

    def __init__(self, options, ranks=None):
        self.options, self._ranks = options, ranks
        self.known: dict[str, Any] = {}
        """By the operation's name, those that were asked for by now."""
        self.planners: dict[str, Any] = {}
        """Likewise what lists contenders."""

    def planner(self, operation: Operation):
        """Return what lists the contenders of `operation`, by `known`, `here` and `names` as `measure.runner` has."""
        if operation.name not in self.planners:
            planned = operation.load_planner()(self.options) if operation.contenders else self.of(operation)
            self.planners[operation.name] = planned
        return self.planners[operation.name]

    def of(self, operation: Operation):
        """Return the runner of `operation`."""
        if operation.name not in self.known:
            runner = self.known[operation.name] = operation.load_runner()(self.options)
            if self._ranks:
                runner.ranks = self._ranks
        return self.known[operation.name]

    def prepare(self, shape: str, names: list[str], *first_call):
        """Return the `PreparedCase` of the case that the id `shape` names. `first_call` is as
        `measure.prepared.unwatched`."""
        case, _ = parse(shape)
        operation = find(case.op)
        prepared = self.of(operation).prepare(case, names, *first_call)
        prepared.analysis = operation.analysis
        return prepared
