"""Which configurations of a kernel are worth timing for a shape. Nothing is timed here.

The model of waves ranks tiles, groups, rasters and tails; it knows nothing of pipelines, and is no finer than a few
percent. So it proposes: its own choice first, then the best of each other tile that is not far behind, its own with
the last wave shared out or not, then what differs from one of those in a single thing, and last in two. What cannot run
is left out before anything is timed, with the reason: by a formula where shared memory is too small (`plan`), by
compiling where a kernel spills, does not compile or misses its tensor core instruction (`unsound`, no GPU needed).

A kernel joins with one line in `TUNABLE`, its entries in a table, and a host function that takes `config=`. The
benchmarks time what is proposed (`pytest --benchmark-only --ffn-tune`), and `kernels.configs.saving` keeps the choice.

Wins over `triton.autotune` in that candidates and the present choice take turns, that one which does not compile costs
nobody else, and that the answer is a file to be reviewed. Loses where a shape comes that nobody tuned: that one gets
the model's choice.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import product

from kernels import configs
from kernels.configs import DTYPE_NAMES, Config, Entry, Table
from kernels.configs.saving import mma_of
from roofline.theory import waves
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

SHARED, SPILLS, FAILED, OTHER = "shared memory", "spills", "does not compile", "not as declared"
"""How reasons begin for which a candidate is left out."""


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

    def schedule(self, config: Config) -> Config:
        """`config` with the least group and the raster that give the same order of tiles: two that are equal by this
        run alike."""
        tiles_m, tiles_n = self.tiles(config)
        if min(tiles_m, tiles_n) == 1:
            return replace(config, group_m=1, raster="m")
        return replace(config, group_m=min(config.group_m, tiles_m if config.raster == "m" else tiles_n))


@lru_cache(maxsize=4096)
def _cost(problem: Problem, tiling: Tiling) -> waves.Cost:
    return waves.cost(problem.m, problem.n, problem.k, problem.itemsize, tiling, problem.machine)


@dataclass(frozen=True)
class Plan:
    """What is to be timed for a shape, the model's choice first, and what is not: {configuration: reason}. Of what
    differs in order, tail or flattening alone, one is named."""

    candidates: tuple[Config, ...]
    pruned: dict[Config, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Tunable:
    """A kernel whose configurations can be tuned.

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


TUNABLE: dict[str, Tunable] = {"persistent": Tunable(persistent, staged_bytes), "tiled": Tunable(tiled, ring_bytes, 6)}


def around(
    problem: Problem,
    bases: tuple[Config, ...],
    axes: Callable[[Config], Iterable[list[dict]]],
    also: Iterable[Config] = (),
) -> list[Config]:
    """The bases that are not `FAR` behind, and `also`, then all that differs from a base along at most two axes, by the
    model's time and `STEP` for each. An axis is a list of {field: value}. Stages below 2 are left out."""
    ranked: dict[Config, tuple] = {}
    limit = FAR * problem.cost(bases[0]).seconds
    for base in bases:
        for values in product(*axes(base)):
            apart = sum(replace(base, **value) != base for value in values)
            config = replace(base, **{name: value for one in values for name, value in one.items()})
            if apart <= 2 and config.num_stages >= 2:
                cost = problem.cost(config)
                key = (cost.seconds * (1 + STEP * apart), cost.memory_s)
                ranked[config] = min(key, ranked.get(config, key))
    near = [base for base in bases if problem.cost(base).seconds <= limit]
    rest = (config for config in sorted(ranked, key=ranked.get) if ranked[config][0] <= limit)
    return list(dict.fromkeys([*near, *also, *rest]))


def candidates(
    kernel: str, m: int, n: int, k: int, dtype: str, machine: Machine, arch: str = "sm90", now: Config | None = None
) -> list[Config]:
    """`plan(...).candidates`."""
    return list(plan(kernel, m, n, k, dtype, machine, arch, now).candidates)


