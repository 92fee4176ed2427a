"""Kernels without a mistake, which the machine must never accuse, by family: a file each.

They are written for this suite after well-known designs, some thirty lines each, and may be taken as patterns: every
access that conflicts with another is ordered by the rules of Triton's language and of PTX's memory model. A comment
says so where that takes a line that computes nothing. Operands are whole numbers wherever the result is exact then.

`TRIALS` has them by name once the families are imported.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Addresses:
    """An argument: a table, int64, of where these tensors lie."""

    tensors: Sequence[Tensor]


@dataclass(frozen=True)
class Trial:
    """A launch, and what its tensors hold afterwards."""

    kernel: Any
    grid: tuple[int, ...]
    args: dict[str, Any] = field(repr=False)
    expected: dict[str, Tensor] = field(repr=False)
    """By argument."""


TRIALS: dict[str, Callable[[], Trial | list[Trial]]] = {}
"""Several trials are of a device each, all at the same time."""


def trial(make: Callable) -> Callable:
    """Register a function that makes a trial, by its name."""
    TRIALS[make.__name__] = make
    return make


def whole(*shape: int, low: int = -3, high: int = 3, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """Return whole numbers from `low` to `high`."""
    random = torch.Generator().manual_seed(seed)
    return torch.randint(low, high + 1, shape, generator=random).to(dtype)
