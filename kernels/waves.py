"""How long a matmul of tiles takes on so many SMs, and which tiles are best: whole waves, and the bytes that feed them.

A wave is one tile on every SM. It takes as long as the slowest of three: its products, its bytes from L2 (every tile
reads its own rows of both operands), and its bytes from memory (tiles of one wave share theirs). A last wave that is
nearly empty takes as long as a full one.

Measured efficiencies are not known here: this ranks choices, and predicts no time. The model of L2 and of the rows that
a wave fetches is that of DeepGEMM (csrc/jit_kernels/heuristics/sm90.hpp).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from roofline.theory.chips import Chip

L2_BYTES_PER_FLOP = 8e12 / 1.3e9 / (4096 * 132)
"""Of a Hopper chip: 8 TB/s from L2 at 1.3 GHz (DeepGEMM), over 4096 FLOP a clock on each of 132 SMs (whitepaper)."""

HELD_SHARE = 0.5
"""Of the last-level cache that an operand may take, and still be there when it is read again."""

GROUPS = (4, 8, 16)
"""Tiles that share one sweep of the other dimension; the choices."""


@dataclass(frozen=True)
class GpuSpec:
    """What the model needs of a chip: `flops` and bytes/s are a datasheet's, or a run's measured ceilings.

    >>> from roofline.theory.chips import find
    >>> GpuSpec.of_chip(find("H200")).sms
    132
    """

    sms: int
    flops: float
    memory_bytes_per_s: float
    cache_bytes: int
    shared_bytes: int | None = None
    """Of shared memory, what one program may take; None where nobody asked the device."""

    @classmethod
    def of_chip(cls, chip: Chip) -> "GpuSpec":
        """Return the figures of a GPU's datasheet, in bf16."""
        return cls(chip.sms, chip.flops["bf16"], chip.memory_bandwidth_bytes_per_s, chip.cache_bytes)


class Tiling(NamedTuple):
    """A tile of block_m x block_n; `group` of them along `raster` ("m" or "n") share one sweep of the other."""

    block_m: int
    block_n: int
    group: int = 8
    raster: str = "m"


@dataclass(frozen=True)
class Cost:
    """Seconds of a matmul, and where they go. A wave takes the longest of the first three."""

    mma_s: float
    """A tile's products."""
    l2_s: float
    """A full wave's bytes from L2."""
    memory_s: float
    """A full wave's bytes from memory."""
    tiles: int
    full_waves: int
    tail_s: float
    """The last wave."""
    epilogue_s: float
    """Of all waves: the outputs that nothing runs beside."""

    @property
    def wave_s(self) -> float:
        return max(self.mma_s, self.l2_s, self.memory_s)

    @property
    def seconds(self) -> float:
        return self.full_waves * self.wave_s + self.tail_s + self.epilogue_s


def cost(m: int, n: int, k: int, itemsize: int, tiling: Tiling, machine: GpuSpec) -> Cost:
    """Return what out[m, n] = x[m, k] @ w[n, k].T takes in `tiling`, for operands and results of `itemsize` bytes.

    >>> h200 = GpuSpec(sms=132, flops=989.4e12, memory_bytes_per_s=4.8e12, cache_bytes=60 * 2**20)
    >>> case = cost(2048, 6656, 16384, 2, Tiling(128, 256, 16), h200)
    >>> case.tiles, case.full_waves  # and 20 tiles
    (416, 3)
    """
    block_m, block_n, group, raster = tiling
    tiles_m, tiles_n = -(-m // block_m), -(-n // block_n)
    tiles = tiles_m * tiles_n
    full, tail = divmod(tiles, machine.sms)
    mma_s = 2 * block_m * block_n * k / (machine.flops / machine.sms)

    def moved_s(running: int) -> tuple[float, float]:
        """Return what `running` tiles at a time take from L2 and from memory."""
        l2 = running * (block_m + block_n) * k * itemsize
        rows, columns = _rows_of(running, tiles_m, tiles_n, group, raster)
        memory = (
            rows * block_m * _held(m, k, itemsize, full, machine)
            + columns * block_n * _held(n, k, itemsize, full, machine)
        ) * (k * itemsize)
        return l2 / (machine.flops * L2_BYTES_PER_FLOP), memory / machine.memory_bytes_per_s

    l2_s, memory_s = moved_s(min(tiles, machine.sms))
    out_s = block_m * block_n * itemsize * machine.sms / machine.memory_bytes_per_s
    tail_s = max(mma_s, *moved_s(tail)) if tail else 0.0
    return Cost(mma_s, l2_s, memory_s, tiles, full, tail_s, (full + bool(tail)) * out_s)


def _rows_of(running: int, tiles_m: int, tiles_n: int, group: int, raster: str) -> tuple[int, int]:
    """Return the rows and columns of tiles that `running` neighbours cover."""
    grouped, swept = (tiles_m, tiles_n) if raster == "m" else (tiles_n, tiles_m)
    along = min(group, grouped, running)
    across = -(-running // along)
    if across > swept:  # more than one group at a time
        along, across = min(grouped, -(-running // swept)), swept
    return (along, across) if raster == "m" else (across, along)


def _held(rows: int, k: int, itemsize: int, full_waves: int, machine: GpuSpec) -> float:
    """Return the share of an operand's reads that comes from memory: one of all waves where the cache holds it."""
    return 1 / max(1, full_waves) if rows * k * itemsize <= HELD_SHARE * machine.cache_bytes else 1.0


def choices(block_m: int, block_n: int, rasters: tuple[str, ...] = ("m", "n")) -> Iterator[Tiling]:
    """Yield every group and raster for one tile."""
    for raster in rasters:
        for group in GROUPS:
            yield Tiling(block_m, block_n, group, raster)


def best(
    m: int,
    n: int,
    k: int,
    itemsize: int,
    blocks: Iterable[tuple[int, int]],
    machine: GpuSpec,
    rasters: tuple[str, ...] = ("m", "n"),
) -> Tiling:
    """Return the tiling of `blocks` (block_m, block_n) that takes least; of equals the first in the order of `blocks`,
    and of its tilings the one that reads least from memory.

    >>> h200 = GpuSpec(sms=132, flops=989.4e12, memory_bytes_per_s=4.8e12, cache_bytes=60 * 2**20)
    >>> best(2048, 6656, 16384, 2, [(128, 256), (128, 128)], h200)
    Tiling(block_m=128, block_n=256, group=16, raster='m')

    Raises ValueError where there are no blocks.
    """

    def time_and_reads(tiling: Tiling) -> tuple[float, float]:
        costs = cost(m, n, k, itemsize, tiling, machine)
        return costs.seconds, costs.memory_s

    of_blocks = [min(choices(*block, rasters), key=time_and_reads) for block in blocks]
    return min(of_blocks, key=lambda tiling: time_and_reads(tiling)[0])
