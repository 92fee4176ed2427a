"""The `--ffn-*` options: their words, their defaults by device and mode, and the errors of bad ones."""

import difflib
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from roofline.operations import OPERATIONS, gathering, matmul
from roofline.operations.matmul import LAYERS
from roofline.theory.models import parse as parse_model
from roofline.theory.wires import OF_RANKS, RANKS_TAKE
from roofline.theory.wires import parse as parse_wire
from roofline.theory.work import ITEMSIZE

DEFAULTS = {
    # mode: (model, tokens, tp, dtypes). `test` is what plain pytest checks once, small.
    "cuda": ("xxl", (1, 16, 64, 256, 1024, 4096, 8192), (1, 8), ("bf16",)),
    "cpu": ("xxl/16", (1, 2, 4, 16, 64, 256, 1024), (1, 8), ("fp32",)),
    "test-cuda": ("xxl/32", (1, 16, 200), (1, 8), ("bf16", "fp16")),
    "test-cpu": ("xxl/128", (1, 16, 100), (1, 8), ("fp32",)),
}


QUICK = {"tokens": (1, 16, 256, 1024), "tp": (8,), "max_seconds": 0.8, "processes": 1}
"""What --ffn-quick takes in the place of these options' defaults: about a minute on two cores of a CPU."""


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
    contenders: tuple[str, ...] | None
    seed: int
    max_seconds: float
    results: Path
    steady: bool = False
    counters: int | None = None
    """How many cases to count bytes and operations of: 0 for all, None for none."""
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
    quick: bool = False
    """Few shapes and rounds, in one process: to see what a run is like, never a reference."""


MAX_SECONDS = 3.2

DEVICES = ("auto", "cpu", "cuda")


def one_of(known, word: str) -> str:
    """`word`, which must be one of the `known`."""
    if word not in known:
        near = difflib.get_close_matches(word, known, n=1)
        raise ValueError(f"it is one of {', '.join(known)}{f'; did you mean {near[0]}?' if near else ''}")
    return word


def _at_least(least: int, text: str) -> int:
    if not text.strip().removeprefix("-").isdecimal():
        raise ValueError("it must be a whole number")
    if int(text) < least:
        raise ValueError(f"it must be {least} or more")
    return int(text)


def _seconds(text: str) -> float:
    with suppress(ValueError):
        if 0 < float(text) < float("inf"):
            return float(text)
    raise ValueError("it must be a number of seconds above 0")


def _folder(text: str) -> Path:
    if not text:
        raise ValueError("it has no value; give a folder")
    return Path(text)


class Option(NamedTuple):
    """One of pytest's options. A `LIST` is read item by item."""

    metavar: str
    read: Callable[[str], Any]
    help: str
    alone: str | None = None
    """Its value where it stands alone; None where it needs one."""


USUAL_TOKENS = "default: " + ", on a CPU ".join(",".join(map(str, DEFAULTS[of][1])) for of in ("cuda", "cpu"))

OPTIONS = {
    "model": Option("NAME", lambda text: parse_model(text).name, "as llama-3-8b or D,F (default: xxl, a CPU's xxl/16)"),
    "layers": Option("LIST", partial(one_of, LAYERS), "up, down or both (default: up,down)"),
    "tokens": Option("LIST", partial(_at_least, 1), f"rows of the activations ({USUAL_TOKENS})"),
    "tp": Option("LIST", partial(_at_least, 1), "tensor-parallel degrees, each must divide d_ff (default: 1,8)"),
    "dtype": Option("LIST", partial(one_of, ITEMSIZE), f"of {', '.join(ITEMSIZE)} (default: bf16 on a GPU, else fp32)"),
    "contenders": Option(
        "LIST", str, "the baseline is measured beside them, e.g. cublas,persistent (default: all but inductor)"
    ),
    "ranks": Option("LIST", partial(_at_least, 1), "that gather, each must divide d_model and d_ff (default: 8)"),
    "link_bandwidth": Option(
        "LIST", lambda text: parse_wire(text).token, "of the emulated link: bytes/s (100e9), balance2750 (FLOP/byte), "
        "ridge (gather and matmul take equally long), ridge1.4, memory0.18 (of a copy's bandwidth); or preset "
        "(default: balance2750, scaled as the model is, and others at one tp)",
    ),
    "wires_of": Option(
        "RUN", lambda text: wires_of(Path(text)), "take the wire of each case as it was in another run, so that both "
        "can be compared (default: made for this machine's pace)",
    ),
    "copier_programs": Option("N", partial(_at_least, 1), "of the emulated link on a GPU, one an SM (default: 32)"),
    "device": Option("DEVICE", partial(one_of, DEVICES), f"{', '.join(DEVICES)} (default: the GPU if there is one)"),
    "seed": Option("N", partial(_at_least, 0), "of inputs and orders (default: 0)"),
    "max_seconds": Option("S", _seconds, "cap on the time of one shape, over all processes (default: 3.2)"),
    "processes": Option(
        "N", partial(_at_least, 1), "that measure each shape, one after another, each in passes of its own "
        "(default: 6, on a GPU 3)",
    ),
    "counters": Option(
        "N", partial(_at_least, 0), "afterwards, let Nsight Compute count bytes and tensor operations of N of the "
        "matmuls (default: of none; alone: of all)", alone="0",
    ),
    "results": Option("DIR", _folder, "where run folders go (default: results/local)"),
    "resume": Option("RUN", _folder, "go on with a run that was cut off, by its own options (default: a new run)"),
}  # fmt: skip
"""By name, without the prefix `--ffn-`. Beside them there is `--ffn-steady`, which has no value."""

