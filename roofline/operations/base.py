"""Operations: the cases that each is measured on, what judges them, and who runs them. No torch here.

An operation is declared in one file, of this folder, of the checkout's table or of a user's. It runs in another, found
by its name once workers are started: runners import torch and Triton. All else needs the declaration alone.
"""

import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from roofline.operations.contenders import Contender, Planner, loaded
from roofline.operations.shown import Shown
from roofline.store.outcome import FAILED, Outcome
from roofline.theory.data import tables_of
from roofline.theory.words import nearest
from roofline.theory.work import ITEMSIZE, Work

DEFAULTS = tables_of(__file__, "defaults.toml")
"""The defaults of a run."""

NO_FP8 = "fp8 is of matmuls alone, and of operations that say so: leave it out of --ffn-dtype"

ANALYSIS_NAMES = "throughput", "overlap"
"""The analyses of operations."""

Counts = tuple[int, ...]
Names = tuple[str, ...]


class Case:
    """One shape of an operation. A subclass is a frozen dataclass, whose fields make it again.

    Raises ValueError for an unknown `dtype`.
    """

    op: ClassVar[str]
    form: ClassVar[str]
    """The form of its id behind the name of the operation, with its fields in braces."""
    dtype: str
    sets = 1
    """Sets of operands that a timed run has at the least."""
    dtypes = tuple(dtype for dtype, size in ITEMSIZE.items() if size > 1)
    """The choices of its `dtype`."""

    def __post_init__(self):
        self.require("dtype", self.dtypes)

    def require(self, name: str, choices: Iterable[str]) -> None:
        """Raise ValueError unless the field `name` is one of `choices`."""
        if (value := getattr(self, name)) not in choices:
            raise ValueError(f"unknown {name} {value!r}: it is one of {', '.join(choices)}")

    @property
    def work(self) -> Work:
        """What a call of it does, and moves."""
        raise NotImplementedError

    @property
    def facts(self) -> dict:
        """Sizes that follow from its fields, for the journal: plain values."""
        return {}

    @property
    def id(self) -> str:
        return f"{self.op}-{self.form.format(**vars(self))}"


def dtypes_of(case: type[Case], options) -> list[str]:
    """The dtypes of a run that `case` may have."""
    return [dtype for dtype in options.dtypes if dtype in case.dtypes]


@dataclass(frozen=True)
class Operation(Shown):
    """The operation that `test_<name>(ffn_benchmark, shape, contender)` measures: declared here, run by its runner."""

    case: type[Any]
    """A subclass of `Case`."""
    analysis: str
    """Name of the analysis that judges it: `throughput` or `overlap`."""
    sweep: Callable[[Any], list]
    """The cases that the options ask for, in the order of the run."""
    runner: str | type
    """`package.module:Class` of what runs its contenders, or the class itself."""
    example: str
    """An id with a contender."""
    contenders: tuple[Contender, ...] = ()
    """The first that is timed on a device is the baseline there."""
    planner: str | Callable[[Any], Planner] = ""
    """The class that lists others than these, named as the runner is."""
    notes: Callable[[Any, list[str]], list[str]] = lambda options, cases: []
    """Sentences for the report about `cases`, the ids of the shapes that were selected."""
    why_not: Callable[[Any], str] = lambda options: ""
    """Why it has no case by these options, beside their dtypes; empty if it has."""
    default: bool = True
    """A run measures it unless it is told what to measure: by --ffn-operations, -k, or the name of its test."""
    between_ranks: bool = False
    """All ranks that torchrun started run it together. Under torchrun no other operation is timed."""
    visits: tuple[Mapping[str, Any], ...] = ()
    """Steps of a visit to a GPU: fields of a `Step` of results/visit.py, and `before`, the step that it precedes."""

    @property
    def name(self) -> str:
        return self.case.op

    def lacking(self, options) -> str:
        """Why it has no case by these options; empty if it has."""
        return self.why_not(options) or NO_FP8 * (not dtypes_of(self.case, options))

    def parse(self, text: str) -> tuple[Any, str | None]:
        """`read` an id as of one of its cases."""
        return read(self.case, text, self.example)


@functools.cache
def _pattern(case: Any) -> re.Pattern:
    """That of the ids of a case. Only the name of a model has dashes of its own."""
    form = case.form
    for field in fields(case):
        value = r"\d+" if field.type is int else r"[\w.+]+"
        if field.name == "model":
            value = ".+"
        form = form.replace(f"{{{field.name}}}", f"(?P<{field.name}>{value})")
    return re.compile(rf"{form}(?:-(?P<contender>\w+))?")


