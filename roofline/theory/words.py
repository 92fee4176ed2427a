"""Words and numbers as users type and read them."""

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


def duration(seconds: float) -> str:
    """`seconds` in words, rounded as a person would.

    >>> duration(3.2), duration(47), duration(309), duration(4000)
    ('5 s', '45 s', '5 min 10 s', '67 min')
    """
    if seconds < 97.5:
        return f"{5 * math.ceil(seconds / 5 - 0.5) or 5} s"
    minutes, rest = divmod(10 * round(seconds / 10), 60)
    return f"{minutes} min {rest} s" if rest and minutes < 10 else f"{round(seconds / 60)} min"
