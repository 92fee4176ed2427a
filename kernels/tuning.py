"""Which configurations of a kernel are worth timing for a shape, the best guess first. Nothing is timed here.

A kernel declares its `SearchSpace` in its own file; here is what several share. The model of waves ranks tiles, groups,
rasters and tails; it knows nothing of pipelines, and is no finer than a few percent. So it proposes: its own choice
first, then the best of each other tile that is not far behind, its own with the last wave shared out or not, then what
differs from one of those in a single thing, and last in two.

What cannot run is left out before anything is timed, with the reason: by a formula where shared memory is too small
(`candidates`), by compiling where a kernel spills, does not compile or misses its tensor core instruction (`unsound`,
no GPU needed). The benchmarks time the rest (`pytest --benchmark-only --ffn-tune`), and `kernels.configs.table_writer`
keeps the choice.

Wins over `triton.autotune` in that candidates and the present choice take turns, that one which does not compile costs
nobody else, and that the answer is a file to be reviewed. Loses where a shape comes that nobody tuned: that one gets
the model's choice.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import NamedTuple

from kernels import configs
from kernels.configs import Config
from kernels.configs.table_writer import mma_of
from kernels.registry import tunable
from roofline.theory import decode_split, waves
from roofline.theory.waves import GpuSpec, Tiling
from roofline.theory.work import ITEMSIZE

MOST = 16
"""Candidates for a shape: with 30 rounds of 17 calls, the largest shapes just fill the time that a shape may take."""

FAR = 1.3
"""A tile whose best is slower than this over the best of all, by the model, is not tried: no last wave is so costly."""

STEP = waves.TAIL_GAIN
"""What each thing in which a candidate differs from its tile's base counts, as a share of the time: the model is not
finer than that."""

BARRIER_BYTES = 8
"""Of shared memory, for each stage that TMA fills."""

SHARED, FAILED, OTHER = "shared memory", "does not compile", "not as declared"
"""How reasons begin for which a candidate is left out; another is `spills`."""

SHORT = {"raster-": "r"} | dict(warps="w", stages="s", group="g", subtile="sub", split="k", flatten="flat", tail="t")
"""What stands in a token for the words of a configuration."""


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


class Candidates(NamedTuple):
    """What is to be timed for a shape, the model's choice first, and what is not: {configuration: reason}. Of what
    differs in order, tail, split or flattening alone, one is named."""

    configs: tuple[Config, ...]
    pruned: dict[Config, str]


def candidates(
    kernel: str, m: int, n: int, k: int, dtype: str, machine: GpuSpec, arch: str = "sm90", now: Config | None = None
) -> Candidates:
    """What to time of `kernel` for [m, n, k] in `dtype` (as `bf16`) on `machine`, by the table of `arch`.

    `now` is what is taken at present. Where that was measured, it is what the candidates of its tile differ from, so
    that a second tuning goes on from the first. ValueError for a kernel that cannot be tuned, or that has no entry for
    the dtype and m.
    """
    if kernel not in (known := tunable()):
        raise ValueError(f"{kernel!r} is not tuned, there are {', '.join(known)}; give its `Kernel` a `space`")
    table, space = configs.table(arch), known[kernel].space
    if not table.admits(kernel, m, n, k, dtype):
        raise ValueError(
            f"no {kernel} configuration for m={m} in {dtype} on {arch}; add an entry to kernels/configs/{arch}.json"
        )
    tiles = tuple(
        entry.config
        for entry in table.entries
        if entry.kernel == kernel and dtype in entry.dtypes and not entry.measured
    )
    problem = Problem(m, n, k, ITEMSIZE[dtype], machine)
    kept: dict[Config, Config] = {}
    pruned: dict[Config, str] = {}
    for config in space.ranked(problem, _bases(problem, kernel, arch, tiles, now)):
        if len(kept) == space.most:
            break
        needed = space.shared_bytes(config, problem.itemsize)
        if table.shared_limit_bytes and needed > table.shared_limit_bytes:
            alike = replace(config, group_m=Config.group_m, raster="m", flatten=False, tail=0, split=0)
            pruned[alike] = f"{SHARED}: {needed} bytes, limit {table.shared_limit_bytes}; take fewer stages"
        else:
            kept.setdefault(problem.schedule(config), config)
    return Candidates(tuple(kept.values()), pruned)


def _bases(problem: Problem, kernel: str, arch: str, tiles: tuple[Config, ...], now: Config | None):
    """Each tile with what the model gives it: the model's choice first, then by time."""
    shape = (problem.m, problem.n, problem.k, problem.itemsize, problem.machine)
    if not configs.is_modelled(kernel, arch):
        order = sorted(tiles, key=lambda tile: problem.cost(tile).seconds)
        return tuple(dict.fromkeys([*order, *([now] if now else [])]))
    first = configs.modelled(kernel, tiles, *shape)
    others = {(tile.block_m, tile.block_n): configs.modelled(kernel, (tile,), *shape) for tile in reversed(tiles)}
    del others[first.block_m, first.block_n]
    if now and (now.block_m, now.block_n) in others:
        others[now.block_m, now.block_n] = now
    rest = sorted(others.values(), key=lambda base: problem.cost(base).seconds)
    return (first, *([now] if now and now not in (first, *rest) else []), *rest)


def token(config: Config) -> str:
    """`config` as a word for file names, case ids and `-k`.

    >>> token(Config(128, 256, 64, 8, 4, 16, 2, True, "n", 120))
    '128x256x64_w8_s4_g16_sub2_flat_rn_t120'
    """
    words = str(config)
    for long, short in SHORT.items():
        words = words.replace(f" {long}", f"_{short}")
    return words


Wanted = tuple[str, Config]
"""A configuration, for operands of that dtype."""


def unsound(kernel: str, arch: str, wanted: Iterable[Wanted], workers: int = 1) -> dict[Wanted, str]:
    """The reasons of those in `wanted` that spill, do not fit, do not compile for the target of `arch`, or compile to
    another instruction than declared. In processes of their own, which have ended when this returns; what they compiled
    is in Triton's cache on disk, where a launch will find it."""
    from kernels.inspect.compiled import Job, inspect_all

    table = configs.table(arch)
    jobs = [
        Job(kernel, arch, config, dtype, table.target, table.shared_limit_bytes, mma_of(table, kernel, dtype, config))
        for dtype, config in dict.fromkeys(wanted)
    ]
    found = ((finding, finding.problems()) for finding in inspect_all(jobs, workers))
    return {(one.job.dtype, one.job.config): _reason(one, problems[0]) for one, problems in found if problems}


def _reason(finding, problem: str) -> str:
    cubin = finding.cubin
    if cubin is None:
        return f"{FAILED}: {finding.error}"
    if cubin.spills:
        return problem  # "spills: ..."
    return f"{SHARED if cubin.shared_bytes > finding.job.shared_limit_bytes else OTHER}: {problem}"
