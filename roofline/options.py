"""The `--ffn-*` options: their words, their defaults by device and mode, and the errors of bad ones."""

from dataclasses import dataclass
from pathlib import Path

from roofline.theory.models import parse as parse_model
from roofline.theory.work import ITEMSIZE, LAYERS, Matmul

DEFAULTS = {
    # mode: (model, tokens, tp, dtypes). `test` is what plain pytest runs once for correctness, small.
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

    @property
    def matmuls(self) -> list[Matmul]:
        """Every matmul asked for, in the order of the run."""
        return [
            Matmul(self.model, layer, tp, m, dtype)
            for dtype in self.dtypes
            for layer in self.layers
            for tp in self.tp
            for m in self.tokens
        ]


def add(parser) -> None:
    """Register the options with pytest."""
    group = parser.getgroup("ffn", "FFN matmuls on a roofline (timed with --benchmark-only)")
    add_option = group.addoption
    add_option("--ffn-model", metavar="NAME", help="xxl, llama-3-8b, ..., xxl/16, or D,F by hand")
    add_option("--ffn-layers", metavar="LIST", default="up,down", help="up, down or both (default: %(default)s)")
    add_option("--ffn-tokens", metavar="LIST", help="rows of the activations, e.g. 1,64,4096")
    add_option("--ffn-tp", metavar="LIST", help="tensor-parallel degrees, each must divide d_ff, e.g. 1,8")
    add_option("--ffn-dtype", metavar="LIST", help=f"of {', '.join(ITEMSIZE)} (default: bf16 on a GPU, fp32 on a CPU)")
    add_option("--ffn-contenders", metavar="LIST", help="e.g. cublas,persistent (the vendor is measured beside them)")
    add_option("--ffn-device", choices=("auto", "cpu", "cuda"), default="auto", help="default: the GPU if there is one")
    add_option("--ffn-seed", metavar="N", default="0", help="of inputs and orders (default: %(default)s)")
    add_option(
        "--ffn-max-seconds", metavar="S", default="7", help="cap on the time of one shape (default: %(default)s)"
    )
    add_option("--ffn-results", metavar="DIR", help="where run folders go (default: results/local)")


def resolve(get, *, device: str, timed: bool, root: Path) -> Options:
    """Options from `get(name)`, pytest's parsed values. Raises ValueError that names option, value and way out."""
    model, tokens, tp, dtypes = DEFAULTS[device if timed else f"test-{device}"]
    options = Options(
        device=device,
        timed=timed,
        model=_checked("--ffn-model", get("ffn_model"), lambda text: parse_model(text).name) or model,
        layers=_list("--ffn-layers", get("ffn_layers"), str, LAYERS),
        tokens=_list("--ffn-tokens", get("ffn_tokens"), _whole) or tokens,
        tp=_list("--ffn-tp", get("ffn_tp"), _whole) or tp,
        dtypes=_list("--ffn-dtype", get("ffn_dtype"), str, tuple(ITEMSIZE)) or dtypes,
        contenders=_list("--ffn-contenders", get("ffn_contenders"), str) or None,
        seed=_checked("--ffn-seed", get("ffn_seed"), _whole),
        max_seconds=_checked("--ffn-max-seconds", get("ffn_max_seconds"), _seconds),
        results=Path(get("ffn_results") or root / "results" / "local"),
    )
    _checked("--ffn-tp", options, lambda chosen: chosen.matmuls)
    return options


def _whole(text: str) -> int:
    if not text.strip().removeprefix("-").isdecimal():
        raise ValueError("it must be a whole number")
    return int(text)


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
    if known and (strange := [item for item in items if item not in known]):
        raise ValueError(f"{option} {strange[0]!r}: it is one of {', '.join(known)}")
    if convert is _whole and min(items) < 1:
        raise ValueError(f"{option} {min(items)}: it must be 1 or more")
    return tuple(items)
