"""Attention over lengths: out = softmax(q @ k.T / sqrt(width)) @ v for each head, forward and backward apart.

What it keeps for the backward pass grows as the square of the length unless the scores stay on the chip.
"""

from dataclasses import dataclass
from itertools import product

from roofline.operations.base import Case, Operation, Planner, dtypes_of, register
from roofline.operations.matmul import NO_FP8
from roofline.theory.models import MODELS
from roofline.theory.work import ITEMSIZE, Work

MASKS, PARTS = ("full", "causal"), ("forward", "backward")

MODEL, TP = MODELS["llama-3-405b"], 8
"""A rank of so many has MODEL's heads at LONGEST tokens, each with keys of its own."""

LONGEST = 16384

SIZES = {
    "cuda": {"batch": 8, "heads": 1, "widths": (16, 64, 128), "lengths": (256, 1024, 4096, LONGEST)},
    "cpu": {"batch": 2, "heads": 1, "widths": (64,), "lengths": (256, 1024, 4096)},
    "quick": {"batch": 2, "heads": 1, "widths": (64,), "lengths": (256, 1024)},
    "test": {"batch": 2, "heads": 1, "widths": (16, 64), "lengths": (100,)},
}
"""By device; `test` is what plain pytest checks."""

CONTENDERS = {
    "cuda": ("sdpa", "cudnn", "eager", "compiled", "flex", "flash"),
    "cpu": ("sdpa", "numpy", "eager", "compiled"),
}
"""By device, the baseline first. `flash` is ours."""

COMPILED, CHECKED = ("compiled", "flex"), "flash"
"""Those that torch compiles in their first call, which takes plain pytest too long, and what that checks beside the
others of a CPU, in Triton's interpreter."""


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
        for name, names in (("mask", MASKS), ("part", PARTS)):
            if (word := getattr(self, name)) not in names:
                raise ValueError(f"unknown {name} {word!r}: it is one of {', '.join(names)}")
        for name in ("batch", "heads", "width", "m"):
            if (size := getattr(self, name)) < 1:
                raise ValueError(f"{name}={size}: it must be 1 or more")

    @property
    def rows(self) -> int:
        """Return the rows of q, over all heads."""
        return self.batch * self.heads * self.m

    @property
    def operands(self) -> str:
        return f"q, k, v and out[{self.batch}, {self.heads}, {self.m}, {self.width}]"

    @property
    def work(self) -> Work:
        """Two matmuls forward, and five backward, of which one makes the scores again. Under a causal mask half of them
        counts. Bytes are those of q, k, v, out, backward also of the four gradients and of a float for each row."""
        matmuls, tensors = (2, 4) if self.part == "forward" else (5, 8)
        flop = matmuls * 2 * self.rows * self.m * self.width // (2 if self.mask == "causal" else 1)
        rows_bytes = 4 * self.rows if self.part == "backward" else 0
        return Work(flop, tensors * self.rows * self.width * ITEMSIZE[self.dtype] + rows_bytes)

    def saved_bytes(self, *, scores: bool) -> int:
        """Return the bytes that are kept for the backward pass by formula: q, k, v and, of `scores` that are written
        out, the probabilities, with the mask's m * m booleans; else out and a float for each row."""
        operands = 3 * self.rows * self.width * ITEMSIZE[self.dtype]
        if scores:
            mask_bytes = self.m * self.m if self.mask == "causal" else 0
            return operands + self.rows * self.m * ITEMSIZE[self.dtype] + mask_bytes
        return operands + self.rows * (self.width * ITEMSIZE[self.dtype] + 4)


class AttentionPlanner(Planner):
    def choices(self) -> list[str]:
        return list(dict.fromkeys(name for names in CONTENDERS.values() for name in names))

    def timed_names(self) -> list[str]:
        return [*CONTENDERS[self.options.device]]

    def names(self, case: Attention) -> list[str]:
        options, names = self.options, self.timed_names()
        if options.contenders:
            return [name for name in options.contenders if name in self.choices()]
        quick = [name for name in names if name not in COMPILED]
        return names if options.timed else list(dict.fromkeys([*quick, CHECKED]))


def sweep(options) -> list[Attention]:
    """Return every case, in the order of the run: the options choose lengths and dtype."""
    sizes = SIZES[("quick" if options.quick else options.device) if options.timed else "test"]
    lengths = options.lengths or sizes["lengths"]
    shapes = [(sizes["batch"], sizes["heads"], width, m) for width, m in product(sizes["widths"], lengths)]
    if options.device == "cuda" and LONGEST in lengths:
        shapes.append((1, MODEL.heads // TP, MODEL.head_width, LONGEST))
    choices = product(dtypes_of(Attention, options), MASKS, PARTS, shapes)
    return [Attention(*shape, mask, part, dtype) for dtype, mask, part, shape in choices]


OPERATION = register(
    Operation(
        case=Attention,
        analysis="throughput",
        sweep=sweep,
        planner=AttentionPlanner,
        runner="kernels.bench.attention:Runner",
        example="attention-b8-h1-d64-m4096-causal-forward-bf16-flash",
        why_not=lambda options: NO_FP8 * (not dtypes_of(Attention, options)),
        default=False,
    )
)
