"""Transformer shapes by name. Owns the sizes of a feed-forward (FFN) block, and nothing of how it is sharded.

Sources: the Llama-3 sizes are those of Meta's model cards (`xxl` is the FFN width and depth of Llama-3.1-405B), the
GPT-2 and GPT-3 sizes those of their papers. Llama's blocks are gated, `xxl` is the exercise's: two matrices.
"""

import difflib
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Model:
    """The FFN of a transformer: two linear layers a block, `d_model -> d_ff` (up) and `d_ff -> d_model` (down).

    `matrices` is 3 where a block has a gate beside `up`, of the same size.
    """

    name: str
    d_model: int
    d_ff: int
    blocks: int
    matrices: int = 2


MODELS = {
    model.name: model
    for model in (
        Model("xxl", 16384, 53248, 126),
        Model("llama-3-70b", 8192, 28672, 80, 3),
        Model("llama-3-8b", 4096, 14336, 32, 3),
        Model("gpt-3", 12288, 49152, 96),
        Model("gpt-2-large", 1280, 5120, 36),
        Model("gpt-2-small", 768, 3072, 12),
    )
}


def parse(text: str) -> Model:
    """Return the model that `text` names: a name of `MODELS`, `NAME/S` (both widths divided by S), or `D,F` by hand.

    >>> parse("xxl").d_ff
    53248
    >>> parse("xxl/16")
    Model(name='xxl/16', d_model=1024, d_ff=3328, blocks=126, matrices=2)
    >>> parse("1000,3000")
    Model(name='1000x3000', d_model=1000, d_ff=3000, blocks=1, matrices=2)

    Raises ValueError for an unknown name, a divisor that does not divide both widths, or sizes below 1.
    """
    if "," in text or (text.count("x") == 1 and text.replace("x", "").isdecimal()):
        sizes = text.replace("x", ",").split(",")
        if len(sizes) != 2 or not all(size.strip().isdecimal() and int(size) > 0 for size in sizes):
            raise ValueError(f"model {text!r}: by hand it is D,F, two whole numbers above 0, as in 16384,53248")
        d_model, d_ff = map(int, sizes)
        return Model(f"{d_model}x{d_ff}", d_model, d_ff, 1)
    name, slash, divisor = text.partition("/")
    if name not in MODELS:
        near = difflib.get_close_matches(name, MODELS, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ValueError(f"unknown model {name!r}: {hint}known are {', '.join(MODELS)}; or give D,F by hand")
    model = MODELS[name]
    if not slash:
        return model
    if not divisor.isdecimal() or int(divisor) < 1 or model.d_model % int(divisor) or model.d_ff % int(divisor):
        raise ValueError(
            f"model {text!r}: the divisor must be a whole number that divides d_model={model.d_model} "
            f"and d_ff={model.d_ff}, as in {name}/16"
        )
    return replace(model, name=text, d_model=model.d_model // int(divisor), d_ff=model.d_ff // int(divisor))
