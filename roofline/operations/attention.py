"""Attention over lengths: out = softmax(q @ k.T / sqrt(width)) @ v for each head, forward and backward apart.

What it keeps for the backward pass grows as the square of the length unless the scores stay on the chip.
"""

from dataclasses import dataclass
from itertools import product

from roofline.operations.base import DEFAULTS, Case, Operation, dtypes_of, register
from roofline.operations.contenders import Contender, by_library
from roofline.theory.models import MODELS
from roofline.theory.work import ITEMSIZE, Work

MASKS = ("full", "causal")
PARTS = ("forward", "backward")

MODEL = MODELS["llama-3-405b"]
TP = 8
"""A rank of so many has MODEL's heads at LONGEST tokens, each with keys of its own."""

LONGEST = 16384

BENCH = "kernels.bench.attention"
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
    Contender("flash", "kernels.attention:attention", kind="triton", devices=("cuda",)),
)
"""Each is called as run(q, k, v, causal), and torch's autograd differentiates it."""


@dataclass(frozen=True)
class Attention(Case):
    """Attention of q, k, v [batch, heads, m, width], or its backward pass, which gives the gradients of all three.

    >>> case = Attention(8, 1, 64, 4096, "causal", "forward", "bf16")
    >>> case.id, case.work.flop == 4 * 8 * 64 * 4096**2 // 2
    ('attention-b8-h1-d64-m4096-causal-forward-bf16', True)

    Raises ValueError for a size below 1, and an unknown mask, part or dtype.
    """

    batch: int
    heads: int
    width: int
    m: int
    mask: str
    part: str
    dtype: str
    op, form = "attention", "b{batch}-h{heads}-d{width}-m{m}-{mask}-{part}-{dtype}"

    def __post_init__(self):
        super().__post_init__()
        self.require("mask", MASKS)
        self.require("part", PARTS)
        for name in ("batch", "heads", "width", "m"):
            if (size := getattr(self, name)) < 1:
                raise ValueError(f"{name}={size}: it must be 1 or more")

    @property
    def rows(self) -> int:
        """The rows of q, over all heads."""
        return self.batch * self.heads * self.m

    @property
    def operands(self) -> str:
        return f"q, k, v and out[{self.batch}, {self.heads}, {self.m}, {self.width}]"

    @property
    def work(self) -> Work:
        """Two matmuls forward, and five backward, of which one computes the scores again. Under a causal mask half of
        the FLOP counts. Bytes are those of q, k, v and out, and backward those of the four gradients and of a float for
        each row as well."""
        flop = 2 * self.rows * self.m * self.width
        if self.mask == "causal":
            flop //= 2
        tensor_bytes = self.rows * self.width * ITEMSIZE[self.dtype]
        if self.part == "forward":
            return Work(2 * flop, 4 * tensor_bytes)
        return Work(5 * flop, 8 * tensor_bytes + 4 * self.rows)

    def saved_bytes(self, *, scores: bool) -> int:
        """Bytes that the backward pass needs, by formula: q, k and v; and the probabilities with the mask's m * m
        booleans where `scores` are written out, else `out` and a float for each row."""
        tensor_bytes = self.rows * self.width * ITEMSIZE[self.dtype]
        if not scores:
            return 4 * tensor_bytes + 4 * self.rows
        mask_bytes = self.m * self.m if self.mask == "causal" else 0
        return 3 * tensor_bytes + self.rows * self.m * ITEMSIZE[self.dtype] + mask_bytes


def sweep(options) -> list[Attention]:
    """All cases, in the order of the run. The options choose lengths and dtype."""
    name = "quick" if options.quick else options.device
    sizes = DEFAULTS["attention"][name if options.timed else "test"]
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
        runner="kernels.bench.attention:Runner",
        example="attention-b8-h1-d64-m4096-causal-forward-bf16-flash",
        default=False,
    )
)
