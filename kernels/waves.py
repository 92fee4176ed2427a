"""How long a matmul of tiles takes on so many SMs: whole waves, and the bytes that feed them.

A wave is one tile on every SM. It takes as long as the slowest of three: its products, its bytes from L2 (every tile
reads its own rows of both operands), and its bytes from memory (tiles of one wave share theirs). A last wave that is
nearly empty takes as long as a full one, unless it is cut along K. Efficiencies are not known here: this ranks choices,
and predicts no time.

Source of the model of L2 and of the rows that a wave fetches: DeepGEMM (csrc/jit_kernels/heuristics/sm90.hpp).
"""

from dataclasses import dataclass
from typing import NamedTuple

from roofline.theory.chips import Chip

L2_BYTES_PER_FLOP = 8e12 / 1.3e9 / (4096 * 132)
"""Bytes from L2 for each FLOP of a Hopper chip: 8 TB/s at 1.3 GHz (DeepGEMM), over 4096 FLOP a clock on each of 132 SMs
(whitepaper)."""

HELD_SHARE = 0.5
"""The fraction of the last-level cache that an operand may take, and still be there when it is read again."""

APART_SHARE = 0.5
"""The fraction of L2's bandwidth that is left where programs read the same rows at different times, so that their
requests do not meet. An estimate: 66 gangs of two ask for 640 MB at up, tp 8, M = 256, and an H100 took 110 us, 5.8
TB/s."""

APART_SHARE_OF_CLUSTERS = 0.73
"""The same of clusters of two, whose requests for w always meet. An estimate from the same call: they would ask for a
third less, at those 5.8 of 8 TB/s."""

FIXUP_S = 8e-6
"""Seconds in which partial sums are left, fetched and added. An estimate, which no run has measured alone."""

GROUPS = (4, 8, 16)
"""The choices for the number of tiles that share one sweep of the other dimension."""


@dataclass(frozen=True)
class GpuSpec:
    """The figures of a chip that the model needs: `flops` and bytes/s are a datasheet's, or a run's measured
    ceilings."""

    sms: int
    flops: float
    memory_bytes_per_s: float
    cache_bytes: int
    shared_bytes: int | None = None
    """The shared memory that one program may take; None where nobody asked the device."""
    fp8_flops: float | None = None
    """FLOP/s in fp8; those of `flops` are in 16 bits or more. None where the chip multiplies no fp8."""

    @classmethod
    def of_chip(cls, chip: Chip) -> "GpuSpec":
        """The figures of a GPU's datasheet, in bf16 and fp8. Raises ValueError for a chip that has no SMs, or of which
        they are not all known."""
        bytes_per_s = chip.memory_bandwidth_bytes_per_s
        if not (chip.sms and bytes_per_s and chip.cache_bytes):
            raise ValueError(f"{chip.name}: SMs, memory bandwidth and cache are needed, one is unknown; take a GPU's")
        return cls(chip.sms, chip.flops["bf16"], bytes_per_s, chip.cache_bytes, fp8_flops=chip.flops.get("fp8"))


class Tile:
    """What the model asks of a tile, a `kernels.tiles.Config`. What has a value here, a kernel may leave open."""

    block_m: int
    block_n: int
    group_m: int  # tiles along the raster dimension that share one sweep of the other, so that L2 holds them
    raster: str = "m"  # the dimension along which tiles are grouped, "m" or "n"
    cluster: int = 1  # tiles that load w once
    gang_m: int = 1  # of waves that are cut along K: the tiles along M that walk along K together (`kernels.stream_k`)
    gang_n: int = 1  # and along N
    shared_waves: int = 0  # 1: the rest of whole waves is cut along K; 2: the wave before it, too


class Cost(NamedTuple):
    """Seconds of a matmul, and where they go. A full wave takes the longest of its products and its bytes."""

    seconds: float  # all waves, and their outputs, which nothing runs beside
    mma_s: float  # a tile's products
    l2_s: float  # a full wave's bytes from L2
    memory_s: float  # a full wave's bytes from memory
    tail_s: float  # the rest of whole waves, with its fix-up
    tiles: int
    full_waves: int


