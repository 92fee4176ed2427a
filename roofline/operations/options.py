"""The `--ffn-*` options: a table of what each takes, and the `Options` of a run, with defaults by device and mode."""

import shlex
import tempfile
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from roofline.operations import OPERATIONS, contenders, gathering, matmul, shapes
from roofline.operations.matmul import ALL_LAYERS, LAYERS
from roofline.store import journal
from roofline.theory.arguments import count, nearest, positive, share
from roofline.theory.models import parse as parse_model
from roofline.theory.wires import OF_RANKS, RANKS_TAKE
from roofline.theory.wires import parse as parse_wire
from roofline.theory.work import ITEMSIZE

DEFAULTS = {
    "cuda": {"model": "xxl", "tokens": (1, 16, 64, 128, 256, 512, 1024, 4096, 8192), "tp": (1, 8), "dtype": ("bf16",)},
    "cpu": {"model": "xxl/16", "tokens": (1, 2, 4, 16, 64, 256, 1024), "tp": (1, 8), "dtype": ("fp32",)},
    "test-cuda": {"model": "xxl/32", "tokens": (1, 16, 200), "tp": (1, 8), "dtype": ("bf16", "fp16")},
    "test-cpu": {"model": "xxl/128", "tokens": (1, 16, 100), "tp": (1, 8), "dtype": ("fp32",)},
}
"""By device where the run is timed; `test` is what plain pytest checks once, small."""

QUICK = {"tokens": (1, 16, 256, 1024), "tp": (8,), "max_seconds": 0.8, "processes": 1}
"""Defaults under --ffn-quick: one or two minutes on two cores of a CPU."""

DEVICES = ("auto", "cpu", "cuda")


@dataclass(frozen=True)
class Options:
    """What to run, resolved: nothing here is a default any more, but `contenders`, whose names the kernels know."""

    device: str
    timed: bool
    model: str
    layers: tuple[str, ...]
    tokens: tuple[int, ...]
    tp: tuple[int, ...]
    dtypes: tuple[str, ...]
    contenders: tuple[str, ...] | None = None
    seed: int = 0
    max_seconds: float = 3.2
    first_call_seconds: float | None = None
    """What a first call may take; None for what its kind needs."""
    results: Path = Path()
    steady: int | None = None
    """Blocks in which each contender of a long matmul runs alone; None for the default."""
    no_report: bool = False
    """Whether the report is left for `roofline report` to draw."""
    gather: gathering.Sweep = field(default_factory=gathering.Sweep)
    """Of the operations that gather over a wire."""
    copier_programs: int | None = None
    """Of the paced link on a GPU; None for its default."""
    processes: int | None = None
    """How many share the passes over each shape; None for the clock's own."""
    world: int = 1
    """How many ranks torchrun started; 1 without it."""
    wires_of: tuple[tuple[str, float], ...] = ()
    """(shape, bytes/s) of each case over an emulated wire that another run measured; none without it."""
    lengths: tuple[int, ...] = ()
    """Of attention: the tokens that were asked for; none for its default ones."""
    shapes: tuple[str, ...] = ()
    """Ids of the matmuls of a file, in place of model, layers, tokens and tp; none without one."""
    quick: bool = False
    """Few shapes and rounds, in one process: to see what a run is like, never a reference."""
    against: str | None = None
    """Another checkout, whose shares take turns with these."""
    operations: tuple[str, ...] = ()
    """Names of those that alone are measured, and files of the user's that declare some; none for the default ones."""
    users: tuple[tuple[str, str], ...] = ()
    """Contenders of the user's: the place of each, as `contenders.parse` has it, and its file's version."""
    baseline: str | None = None
    """The contender that others are compared with; None for the vendor's."""
    arm_matmul: str | None = None
    """The contender that arms multiply by; None for the fastest of those that they choose from."""
    decide: float | None = None
    """Margin by which a contender is faster or slower than the baseline, or the same; None to decide nothing."""
    fail_slower: bool = False
    """Whether a contender that is slower fails the run."""


def one_of(choices, word: str) -> str:
    """Return `word`, which must be one of the `choices`."""
    if word not in choices:
        raise ValueError(f"it is one of {', '.join(choices)}; {nearest(word, choices)}".rstrip("; "))
    return word


def _folder(text: str) -> Path:
    if not text:
        raise ValueError("it has no value; give a folder")
    return Path(text)


