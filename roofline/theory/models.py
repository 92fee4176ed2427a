"""Transformer shapes by name, as `models.toml` has them, each with its source. Nothing of how they are sharded.

Of a mixture of experts, the FFN is one expert's, and `blocks` are those that have experts.
"""

import re
from dataclasses import dataclass, replace

from roofline.theory.data import tables_of
from roofline.theory.words import nearest


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


MODELS = {name: Model(name, **sizes) for name, sizes in tables_of(__file__, "models.toml").items()}
"""By name, in the order of the file."""


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
    if re.search(r"[@,]|^\d+x\d+$", text):
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
    sizes = {}
    for size in ("d_model", "d_ff", "heads", "kv_heads"):
        sizes[size] = getattr(model, size) // parts
    if model.kv_heads % parts:
        sizes |= {"heads": 0, "kv_heads": 0}
    return replace(model, name=name, **sizes)