def read(case: Any, text: str, example: str) -> tuple[Any, str | None]:
    """Parse the id of a `case` into that and its contender, which is None for the id of a shape. Raises ValueError,
    with the `example` where it is not written so."""
    match = _pattern(case).fullmatch(text.removeprefix(f"{case.op}-"))
    if not match:
        raise ValueError(f"case {text!r} is not written as cases are: {example}")
    words = match.groupdict()
    try:
        kinds: dict[str, Any] = {field.name: field.type for field in fields(case)}
        values = {name: kind(words[name]) for name, kind in kinds.items()}
        return case(**values), words["contender"]
    except ValueError as error:
        raise ValueError(f"case {text!r}: {error}") from None


OPERATIONS: dict[str, Operation] = {}
"""By name, in the order in which they are registered."""


def register(operation: Operation) -> Operation:
    """Take `operation` into `OPERATIONS`. Raises ValueError where its name is taken, or nothing judges it."""
    if operation.analysis not in ANALYSIS_NAMES:
        names = " or ".join(ANALYSIS_NAMES)
        raise ValueError(f"operation {operation.name!r}: analysis {operation.analysis!r} is not known: take {names}")
    if operation.name in OPERATIONS:
        raise ValueError(f"operation {operation.name!r} is known already: choose another name")
    return OPERATIONS.setdefault(operation.name, operation)


def find(text: str) -> Operation:
    """The operation of that name, or of a shape's or a case's id, which begins with the name. Raises ValueError."""
    name = text.partition("-")[0]
    if name not in OPERATIONS:
        raise ValueError(f"no operation {name!r}: {nearest(name, OPERATIONS)}known are {', '.join(OPERATIONS)}")
    return OPERATIONS[name]


def parse(text: str) -> tuple[Any, str | None]:
    """Parse an id into its case and its contender, which is None for the id of a shape.

    >>> parse("matmul-llama-3-70b-up-tp8-m16-bf16-tiled")[1], parse("matmul-xxl/16-down-tp1-m1-fp32")[0].k
    ('tiled', 3328)
    >>> parse("weight_prefetch-xxl-up-p8-tp1-m2750-bf16-ridge1.4-serial")[0].wire
    'ridge1.4'

    Raises ValueError for anything else, with an example, and for sizes that do not fit one another.
    """
    try:
        operation = find(text)
    except ValueError as error:
        raise ValueError(f"case {text!r}: {error}") from None
    return operation.parse(text)


def place_of(target: str | type) -> str:
    """Where another process finds a class: `package.module:Class`. A class of a user's file, which no import finds, is
    found at `FILE::Class`: pytest gives such a file's module a name that may be none of a file, as where a folder of
    it has a dot."""
    if isinstance(target, str):
        return target
    file = Path(inspect.getfile(target)).resolve()
    module = target.__module__
    for entry in map(Path, sys.path):
        imported = entry.resolve().joinpath(*module.split("."))
        if "." in module and file == imported.with_suffix(".py"):
            return f"{module}:{target.__qualname__}"
    return f"{file}::{target.__qualname__}"


def places(shapes: Iterable[str]) -> dict[str, tuple[str, str]]:
    """The operations of `shapes` by name, each with the places of its runner and of its case."""
    operations = map(find, shapes)
    return {each.name: (place_of(each.runner), place_of(each.case)) for each in operations}


class Runners:
    """The runners and planners of a run's operations, each made when it is first asked for.

    To make a runner imports torch and Triton, which must not come before Triton's interpreter is switched.
    """

    def __init__(self, options, ranks=None):
        self.options = options
        self._ranks = ranks
        self.loaded: dict[str, Any] = {}
        """The runners that were asked for by now, by the operation's name, as the `planners` are."""
        self.planners: dict[str, Planner] = {}

    def planner(self, operation: Operation) -> Planner:
        if operation.name not in self.planners:
            planner = loaded(operation.planner or partial(Planner, contenders=operation.contenders))
            self.planners[operation.name] = planner(self.options)
        return self.planners[operation.name]

    def of(self, operation: Operation):
        """The runner of `operation`, made when it is first asked for."""
        if operation.name not in self.loaded:
            runner = self.loaded[operation.name] = loaded(operation.runner)(self.options)
            if self._ranks:
                runner.ranks = self._ranks
        return self.loaded[operation.name]

    def prepare(self, case: Case, names: list[str], *first_call):
        """Prepare a case with the contenders `names`, of which none is left out without a word. `first_call` is as
        `worker.prepared.unwatched`."""
        operation = find(case.op)
        prepared = self.of(operation).prepare(case, names, *first_call)
        prepared.analysis = operation.analysis
        for name in names:
            if name not in prepared.entrants and name not in prepared.rejected:
                outcome = Outcome(FAILED, f"{name}: its runner left it out, and did not say why")
                prepared.reject(name, outcome, is_sure=True)
        return prepared