def outside_runs(place: str) -> str:
    """Return the `place` of code, a path or as `contenders.parse` has it. Raises ValueError where it lies in the folder
    of a run, which may be somebody else's."""
    path = Path(place).expanduser().resolve()
    for folder in (path, *path.parents):
        if journal.find(folder):
            raise ValueError(f"it lies in the run {folder}, of which nothing is executed: read it, then move it out")
    return place


def operation(text: str) -> str:
    """Return the name of an operation of the suite as it is, or the resolved path of a file of Python, with `~` for the
    home folder."""
    path = Path(text).expanduser().resolve()
    if text in OPERATIONS:
        return text
    if not path.is_file() or path.suffix != ".py":
        near = nearest(text, OPERATIONS) or "the operations are " + ", ".join(OPERATIONS)
        raise ValueError(f"there is no such file of Python, from the folder you are in, and no such operation; {near}")
    return outside_runs(contenders.anonymous(path))


def checkout(text: str) -> str:
    """Return the absolute path of a checkout of this project, with `~` for the home folder."""
    path = Path(text).expanduser().resolve()
    if (path / "roofline" / "measure" / "child.py").is_file():
        raise ValueError("it is of before 27 November 2026, whose processes speak otherwise; take a later one")
    if not (path / "roofline" / "worker" / "process.py").is_file():
        raise ValueError("it is no checkout of roofline-ffn; make one, as by git worktree add ../base main")
    if path == Path(__file__).resolve().parents[2]:
        raise ValueError("it is this checkout itself, or pytest began in it; give another one, with = before it")
    return outside_runs(contenders.anonymous(path))


class Option(NamedTuple):
    """One of pytest's options. A `LIST` is read item by item; a `FLAG` has no value."""

    metavar: str
    read: Callable[[str], Any]
    help: str
    alone: str | None = None
    """Its value where it stands alone; None where it needs one."""
    is_repeated: bool = False
    """Whether it may be given again and again; it is a list then."""


TOKENS = "default: " + ", on a CPU ".join(",".join(map(str, DEFAULTS[name]["tokens"])) for name in ("cuda", "cpu"))

OPTIONS = {
    "model": Option("NAME", lambda text: parse_model(text).name, "as llama-3-8b or D,F (default: xxl, a CPU's xxl/16)"),
    "layers": Option("LIST", partial(one_of, ALL_LAYERS), f"of {', '.join(ALL_LAYERS)} (default: up,down)"),
    "tokens": Option("LIST", count, f"rows of the activations, and lengths of attention ({TOKENS})"),
    "tp": Option("LIST", count, "tensor-parallel degrees, each must divide d_ff (default: 1,8)"),
    "dtype": Option("LIST", partial(one_of, ITEMSIZE), f"of {', '.join(ITEMSIZE)} (default: bf16 on a GPU, else fp32)"),
    "shapes": Option(
        "FILE", str, "lines of m,n,k or m,n,k,dtype,label, in place of model, layers, tokens and tp (default: no file)"
    ),
    "contenders": Option(
        "LIST", str, "the baseline is measured beside them (default: all but inductor)"
    ),
    "contender": Option(
        "FILE::NAME", lambda text: outside_runs(contenders.parse(text)), "a matmul of your own, f(x, w, out=None), "
        "from a file or as module:NAME; again for another (default: none; with one, it and the baseline alone are "
        "measured)", is_repeated=True,
    ),
    "baseline": Option("NAME", str, "the contender that others are compared with (default: cublas, on a CPU torch)"),
    "arm_matmul": Option(
        "NAME", str, "the contender that arms multiply by (default: the fastest of the baseline and persistent)"
    ),
    "operations": Option(
        "LIST", operation, "of the suite, as attention, or files that declare and test some of your own; they alone "
        "are measured (default: all but attention, ffn_gated and transformer_step)",
    ),
    "against": Option(
        "CHECKOUT", checkout, "let the shares of another checkout, as of a pull request's base, take turns with these, "
        "and compare (default: none)"
    ),
    "ranks": Option("LIST", count, "that gather, each must divide d_model and d_ff (default: 8)"),
    "link_bandwidth": Option(
        "LIST", lambda text: parse_wire(text).token, "of the emulated link: bytes/s (100e9), balance2750 (FLOP/byte), "
        "ridge (gather and matmul take equally long), ridge1.4, memory0.18 (of a copy's bandwidth), moved on a GPU by "
        "copy engines (ridgeengine) or so many programs (ridgecopier32); pcie, a real link; or preset (default: "
        "balance2750, scaled as the model is, and others at one tp; on a GPU pcie at three)",
    ),
    "wires_of": Option(
        "RUN", lambda text: wires_of(Path(text)), "take the wire of each case as it was in another run, so that both "
        "can be compared (default: made for this machine's pace)",
    ),
    "copier_programs": Option(
        "N", count, "of the emulated link on a GPU, one an SM (default: as its bandwidth needs, 32 at least; beside "
        "our own kernels one on each)",
    ),
    "device": Option("DEVICE", partial(one_of, DEVICES), f"{', '.join(DEVICES)} (default: the GPU if there is one)"),
    "seed": Option("N", partial(count, least=0), "of inputs and orders (default: 0)"),
    "max_seconds": Option("S", positive, "cap on the time of one shape, over all processes (default: 3.2)"),
    "first_call_seconds": Option(
        "S", positive, "what a first call may take, with all it compiles (default: 120, a user's 300, of torch.compile "
        "900, of inductor 1800; without the CPU 60, on a GPU 120)"
    ),
    "processes": Option(
        "N", count, "that measure each shape, one after another, each in passes of its own "
        "(default: 6, on a GPU 3)",
    ),
    "results": Option("DIR", _folder, "where run folders go (default: results/local)"),
    "resume": Option("RUN", _folder, "go on with a run that was cut off, by its own options (default: a new run)"),
    "steady": Option(
        "N", partial(count, least=0), "kernels of 2 ms and more also in N blocks of 1.5 s, all contenders; alone 4, 0 "
        "is none (default: on a GPU from 1024 tokens on, the baseline and the fastest of ours, 4 each)", alone="4",
    ),
    "no_report": Option(
        "FLAG", bool, "leave the report for `roofline report`, which draws it from the journal anywhere (default: no)"
    ),
    "quick": Option(
        "FLAG", bool, "few shapes and rounds in one process, unless chosen: 1 to 2 minutes on two cores (default: a "
        "whole run)",
    ),
    "decide": Option(
        "SHARE", share, "as 3%: measure until each is FASTER, SLOWER or the SAME, up to three times as long (default: "
        "do not)"
    ),
    "fail_slower": Option("FLAG", bool, "with --ffn-decide or --ffn-against: fail where one is SLOWER (default: no)"),
}  # fmt: skip
"""By name, without the prefix `--ffn-`."""

