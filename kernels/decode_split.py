"""How a matmul with few rows is dealt to the SMs: its time is that of reading w, so all shall read to the end.

Rows of w are cut into tiles of `block_n`, and the k of a tile into `steps` of `block_k`. Where whole tiles leave SMs
idle, the steps of a tile are cut into `split` parts. Parts are numbered tile after tile, and each program (one an SM)
takes an unbroken run of them. What it sums over several parts of one tile stays in its registers, so that at most the
first and the last tile of its run are shared with others, whatever the split. A shared tile's sums go through memory.

    up, tp 8: 52 tiles of 128 rows    39 % of one wave of 132 SMs; 260 parts, 5 of a tile: 97 % of two
    up, tp 1: 416 tiles               79 % of four waves; 1664 parts, 4 of a tile: 97 % of 13
    down, any tp: 128 tiles           97 % of one wave as they are
"""

from dataclasses import dataclass
from functools import cache
from itertools import pairwise

from roofline.theory.schedule import at_least_one

ENOUGH = 0.96
"""Of the SMs' time. The memory is what is short, and the SMs that are left read a little faster for each idle one; a
shared tile costs a few trips to L2 at the end, some 3 us of the 45 that a tp-8 shard takes an H200. Unmeasured: fewer
SMs may do as well, since rings of 150 KB are good for more than an even share of the bandwidth."""

LEAST_STEPS = 4
"""Of a part: what is read for it is then at least four times its partial sums (128 KB to 32 KB, for 64 rows of x)."""


@dataclass(frozen=True)
class Deal:
    """A deal cuts the work into `tiles` * `split` parts, in runs over as many programs as there are SMs, or parts if
    those are fewer.

    Raises ValueError for sizes below 1, and for a split that leaves a part without a step.
    """

    tiles: int
    steps: int
    """Of one tile."""
    split: int
    sms: int

    def __post_init__(self):
        at_least_one(tiles=self.tiles, steps=self.steps, sms=self.sms)
        if not 1 <= self.split <= self.steps:
            raise ValueError(f"split={self.split}: a tile has {self.steps} steps along k, choose 1 to {self.steps}")

    @property
    def parts(self) -> int:
        return self.tiles * self.split

    @property
    def programs(self) -> int:
        return min(self.sms, self.parts)

    @property
    def runs(self) -> tuple[int, ...]:
        """Return the steps of each program. Program p begins with part `p * parts // programs`; part j of a tile begins
        with its step `j * steps // split`.

        >>> Deal(tiles=2, steps=8, split=3, sms=4).runs  # parts of 2, 3 and 3 steps, twice, dealt 1, 2, 1, 2
        (2, 6, 2, 6)
        """
        firsts = (program * self.parts // self.programs for program in range(self.programs + 1))
        starts = (part // self.split * self.steps + part % self.split * self.steps // self.split for part in firsts)
        return tuple(end - start for start, end in pairwise(starts))

    @property
    def shared(self) -> bool:
        """Return whether a run may begin or end inside a tile."""
        return self.split > 1

    @property
    def efficiency(self) -> float:
        """Return the share of all SMs' time that is work, if all read equally fast: that of full waves, exact to the
        step.

        >>> Deal(tiles=416, steps=128, split=1, sms=132).efficiency == 416 / (4 * 132)
        True
        """
        return self.tiles * self.steps / (self.sms * max(self.runs))


@cache
def choose(n: int, k: int, block_n: int, block_k: int, sms: int, split: int = 0) -> Deal:
    """Deal by `split`; where that is 0, by the smallest that keeps ENOUGH of the SMs' time, or else the one that keeps
    most.

    >>> choose(n=6656, k=16384, block_n=128, block_k=128, sms=132)
    Deal(tiles=52, steps=128, split=5, sms=132)
    """
    tiles, steps = -(-n // block_n), -(-k // block_k)
    if split:
        return Deal(tiles, steps, split, sms)
    deals = [Deal(tiles, steps, split, sms) for split in range(1, max(1, min(steps // LEAST_STEPS, sms)) + 1)]
    enough = (deal for deal in deals if deal.efficiency >= ENOUGH)
    return next(enough, None) or max(deals, key=lambda deal: deal.efficiency)
