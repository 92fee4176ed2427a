"""The `--ffn-*` options: a table of what each takes, and the `Options` of a run, with defaults by device and mode."""

import os
import shlex
from argparse import ArgumentTypeError
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from roofline.host.arguments import BENCH, count, fraction, positive
from roofline.operations import OPERATIONS, contenders, gathering, matmul, shapes
from roofline.operations.base import DEFAULTS, Counts, Names
from roofline.operations.matmul import ALL_LAYERS, LAYERS
from roofline.store import journal, typed
from roofline.theory.data import tables_of
from roofline.theory.models import parse as parse_model
from roofline.theory.wires import parse as parse_wire
from roofline.theory.words import nearest
from roofline.theory.work import ITEMSIZE

DEVICES = ("auto", "cpu", "cuda")


@dataclass(frozen=True, kw_only=True)
class Options:
    """A run's options, resolved. Only `contenders` may still stand for a default: the planners know their names."""

    device: str
    timed: bool
    model: str
    layers: Names = LAYERS
    tokens: Counts
    tp: Counts = (1, 8)
    dtypes: Names
    contenders: Names | None = None
    seed: int = 0
    max_seconds: float = 3.2
    first_call_seconds: float | None = None
    """The limit of a first call; None for that of its kind."""
    results: Path = Path()
    steady: int | None = None
    """Blocks in which each contender of a long matmul runs alone; None for the default."""
    no_report: bool = False
    """The report is left for `roofline report` to draw."""
    gather: gathering.Sweep = field(default_factory=gathering.Sweep)
    """The sweep of operations over a link."""
    processes: int | None = None
    """Processes that measure each shape, some passes each; None for the clock's own."""
    world: int = 1
    """Ranks that torchrun started; 1 without it."""
    wires_of: tuple[tuple[str, float], ...] = ()
    """(shape, bytes/s) of each case over an emulated link that another run measured; none without it."""
    lengths: Counts = ()
    """Tokens that were asked for, where an operation takes them for lengths; none for its default ones."""
    shapes: Names = ()
    """Ids of the matmuls of a file, in place of model, layers, tokens and tp; none without one."""
    quick: bool = False
    """Few shapes and rounds, in one process: to see what a run is like, never a reference."""
    operations: Names = ()
    """The only ones that are measured, by name or by the file of the user's that declares some; none for the default
    ones."""
    users: tuple[tuple[str, str], ...] = ()
    """Contenders of the user's: the place of each, as `contenders.parse` has it, and its file's version."""
    baseline: str | None = None
    """The contender that others are compared with; None for the vendor's."""
    decide: float | None = None
    """Margin by which a contender is faster or slower than the baseline, or the same; None to decide nothing."""
    fail_slower: bool = False
    """A contender that is slower fails the run."""


def one_of(choices, word: str) -> str:
    """Check that `word` is one of the `choices`."""
    if word not in choices:
        raise ValueError(f"it is one of {', '.join(choices)}; {nearest(word, choices)}".rstrip("; "))
    return word


def wires_of(folder: str) -> tuple[tuple[str, float], ...]:
    """(shape, bytes/s) of each emulated wire of the run in `folder`. Raises ValueError where it has none."""
    emulated = []
    for name, shape in journal.load(Path(folder)).shapes.items():
        if shape.requested_bytes_per_s:
            emulated.append((name, shape.requested_bytes_per_s))
    if not emulated:
        raise ValueError("that run has no case over an emulated wire; take one that has")
    return tuple(emulated)


def operation(text: str) -> str:
    """Resolve the path of a file that declares operations, with `~` for the home folder. The name of one of the suite
    stays as it is."""
    path = Path(text).expanduser().resolve()
    if path.is_file() and path.suffix == ".py":
        return contenders.anonymous(path)
    return one_of([*OPERATIONS, "or a file of Python, from the folder you are in"], text)


