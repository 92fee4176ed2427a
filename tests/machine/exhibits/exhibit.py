"""What an exhibit is, and how the machine judges it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import triton

from kernels.machine.check import Verdict, check

SEEDS = 8
BUDGET = 300_000
"""Instructions after which a run is taken to go on for ever."""


def version(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split("+")[0].split(".")))


@dataclass(frozen=True)
class Exhibit:
    """A published mistake, rebuilt in our words."""

    name: str
    source: str
    """Where it was published: repository and number of the issue or pull request."""
    hardware: str
    """What the source says that hardware did."""
    make: Callable[[bool], tuple[Any, tuple[int, ...], dict[str, Any], dict[str, torch.Tensor]]]
    """Whether it is mended -> the kernel, its grid, its arguments and what they must hold afterwards."""
    kinds: str | Mapping[str, str]
    """Of the verdicts on it, parted by " or "; where Triton's releases differ, by the first that has them."""

    def expected(self) -> list[str]:
        """Return the kinds that this Triton's code must be found to be of."""
        releases = {"0": self.kinds} if isinstance(self.kinds, str) else self.kinds
        newest = max((r for r in releases if version(r) <= version(triton.__version__)), key=version)
        return releases[newest].split(" or ")

    def judge(self, mended: bool, seed: int) -> Verdict:
        torch.manual_seed(seed)
        kernel, grid, args, expected = self.make(mended)
        return check(kernel, grid, args, expected=expected, seeds=1, seed=seed, budget=BUDGET)

    def problems(self, seeds: int) -> list[str]:
        """Return where the machine says anything else than it must, under so many orders of events."""
        guilty = [self.judge(False, seed) for seed in range(seeds)]
        mended = [self.judge(True, seed) for seed in range(seeds)]
        kinds = self.expected()
        wrong = [f"mended, seed {n}: {verdict}" for n, verdict in enumerate(mended) if not verdict]
        wrong += [f"guilty, seed {n}: {verdict}" for n, verdict in enumerate(guilty) if verdict.kind not in kinds]
        return [f"{self.name}, {text}" for text in wrong]


def row(exhibit: Exhibit) -> str:
    """Return a line of the table: what hardware did, and how many orders of events are found to be of a kind."""
    found = [exhibit.judge(False, seed).kind for seed in range(SEEDS)]
    counts = ", ".join(f"{kind} {found.count(kind)}" for kind in sorted({*found}, key=found.count, reverse=True))
    return f"| {exhibit.name} | {exhibit.source} | {exhibit.hardware} | {counts} |"
