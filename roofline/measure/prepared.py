"""A line-up: the contenders of one shape, checked and ready to be timed side by side."""

from collections.abc import Callable
from dataclasses import dataclass, field

from roofline.measure import device_errors
from roofline.measure.clocks import Call

TOLERANCE = {"bf16": 3e-3, "fp16": 5e-4, "fp32": 1e-5}
"""Largest relative Frobenius error against a float64 reference that still counts as right, by dtype of the operands."""

VENDOR_TOLERANCE = {"bf16": 1e-2, "fp16": 2e-3, "fp32": 1e-5}
"""Of the vendor, who may split K and add up parts that are rounded to the dtype (torch's default on a GPU). Without him
there is no ratio; his `relative_error` tells what he is compared at."""


def untold(name: str, within_s: float | None = None) -> None:
    """What `prepare` is to call before the first call of the contender `name`, which may take `within_s` seconds, or
    the usual, with what it compiles and its check. It may raise what refuses the contender."""


@dataclass
class Lineup:
    """What `prepare(shape, names, trying)` returns: what may be timed, and what may not, each with its reason."""

    case: object
    """Has `id`, `op`, `model`, `layer`, `tp`, `m`, `n`, `k`, `dtype` and `work`."""
    vendor: str
    """Name of the yardstick. It is measured beside every selection."""
    ready: dict[str, Call] = field(default_factory=dict)
    config: dict[str, str] = field(default_factory=dict)
    details: dict[str, dict] = field(default_factory=dict)
    """Further fields of a contender's entry in the journal: plain values."""
    traced: dict[str, dict] = field(default_factory=dict)
    """Timelines of calls that were made for them, and are no samples."""
    relative_error: dict[str, float] = field(default_factory=dict)
    unable: dict[str, str] = field(default_factory=dict)
    """Contenders that cannot run this case here: skipped."""
    wrong: dict[str, str] = field(default_factory=dict)
    """Contenders whose result is wrong, or that crashed: their case fails and gets no number."""
    beside: dict[str, Call] = field(default_factory=dict)
    """Calls that are no contenders, but take turns with them: what the contenders are to be compared with."""
    role: dict[str, str] = field(default_factory=dict)
    """What each of `beside` is, for the report: `gemm`, `link`, `preset` or `contended`."""
    about: dict[str, object] = field(default_factory=dict)
    """Further fields of the shape's line in the journal: plain values."""
    trying: Callable[..., None] = untold
    """Called before each first call."""
    cache: str = ""
    """The state of the cache that every sample starts from, in words."""
    lost: str = ""
    """Why the device answers no more, if that is so: nothing else can be measured by this process."""

    def refuse(self, name: str, error: Exception) -> None:
        """Take `name` out, which raised `error`: unable where memory or support lacks, wrong if it crashed."""
        self.ready.pop(name, None)
        self.beside.pop(name, None)
        where = self.unable if device_errors.lack(error) else self.wrong
        where[name] = f"{name}: {device_errors.reason(error)}"


Prepare = Callable[..., Lineup]


def verdict(name: str, error: float, dtype: str, limit: float | None = None) -> str | None:
    """Why a result with relative Frobenius error `error` is wrong, or None. NaN, an element left unwritten, is. `limit`
    is that of the dtype, but for one that promises less."""
    limit = limit or TOLERANCE[dtype]
    if error <= limit:
        return None
    if error != error:
        return f"{name}: the output holds NaN: an element was left unwritten, or an input was read out of bounds"
    return f"{name}: relative error {error:.2e} is above {limit:.0e}, the limit for {dtype}"