FLAGS = {name: f"--ffn-{name.replace('_', '-')}" for name in (*OPTIONS, "steady", "quick")}
"""How each option is written."""


def add(parser) -> None:
    """Register the options with pytest."""
    group = parser.getgroup("ffn", "FFN matmuls on a roofline (timed with --benchmark-only)")
    for name, (metavar, _, text, alone) in OPTIONS.items():
        group.addoption(FLAGS[name], metavar=metavar, help=text, **({"nargs": "?", "const": alone} if alone else {}))
    group.addoption(
        "--ffn-steady",
        action="store_true",
        help="kernels of 2 ms and more also in blocks of 5 s, all contenders, twice (default: on a GPU from 1024 "
        "tokens on, the baseline and the fastest other, once)",
    )
    group.addoption(
        FLAGS["quick"],
        action="store_true",
        help="few shapes and rounds in one process, unless chosen: 1 to 2 minutes on two cores (default: a whole run)",
    )


def require_writable(folder: Path) -> None:
    """Raise ValueError where no run folder could be made in `folder`, which is made later."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    try:
        tempfile.TemporaryDirectory(dir=there).cleanup()
    except OSError as error:
        said = f"cannot write in {there}: {error.strerror}; choose another folder with --ffn-results=DIR"
        raise ValueError(f"--ffn-results {str(folder)!r}: {said}") from None


def value(name: str, get) -> Any:
    """Of the option `name`, read from `get(dest)`, pytest's parsed values; a tuple without repeats of a list; None
    where it was not given. Raises ValueError that names option, value and way out."""
    option, text = OPTIONS[name], get(f"ffn_{name}")
    if text is None:
        return None
    if option.metavar != "LIST":
        return read(name, text, option.read)
    items = dict.fromkeys(read(name, item.strip(), option.read) for item in text.split(",") if item.strip())
    if not items:
        raise ValueError(f"{FLAGS[name]} {text!r}: give at least one value")
    return tuple(items)


def read(name: str, given, convert: Callable) -> Any:
    """`convert(given)`, whose ValueErrors become those of the option `name`."""
    try:
        return convert(given)
    except ValueError as error:
        shown = f" {given!r}" if isinstance(given, str) else ""
        # The word after an option that may stand alone is easily taken for its value.
        alone = f", as in {FLAGS[name]}=12; alone, it stands last or before another option"
        raise ValueError(f"{FLAGS[name]}{shown}: {error}{alone if OPTIONS[name].alone else ''}") from None


def resolve(get, *, device: str, timed: bool, root: Path, world: int = 1) -> Options:
    """Options from `get(name)`, pytest's parsed values, for a `world` of so many processes that torchrun started.
    Raises ValueError that names option, value and way out."""
    quick = bool(get("ffn_quick"))
    given = {name: value(name, get) for name in OPTIONS}
    mode = device if timed else f"test-{device}"
    model, tokens, tp, dtypes = DEFAULTS[mode]
    chosen = {name: given[name] for name in ("tokens", "tp") if given[name]}
    if quick:
        given |= {name: given[name] or few for name, few in QUICK.items()}
    options = Options(
        device=device,
        timed=timed,
        model=given["model"] or model,
        layers=given["layers"] or LAYERS,
        tokens=given["tokens"] or tokens,
        tp=given["tp"] or tp,
        dtypes=given["dtype"] or dtypes,
        contenders=given["contenders"],
        seed=given["seed"] or 0,
        max_seconds=given["max_seconds"] or MAX_SECONDS,
        processes=given["processes"],
        results=given["results"] or root / "results" / "local",
        steady=bool(get("ffn_steady")),
        counters=given["counters"],
        copier_programs=given["copier_programs"],
        wires_of=given["wires_of"] or (),
        quick=quick,
        world=world,
    )
    read("tp", options, matmul.sweep)
    ranks, wires = given["ranks"] or (), given["link_bandwidth"] or ()
    ours = [wire for wire in wires if wire in OF_RANKS]
    if world == 1 and ours:
        raise ValueError(
            f"--ffn-link-bandwidth {ours[0]!r}: it is between the ranks that torchrun started; start it so"
        )
    if world > 1:
        if given["wires_of"]:
            raise ValueError("--ffn-wires-of under torchrun: the wire between the ranks is real; leave it out")
        if ranks not in ((), (world,)):
            raise ValueError(f"--ffn-ranks {','.join(map(str, ranks))}: torchrun started {world}; leave it out")
        if len(ours) < len(wires):
            raise ValueError("--ffn-link-bandwidth under torchrun: the wire between the ranks is real; leave it out")
        if wrong := [wire for wire in ours if wire not in RANKS_TAKE[device]]:
            able = ", ".join(RANKS_TAKE[device])
            raise ValueError(
                f"--ffn-link-bandwidth {wrong[0]!r}: it is none of ranks on the {device}, which take {able}"
            )
        ranks, wires = (world,), tuple(ours) or RANKS_TAKE[device]
    gather = gathering.make(mode, options.model, ranks, wires, **chosen)
    gather = gathering.few(gather, **chosen) if quick else gather
    if device == "cpu" and options.copier_programs:
        raise ValueError(f"--ffn-copier-programs {options.copier_programs}: on a CPU a thread copies; leave it out")
    if wires and not gather.ranks:
        raise ValueError(f"--ffn-link-bandwidth: {gathering.nobody(options.model)}; choose --ffn-ranks")
    options = replace(options, gather=gather if "up" in options.layers else gathering.Sweep())
    read("ranks", options, lambda chosen: [op.sweep(chosen) for op in OPERATIONS.values()])
    return options


def wires_of(folder: Path) -> tuple[tuple[str, float], ...]:
    """Return (shape, bytes/s) of the emulated wires of the run in `folder`. Raises ValueError where it has none."""
    from roofline.store import journal

    shapes = journal.load(folder).shapes
    wires = tuple((name, asked) for name, shape in shapes.items() if (asked := shape.requested_bytes_per_s))
    if not wires:
        raise ValueError("that run has no case over an emulated wire; take one that has")
    return wires


def resumed(get, metadata: dict, folder: Path) -> Options:
    """The options of the run in `folder` that has this `metadata`, and what to count, which may be asked for late.

    Raises ValueError where others were given too.
    """
    own = {name: written for name, written in FLAGS.items() if name not in ("device", "counters", "resume")}
    if given := [written for name, written in own.items() if get(f"ffn_{name}")]:
        raise ValueError(f"--ffn-resume takes its options from the run: leave out {', '.join(given)}")
    if not metadata.get("cases") or "options" not in metadata:
        raise ValueError(f"--ffn-resume {folder}: its journal does not say what was planned; start a new run")
    options = replace(of_values(metadata["options"]), results=folder.parent)
    count = value("counters", get)
    return options if count is None else replace(options, counters=count)


def as_values(options: Options) -> dict:
    """Return `options` as a run's metadata has them."""
    return {name: value for name, value in asdict(options).items() if name != "results"}


def of_values(values: dict) -> Options:
    """Return options from what a run's metadata has of them."""

    def known(values: dict, kind: type) -> dict:
        names = {own.name for own in fields(kind)} - {"results", "gather"}
        return {name: tuple(of) if isinstance(of, list) else of for name, of in values.items() if name in names}

    gather = gathering.Sweep(**known(values.get("gather", {}), gathering.Sweep))
    return Options(results=Path(), gather=gather, **known(values, Options))


def misspelt(arguments) -> str | None:
    """What is wrong with an option of `arguments` that begins like ours and is none; None if none is."""
    for name in (argument.partition("=")[0] for argument in arguments):
        if name.startswith("--ffn") and name not in FLAGS.values():
            near = difflib.get_close_matches(name, FLAGS.values(), n=1)
            return f"{name}: there is no such option{f'; did you mean {near[0]}?' if near else ''}"
    return None