READERS: dict[str, Callable] = {
    "text": str,
    "count": count,
    "number": partial(count, least=0),
    "positive": positive,
    "fraction": fraction,
    "model": lambda text: parse_model(text).name,
    "layer": partial(one_of, ALL_LAYERS),
    "dtype": partial(one_of, ITEMSIZE),
    "device": partial(one_of, DEVICES),
    "wire": lambda text: parse_wire(text).token,
    "wires": wires_of,
    "contender": contenders.parse,
    "operation": operation,
    "folder": Path,
}
"""Kind of a value, as `options.toml` has it -> the function that reads it."""


class Option(NamedTuple):
    """One of pytest's options, as `options.toml` has it."""

    settings: dict[str, str]
    help: str
    reads: str = "text"
    is_list: bool = False
    without: Names = ()
    is_timed: bool = False
    of_one_process: bool = False


OPTIONS = {name: Option(**entry) for name, entry in tables_of(__file__, "options.toml").items()}
"""By name, without the prefix `--ffn-`."""

FLAGS = {name: f"--ffn-{name.replace('_', '-')}" for name in OPTIONS}
"""Each option as it is written."""


def add(parser) -> None:
    """Register the options with pytest."""
    group = parser.getgroup("ffn", "FFN matmuls on a roofline (timed with --benchmark-only)")
    for name, option in OPTIONS.items():
        group.addoption(FLAGS[name], help=option.help, **option.settings)


def values_given(get) -> dict[str, Any]:
    """The options that were given, by name, each read from `get(dest)`, pytest's parsed values.

    Raises ValueError that names option, value and way out.
    """
    values = {}
    for name in OPTIONS:
        given = get(f"ffn_{name}")
        if given not in (None, False):
            values[name] = _value(name, given)
    return values


def _value(name: str, given) -> Any:
    """The value of the option `name`. A list becomes a tuple without repeats."""
    if given is True:
        return True
    reader = READERS[OPTIONS[name].reads]
    if isinstance(given, list):
        texts = given
    elif OPTIONS[name].is_list:
        texts = list(filter(None, map(str.strip, given.split(","))))
    else:
        return read(name, given, reader)
    items = [read(name, text, reader) for text in texts]
    if not items:
        raise ValueError(f"{FLAGS[name]} {given!r}: give at least one value")
    return tuple(dict.fromkeys(items))


def read(name: str, given, convert: Callable) -> Any:
    """Convert the value of the option `name` by `convert`, whose errors then name the option."""
    try:
        return convert(given)
    except (ValueError, ArgumentTypeError, RuntimeError) as error:  # the last is of a home folder that is not there
        shown = f" {given!r}" if isinstance(given, str) and repr(given) not in str(error) else ""
        raise ValueError(f"{FLAGS[name]}{shown}: {error}") from None


def refuse_conflicts(given, *, timed: bool, is_one_process: bool) -> None:
    """Refuse options of `given` that do not go together, or need a run of another kind, as the table `OPTIONS` has
    it."""
    for name in given:
        option = OPTIONS[name]
        if option.is_timed and not timed:
            raise ValueError(f"{FLAGS[name]} measures: it needs --benchmark-only")
        if option.of_one_process and not is_one_process:
            raise ValueError(f"{FLAGS[name]} under torchrun: it is of a run of one process; leave it out")
        others = [FLAGS[other] for other in option.without if other in given]
        if others:
            raise ValueError(f"{FLAGS[name]} alone says what is measured; leave out {', '.join(others)}")
    if "fail_slower" in given and "decide" not in given:
        raise ValueError("--ffn-fail-slower: nothing is called slower without a margin; add --ffn-decide")


