"""Transformer shapes by name. Owns the sizes of a block's linear layers, and nothing of how they are sharded.

`xxl` is the exercise's: the FFN width and depth of Llama-3.1-405B, and two matrices. Of a mixture of experts, the FFN
is one expert's, and `blocks` are those that have experts: all but 3 of DeepSeek-V3, whose attention has no plain qkv.
"""

import re
from dataclasses import dataclass, replace

from roofline.theory.arguments import nearest


@dataclass(frozen=True)
class Model:
    """The FFN of a transformer: two linear layers a block, `d_model -> d_ff` (up) and `d_ff -> d_model` (down); and the
    heads of its attention, 0 where it has no plain qkv, or nobody said.

    `matrices` is 3 where a block has a gate beside `up`, of the same size. `experts` are its FFNs of this size.
    `blocks` is 0 where nobody said.
    """

    name: str
    d_model: int
    d_ff: int
    blocks: int
    matrices: int = 2
    heads: int = 0
    kv_heads: int = 0
    head_width: int = 0
    experts: int = 1
    vocabulary: int = 0
    """Rows of the embedding and of the output matrix, 0 where these are not counted."""

    @property
    def layers(self) -> dict[str, tuple[int, int]]:
        """{layer: (d_in, d_out)} of those that a block has, `gate_up` and `qkv` each as one matrix."""
        layers = {"up": (self.d_model, self.d_ff), "down": (self.d_ff, self.d_model)}
        if self.matrices == 3:
            layers["gate_up"] = self.d_model, 2 * self.d_ff
        if queries := self.heads * self.head_width:
            keys = self.kv_heads * self.head_width
            layers["qkv"] = self.d_model, queries + 2 * keys
            layers["o"] = queries, self.d_model
        return layers


_TABLE = (
    Model("xxl", 16384, 53248, 126),
    Model("llama-3-405b", 16384, 53248, 126, 3, 128, 8, 128),  # arXiv 2407.21783, table 3, as the next two
    Model("llama-3-70b", 8192, 28672, 80, 3, 64, 8, 128),
    Model("llama-3-8b", 4096, 14336, 32, 3, 32, 8, 128),
    Model("qwen3-32b", 5120, 25600, 64, 3, 64, 8, 128),  # config.json of Qwen/Qwen3-32B
    Model("qwen3-8b", 4096, 12288, 36, 3, 32, 8, 128),  # config.json of Qwen/Qwen3-8B
    Model("deepseek-v3-expert", 7168, 2048, 58, 3, experts=257),  # config.json of deepseek-ai/DeepSeek-V3
    Model("gpt-oss-120b", 2880, 2880, 36, 3, 64, 8, 64, experts=128),  # openai/gpt-oss, gpt_oss/torch/model.py
    Model("gpt-3", 12288, 49152, 96, 2, 96, 96, 128),  # arXiv 2005.14165, table 2.1
)
MODELS = {model.name: model for model in _TABLE}


def parse(text: str) -> Model:
    """The model that `text` names: a name of `MODELS`, `NAME/S` (widths and heads divided by S), or `D,F` by
    hand, with a label as `LABEL@DxF`.

    >>> parse("xxl").d_ff, parse("1000,3000").name, parse("qkv_proj@1000x3000").d_ff
    (53248, '1000x3000', 3000)
    >>> parse("xxl/16").layers, parse("llama-3-70b/8").layers["qkv"]
    ({'up': (1024, 3328), 'down': (3328, 1024)}, (1024, 1280))

    Where S does not divide the kv heads, there are none. Raises ValueError for an unknown name, a divisor that does not
    divide both widths, sizes below 1, or a label that no id can hold.
    """
    if "@" in text or "," in text or (text.count("x") == 1 and text.replace("x", "").isdecimal()):
        return _by_hand(text)
    name, slash, divisor = text.partition("/")
    if name not in MODELS:
        hint = f"{nearest(name, MODELS)}known are {', '.join(MODELS)}"
        raise ValueError(f"unknown model {name!r}: {hint}; or give D,F by hand")
    return _divided(MODELS[name], divisor, text) if slash else MODELS[name]


def _by_hand(text: str) -> Model:
    label, separator, sizes = text.rpartition("@")
    if separator and not re.fullmatch("[A-Za-z0-9_.]+", label):
        raise ValueError(f"label {label!r}: take letters, digits, _ and . alone")
    numbers = re.fullmatch(r"\s*(\d*[1-9]\d*)\s*[x,]\s*(\d*[1-9]\d*)\s*", sizes)
    if not numbers:
        raise ValueError(f"model {text!r}: by hand it is D,F, two whole numbers above 0, as in 16384,53248")
    d_model, d_ff = map(int, numbers.groups())
    return Model(f"{label}{separator}{d_model}x{d_ff}", d_model, d_ff, 0)


def _divided(model: Model, divisor: str, name: str) -> Model:
    """The model with its widths and heads divided, under another name."""
    parts = int(divisor) if divisor.isdecimal() else 0
    if parts < 1 or model.d_model % parts or model.d_ff % parts:
        raise ValueError(
            f"model {name!r}: the divisor must be a whole number that divides d_model={model.d_model} "
            f"and d_ff={model.d_ff}, as in {model.name}/16"
        )
    heads = model.heads // parts
    kv_heads = model.kv_heads // parts
    if model.kv_heads % parts:
        heads = kv_heads = 0
    d_model = model.d_model // parts
    d_ff = model.d_ff // parts
    return replace(model, name=name, d_model=d_model, d_ff=d_ff, heads=heads, kv_heads=kv_heads)
