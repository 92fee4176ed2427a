"""Words and numbers as users type them."""

import difflib
import math
from collections.abc import Iterable


def nearest(word: str, words: Iterable[str]) -> str:
    """The question "did you mean ...? " with the nearest of the `words`; "" where none is near.

    >>> nearest("matmull", ["matmul", "ffn"]), nearest("x", ["matmul"])
    ('did you mean matmul? ', '')
    """
    near = difflib.get_close_matches(word, words, n=1)
    return f"did you mean {near[0]}? " if near else ""


def number(text: str) -> float:
    """`text` as a number; NaN, which is neither above nor below anything, where it is none or is infinite."""
    try:
        value = float(text)
    except ValueError:
        return math.nan
    return value if math.isfinite(value) else math.nan
