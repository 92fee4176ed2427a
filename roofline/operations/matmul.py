"""The matmuls of a transformer's feed-forward layers: out[m, n] = x[m, k] @ w[n, k].T, on one rank."""

from dataclasses import dataclass
from itertools import product

from roofline.operations.base import Case, Operation, register
from roofline.theory.models import parse as parse_model
from roofline.theory.work import ITEMSIZE, Work

LAYERS = ("up", "down")
"""`up`: D -> F, column-parallel (N = F/tp). `down`: F -> D, row-parallel (K = F/tp)."""


@dataclass(frozen=True)
class Matmul(Case):
    """One rank's share of an FFN layer: out[m, n] = x[m, k] @ w[n, k].T, for `m` tokens, `tp` ranks in tensor parallel.

    >>> case = Matmul("xxl", "up", tp=8, m=4096, dtype="bf16")
    >>> case.id, case.n, case.k
    ('matmul-xxl-up-tp8-m4096-bf16', 6656, 16384)
    >>> case.work.flop == 2 * 4096 * 6656 * 16384
    True

    Raises ValueError for an unknown model, layer or dtype, a negative `m`, or a `tp` that does not divide d_ff.
    """

    model: str
    layer: str
    tp: int
    m: int
    dtype: str
    op, form, layers = "matmul", "{model}-{layer}-tp{tp}-m{m}-{dtype}", LAYERS

    def __post_init__(self):
        d_ff = parse_model(self.model).d_ff
        if self.layer not in self.layers:
            raise ValueError(f"unknown layer {self.layer!r}: it is one of {', '.join(self.layers)}")
        super().__post_init__()
        if self.m < 0:
            raise ValueError(f"tokens m={self.m}: it must be 0 or more")
        if self.tp < 1 or d_ff % self.tp:
            raise ValueError(f"tp={self.tp} does not divide d_ff={d_ff} of {self.model}: choose a divisor of it")

    @property
    def n(self) -> int:
        model = parse_model(self.model)
        return model.d_ff // self.tp if self.layer == "up" else model.d_model

    @property
    def k(self) -> int:
        model = parse_model(self.model)
        return model.d_model if self.layer == "up" else model.d_ff // self.tp

    @property
    def facts(self) -> dict[str, int]:
        return {"n": self.n, "k": self.k}

    @property
    def work(self) -> Work:
        m, n, k = self.m, self.n, self.k
        return Work(flop=2 * m * n * k, device_bytes=(m * k + n * k + m * n) * ITEMSIZE[self.dtype])


def sweep(options) -> list[Matmul]:
    """Return every matmul asked for, in the order of the run."""
    choices = product(options.dtypes, options.layers, options.tp, options.tokens)
    return [Matmul(options.model, layer, tp, m, dtype) for dtype, layer, tp, m in choices]


OPERATION = register(
    Operation(
        case=Matmul,
        analysis="throughput",
        sweep=sweep,
        planner="kernels.registry:Planner",
        runner="kernels.bench.matmul:Runner",
        example="matmul-xxl-up-tp8-m4096-bf16-persistent",
    )
)
