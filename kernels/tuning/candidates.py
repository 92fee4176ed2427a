"""What a kernel would try for a shape, the best guess first. Nothing is compiled or timed here.

The model of waves ranks tiles, groups, rasters and tails; it knows nothing of pipelines, and is no finer than a few
percent. So it proposes: its own choice first, then the best of each other tile that is not far behind, its own with
the last wave shared out or not, then what differs from one of those in a single thing, and last in two.

A kernel declares its `SearchSpace` in its own file; here is what several share.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product

from kernels.configs import Config
from roofline.theory import decode_split, waves
from roofline.theory.waves import GpuSpec, Tiling

MOST = 16
"""Candidates for a shape: with 30 rounds of 17 calls, the largest shapes just fill the time that a shape may take."""

FAR = 1.3
"""A tile whose best is slower than this over the best of all, by the model, is not tried: no last wave is so costly."""

STEP = waves.TAIL_GAIN
"""What each thing in which a candidate differs from its tile's base counts, as a share of the time: the model is not
finer than that."""

BARRIER_BYTES = 8
"""Of shared memory, for each stage that TMA fills."""


@dataclass(frozen=True)
class Problem:
    """A shape to tune for: out[m, n] = x[m, k] @ w[n, k].T of elements of `itemsize` bytes, on `machine`."""

    m: int
    n: int
    k: int
    itemsize: int
    machine: GpuSpec

    def tiles(self, config: Config) -> tuple[int, int]:
        """Tiles along m and n."""
        return -(-self.m // config.block_m), -(-self.n // config.block_n)

    def cost(self, config: Config) -> waves.Cost:
        return _cost(self, Tiling(config.block_m, config.block_n, config.group_m, config.raster, config.tail))

    def deal(self, config: Config) -> decode_split.Deal:
        """Of `decode`'s steps along K, by `config`'s split or the one it would be given."""
        return decode_split.choose(self.n, self.k, config.block_n, config.block_k, self.machine.sms, config.split)

    def schedule(self, config: Config) -> Config:
        """`config` with the split, and the least group and the raster, that give the same order of work: two that are
        equal by this run alike."""
        if config.split:
            same = config.split == self.deal(replace(config, split=0)).split
            return replace(config, split=0) if same else config
        tiles_m, tiles_n = self.tiles(config)
        if min(tiles_m, tiles_n) == 1:
            return replace(config, group_m=1, raster="m")
        return replace(config, group_m=min(config.group_m, tiles_m if config.raster == "m" else tiles_n))


@lru_cache(maxsize=4096)
def _cost(problem: Problem, tiling: Tiling) -> waves.Cost:
    return waves.cost(problem.m, problem.n, problem.k, problem.itemsize, tiling, problem.machine)


@dataclass(frozen=True)
class SearchSpace:
    """What a tuning tries of a kernel.

    `ranked(problem, bases)` returns what might be tried, the best first. `bases` are the tiles of the table, each with
    what the model gives it, the best one first. `shared_bytes(config, itemsize)` is what a configuration needs at
    least, and `most` how many are timed for a shape.
    """

    ranked: Callable[[Problem, tuple[Config, ...]], Iterable[Config]]
    shared_bytes: Callable[[Config, int], int]
    most: int = MOST


def ring_bytes(config: Config, itemsize: int) -> int:
    """Shared memory of the stages alone."""
    return config.num_stages * (config.block_m + config.block_n) * config.block_k * itemsize


def staged_bytes(config: Config, itemsize: int) -> int:
    """Shared memory of a kernel on TMA, exactly: the stages, their barriers, and a part of the epilogue.

    >>> staged_bytes(Config(128, 256, 64, 8, 4), 2), staged_bytes(Config(128, 256, 64, 8, 4, subtile=2), 2)
    (262176, 229408)
    """
    epilogue = config.block_m * config.block_n // config.subtile * itemsize
    return ring_bytes(config, itemsize) + config.num_stages * BARRIER_BYTES + epilogue


def around(
    problem: Problem,
    bases: tuple[Config, ...],
    axes: Callable[[Config], Iterable[list[dict]]],
    also: Iterable[Config] = (),
    cost: Callable[[Config], tuple[float, float]] | None = None,
) -> list[Config]:
    """The bases that are not `FAR` behind, and `also`, then all that differs from a base along at most two axes, by
    `cost` (the model's time, and then its time for memory) and `STEP` for each. An axis is a list of {field: value}.
    Stages below 2 are left out."""
    cost = cost or (lambda config: (problem.cost(config).seconds, problem.cost(config).memory_s))
    ranked: dict[Config, tuple] = {}
    limit = FAR * cost(bases[0])[0]
    for base in bases:
        for values in product(*axes(base)):
            apart = sum(replace(base, **value) != base for value in values)
            config = replace(base, **{name: value for one in values for name, value in one.items()})
            if apart <= 2 and config.num_stages >= 2:
                time, then = cost(config)
                key = (time * (1 + STEP * apart), then)
                ranked[config] = min(key, ranked.get(config, key))
    near = [base for base in bases if cost(base)[0] <= limit]
    rest = (config for config in sorted(ranked, key=ranked.get) if ranked[config][0] <= limit)
    return list(dict.fromkeys([*near, *also, *rest]))