FLAGS = {name: f"--ffn-{name.replace('_', '-')}" for name in OPTIONS}
"""How each option is written."""


def add(parser) -> None:
    """Register the options with pytest."""
    register(parser.getgroup("ffn", "FFN matmuls on a roofline (timed with --benchmark-only)").addoption)


def help_text() -> str:
    """Return what `roofline bench --help` says before pytest's own help."""
    usage = "roofline bench [TESTS] [--ffn-...] [pytest's options]"
    parser = ArgumentParser(usage=usage, add_help=False, description="Measure, from any folder.")
    register(parser.add_argument_group("roofline's options").add_argument)
    return parser.format_help()


def register(add_option: Callable) -> None:
    """Give each option to `add_option`, which takes what argparse does."""
    for name, (metavar, _, text, alone, is_repeated) in OPTIONS.items():
        takes = {"action": "store_true"} if metavar == "FLAG" else {"metavar": metavar}
        takes |= {"nargs": "?", "const": alone} if alone else {}
        takes |= {"action": "append"} if is_repeated else {}
        add_option(FLAGS[name], help=text.replace("%", "%%"), **takes)  # argparse would fill in a bare %


def require_writable(folder: Path) -> None:
    """Raise ValueError where no run folder could be made in `folder`, which is made later."""
    parent = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    try:
        tempfile.TemporaryDirectory(dir=parent).cleanup()
    except OSError as error:
        problem = f"cannot write in {parent}: {error.strerror}; choose another folder with --ffn-results=DIR"
        raise ValueError(f"--ffn-results {str(folder)!r}: {problem}") from None


def value(name: str, get) -> Any:
    """Return the option `name`, read from `get(dest)`, pytest's parsed values; a tuple without repeats of a list.

    None where it was not given. Raises ValueError that names option, value and way out.
    """
    option, text = OPTIONS[name], get(f"ffn_{name}")
    if not text and (text is None or option.metavar == "FLAG"):
        return None
    if option.metavar != "LIST" and not option.is_repeated:
        return read(name, text, option.read)
    texts = text if option.is_repeated else [item.strip() for item in text.split(",") if item.strip()]
    items = dict.fromkeys(read(name, item, option.read) for item in texts)
    if not items:
        raise ValueError(f"{FLAGS[name]} {text!r}: give at least one value")
    return tuple(items)


