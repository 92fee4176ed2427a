"""Which configurations of a kernel are worth timing for a shape. Nothing is timed here.

A kernel's `SearchSpace` proposes. What cannot run is left out before anything is timed, with the reason: by a formula
where shared memory is too small (`candidates`), by compiling where a kernel spills, does not compile or misses its
tensor core instruction (`unsound`, no GPU needed). The benchmarks time the rest (`pytest --benchmark-only --ffn-tune`),
and `kernels.configs.table_writer` keeps the choice.

Wins over `triton.autotune` in that candidates and the present choice take turns, that one which does not compile costs
nobody else, and that the answer is a file to be reviewed. Loses where a shape comes that nobody tuned: that one gets
the model's choice.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from kernels import configs
from kernels.configs import Config
from kernels.configs.table_writer import mma_of
from kernels.registry import tunable
from kernels.tuning.candidates import Problem
from roofline.theory.waves import GpuSpec
from roofline.theory.work import ITEMSIZE

SHARED, FAILED, OTHER = "shared memory", "does not compile", "not as declared"
"""How reasons begin for which a candidate is left out; another is `spills`."""

SHORT = {"raster-": "r"} | dict(warps="w", stages="s", group="g", subtile="sub", split="k", flatten="flat", tail="t")
"""What stands in a token for the words of a configuration."""


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


def unsound(kernel: str, dtype: str, arch: str, wanted: Iterable[Config], workers: int = 1) -> dict[Config, str]:
    """{configuration: reason} of those in `wanted` that spill, do not fit, do not compile for the target of `arch`, or
    compile to another instruction than declared. In processes of their own, which have ended when this returns; what
    they compiled is in Triton's cache on disk, where a launch will find it."""
    from kernels.inspect.compiled import Job, inspect_all

    table = configs.table(arch)
    jobs = [
        Job(kernel, arch, config, dtype, table.target, table.shared_limit_bytes, mma_of(table, kernel, dtype, config))
        for config in dict.fromkeys(wanted)
    ]
    found = ((finding, finding.problems()) for finding in inspect_all(jobs, workers))
    return {finding.job.config: _reason(finding, problems[0]) for finding, problems in found if problems}


def _reason(finding, problem: str) -> str:
    cubin = finding.cubin
    if cubin is None:
        return f"{FAILED}: {finding.error}"
    if cubin.spills:
        return problem  # "spills: ..."
    return f"{SHARED if cubin.shared_bytes > finding.job.shared_limit_bytes else OTHER}: {problem}"
