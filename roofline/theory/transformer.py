"""A decoder-only transformer as GPT-2: its weights, the FLOP of a pass, and the bytes that training keeps in memory."""

from dataclasses import dataclass

VOCABULARY, HEAD_WIDTH = 10_000, 64
FP32_BYTES = 4

PASSES = {"forward": 1, "backward": 3, "step": 3}
"""Part of a training step -> its FLOP over those of a forward pass. A backward pass multiplies twice as often: by the
weights and by the inputs. `backward` and `step` begin with a forward pass; what AdamW adds is not counted."""

OPERAND_BYTES = {"fp32": 4, "tf32": 4, "bf16": 2}
"""Mode -> bytes of an element that is multiplied. In bf16 autocast, weights and what is added up stay fp32."""


@dataclass(frozen=True)
class Transformer:
    """Blocks of pre-norm attention (heads of 64) and an MLP of 4 x `width` with GELU, all with biases; learned
    positions; a head that is tied to the embedding of `vocabulary` tokens."""

    layers: int
    width: int
    context: int
    vocabulary: int = VOCABULARY

    @property
    def heads(self) -> int:
        return self.width // HEAD_WIDTH

    @property
    def multiplied(self) -> int:
        """Return N, the weights that each token is multiplied by: those of linear layers, and the head."""
        return 12 * self.layers * self.width**2 + self.vocabulary * self.width

    @property
    def parameters(self) -> int:
        """Return all weights: N, and those that are added: positions, biases, norms."""
        return self.multiplied + self.width * (13 * self.layers + self.context + 2)

    def flop(self, tokens: int, part: str) -> int:
        """Return the model FLOP of `tokens` tokens: 6 N + 12 L D T each with the backward pass, a third of it without.
        Attention counts whole, though a causal kernel may leave out half of it."""
        return tokens * PASSES[part] * (2 * self.multiplied + 4 * self.layers * self.width * self.context)

    def memory(self, tokens: int, part: str, mode: str) -> dict[str, int]:
        """Return {kind: bytes} that `part` keeps of `tokens` tokens, where each operator is a kernel of its own.

        Weights, gradients and AdamW's two moments are fp32. What a block saves for the backward pass are 2 D fp32
        elements of a token, the inputs of its norms, and 14 D operands: the inputs of its four linear layers (7 D),
        q, k and v, and the input of GELU; and of its norms and its softmax a few numbers. The logits are saved in fp32.
        In bf16, so are the copies of the weights that were multiplied.
        """
        width, operand = self.width, OPERAND_BYTES[mode]
        block = width * (2 * FP32_BYTES + 14 * operand) + FP32_BYTES * (self.heads + 4)
        ends = width * (FP32_BYTES + operand) + FP32_BYTES * (2 + self.vocabulary)
        weights = FP32_BYTES * self.parameters
        return {
            "weights": weights,
            "gradients": weights * (part != "forward"),
            "optimizer": 2 * weights * (part == "step"),
            "activations": tokens * (self.layers * block + ends) + self.copied_bytes(mode),
        }

    def copied_bytes(self, mode: str) -> int:
        """Return the bytes of the weights that are multiplied in another type than their own."""
        return 0 if OPERAND_BYTES[mode] == FP32_BYTES else OPERAND_BYTES[mode] * self.multiplied
