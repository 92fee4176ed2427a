"""A training step of a transformer as GPT-2, or a part of it: in fp32, TF32 and bf16, operator by operator or compiled.

It is off the default run: `pytest --benchmark-only -k test_transformer_step`, or `--ffn-operations transformer_step`.
"""

from dataclasses import dataclass
from itertools import product

from roofline.operations.base import DEFAULTS, Case, Operation, register
from roofline.operations.contenders import Contender
from roofline.theory.work import Work

VOCABULARY, HEAD_WIDTH, FP32_BYTES = 10_000, 64, 4

MODES = {"cuda": ("fp32", "tf32", "bf16"), "cpu": ("fp32", "bf16")}
OPERAND_BYTES = {"fp32": 4, "tf32": 4, "bf16": 2}
"""Mode -> bytes of an element that is multiplied. In bf16 autocast, weights and what is added up stay fp32."""

PARTS = {"forward": (1, 1), "backward": (3, 2), "step": (3, 7)}
"""Part -> its FLOP over those of the forward pass, with which each begins; and how often it moves as many bytes as the
weights have, at the least: they are read; gradients are written; AdamW reads two moments, and writes these and the
weights."""

BENCH = "kernels.bench.transformer_step"
CONTENDERS = (
    Contender("eager", f"{BENCH}:loss_of", require=f"{BENCH}:require_memory"),
    Contender("compiled", f"{BENCH}:compiled_loss", require=f"{BENCH}:require_memory", first_call="compiled"),
)
"""Each operator a kernel of its own, which is the baseline; and `torch.compile` of the model and its loss. Each is
called as loss(model, tokens, targets)."""


@dataclass(frozen=True)
class TransformerStep(Case):
    """A `part` of a step: `forward` with what the backward pass needs, `backward` behind it too, or `step`, with AdamW.

    The model has pre-norm blocks of attention (heads of 64) and an MLP of 4 x `width` with GELU, all with biases;
    learned positions; and a head that is tied to the embedding. `dtype` is `fp32`, `tf32`, which multiplies fp32 by
    TF32, or `bf16`, which is autocast of fp32 weights.

    >>> case = TransformerStep(12, 768, batch=16, context=256, part="step", dtype="bf16")
    >>> case.id, case.work.flop, case.parameters
    ('transformer_step-l12-d768-b16-t256-step-bf16', 2392061902848, 92932608)

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
        self.require("part", PARTS)
        self.require("dtype", OPERAND_BYTES)
        if min(self.layers, self.width, self.batch, self.context) < 1 or self.width % HEAD_WIDTH:
            raise ValueError(f"{self.id}: sizes are 1 or more, and the width is a multiple of {HEAD_WIDTH}")

    @property
    def facts(self) -> dict[str, int]:
        return {"m": self.batch * self.context}

    @property
    def multiplied(self) -> int:
        """N, the weights that each token is multiplied by: those of linear layers and of the head."""
        return 12 * self.layers * self.width**2 + VOCABULARY * self.width

    @property
    def parameters(self) -> int:
        """All weights: N, and what is added, as positions, biases and norms."""
        return self.multiplied + self.width * (13 * self.layers + self.context + 2)

    @property
    def work(self) -> Work:
        """Model FLOP: 6 N + 12 L D T for each token, and a third of that for the forward pass alone. Attention counts
        whole, though a causal kernel may leave out half of it. AdamW does not count."""
        passes, moved = PARTS[self.part]
        flop = 2 * self.multiplied + 4 * self.layers * self.width * self.context
        return Work(passes * self.batch * self.context * flop, moved * FP32_BYTES * self.parameters)

    @property
    def memory(self) -> dict[str, int]:
        """{kind: bytes} that are kept where each operator is a kernel of its own.

        Weights, gradients and AdamW's two moments are fp32. A block saves of each token 2 D fp32 elements, the inputs
        of its norms, and 14 D operands: the inputs of its four linear layers (7 D), q, k, v, and the input of GELU; and
        a few numbers of norms and softmax. Logits are saved in fp32, in bf16 also the weights that were multiplied.
        """
        width = self.width
        operand = OPERAND_BYTES[self.dtype]
        weights = FP32_BYTES * self.parameters
        block = width * (2 * FP32_BYTES + 14 * operand) + FP32_BYTES * (self.width // HEAD_WIDTH + 4)
        ends = width * (FP32_BYTES + operand) + FP32_BYTES * (2 + VOCABULARY)
        copies = 0 if operand == FP32_BYTES else operand * self.multiplied
        return {
            "weights": weights,
            "gradients": weights * (self.part != "forward"),
            "optimizer": 2 * weights * (self.part == "step"),
            "activations": self.batch * self.context * (self.layers * block + ends) + copies,
        }


def sweep(options) -> list[TransformerStep]:
    """Each size in each part and mode. On a CPU the large one has whole steps alone; with --ffn-quick the small one has
    forward passes and steps."""
    parts: list = [PARTS, PARTS if options.device == "cuda" else ("step",)]
    if not options.timed:
        parts = [("step",)]
    elif options.quick:
        parts = [("forward", "step")]
    sizes = DEFAULTS["transformer_step"][options.device if options.timed else "test"]
    cases = []
    for (layers, width, batch, context), parts_of_size in zip(sizes, parts, strict=False):
        for part, mode in product(parts_of_size, MODES[options.device]):
            cases.append(TransformerStep(layers, width, batch, context, part, mode))
    return cases


OPERATION = register(
    Operation(
        case=TransformerStep,
        analysis="throughput",
        sweep=sweep,
        contenders=CONTENDERS,
        runner="kernels.bench.transformer_step:Runner",
        example="transformer_step-l12-d768-b16-t256-step-bf16-compiled",
        default=False,
    )
)