def read(name: str, given, convert: Callable) -> Any:
    """Return `convert(given)`, whose errors become those of the option `name`."""
    try:
        return convert(given)
    except (
        ValueError,
        ArgumentTypeError,
        RuntimeError,
    ) as error:  # of the last kind is a home folder that is not there
        shown = f" {given!r}" if isinstance(given, str) and repr(given) not in str(error) else ""
        # The word after an option that may stand alone is easily taken for its value.
        alone = f", as in {FLAGS[name]}=12; alone, it stands last or before another option"
        raise ValueError(f"{FLAGS[name]}{shown}: {error}{alone if OPTIONS[name].alone else ''}") from None


def resolve(get, *, device: str, timed: bool, root: Path, world: int = 1) -> Options:
    """Return options from `get(dest)`, pytest's parsed values, for as many ranks as torchrun started.

    Raises ValueError that names option, value and way out.
    """
    given = {name: chosen for name in OPTIONS if (chosen := value(name, get)) is not None}
    mode, quick = device if timed else f"test-{device}", "quick" in given
    defaults = {"layers": LAYERS, "results": root / "results" / "local"} | DEFAULTS[mode] | (QUICK if quick else {})
    values, names = defaults | given, {part.name for part in fields(Options)} - {"device"}
    if "shapes" in given:
        values |= _of_file(given, values["dtype"])
    settings = {name: setting for name, setting in values.items() if name in names}
    users = tuple((place, contenders.version(place)) for place in values.get("contender", ()))
    about = {"world": world, "users": users, "lengths": given.get("tokens", ())}
    options = Options(device, timed, dtypes=values["dtype"], **about, **settings)
    if options.fail_slower and not (options.decide or options.against):
        raise ValueError("--ffn-fail-slower: nothing is called slower without a margin; add --ffn-decide 3%")
    alone = ("contender", "baseline", "arm_matmul", "shapes")
    if options.operations and (others := [FLAGS[name] for name in alone if name in given]):
        raise ValueError(
            f"--ffn-operations: they alone are measured, and have no part in {', '.join(others)}; leave them out"
        )
    if options.against and (quick or options.processes == 1):
        raise ValueError("--ffn-against: a change is told by pairs of processes; leave out --ffn-quick, take several")
    if options.decide and options.against:
        raise ValueError("--ffn-decide: with --ffn-against the checkouts are compared, by all shares; leave one out")
    read("layers", options, lambda options: [matmul.sides(options.model, layer) for layer in options.layers])
    read("tp", options, matmul.sweep)
    if device == "cpu" and options.copier_programs:
        raise ValueError(f"--ffn-copier-programs {options.copier_programs}: on a CPU a thread copies; leave it out")
    if device == "cpu" and "fp8" in options.dtypes:
        raise ValueError("--ffn-dtype fp8: it needs a Hopper GPU, and this run is on the CPU; take bf16 or fp32")
    ranks, wires = _ranks_and_wires(device, world, given)
    chosen = {name: given[name] for name in ("tokens", "tp") if name in given}
    gather = gathering.make(mode, options.model, ranks, wires, **chosen, quick=quick)
    if wires and not gather.ranks:
        raise ValueError(f"--ffn-link-bandwidth: {gathering.nobody(options.model)}; choose --ffn-ranks")
    if "up" in options.layers:
        options = replace(options, gather=gather)
    read("ranks", options, lambda options: [operation.sweep(options) for operation in OPERATIONS.values()])
    return options


def _of_file(given: dict, dtypes: tuple[str, ...]) -> dict:
    """Return the values of a run of a file's shapes, which sweeps nothing."""
    swept = ("model", "layers", "tokens", "tp", "ranks", "link_bandwidth", "wires_of", "copier_programs")
    if others := [FLAGS[name] for name in swept if name in given]:
        raise ValueError(f"--ffn-shapes: the file alone says what is multiplied; leave out {', '.join(others)}")
    cases = read("shapes", given["shapes"], lambda text: shapes.of_file(Path(text), dtypes))
    of_cases = tuple(dict.fromkeys(case.dtype for case in cases))
    return {"shapes": tuple(case.id for case in cases), "dtype": of_cases, "layers": (), "tokens": (), "tp": ()}


