"""How long a matmul takes on a machine, from its ceilings and a handful of constants. The model, in one look:

    time    = start + combine(compute, memory)
    compute = seconds of all waves at the matmul ceiling * (K + extra_k) / K / share of that ceiling
    memory  = device bytes / (share of the read ceiling * ceiling)
    combine = (compute**p + memory**p) ** (1/p): p = 1 is their sum, a large p the longer of the two

On a GPU an SM is a worker, and the waves are those of `theory.waves`, by which our kernels choose their tiles: one tile
more than a wave costs a wave, unless the last one is shared out along K. A CPU is one worker without waves, waits for
its own loads (p = 1), and multiplies a single row another way, which reads the weights once and computes nothing that
counts: memory is then over `vector`. `extra_k` is what filling and draining a tile costs, as elements of K. With shares
of 1, no start, no extra K and a large p this is the plain roofline, in whole waves.

Knows sizes and ceilings, and nothing of arms, runs or files: `model` puts cases together of it.
"""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

from roofline.theory import waves
from roofline.theory.work import Work


@dataclass(frozen=True)
class Constants:
    """What a contender makes of the ceilings. Shares are of what was measured, and may lie a little above 1."""

    compute: float
    """Share of the matmul ceiling that full waves reach."""
    memory: float
    """Share of the read ceiling: below 1 where operands are moved more than once, or not by all that could."""
    extra_k: float
    """Elements of K that a tile's prologue and epilogue cost."""
    start_s: float
    """Seconds that a call of no work takes."""
    p: float = 1.0
    """Exponent that combines compute and memory, 1 or more."""
    vector: float | None = None
    """Share of the read ceiling of a single row; None where a row is as any other matmul."""


PRIORS = {
    # Reasoned; no run set them. BLAS packs the weights: it reads, writes and reads them again, so a third. `vector`: a
    # single row reads them once, at 1 at best, and below a third a library would rather pack: the middle of both, in
    # logarithms. `extra_k`, `start_s`: orders of magnitude.
    "cpu": Constants(compute=1.0, memory=1 / 3, extra_k=64, start_s=2e-5, vector=3**-0.5),
    # Reasoned, not measured: filling four stages of 64 takes some 100 of K and storing a tile of 128 x 256 as much
    # again; a kernel takes microseconds to begin and end; loads hide behind products but at the ends of a wave.
    "gpu": Constants(compute=1.0, memory=0.9, extra_k=256, start_s=5e-6, p=4.0),
    # Of a datasheet's figures: large bf16 matmuls are reported at 670 to 780 of 989 TFLOP/s on an H100 SXM, and readers
    # at nine tenths of its bandwidth.
    "datasheet": Constants(compute=0.72, memory=0.9, extra_k=256, start_s=5e-6, p=4.0),
}
"""What is used where nothing was fitted, and what fits lean to."""

SPREAD = {"compute": 0.2, "memory": 0.4, "extra_k": 1.0, "start_s": 1.0, "p": 1.0, "vector": 0.3}
"""How far a constant may well lie from its prior, in logarithms (of p: that of p - 1): shares of a ceiling by a part of
themselves, orders of magnitude by a factor of e. `vector`: as what lies anywhere between 1/3 and 1."""

STEP = 1e-20
"""Of derivatives along the imaginary axis, which lose no digits."""

NO_SUM = 200.0
"""A `p` by which the longer of compute and memory is all."""

FITTED = {
    "cpu": ("compute", "memory", "extra_k", "start_s", "vector"),
    "gpu": ("compute", "memory", "extra_k", "start_s", "p"),
}
"""Constants that a run's times decide, by its source."""


class Tile(NamedTuple):
    """Rows and columns of the output that one worker makes at a time. `adapts`: a library's, which takes flatter tiles
    for few rows and splits K where its tiles are fewer than the workers; ours are as their config says. `shares`: the
    last wave is shared out along K where that is faster (kernels.stream_tail, kernels.decode)."""

    rows: int
    columns: int
    adapts: bool = False
    shares: bool = False


LEAST_ROWS = 64
"""Of a tile that adapts: the height of Hopper's matrix instruction."""

USUAL = (Tile(128, 256, True), Tile(256, 128, True), Tile(128, 192, True), Tile(128, 128, True))
"""What a library is taken to choose from; a fit says whether always the same one, or the best for each shape."""


@dataclass(frozen=True)
class MachineSpec:
    """Ceilings of one dtype, and how many workers share them (SMs; 1 has no waves)."""

    flops: float
    read_bytes_per_s: float
    workers: int = 1


class Load(NamedTuple):
    """What a matmul asks of a machine at its ceilings, whatever the constants: numbers, or arrays of them for a fit."""

    k: float
    wave_s: float
    """Seconds of compute for each element of K: all waves, at the matmul ceiling."""
    bytes_s: float
    """Seconds of the device bytes at the read ceiling."""
    single: float = 0.0
    """1 of a single row, else 0."""


class Terms(NamedTuple):
    """The parts of a time, in seconds."""

    time_s: float
    compute_s: float
    memory_s: float
    start_s: float