def resolve(given: dict, *, device: str, timed: bool, root: Path, world: int = 1) -> Options:
    """Resolve the options of a run of which some are `given`. torchrun started `world` ranks.

    Raises ValueError that names option, value and way out.
    """
    mode = device if timed else f"test-{device}"
    values = {"results": root / "results" / "local"} | DEFAULTS["options"][mode]
    if "quick" in given:
        values |= DEFAULTS["quick"]
    values |= given
    if "shapes" in given:
        values |= _values_of_file(given["shapes"], values["dtype"])
    values |= {
        "device": device,
        "timed": timed,
        "world": world,
        "dtypes": values["dtype"],
        "lengths": given.get("tokens", ()),
        "users": [(place, contenders.version(place)) for place in given.get("contender", ())],
    }
    options = typed.read(Options, values)
    _require_sound(options)
    return replace(options, gather=gathering.make(options, given))


def _require_sound(options: Options) -> None:
    """Refuse values that do not fit one another."""
    read("layers", options, lambda options: [matmul.sides(options.model, layer) for layer in options.layers])
    for dtype in options.dtypes if options.device == "cpu" else ():
        if ITEMSIZE[dtype] == 1:
            raise ValueError(
                f"--ffn-dtype {dtype}: it needs a Hopper GPU, and this run is on the CPU; take bf16 or fp32"
            )


def _values_of_file(file: str, dtypes: Names) -> dict:
    """The values of a run of a file's shapes, which sweeps nothing."""
    cases = read("shapes", file, lambda text: shapes.read_file(text, dtypes))
    swept = dict.fromkeys(("layers", "tokens", "tp"), ())
    ids = tuple(case.id for case in cases)
    return swept | {"shapes": ids, "dtype": tuple(dict.fromkeys(case.dtype for case in cases))}


def resumed(given: dict, metadata: dict, folder: Path) -> Options:
    """The options of the run in `folder`, as its `metadata` has them. Those that name code are taken from `given`.

    Raises ValueError where these are not given again, and where others are given too.
    """
    planned = options_of(metadata.get("options", {}))
    code = code_of(planned)
    words = " ".join(["--ffn-device=", "--ffn-resume=", *code])
    others = [flag for flag in map(FLAGS.__getitem__, given) if f"{flag}=" not in words]
    if others:
        raise ValueError(f"--ffn-resume takes its options from the run: leave out {', '.join(others)}")
    users = tuple((place, "") for place in given.get("contender", ()))
    named = replace(planned, users=users, operations=given.get("operations", ()))
    if code_of(named) != code:
        raise ValueError(
            f"--ffn-resume {folder}: the run executes code that its journal names, and a journal may be somebody "
            f"else's; if you trust that code, name it too: {way_on(folder, planned)}"
        )
    return replace(planned, results=folder.parent)


def code_of(options: Options) -> list[str]:
    """The words of a command line for what `options` name of code beyond this checkout."""
    words = [f"--ffn-contender={place}" for place, _ in options.users]
    if {*options.operations} - OPERATIONS.keys():
        words.append(f"--ffn-operations={','.join(options.operations)}")
    return words


def way_on(folder: Path, options: Options) -> str:
    """The command that goes on with the run in `folder`, for a shell."""
    words = ["python3", "-m", "pytest", "--benchmark-only"]
    if options.world > 1:
        words[0:1] = ["torchrun", f"--nproc-per-node={options.world}"]
    elif began := os.environ.get(BENCH):
        words = [*shlex.split(began), "bench"]
    return shlex.join([*words, f"--ffn-resume={folder}", *code_of(options)])


def as_values(options: Options) -> dict:
    """`options` as a run's metadata has them."""
    values = asdict(options)
    del values["results"]
    return values


def options_of(values: dict) -> Options:
    """The options that a run's metadata has. What a later version wrote beside them is left out. Raises ValueError."""
    try:
        return typed.read(Options, values)
    except ValueError as error:
        raise ValueError(f"its options are of another version of the suite: {error}; measure a new run") from None


def misspelt(arguments) -> str | None:
    """The problem with an option of `arguments` that begins like ours and is none; None if there is no such option."""
    for argument in arguments:
        name = argument.partition("=")[0]
        if name.startswith("--ffn") and name not in FLAGS.values():
            return f"{name}: there is no such option; {nearest(name, FLAGS.values())}".rstrip("; ")
    return None
