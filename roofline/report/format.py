"""Numbers as people read them. `FORMATS` and `WITH_ENDS` have the ways that `fields.toml` names."""

import math
import re
from collections.abc import Callable
from functools import partial

from roofline.store.stats import is_known
from roofline.theory.wires import HOW

LONGEST_KERNEL = 48
ABOVE_ALL = " !"
"""Behind a fraction of a roof that is above 1; `report.tables.ABOVE` says what it means."""
UNKNOWN = "[unknown]"
"""In place of the ends of an interval that spans more than a decade, or rests on too few rounds."""
TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))


def time_text(seconds: float, digits: int = 3) -> str:
    """Seconds with a unit, as `1.23 ms`."""
    scale, unit = next((pair for pair in TIMES if seconds >= pair[0]), TIMES[-1])
    return f"{seconds / scale:.{digits}g} {unit}"


def rate_text(value: float) -> str:
    """TFLOP/s, or what else may be large, to three significant digits without exponents: `40.0`, `2750`."""
    return f"{value:.0f}" if value >= 100 else f"{value:#.3g}".rstrip(".")


def flops_text(tflops: float) -> str:
    """TFLOP/s with a unit: `612 TFLOP/s`, `99.0 GFLOP/s`."""
    return f"{rate_text(tflops)} TFLOP/s" if tflops >= 1 else f"{rate_text(1000 * tflops)} GFLOP/s"


def percent_text(fraction: float) -> str:
    return f"{100 * fraction:.0f} %"


def growth_text(fraction: float) -> str:
    return f"{100 * fraction:+.1f} %"


def roof_text(fraction: float) -> str:
    """A fraction of a roof or an ideal. A mark follows where it is above 1.

    >>> roof_text(0.54), roof_text(1.004), roof_text(202.03)
    ('54 %', '100 %', '20203 % !')
    """
    return percent_text(fraction) + ABOVE_ALL * (round(100 * fraction) > 100)


def share_text(fraction: float, low: float, high: float) -> str:
    """A fraction of a roof with its interval: `54 % [51, 57]`."""
    ends = ends_text(100 * low, 100 * high, "{:.0f}".format)
    return f"{percent_text(fraction)} {ends}" + ABOVE_ALL * (round(100 * fraction) > 100)


def error_text(fraction: float) -> str:
    """An error in percent, to two digits."""
    return f"{100 * fraction:.1f} %" if fraction < 0.1 else f"{100 * fraction:.0f} %"


def ends_text(low: float, high: float, text: Callable[[float], str]) -> str:
    """The ends of an interval of what is above 0.

    >>> ends_text(16.1, 16.4, rate_text), ends_text(0.000714, 370757, rate_text)
    ('[16.1, 16.4]', '[unknown]')
    """
    return f"[{text(low)}, {text(high)}]" if is_known(low, high) else UNKNOWN


def interval_text(value: float, low: float, high: float) -> str:
    """A value above 0 with its interval: `1.031 [1.024, 1.040]`."""
    return f"{small_text(value)} {ends_text(low, high, small_text)}"


def small_text(value: float) -> str:
    """A value above 0 to three decimals, or where it is small, to two digits.

    >>> small_text(1.0306), small_text(0.000123)
    ('1.031', '0.00012')
    """
    return f"{value:.3f}" if value >= 0.01 else f"{value:.2g}"


def hidden_text(value: float, low: float, high: float, form: str = ".2f") -> str:
    """A hidden fraction, or a change of one, with its interval. It may be 0 or less, so that decades say nothing."""
    is_finite = math.isfinite(low) and math.isfinite(high)
    return f"{value:{form}} " + (f"[{low:{form}}, {high:{form}}]" if is_finite else UNKNOWN)


def mean_text(value: float, low: float, high: float) -> str:
    """A mean with its interval. It stands alone where a single process or block says it."""
    return small_text(value) if math.isnan(low) else interval_text(value, low, high)


def ratio_text(value: float, low: float, high: float, text=interval_text) -> str:
    """A ratio to the baseline with its interval. The baseline itself is `1 (baseline)`."""
    return "1 (baseline)" if value == 1 else text(value, low, high)


def bytes_text(count: int) -> str:
    """Bytes in MB or GB, to three digits.

    >>> bytes_text(0), bytes_text(999_000_000), bytes_text(1_200_000_000)
    ('-', '999 MB', '1.2 GB')
    """
    if not count:
        return "-"
    return f"{count / 1e9:.3g} GB" if count >= 1e9 else f"{count / 1e6:.3g} MB"


def kernels_text(names: str) -> str:
    """Strip what kernels return, their namespaces and arguments. Several names are joined by ` + `.

    >>> kernels_text("nvjet_tst_64x8_64x16_4x1_v_bz_splitK_TNT + void cublasLt::splitKreduce_kernel<32, float>(int)")
    'nvjet_tst_64x8_64x16_4x1_v_bz_splitK_TNT + splitKreduce_kernel'
    """
    texts = []
    for name in names.split(" + "):
        bare = re.sub(r"^void |\(anonymous namespace\)|<unnamed>|[<(].*", "", name)
        bare = bare.strip().rpartition("::")[2] or name
        texts.append(bare if len(bare) <= LONGEST_KERNEL else f"{bare[: LONGEST_KERNEL - 3]}...")
    return " + ".join(texts)


FORMATS: dict[str, Callable] = {
    "": str,
    "time": time_text,
    "rate": rate_text,
    "flops": flops_text,
    "percent": percent_text,
    "growth": growth_text,
    "roof": roof_text,
    "number": "{:.3g}".format,
    "number4": "{:.4g}".format,
    "bytes": bytes_text,
    "bandwidth": lambda rate: f"{rate / 1e9:.3g} GB/s",
    "kernel": kernels_text,
    "link": lambda kind: HOW.get(kind, kind),
}
"""Format of `fields.toml` -> what writes a value."""
WITH_ENDS: dict[str, Callable] = {
    "hidden": hidden_text,
    "interval3": interval_text,
    "mean": mean_text,
    "share_interval": share_text,
    "ratio_interval": ratio_text,
    "ratio_mean": partial(ratio_text, text=mean_text),
}
"""Likewise what writes a value with the ends of its interval."""