def plan(
    kernel: str, m: int, n: int, k: int, dtype: str, machine: Machine, arch: str = "sm90", now: Config | None = None
) -> Plan:
    """What to time of `kernel` for [m, n, k] in `dtype` (as `bf16`) on `machine`, by the table of `arch`.

    `now` is what is taken at present. Where that was measured, it is what the candidates of its tile differ from, so
    that a second tuning goes on from the first. ValueError for a kernel that is not in `TUNABLE`, or that has no entry
    for the dtype.
    """
    if kernel not in TUNABLE:
        raise ValueError(f"{kernel!r} is not tuned, there are {', '.join(TUNABLE)}; enter it in kernels.tuning.TUNABLE")
    table, tunable = configs.table(arch), TUNABLE[kernel]
    tiles = tuple(e.config for e in _entries(table, kernel, dtype) if not e.measured)
    if not tiles:
        raise ValueError(f"no {kernel} configuration in {dtype} on {arch}; add an entry to kernels/configs/{arch}.json")
    itemsize = next(torch_dtype.itemsize for torch_dtype, name in DTYPE_NAMES.items() if name == dtype)
    problem = Problem(m, n, k, itemsize, machine)
    kept: dict[Config, Config] = {}
    pruned: dict[Config, str] = {}
    for config in tunable.ranked(problem, _bases(problem, kernel, arch, tiles, now)):
        if len(kept) == tunable.most:
            break
        needed = tunable.shared_bytes(config, itemsize)
        if table.shared_limit_bytes and needed > table.shared_limit_bytes:
            alike = replace(config, group_m=Config.group_m, raster="m", flatten=False, tail=0)
            pruned[alike] = f"{SHARED}: {needed} bytes, limit {table.shared_limit_bytes}; take fewer stages"
        else:
            kept.setdefault(problem.schedule(config), config)
    return Plan(tuple(kept.values()), pruned)


def _bases(problem: Problem, kernel: str, arch: str, tiles: tuple[Config, ...], now: Config | None):
    """Each tile with what the model gives it: the model's choice first, then by time."""
    shape = (problem.m, problem.n, problem.k, problem.itemsize, problem.machine)
    if configs.MODELLED.get(kernel) != arch:
        return tuple(sorted(tiles, key=lambda tile: problem.cost(tile).seconds))
    first = configs.modelled(tiles, *shape)
    others = {(tile.block_m, tile.block_n): configs.modelled((tile,), *shape) for tile in reversed(tiles)}
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
    words = [f"{config.block_m}x{config.block_n}x{config.block_k}", f"w{config.num_warps}", f"s{config.num_stages}"]
    words += [f"g{config.group_m}"]
    words += [f"sub{config.subtile}"] if config.subtile > 1 else []
    words += ["flat"] if config.flatten else []
    words += [f"r{config.raster}"] if config.raster != "m" else []
    words += [f"t{config.tail}"] if config.tail else []
    return "_".join(words + ([f"k{config.split}"] if config.split else []))


def unsound(kernel: str, dtype: str, arch: str, wanted: Iterable[Config], workers: int = 1) -> dict[Config, str]:
    """{configuration: reason} of those in `wanted` that spill, do not fit, do not compile for the target of `arch`, or
    compile to another instruction than declared. In processes of their own, which have ended when this returns; what
    they compiled is in Triton's cache on disk, where a launch will find it."""
    from kernels.compiled import Job, inspect_all

    table = configs.table(arch)
    jobs = [
        Job(kernel, arch, config, dtype, table.target, table.shared_limit_bytes, mma_of(table, kernel, dtype, config))
        for config in dict.fromkeys(wanted)
    ]
    reasons = {}
    for finding in inspect_all(jobs, workers):
        if problems := finding.problems():
            reasons[finding.job.config] = _reason(finding, problems[0])
    return reasons


def _reason(finding, problem: str) -> str:
    cubin = finding.cubin
    if cubin is None:
        return f"{FAILED}: {finding.error}"
    if cubin.spills:
        return problem  # "spills: ..."
    return f"{SHARED if cubin.shared_bytes > finding.job.shared_limit_bytes else OTHER}: {problem}"


def _entries(table: Table, kernel: str, dtype: str) -> list[Entry]:
    return [entry for entry in table.entries if entry.kernel == kernel and dtype in entry.dtypes]
