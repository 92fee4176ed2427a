"""A gated feed-forward layer on one rank: out = (silu(x @ gate.T) * (x @ up.T)) @ down.T.

It is off the default run: `pytest --benchmark-only -k test_ffn_gated`, or `--ffn-operations ffn_gated`.
"""

from dataclasses import dataclass
from itertools import product

from roofline.operations.base import Case, Operation, dtypes_of, register
from roofline.operations.contenders import Contender, by_library
from roofline.operations.matmul import Matmul
from roofline.operations.shown import Field, Table
from roofline.store.run import PART
from roofline.store.stats import Interval
from roofline.theory.work import ITEMSIZE, SCALE_BYTES, Work

BENCH = "kernels.gated.bench"
MAKER = "multiplied_by"
"""The fact of a contender, and of a matmul that takes turns alone, that says who multiplies."""
HALVES = 2
"""Matmuls of a layer: of gate and up together, and down."""

CONTENDERS = (
    Contender("cublas", f"{BENCH}:run_vendor", devices=("cuda",), require=f"{BENCH}:require_cublas"),
    Contender(
        "compiled",
        f"{BENCH}:run_compiled",
        devices=("cuda",),
        first_call="compiled",
        require=f"{BENCH}:require_cublas_in_fp8",
    ),
    Contender(
        "unfused",
        f"{BENCH}:run_unfused",
        kind="triton",
        devices=("cuda",),
        require=f"{BENCH}:require_gated",
        describe=lambda: "kernels.matmul, silu and product by torch",
    ),
    Contender(
        "fused",
        f"{BENCH}:run_fused",
        kind="triton",
        devices=("cuda",),
        require=f"{BENCH}:require_gated",
        describe=lambda: "kernels.gated, kernels.matmul",
    ),
    Contender("torch", f"{BENCH}:run_vendor", devices=("cpu",)),
    Contender(
        "numpy",
        f"{BENCH}:run_numpy",
        devices=("cpu",),
        require="kernels.bench.roof:require_fp32",
        describe=by_library("numpy"),
    ),
)
"""Each is called as run(x, weights, out)."""


@dataclass(frozen=True)
class FfnGated(Case):
    """One rank's part of the layer, for `m` tokens: out[m, D] = (silu(x @ gate.T) * (x @ up.T)) @ down.T, of x[m, D],
    gate and up[F / tp, D] and down[D, F / tp]. Ranks' results are summed elsewhere.

    >>> case = FfnGated("llama-3-405b", tp=8, m=4096, dtype="bf16")
    >>> case.id, case.k, case.work.flop == 6 * 4096 * 16384 * 6656
    ('ffn_gated-llama-3-405b-tp8-m4096-bf16', 6656, True)

    Raises ValueError for an unknown model or dtype, a negative `m`, or a `tp` that does not divide d_ff.
    """

    model: str
    tp: int
    m: int
    dtype: str
    dtypes = (*Case.dtypes, "fp8")
    op, form = "ffn_gated", "{model}-tp{tp}-m{m}-{dtype}"

    def __post_init__(self):
        super().__post_init__()
        self.down()

    def down(self) -> Matmul:
        """The matmul of its second half. Raises ValueError for sizes that do not fit."""
        return Matmul(self.model, "down", self.tp, self.m, self.dtype)

    @property
    def n(self) -> int:
        """Columns of x and out: D."""
        return self.down().n

    @property
    def k(self) -> int:
        """Columns of what lies between the halves, on this rank: F / tp."""
        return self.down().k

    @property
    def facts(self) -> dict[str, int]:
        return self.down().facts

    @property
    def work(self) -> Work:
        """Three matmuls' FLOP. Bytes are those of x, the weights and out, and of the hidden [m, F / tp], which is
        written and read again between the halves."""
        m = self.m
        n = self.n
        k = self.k
        size = ITEMSIZE[self.dtype]
        device_bytes = (m * n + 3 * k * n + 2 * m * k) * size + m * n * max(2, size)
        if self.dtype == "fp8":
            device_bytes += (3 * m + 2 * k + n) * SCALE_BYTES
        return Work(flop=6 * m * n * k, device_bytes=device_bytes)


def sweep(options) -> list[FfnGated]:
    cases = []
    for dtype, tp, m in product(dtypes_of(FfnGated, options), options.tp, options.tokens):
        cases.append(FfnGated(options.model, tp, m, dtype))
    return cases


def alone_ratio(measured) -> Interval | None:
    """The baseline's time over that of a contender, of the matmuls that each is compared with. None where these are the
    same, or one of them took no turns."""
    shape = measured.shape
    makers = [shape.entrants.get(name, {}).get(MAKER) for name in (shape.baseline, measured.contender)]
    if makers[0] == makers[1] or not shape.anchor:
        return None
    times_s = []
    for maker in makers:
        for name in shape.of_role(PART):
            if shape.entrants[name].get(MAKER) == maker:
                times_s.append(shape.times_s(name))
    if len(times_s) != 2 * HALVES:
        return None

    def ratio(*times_s: float) -> float:
        return sum(times_s[:HALVES]) / sum(times_s[HALVES:])

    return shape.estimate(ratio, *times_s)


ALONE = Field(
    "alone_ratio",
    "the baseline's time over this one's, of the layer's matmuls, each alone, in the same rounds",
    unit="1",
    header="its matmuls alone [95 %]",
    format="interval3",
    ends=("alone_ratio_low", "alone_ratio_high"),
    of=alone_ratio,
)

OPERATION = register(
    Operation(
        case=FfnGated,
        analysis="throughput",
        sweep=sweep,
        contenders=CONTENDERS,
        runner=f"{BENCH}:Runner",
        example="ffn_gated-llama-3-405b-tp8-m4096-bf16-fused",
        default=False,
        fields=(ALONE,),
        tables=(
            Table(
                "Gated layers",
                of="alone_ratio",
                columns=("shape", "contender", "ratio_to_baseline", "alone_ratio"),
                about="Of each layer the ratio to the baseline, beside that of its two matmuls alone, in the same "
                "rounds: where fusing wins, the first is the larger one.",
            ),
        ),
        visits=(
            {
                "name": "gated-layers",
                "seconds": 120,
                "limit": 240,
                "selects": "test_ffn_gated",
                "archive": "training",
                "needs": "compile",
                "before": "perturbed",
            },
        ),
    )
)
