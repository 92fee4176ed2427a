"""The `--ffn-*` options: their words, their defaults by device and mode, and the errors of bad ones."""

import difflib
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from roofline.operations import OPERATIONS, gathering, matmul
from roofline.operations.matmul import LAYERS
from roofline.theory.models import parse as parse_model
from roofline.theory.wires import parse as parse_wire
from roofline.theory.work import ITEMSIZE

DEFAULTS = {
    # mode: (model, tokens, tp, dtypes). `test` is what plain pytest checks once, small.
    "cuda": ("xxl", (1, 16, 64, 256, 1024, 4096, 8192), (1, 8), ("bf16",)),
    "cpu": ("xxl/16", (1, 2, 4, 16, 64, 256, 1024), (1, 8), ("fp32",)),
    "test-cuda": ("xxl/32", (1, 16, 200), (1, 8), ("bf16", "fp16")),
    "test-cpu": ("xxl/128", (1, 16, 100), (1, 8), ("fp32",)),
}


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
    tune_s: float = 0.0
    """Where kernels are tuned, and nothing else is measured, the seconds for it; else 0."""

    @property
    def mode(self) -> str:
        """Of the operations that are measured: `tune`, or `benchmark` for all else."""
        return "tune" if self.tune_s else "benchmark"


DEVICES = ("auto", "cpu", "cuda")
TUNE_S = 420
"""Seconds of a tuning, unless told: the 72 shapes of the default run at some 5 s each, and compiling, not counting
ceilings. An estimate, of an H200."""
UNCOUNTED = (
    "--ffn-tune with --ffn-counters: what counts is a process of its own, which would take what was just saved for the "
    "incumbent; count in another run, after the tuning"
)
PLANNED = (
    *("model", "layers", "tokens", "tp", "dtype", "contenders", "seed", "max_seconds", "steady", "results"),
    *("ranks", "link_bandwidth", "copier_programs", "tune"),
)
"""Options, without their prefix, that a resumed run takes from the run it goes on with."""


def add(parser) -> None:
    """Register the options with pytest."""
    group = parser.getgroup("ffn", "FFN matmuls on a roofline (timed with --benchmark-only)")
    add_option = group.addoption
    add_option("--ffn-model", metavar="NAME", help="xxl, llama-3-8b, ..., xxl/16, or D,F by hand")
    add_option("--ffn-layers", metavar="LIST", help="up, down or both (default: up,down)")
    add_option("--ffn-tokens", metavar="LIST", help="rows of the activations, e.g. 1,64,4096")
    add_option("--ffn-tp", metavar="LIST", help="tensor-parallel degrees, each must divide d_ff, e.g. 1,8")
    add_option("--ffn-dtype", metavar="LIST", help=f"of {', '.join(ITEMSIZE)} (default: bf16 on a GPU, fp32 on a CPU)")
    add_option("--ffn-contenders", metavar="LIST", help="e.g. cublas,persistent (the vendor is measured beside them)")
    add_option("--ffn-ranks", metavar="LIST", help="that gather, each must divide d_model and d_ff (default: 8)")
    add_option(
        "--ffn-link-bandwidth", metavar="LIST",
        help="of the emulated link: bytes/s (100e9), balance2750 (FLOP/byte), ridge (gather and matmul take equally "
        "long), ridge1.4; or pcie, preset",
    )  # fmt: skip
    add_option("--ffn-copier-programs", metavar="N", help="of the emulated link on a GPU, one an SM (default: 32)")
    add_option("--ffn-device", metavar="DEVICE", help=f"{', '.join(DEVICES)} (default: the GPU if there is one)")
    add_option("--ffn-seed", metavar="N", help="of inputs and orders (default: 0)")
    add_option("--ffn-max-seconds", metavar="S", help="cap on the time of one shape (default: 7)")
    add_option("--ffn-steady", action="store_true", help="kernels of 2 ms and more also in blocks of a second")
    add_option(
        "--ffn-counters", metavar="N", nargs="?", const="0",
        help="afterwards, let Nsight Compute count bytes and tensor operations of N of the matmuls (default: of all)",
    )  # fmt: skip
    add_option(
        "--ffn-tune", nargs="?", const=str(TUNE_S), metavar="SECONDS",
        help=f"time configurations of our kernels in place of all else, for so long (default: {TUNE_S}), and save what "
        "wins in kernels/configs",
    )  # fmt: skip
    add_option("--ffn-results", metavar="DIR", help="where run folders go (default: results/local)")
    add_option("--ffn-resume", metavar="RUN", help="go on with a run folder that was cut off, by its own options")