def cost(m: int, n: int, k: int, itemsize: int, tile: Tile, gpu: GpuSpec) -> Cost:
    """The time of out[m, n] = x[m, k] @ w[n, k].T, for operands of `itemsize` bytes and results of as many, but two
    for fp8.

    >>> from kernels.tiles import Config
    >>> h200 = GpuSpec(sms=132, flops=989.4e12, memory_bytes_per_s=4.8e12, cache_bytes=60 * 2**20)
    >>> cost(2048, 6656, 16384, 2, Config(128, 256, 64, 8, 4), h200)[-2:]  # tiles and full waves; 20 tiles are left
    (416, 3)
    """
    members = tile.gang_m * tile.gang_n
    sms = gpu.sms // members * members
    tiles_m = -(-m // (tile.block_m * tile.gang_m)) * tile.gang_m
    tiles_n = -(-n // (tile.block_n * tile.gang_n)) * tile.gang_n
    tiles = tiles_m * tiles_n
    full_waves, tail = divmod(tiles, sms)
    flops = gpu.fp8_flops if itemsize == 1 and gpu.fp8_flops else gpu.flops
    mma_s = 2 * tile.block_m * tile.block_n * k / (flops / gpu.sms)

    def fetched_bytes(rows: int) -> float:
        """Bytes that each wave reads for a row of an operand of `rows` rows: where the cache holds the operand, one of
        all waves reads it."""
        return k * itemsize / (max(1, full_waves) if is_held(rows, k, itemsize, gpu) else 1)

    def moved_s(running: int) -> tuple[float, float]:
        """Seconds of the bytes of `running` tiles at a time, from L2 and from memory."""
        rows, columns = _covered(running, tiles_m, tiles_n, tile)
        l2 = running * (tile.block_m + tile.block_n / tile.cluster) * k * itemsize
        memory = rows * tile.block_m * fetched_bytes(m) + columns * tile.block_n * fetched_bytes(n)
        return l2 / (gpu.flops * L2_BYTES_PER_FLOP), memory / gpu.memory_bytes_per_s

    l2_s, memory_s = moved_s(min(tiles, sms))
    out_s = tile.block_m * tile.block_n * max(2, itemsize) * gpu.sms / gpu.memory_bytes_per_s
    stores = full_waves + bool(tail)
    if tail and tile.shared_waves:
        if tile.shared_waves > 1 and full_waves:
            full_waves = full_waves - 1
            tail = tail + sms
        tail_s = tail / sms * max(mma_s, *shared_s(m, n, k, itemsize, tile, gpu)) + FIXUP_S
    elif tail:
        tail_s = max(mma_s, *moved_s(tail))
    else:
        tail_s = 0.0
    seconds = full_waves * max(mma_s, l2_s, memory_s) + tail_s + stores * out_s
    return Cost(seconds, mma_s, l2_s, memory_s, tail_s, tiles, full_waves)


def shared_s(m: int, n: int, k: int, itemsize: int, tile: Tile, gpu: GpuSpec) -> tuple[float, float]:
    """Seconds of the bytes along all of K, from L2 and from memory, for a tile on every SM, where each gang is at a
    place of its own along K. Members of a gang read together; an operand that the cache does not hold is read by every
    gang."""
    gangs = gpu.sms // (tile.gang_m * tile.gang_n)
    rows = gangs * tile.gang_m * tile.block_m
    columns = gangs * tile.gang_n * tile.block_n
    l2 = (rows + columns) * k * itemsize
    memory = 0
    for read, held in ((rows, m), (columns, n)):
        memory += min(read, held) if is_held(held, k, itemsize, gpu) else read
    apart = APART_SHARE_OF_CLUSTERS if tile.cluster > 1 else APART_SHARE
    l2_s = l2 / (gpu.flops * L2_BYTES_PER_FLOP * apart)
    return l2_s, memory * k * itemsize / gpu.memory_bytes_per_s


def gang_of(tiles_m: int) -> int:
    """The number of programs along M that share their reads of w: all that there are, up to 8, or 4 of more.

    In gangs_trial.txt (results/reference, an H100) it came within 1.8 % of a shape's best gang wherever gangs gained
    more than 1 %.
    """
    return tiles_m if tiles_m <= 8 else 4


def is_held(rows: int, k: int, itemsize: int, gpu: GpuSpec) -> bool:
    """Whether an operand of so many rows stays in the last-level cache until it is read again."""
    return rows * k * itemsize <= HELD_SHARE * gpu.cache_bytes


def _covered(running: int, tiles_m: int, tiles_n: int, tile: Tile) -> tuple[int, int]:
    """The rows and columns of tiles that `running` neighbours cover."""
    grouped, swept = (tiles_m, tiles_n) if tile.raster == "m" else (tiles_n, tiles_m)
    along = min(tile.group_m, grouped, running)
    across = -(-running // along)
    if across > swept:  # more than one group at a time
        along = min(grouped, -(-running // swept))
        across = swept
    return (along, across) if tile.raster == "m" else (across, along)
