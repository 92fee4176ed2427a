"""What each kernel would try for a shape, the best guess first. Nothing is compiled or timed here.

The model of waves ranks tiles, groups, rasters and tails; it knows nothing of pipelines, and is no finer than a few
percent. So it proposes: its own choice first, then the best of each other tile that is not far behind, its own with
the last wave shared out or not, then what differs from one of those in a single thing, and last in two. `decode`, whose
tiles wait for memory, is ranked by how evenly its work falls on the SMs.

A kernel joins with one line in `TUNABLE`, its entries in a table, and a host function that takes `config=`.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product

from kernels.configs import Config
from roofline.theory import decode_split, waves
from roofline.theory.waves import Machine, Tiling

MOST = 16
"""Candidates for a shape: with 30 rounds of 17 calls, the largest shapes just fill the time that a shape may take."""

FAR = 1.3
"""A tile whose best is slower than this over the best of all, by the model, is not tried: no last wave is so costly."""

STEP = waves.TAIL_GAIN
"""What each thing in which a candidate differs from its tile's base counts, as a share of the time: the model is not
finer than that."""

BARRIER_BYTES = 8
"""Of shared memory, for each stage that TMA fills."""

WARPGROUP_BYTES = 136
"""Of shared memory, that Triton 3.6.0 and 3.7.1 take to hand work to the warps of a specialised kernel."""

SPLITS = (1, 2, 3, 4, 5, 6, 8, 12, 16)
"""Of K, of which `decode` tries some beside its own: the best two above it, and the best two below."""

LEAST_STEP = 64
"""Elements of K that `decode` loads at once at least: 128 bytes of a row."""


@dataclass(frozen=True)
class Problem:
    """A shape to tune for: out[m, n] = x[m, k] @ w[n, k].T of elements of `itemsize` bytes, on `machine`."""

    m: int
    n: int
    k: int
    itemsize: int
    machine: Machine

    def tiles(self, config: Config) -> tuple[int, int]:
        """Tiles along m and n."""
        return -(-self.m // config.block_m), -(-self.n // config.block_n)

    def cost(self, config: Config) -> waves.Cost:
        return _cost(self, Tiling(config.block_m, config.block_n, config.group_m, config.raster, config.tail))

    def deal(self, config: Config) -> decode_split.Deal:
        """Of `decode`'s steps along K, by `config`'s split or the one it would be given."""
        deal = decode_split.choose(self.n, self.k, config.block_n, config.block_k, self.machine.sms)
        return replace(deal, split=config.split) if config.split else deal

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
class Tunable:
    """A kernel whose configurations can be tuned.

    `ranked(problem, bases)` returns what might be tried, the best first. `bases` are the tiles of the table, each with
    what the model gives it, the best one first. `shared_bytes(config, itemsize)` is what a configuration needs at
    least, and `most` how many are timed for a shape. Where one of the kernels in `behind` can run, this one is not
    worth tuning, unless somebody asks for it by name.
    """

    ranked: Callable[[Problem, tuple[Config, ...]], Iterable[Config]]
    shared_bytes: Callable[[Config, int], int]
    most: int = MOST
    behind: tuple[str, ...] = ()


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


def specialised_bytes(config: Config, itemsize: int) -> int:
    """Shared memory of `warpgroup`, exactly where stages are even: the stages, two barriers for each, and up to two
    parts of the epilogue for each consumer.

    >>> specialised_bytes(Config(128, 256, 64, 8, 4, subtile=4), 2)
    229576
    """
    epilogue = config.block_m * config.block_n * min(2, config.subtile) // config.subtile * itemsize
    return ring_bytes(config, itemsize) + 2 * config.num_stages * BARRIER_BYTES + epilogue + WARPGROUP_BYTES


def streamed_bytes(config: Config, itemsize: int) -> int:
    """Shared memory of `decode`, at least, unless it spills: the stages, of which the kernel for a single row holds one
    less, and what turns a tile for its store."""
    if config.block_m == 1:
        return (config.num_stages - 1) * (config.block_n + 1) * config.block_k * itemsize
    return ring_bytes(config, itemsize) + config.block_m * config.block_n * itemsize


def persistent(problem: Problem, bases: tuple[Config, ...]) -> list[Config]:
    """A stage more or less, whole or halved epilogue, flattened or not, every order of the tiles, and the last wave
    shared out or not. An epilogue is not halved for fewer stages: room for one more is what that is for."""

    def axes(base: Config) -> Iterator[list[dict]]:
        pipelines = [(base.num_stages + more, parts) for more in (0, 1, -1) for parts in (1, 2)]
        yield [dict(num_stages=s, subtile=parts) for s, parts in pipelines if s >= base.num_stages or parts == 1]
        yield [dict(flatten=flatten) for flatten in (False, True)]
        yield [dict(group_m=group, raster=raster) for raster in ("m", "n") for group in waves.GROUPS]
        tiles_m, tiles_n = problem.tiles(base)
        tails = set(waves.tails(tiles_m * tiles_n, problem.k, problem.machine.sms)) - {0}
        best = sorted(tails, key=lambda tail: problem.cost(replace(base, tail=tail)).seconds)[:2]
        yield [dict(tail=tail) for tail in (0, *best)]

    # What adding sums up really costs is the model's weakest figure: the other side is always tried.
    base = bases[0]
    tails = [tail for one in axes(base) for tail in one if "tail" in tail and bool(tail["tail"]) != bool(base.tail)]
    return around(problem, bases, axes, [replace(base, **tail) for tail in tails[:1]])


def tiled(problem: Problem, bases: tuple[Config, ...]) -> list[Config]:
    """A stage more or less, and other groups."""

    def axes(base: Config) -> Iterator[list[dict]]:
        yield [dict(num_stages=base.num_stages + more) for more in (0, 1, -1)]
        yield [dict(group_m=group) for group in waves.GROUPS]

    return around(problem, bases, axes)


def warpgroup(problem: Problem, bases: tuple[Config, ...]) -> list[Config]:
    """A stage more or less, larger or smaller parts of the epilogue, and every order of the tiles."""

    def axes(base: Config) -> Iterator[list[dict]]:
        yield [dict(num_stages=base.num_stages + more, subtile=parts)
               for more, parts in product((0, 1, -1), sorted({base.subtile, 2, 4}))]  # fmt: skip
        yield [dict(group_m=group, raster=raster) for raster in ("m", "n") for group in waves.GROUPS]

    return around(problem, bases, axes)


def decode(problem: Problem, bases: tuple[Config, ...]) -> list[Config]:
    """Other splits of K, a stage more or fewer, shorter steps in a ring of as many bytes, 4 or 8 warps; for a single
    row the kernel of its own, and the other one too."""
    fitting = [base for base in bases if base.block_m >= problem.m]
    least = min((base.block_m for base in fitting if base.block_m > 1), default=1)
    bases = tuple(sorted((b for b in fitting if b.block_m in (1, least)), key=lambda base: base.block_m))

    def cost(config: Config) -> tuple[float, float]:
        """All SMs' time over that which is work, and the parts that a tile is summed up of."""
        if config.block_m == 1:
            return 1 / decode_split.rows_efficiency(problem.n, problem.machine.sms), 1
        deal = problem.deal(config)
        return 1 / deal.efficiency, deal.split

    def splits(base: Config) -> tuple[list[int], list[int]]:
        """The best two below the base's own, and the best two above."""
        deal = problem.deal(base)
        able = [split for split in SPLITS if split * decode_split.LEAST_STEPS <= deal.steps] * (base.block_m > 1)
        able.sort(key=lambda split: cost(replace(base, split=split)))
        return [split for split in able if split < deal.split][:2], [split for split in able if split > deal.split][:2]

    def axes(base: Config) -> Iterator[list[dict]]:
        in_flight = base.num_stages - (base.block_m == 1)
        shorter = dict(block_k=base.block_k // 2, num_stages=base.num_stages + in_flight)
        yield [dict(num_stages=base.num_stages + more) for more in (0, 1, -1, -2)] + (
            [shorter] if shorter["block_k"] >= LEAST_STEP else []
        )
        yield [dict(num_warps=warps) for warps in (base.num_warps, 4, 8)]
        below, above = splits(base)
        yield [dict(split=split) for split in (base.split, *below, *above)]

    # What adding sums up really costs is not known: less of it is always tried.
    limit = FAR * cost(bases[0])[0]
    fewer = [replace(base, split=split) for base in bases for split in splits(base)[0]]
    return around(problem, bases, axes, [config for config in fewer if cost(config)[0] <= limit], cost)


TUNABLE: dict[str, Tunable] = {
    "decode": Tunable(decode, streamed_bytes),
    "persistent": Tunable(persistent, staged_bytes, behind=("decode",)),
    "warpgroup": Tunable(warpgroup, specialised_bytes, 12, behind=("decode",)),
    "tiled": Tunable(tiled, ring_bytes, 6, behind=("decode", "persistent")),
}


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