def resolve(get, *, device: str, timed: bool, root: Path) -> Options:
    """Options from `get(name)`, pytest's parsed values. Raises ValueError that names option, value and way out."""
    if get("ffn_results") == "":
        raise ValueError("--ffn-results: it has no value; give a folder")
    model, tokens, tp, dtypes = DEFAULTS[device if timed else f"test-{device}"]
    if get("ffn_steady") and not timed:
        raise ValueError("--ffn-steady measures: it needs --benchmark-only")
    if get("ffn_counters") is not None and not timed:
        raise ValueError("--ffn-counters measures: it needs --benchmark-only")
    ranks = _list("--ffn-ranks", get("ffn_ranks"), _whole)
    wires = _list("--ffn-link-bandwidth", get("ffn_link_bandwidth"), lambda text: parse_wire(text).token)
    options = Options(
        device=device,
        timed=timed,
        model=_checked("--ffn-model", get("ffn_model"), lambda text: parse_model(text).name) or model,
        layers=_list("--ffn-layers", get("ffn_layers"), str, LAYERS) or tuple(LAYERS),
        tokens=_list("--ffn-tokens", get("ffn_tokens"), _whole) or tokens,
        tp=_list("--ffn-tp", get("ffn_tp"), _whole) or tp,
        dtypes=_list("--ffn-dtype", get("ffn_dtype"), str, tuple(ITEMSIZE)) or dtypes,
        contenders=_list("--ffn-contenders", get("ffn_contenders"), str) or None,
        seed=_checked("--ffn-seed", get("ffn_seed"), _seed) or 0,
        max_seconds=_checked("--ffn-max-seconds", get("ffn_max_seconds"), _seconds) or 7.0,
        results=Path(get("ffn_results") or root / "results" / "local"),
        steady=bool(get("ffn_steady")),
        counters=_checked("--ffn-counters", get("ffn_counters"), _count),
        copier_programs=_checked("--ffn-copier-programs", get("ffn_copier_programs"), _at_least_one),
        tune_s=_checked("--ffn-tune", get("ffn_tune"), _seconds) or 0.0,
    )
    _checked("--ffn-tp", options, matmul.sweep)
    if options.tune_s:
        return _tuned(options)
    given = {name: getattr(options, name) for name in ("tokens", "tp") if get(f"ffn_{name}")}
    gather = gathering.make(device if timed else f"test-{device}", options.model, ranks, wires, **given)
    if device == "cpu" and "pcie" in wires:
        raise ValueError("--ffn-link-bandwidth 'pcie': that link needs a GPU, and this is a run of the CPU")
    if device == "cpu" and options.copier_programs:
        raise ValueError(f"--ffn-copier-programs {options.copier_programs}: on a CPU a thread copies; leave it out")
    if wires and not gather.ranks:
        raise ValueError(f"--ffn-link-bandwidth: {gathering.nobody(options.model)}; choose --ffn-ranks")
    options = replace(options, gather=gather if "up" in options.layers else gathering.Sweep())
    _checked("--ffn-ranks", options, lambda chosen: [op.sweep(chosen) for op in OPERATIONS.values() if op.sweep])
    return options


def _tuned(options: Options) -> Options:
    """`options` of a tuning. Raises ValueError where there is nothing to tune by."""
    if not options.timed:
        raise ValueError("--ffn-tune measures: it needs --benchmark-only")
    if options.device == "cpu":
        raise ValueError("--ffn-tune: Triton kernels are never timed on a CPU; run it on a GPU, or add --collect-only")
    if options.steady:
        raise ValueError("--ffn-tune with --ffn-steady: tuning takes single calls in turns; leave one of them out")
    if options.counters is not None:
        raise ValueError(UNCOUNTED)
    return options