def _ranks_and_wires(device: str, world: int, given: dict) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Return the ranks that gather and their wires, as chosen: empty for the default. Real ranks have real wires."""
    ranks, wires = given.get("ranks", ()), given.get("link_bandwidth", ())
    real = [wire for wire in wires if wire in OF_RANKS]
    if world == 1:
        if real:
            raise ValueError(
                f"--ffn-link-bandwidth {real[0]!r}: it is between the ranks that torchrun started; start it so"
            )
        if device == "cpu" and (of_gpu := [wire for wire in wires if parse_wire(wire).needs_gpu]):
            raise ValueError(
                f"--ffn-link-bandwidth {of_gpu[0]!r}: it needs an NVIDIA GPU, which moves the bytes, and this run is "
                "on the CPU; leave it out"
            )
        return ranks, wires
    if ranks not in ((), (world,)):
        raise ValueError(f"--ffn-ranks {','.join(map(str, ranks))}: torchrun started {world}; leave it out")
    for name, emulated in (("wires_of", "wires_of" in given), ("link_bandwidth", len(real) < len(wires))):
        if emulated:
            raise ValueError(f"{FLAGS[name]} under torchrun: the wire between the ranks is real; leave it out")
    able = RANKS_TAKE[device]
    if wrong := [wire for wire in real if wire not in able]:
        raise ValueError(
            f"--ffn-link-bandwidth {wrong[0]!r}: it is none of ranks on the {device}, which take {', '.join(able)}"
        )
    return (world,), tuple(real) or able


def wires_of(folder: Path) -> tuple[tuple[str, float], ...]:
    """Return (shape, bytes/s) of the emulated wires of the run in `folder`. Raises ValueError where it has none."""
    shapes = journal.load(folder).shapes
    wires = tuple((name, speed) for name, shape in shapes.items() if (speed := shape.requested_bytes_per_s))
    if not wires:
        raise ValueError("that run has no case over an emulated wire; take one that has")
    return wires


def resumed(get, metadata: dict, folder: Path) -> Options:
    """Return the options of the run in `folder` that has this `metadata`: the journal's, but for those that name code,
    which are given again.

    Raises ValueError where they are not, and where others are given too.
    """
    if not metadata.get("cases") or "options" not in metadata:
        raise ValueError(f"--ffn-resume {folder}: its journal does not say what was planned; start a new run")
    planned = of_values(metadata["options"])
    again = {word.partition("=")[0] for word in code_of(planned)} | {"--ffn-device", "--ffn-resume"}
    if others := [FLAGS[name] for name in OPTIONS if FLAGS[name] not in again and get(f"ffn_{name}")]:
        raise ValueError(f"--ffn-resume takes its options from the run: leave out {', '.join(others)}")
    versions = dict(planned.users)
    users = tuple((place, versions.get(place, "")) for place in value("contender", get) or ())
    files, against = value("operations", get) or (), value("against", get)
    given = replace(planned, results=folder.parent, users=users, operations=files, against=against)
    if code_of(given) != code_of(planned):
        raise ValueError(
            f"--ffn-resume {folder}: the run executes code that its journal names, and a journal may be somebody "
            f"else's; if you trust that code, name it too: {way_on(folder, planned)}"
        )
    return replace(given, operations=files or planned.operations)


def code_of(options: Options) -> list[str]:
    """Return the words of a command line for what `options` name of code beyond this checkout."""
    words = [f"--ffn-contender={place}" for place, _ in options.users]
    if {*options.operations} - OPERATIONS.keys():
        words.append(f"--ffn-operations={','.join(options.operations)}")
    if options.against:
        words.append(f"--ffn-against={options.against}")
    return words


def way_on(folder: Path, options: Options) -> str:
    """Return the command that goes on with the run in `folder`, for a shell."""
    words = "python3", "-m", "pytest", "--benchmark-only", f"--ffn-resume={folder}", *code_of(options)
    return shlex.join(words)


def as_values(options: Options) -> dict:
    """Return `options` as a run's metadata has them."""
    return {name: value for name, value in asdict(options).items() if name != "results"}


def of_values(values: dict) -> Options:
    """Return options from what a run's metadata has of them."""

    def make(kind: type, values: dict, **more):
        names = {part.name for part in fields(kind)} - more.keys()
        plain = {name: tuple(item) if isinstance(item, list) else item for name, item in values.items()}
        return kind(**{name: item for name, item in plain.items() if name in names}, **more)

    return make(Options, values, results=Path(), gather=make(gathering.Sweep, values.get("gather", {})))


def misspelt(arguments) -> str | None:
    """Return what is wrong with an option of `arguments` that begins like ours and is none; None if none is."""
    for name in (argument.partition("=")[0] for argument in arguments):
        if name.startswith("--ffn") and name not in FLAGS.values():
            return f"{name}: there is no such option; {nearest(name, FLAGS.values())}".rstrip("; ")
    return None
