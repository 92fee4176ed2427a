"""A decoder-only transformer of plain torch modules, as `roofline.account.cases` counts it."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from roofline.account.cases import HEAD_WIDTH, VOCABULARY

WEIGHT_STD = 0.02
"""Standard deviation of the normal initial weights, as in GPT-2."""


class Block(nn.Module):
    """Attention and MLP, each behind a norm and beside a residual connection."""

    def __init__(self, width: int):
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.mlp_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """The output of the block for x[b, t, d]."""
        heads = self.qkv(self.attention_norm(x)).unflatten(-1, (3, -1, HEAD_WIDTH))  # [b, t, 3, h, d / h]
        q, k, v = heads.permute(2, 0, 3, 1, 4).unbind()
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(attended.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.mlp_norm(x))))


class Decoder(nn.Module):
    """The whole model. Its `forward` returns the loss."""

    def __init__(self, layers: int, width: int, context: int):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    @torch.no_grad()
    def reset(self, generator: torch.Generator) -> None:
        """Set all weights anew, in place: matrices to normal values, biases to 0, norms to 1."""
        for name, weight in self.named_parameters():
            if weight.ndim > 1:
                weight.normal_(std=WEIGHT_STD, generator=generator)
            else:
                weight.fill_(name.endswith("norm.weight"))

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """The mean cross entropy of the next tokens, scalar, for int64 `tokens` and `targets` [b, t]."""
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())
