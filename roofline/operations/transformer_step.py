"""A training step of a transformer as GPT-2, or a part of it: in fp32, TF32 and bf16, operator by operator or compiled.

It is off the default run: `pytest --benchmark-only -k test_transformer_step`, or `--ffn-operations transformer_step`.
"""

from dataclasses import dataclass
from itertools import product

from roofline.operations import base
from roofline.operations.base import Case, Operation, register
from roofline.theory.transformer import FP32_BYTES, HEAD_WIDTH, OPERAND_BYTES, PASSES, Transformer
from roofline.theory.work import Work

SIZES = {"cuda": ((12, 768, 16, 256), (36, 1280, 16, 256)), "cpu": ((2, 128, 2, 128), (4, 256, 2, 128))}
"""Layers, width, sequences of a batch and their length. On a GPU those of GPT-2 small and large."""
MODES = {"cuda": ("fp32", "tf32", "bf16"), "cpu": ("fp32", "bf16")}
CHECKED = (1, 64, 2, 16)
"""The size that is checked where nothing is timed."""

MOVED = {"forward": 1, "backward": 2, "step": 7}
"""Part -> how often it has to move as many bytes as there are weights: they are read; gradients are written; AdamW
reads two moments, and writes these and the weights."""

CONTENDERS = ("eager", "compiled")
"""Each operator a kernel of its own, which is the baseline; and `torch.compile` of the whole model and its loss."""


@dataclass(frozen=True)
class TransformerStep(Case):
    """A `part` of a step: `forward` with what the backward pass needs, `backward` behind it too, or `step`, with AdamW.

    `dtype` is `fp32`, `tf32`, which multiplies fp32 by TF32, or `bf16`, which is autocast of fp32 weights. The FLOP are
    6 N + 12 L D T for each token, and 2 N + 4 L D T of `forward`: see `theory.transformer`.

    >>> case = TransformerStep(12, 768, batch=16, context=256, part="step", dtype="bf16")
    >>> case.id, round(case.work.flop / 1e12, 2), case.model.parameters
    ('transformer_step-l12-d768-b16-t256-step-bf16', 2.4, 92932608)

    Raises ValueError for an unknown part or dtype, sizes below 1, or a width that is no multiple of 64.
    """

    layers: int
    width: int
    batch: int
    context: int
    part: str
    dtype: str
    op, form = "transformer_step", "l{layers}-d{width}-b{batch}-t{context}-{part}-{dtype}"

    def __post_init__(self):
        for name, known in (("part", PASSES), ("dtype", OPERAND_BYTES)):
            if getattr(self, name) not in known:
                raise ValueError(f"unknown {name} {getattr(self, name)!r}: it is one of {', '.join(known)}")
        for name in ("layers", "width", "batch", "context"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: {self.op} needs 1 or more")
        if self.width % HEAD_WIDTH:
            raise ValueError(f"width={self.width}: heads are 64 wide; take a multiple of 64")

    @property
    def model(self) -> Transformer:
        return Transformer(self.layers, self.width, self.context)

    @property
    def tokens(self) -> int:
        return self.batch * self.context

    @property
    def memory(self) -> dict[str, int]:
        """Return {kind: bytes} that it keeps by formula."""
        return self.model.memory(self.tokens, self.part, self.dtype)

    @property
    def facts(self) -> dict[str, int]:
        return {"m": self.tokens}

    @property
    def work(self) -> Work:
        weight_bytes = FP32_BYTES * self.model.parameters
        return Work(self.model.flop(self.tokens, self.part), MOVED[self.part] * weight_bytes)


def sweep(options) -> list[TransformerStep]:
    """Return each size in each part and mode; with --ffn-quick the small one. Of a CPU's large one, steps alone."""
    if not options.timed:
        return [TransformerStep(*CHECKED, "step", mode) for mode in MODES[options.device]]
    small, large = SIZES[options.device]
    parts = {small: PASSES} | ({} if options.quick else {large: PASSES if options.device == "cuda" else ("step",)})
    modes = MODES[options.device]
    return [TransformerStep(*size, part, mode) for size in parts for part, mode in product(parts[size], modes)]


class Planner(base.Planner):
    def choices(self) -> list[str]:
        return [*CONTENDERS]

    def names(self, case) -> list[str]:
        """Return those asked for; where nothing is timed, nothing is compiled unasked, which takes long."""
        usual = CONTENDERS if self.options.timed else CONTENDERS[:1]
        return [name for name in CONTENDERS if name in (self.options.contenders or usual)]


OPERATION = register(
    Operation(
        case=TransformerStep,
        analysis="throughput",
        sweep=sweep,
        planner=Planner,
        runner="kernels.bench.transformer_step:Runner",
        example="transformer_step-l12-d768-b16-t256-step-bf16-compiled",
        default=False,
    )
)
