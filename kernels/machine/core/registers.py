"""A warp's registers: arrays of 32 lanes, as wide as they were declared, unsigned, or bool for predicates."""

import re
from functools import lru_cache

import numpy as np

from .faults import UnknownError

LANES = 32
TYPE = re.compile(r"pred|[busf](?:8|16|32|64)|bf16|tf32|(?:[us]16|f16|bf16|e4m3|e5m2)x2")
WIDTHS = {"pred": 1, "bf16": 16, "tf32": 32, "e4m3": 8, "e5m2": 8}
LETTERS = {"pred": "b", "tf32": "f", "f": "f", "s": "i"}  # NumPy's, by the type or its first letter; "u" for others
DTYPES = "b1 u1 u2 u4 u8 i1 i2 i4 i8 f2 f4 f8"
NAMES = {name: np.dtype(name) for name in DTYPES.split()}
NAMES["where"] = np.where
"""What the Python that a kernel becomes may name: these types, and functions of the arithmetic."""


def element(kind: str) -> str:
    """The type of a pair's halves; the type itself where it is no pair."""
    return kind.removesuffix("x2")


@lru_cache
def bits(kind: str) -> int:
    return (WIDTHS.get(element(kind)) or int(element(kind)[1:])) << kind.endswith("x2")


@lru_cache
def numpy_name(kind: str) -> str:
    """The name in `NAMES` of a PTX type, or of the halves of a pair. A number that NumPy lacks is kept as its bits,
    unsigned."""
    if not TYPE.fullmatch(kind):
        raise UnknownError(f"type .{kind} is unknown")
    letter = LETTERS.get(kind) or LETTERS.get(kind[0], "u")
    return f"{letter}{(bits(element(kind)) + 7) // 8}"


def names_in(vector: str) -> list[str]:
    """
    >>> names_in("{%r1, %r2}"), names_in("%r1")
    (['%r1', '%r2'], ['%r1'])
    """
    return [name.strip() for name in vector.strip("{} ").split(",")]