def fitting(tile: Tile, m: int) -> Tile:
    """`tile` for `m` rows: one that adapts is halved while half its rows hold them all, down to LEAST_ROWS.

    >>> fitting(Tile(256, 128, True), 100)
    Tile(rows=128, columns=128, adapts=True, shares=False)
    """
    while tile.adapts and tile.rows > LEAST_ROWS and tile.rows // 2 >= m:
        tile = tile._replace(rows=tile.rows // 2)
    return tile


def cost(m: int, n: int, k: int, tile: Tile, machine: MachineSpec) -> waves.Cost:
    """What `theory.waves` says of `tile`. Neither memory nor L2 is a limit there: what is read is a term of its own,
    beside which both work at once, and what a contender waits for L2 beyond that is in its share of the ceiling.

    >>> hundred = MachineSpec(1e14, 1e12, workers=100)
    >>> cost(1408, 1536, 4096, Tile(128, 256), hundred).rounds, cost(1408, 1792, 4096, Tile(128, 256), hundred).rounds
    (1.0, 1.0)
    """
    chip = waves.GpuSpec(machine.workers, machine.flops, math.inf, 0, math.inf)
    tiles = -(-m // tile.rows) * -(-n // tile.columns)
    shares = tile.shares or (tile.adapts and tiles < machine.workers)
    tails = waves.tails(tiles, k, machine.workers) if shares else (0,)
    tilings = (waves.Tiling(tile.rows, tile.columns, tail=tail) for tail in tails)
    costs = (waves.cost(m, n, k, 1, tiling, chip) for tiling in tilings)
    return min(costs, key=lambda cost: cost.seconds)


def best_tile(m: int, n: int, k: int, tiles: tuple[Tile, ...], machine: MachineSpec) -> Tile:
    """That of `tiles` whose waves take least, the first of equals."""
    return min((fitting(tile, m) for tile in tiles), key=lambda tile: cost(m, n, k, tile, machine).seconds)


def load(m: int, n: int, k: int, device_bytes: int, machine: MachineSpec, tiles: tuple[Tile, ...] = USUAL) -> Load:
    """What out[m, n] = x[m, k] @ w[n, k].T asks of `machine`, in the best of `tiles`.

    Raises ValueError for `m` below 1.
    """
    if m < 1:
        raise ValueError(f"m={m}: it must be 1 or more, or there is nothing to predict")
    compute_s = 2 * m * n * k / machine.flops
    if machine.workers > 1:
        compute_s = cost(m, n, k, best_tile(m, n, k, tiles, machine), machine).seconds
    single = float(m == 1 and machine.workers == 1)
    return Load(k, compute_s / k, device_bytes / machine.read_bytes_per_s, single)


def terms(load: Load, constants: Constants) -> Terms:
    """The time of `load` and its parts. Arithmetic alone, so that a fit may hand in arrays, and complex constants."""
    single, vector = (load.single, constants.vector) if constants.vector is not None else (0.0, 1.0)
    compute_s = (1 - single) * load.wave_s * (load.k + constants.extra_k) / constants.compute
    memory_s = load.bytes_s * ((1 - single) / constants.memory + single / vector)
    scale, p = compute_s + memory_s, constants.p  # a power of tiny numbers would vanish
    both_s = scale * ((compute_s / scale) ** p + (memory_s / scale) ** p) ** (1 / p)
    return Terms(constants.start_s + both_s, compute_s, memory_s, constants.start_s)


def slopes(load: Load, constants: Constants) -> tuple[float, ...]:
    """By how much the logarithm of the time would be off, were each constant off by its SPREAD: exact derivatives."""
    found = []
    for name, spread in SPREAD.items():
        least = float(name == "p")
        if (value := getattr(constants, name)) is not None:
            moved = replace(constants, **{name: least + (value - least) * (1 + 1j * STEP)})
            time_s = terms(load, moved).time_s
            found.append(spread * time_s.imag / STEP / time_s.real)
    return tuple(found)


def losses(load: Load, constants: Constants, flop_s: float) -> dict[str, float]:
    """Where a time goes beyond the plain roofline's, in seconds: what each constant costs, put right one by one, so
    that they sum to the difference. `flop_s`: the FLOP at the matmul ceiling."""
    time_s, found = terms(load, constants).time_s, {}
    better = {
        "start": {"start_s": 0.0}, "tile fill": {"extra_k": 0.0}, "packing": {"memory": 1.0, "vector": 1.0},
        "waves": {}, "below the ceiling": {"compute": 1.0}, "no overlap": {"p": NO_SUM},
    }  # fmt: skip
    for name, change in better.items():
        constants = replace(constants, **change)
        load = load._replace(wave_s=flop_s / load.k) if name == "waves" else load
        then_s = terms(load, constants).time_s
        found[name], time_s = time_s - then_s, then_s
    return found


def roofline_s(work: Work, machine: MachineSpec, wire_bytes_per_s: float = math.inf) -> float:
    """The plain roofline's time: the longest of FLOP, device bytes and wire bytes, each at its ceiling."""
    wire_s = work.wire_bytes / wire_bytes_per_s
    return max(work.flop / machine.flops, work.device_bytes / machine.read_bytes_per_s, wire_s)
