"""What an exhibit is, and how the machine judges it."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import triton

from kernels.machine.verdict import Verdict, check

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
    make: Callable[[bool], tuple[Any, ...]]
    """Whether it is mended -> the kernel, its grid, its arguments, what they must hold afterwards, and perhaps options
    of `check`. Of one that is exact under every Triton it makes the same either way."""
    kinds: str | Mapping[str, str]
    """Of the verdicts on it, parted by " or "; where Triton's releases differ, by the first that has them."""
    orders: int = SEEDS
    """Of events, at most: one that takes long has fewer."""

    def expected(self) -> list[str]:
        """Return the kinds that this Triton's code must be found to be of."""
        releases = {"0": self.kinds} if isinstance(self.kinds, str) else self.kinds
        newest = max((r for r in releases if version(r) <= version(triton.__version__)), key=version)
        return releases[newest].split(" or ")

    def judge(self, mended: bool, seed: int) -> Verdict:
        torch.manual_seed(seed)
        kernel, grid, args, expected, *options = self.make(mended)
        return check(kernel, grid, args, expected=expected, seeds=1, seed=seed, budget=BUDGET, **dict(*options))

    def judgements(self, seeds: int = SEEDS) -> dict[bool, list[Verdict]]:
        """Return, of it as it is and of its mended twin, the verdict of each order of events."""
        every = range(min(seeds, self.orders))
        return {mended: [self.judge(mended, seed) for seed in every] for mended in (False, True)}

    def problems(self, seeds: int = SEEDS) -> list[str]:
        """Return where the machine says anything else than it must."""
        right = {False: self.expected(), True: ["exact"]}
        return [
            f"{self.name}, {'mended' if mended else 'guilty'}, seed {seed}: {verdict}"
            for mended, verdicts in self.judgements(seeds).items()
            for seed, verdict in enumerate(verdicts)
            if verdict.kind not in right[mended]
        ]


def whole(*shape: int) -> torch.Tensor:
    """Return whole numbers, so that sums are the same in any order."""
    return torch.randint(1, 9, shape, dtype=torch.int32)


def row(exhibit: Exhibit, verdicts: list[Verdict]) -> str:
    """Return a line of the table: what hardware did, and how many orders of events are found to be of a kind."""
    kinds = Counter(verdict.kind for verdict in verdicts)
    counts = ", ".join(f"{kind} {count}" if len(kinds) > 1 else kind for kind, count in kinds.most_common())
    return f"| {exhibit.name} | {exhibit.source} | {exhibit.hardware} | {counts} |"


def outcome(exhibit: Exhibit, mended: bool, verdicts: list[Verdict]) -> tuple[bool, str]:
    """Return whether there is a mistake in this Triton's code, and what the machine makes of it."""
    kinds = {verdict.kind for verdict in verdicts}
    guilty = not mended and exhibit.expected() != ["exact"]
    if "unknown" in kinds:
        return guilty, "unknown"
    return guilty, "exact" if kinds == {"exact"} else "found in some orders" if "exact" in kinds else "found"
