"""Cases whose memory `roofline account` has by formula: attention, and a transformer's training step. What measures
them is no part of roofline."""

from dataclasses import dataclass

from roofline.operations.base import Case
from roofline.theory.work import ITEMSIZE, Work

MASKS = ("full", "causal")
PARTS = ("forward", "backward")
ATTENTION = "attention-b8-h1-d64-m4096-causal-forward-bf16"
"""An id, as each is written."""

VOCABULARY, HEAD_WIDTH, FP32_BYTES = 10_000, 64, 4

OPERAND_BYTES = {"fp32": 4, "tf32": 4, "bf16": 2}
"""Mode -> bytes of an element that is multiplied. In bf16 autocast, weights and what is added up stay fp32."""

PARTS_OF_STEP = {"forward": (1, 1), "backward": (3, 2), "step": (3, 7)}
"""Part -> its FLOP over those of the forward pass, with which each begins; and how often it moves as many bytes as the
weights have, at the least: they are read; gradients are written; AdamW reads two moments, and writes these and the
weights."""
STEP = "transformer_step-l12-d768-b16-t256-step-bf16"


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
        self.require("part", PARTS_OF_STEP)
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
        passes, moved = PARTS_OF_STEP[self.part]
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
