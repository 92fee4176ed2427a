"""Attention over lengths: out = softmax(q @ k.T / sqrt(width)) @ v for each head, forward and backward apart.

What it keeps for the backward pass grows as the square of the length unless the scores stay on the chip.
"""

from itertools import product

from kernels.bench.kept import FORMULA, PEAK, SAVED, kept
from roofline.account.cases import ATTENTION, MASKS, PARTS, Attention
from roofline.operations.base import Operation, dtypes_of, register
from roofline.operations.contenders import Contender, by_library
from roofline.operations.shown import Field
from roofline.theory.models import MODELS

MODEL = MODELS["llama-3-405b"]
TP = 8
"""A rank of so many has MODEL's heads at LONGEST tokens, each with keys of its own."""

LONGEST = 16384

SIZES: dict[str, dict] = {
    "cuda": {"batch": 8, "widths": [16, 64, 128], "lengths": [256, 1024, 4096, 16384]},
    "cpu": {"batch": 2, "widths": [64], "lengths": [256, 1024, 4096]},
    "quick": {"batch": 2, "widths": [64], "lengths": [256, 1024]},
    "test": {"batch": 2, "widths": [16, 64], "lengths": [100]},
}
"""Those of a run by default: on a device, with --ffn-quick, and where nothing is timed."""

BENCH = "kernels.attention.bench"
CONTENDERS = (
    Contender("sdpa", f"{BENCH}:sdpa", describe=f"{BENCH}:describe_sdpa"),
    Contender("cudnn", f"{BENCH}:cudnn", devices=("cuda",)),
    Contender(
        "numpy",
        f"{BENCH}:Numpy.apply",
        devices=("cpu",),
        require=f"{BENCH}:require_numpy",
        describe=by_library("numpy"),
    ),
    Contender("eager", f"{BENCH}:eager", require=f"{BENCH}:require_scores"),
    Contender("compiled", f"{BENCH}:compiled", first_call="compiled"),
    Contender("flex", f"{BENCH}:flex", devices=("cuda",), first_call="compiled"),
    Contender("flash", "kernels.attention.kernel:attention", kind="triton", devices=("cuda",)),
)
"""Each is called as run(q, k, v, causal), and torch's autograd differentiates it."""


def sweep(options) -> list[Attention]:
    """All cases, in the order of the run. The options choose lengths and dtype."""
    name = "quick" if options.quick else options.device
    sizes = SIZES[name if options.timed else "test"]
    lengths = options.lengths or sizes["lengths"]
    shapes = list(product([sizes["batch"]], [1], sizes["widths"], lengths))
    if options.device == "cuda" and LONGEST in lengths:
        shapes.append((1, MODEL.heads // TP, MODEL.head_width, LONGEST))
    cases = []
    for dtype, mask, part, (batch, heads, width, m) in product(dtypes_of(Attention, options), MASKS, PARTS, shapes):
        cases.append(Attention(batch, heads, width, m, mask, part, dtype))
    return cases


OPERATION = register(
    Operation(
        case=Attention,
        analysis="throughput",
        sweep=sweep,
        contenders=CONTENDERS,
        runner=f"{BENCH}:Runner",
        example=f"{ATTENTION}-flash",
        default=False,
        fields=(
            Field("part", "`forward` or `backward`"),
            Field("batch", "sequences", unit="1"),
            Field("heads", "those of each of the batch", unit="1"),
            Field("width", "columns of a head", unit="1"),
            Field("mask", "`full`, or `causal`, where a row sees none behind it"),
            SAVED,
            FORMULA,
            PEAK,
        ),
        tables=(kept("Memory of attention"),),
        figures={"attention": "kernels.attention.figure:attention"},
        visits=(
            {
                "name": "attention",
                "seconds": 130,
                "limit": 240,
                "archive": "training",
                "needs": "compile",
                "selects": "test_attention and d128 and (m4096 or m16384)",
                "before": "fp8",
            },
        ),
    )
)