def resumed(get, metadata: dict, folder: Path) -> Options:
    """The options of the run in `folder` that has this `metadata`, and what to count, which may be asked for late.

    Raises ValueError where others were given too.
    """
    if given := [f"--ffn-{name.replace('_', '-')}" for name in PLANNED if get(f"ffn_{name}")]:
        raise ValueError(f"--ffn-resume takes its options from the run: leave out {', '.join(given)}")
    if not metadata.get("cases") or "options" not in metadata:
        raise ValueError(f"--ffn-resume {folder}: its journal does not say what was planned; start a new run")
    options = replace(of_values(metadata["options"]), results=folder.parent)
    if (count := _checked("--ffn-counters", get("ffn_counters"), _count)) is not None:
        if options.tune_s:
            raise ValueError(UNCOUNTED)
        options = replace(options, counters=count)
    return options


def of_values(values: dict) -> Options:
    """Options from what a run's metadata has of them."""
    found = {
        field.name: tuple(value) if isinstance(value := values.get(field.name, field.default), list) else value
        for field in fields(Options)
        if field.name not in ("results", "gather")
    }
    gather = {name: tuple(value) for name, value in values.get("gather", {}).items()}
    return Options(results=Path(), gather=gathering.Sweep(**gather), **found)


def listed(option) -> str | None:
    """The device of a tuning that is only listed, by pytest's parsed `option`s: that needs no GPU. None of all else."""
    tuned = option.benchmark_only and option.collectonly and option.ffn_tune
    return "cuda" if tuned and option.ffn_device in (None, "auto", "cuda") else None


def device_of(text: str | None) -> str:
    """The value of --ffn-device. Raises ValueError."""
    return _known("--ffn-device", "auto" if text is None else text, DEVICES)


def misspelt(arguments, known) -> str | None:
    """What is wrong with an option of `arguments` that begins like ours and is not `known`; None if none is."""
    for argument in arguments:
        name = argument.partition("=")[0]
        if name.startswith("--ffn") and name not in known:
            return f"{name}: there is no such option{_near(name, known)}"
    return None


def _known(option: str, value: str, known) -> str:
    if value not in known:
        raise ValueError(f"{option} {value!r}: it is one of {', '.join(known)}{_near(value, known)}")
    return value


def _near(value: str, known) -> str:
    near = difflib.get_close_matches(value, known, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _whole(text: str) -> int:
    if not text.strip().removeprefix("-").isdecimal():
        raise ValueError("it must be a whole number")
    return int(text)


def _seed(text: str) -> int:
    value = _whole(text)
    if value < 0:
        raise ValueError("it must be 0 or more")
    return value


def _at_least_one(text: str) -> int:
    value = _whole(text)
    if value < 1:
        raise ValueError("it must be 1 or more")
    return value


def _count(text: str) -> int:
    try:
        return _seed(text)
    except ValueError as error:  # the word after an option without a value is easily taken for it
        raise ValueError(f"{error}, as in --ffn-counters=12; alone, it stands last or before another option") from None


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ValueError("it must be a number of seconds above 0")
    return value


def _checked(option: str, value, convert):
    if value is None:
        return None
    try:
        return convert(value)
    except ValueError as error:
        shown = f" {value!r}" if isinstance(value, str) else ""
        raise ValueError(f"{option}{shown}: {error}") from None


def _list(option: str, text: str | None, convert, known: tuple[str, ...] = ()) -> tuple:
    """Comma-separated values, without repeats."""
    if text is None:
        return ()
    items = dict.fromkeys(_checked(option, item.strip(), convert) for item in text.split(",") if item.strip())
    if not items:
        raise ValueError(f"{option} {text!r}: give at least one value")
    for item in items if known else ():
        _known(option, item, known)
    if convert is _whole and min(items) < 1:
        raise ValueError(f"{option} {min(items)}: it must be 1 or more")
    return tuple(items)
