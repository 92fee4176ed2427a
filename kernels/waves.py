"""How long a matmul of tiles takes on so many SMs: whole waves, and the bytes that feed them.

A wave is one tile on every SM. It takes as long as the slowest of three: its products, its bytes from L2 (every tile
reads its own rows of both operands), and its bytes from memory (tiles of one wave share theirs). A last wave that is
nearly empty takes as long as a full one. Efficiencies are not known here: this ranks choices, and predicts no time.

Source of the model of L2 and of the rows that a wave fetches: DeepGEMM (csrc/jit_kernels/heuristics/sm90.hpp).
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from roofline.theory.chips import Chip

L2_BYTES_PER_FLOP = 8e12 / 1.3e9 / (4096 * 132)
"""Of a Hopper chip: 8 TB/s from L2 at 1.3 GHz (DeepGEMM), over 4096 FLOP a clock on each of 132 SMs (whitepaper)."""

HELD_SHARE = 0.5
"""Of the last-level cache that an operand may take, and still be there when it is read again."""

GROUPS = (4, 8, 16)
"""Tiles that share one sweep of the other dimension; the choices."""


@dataclass(frozen=True)
class GpuSpec:
    """What the model needs of a chip: `flops` and bytes/s are a datasheet's, or a run's measured ceilings."""

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


class Cost(NamedTuple):
    """Seconds of a matmul, and where they go. A full wave takes the longest of its products and its bytes."""

    seconds: float  # all waves, and their outputs, which nothing runs beside
    mma_s: float  # a tile's products
    l2_s: float  # a full wave's bytes from L2
    memory_s: float  # a full wave's bytes from memory
    tiles: int
    full_waves: int


def cost(m: int, n: int, k: int, itemsize: int, tile: Any, gpu: GpuSpec) -> Cost:
    """Return what out[m, n] = x[m, k] @ w[n, k].T takes, for operands and results of `itemsize` bytes. Of `tile`, a
    `kernels.tiles.Config`, count `block_m` and `block_n`, and that `group_m` of them along `raster` share a sweep.

    >>> from kernels.tiles import Config
    >>> h200 = GpuSpec(sms=132, flops=989.4e12, memory_bytes_per_s=4.8e12, cache_bytes=60 * 2**20)
    >>> cost(2048, 6656, 16384, 2, Config(128, 256, 64, 8, 4), h200)[-2:]  # tiles and full waves; 20 tiles are left
    (416, 3)
    """
    tiles_m, tiles_n = -(-m // tile.block_m), -(-n // tile.block_n)
    tiles = tiles_m * tiles_n
    full_waves, tail = divmod(tiles, gpu.sms)
    mma_s = 2 * tile.block_m * tile.block_n * k / (gpu.flops / gpu.sms)

    def fetched_bytes(rows: int) -> float:
        """Return what is read of `rows` of an operand in each wave: one of all waves reads it where the cache holds
        it."""
        held = rows * k * itemsize <= HELD_SHARE * gpu.cache_bytes
        return k * itemsize / (max(1, full_waves) if held else 1)

    def moved_s(running: int) -> tuple[float, float]:
        """Return what `running` tiles at a time take from L2 and from memory."""
        rows, columns = _covered(running, tiles_m, tiles_n, tile)
        l2 = running * (tile.block_m + tile.block_n) * k * itemsize
        memory = rows * tile.block_m * fetched_bytes(m) + columns * tile.block_n * fetched_bytes(n)
        return l2 / (gpu.flops * L2_BYTES_PER_FLOP), memory / gpu.memory_bytes_per_s

    l2_s, memory_s = moved_s(min(tiles, gpu.sms))
    tail_s = max(mma_s, *moved_s(tail)) if tail else 0.0
    out_s = tile.block_m * tile.block_n * itemsize * gpu.sms / gpu.memory_bytes_per_s
    seconds = full_waves * max(mma_s, l2_s, memory_s) + tail_s + (full_waves + bool(tail)) * out_s
    return Cost(seconds, mma_s, l2_s, memory_s, tiles, full_waves)


def _covered(running: int, tiles_m: int, tiles_n: int, tile: Any) -> tuple[int, int]:
    """Return the rows and columns of tiles that `running` neighbours cover."""
    grouped, swept = (tiles_m, tiles_n) if tile.raster == "m" else (tiles_n, tiles_m)
    along = min(tile.group_m, grouped, running)
    across = -(-running // along)
    if across > swept:  # more than one group at a time
        along, across = min(grouped, -(-running // swept)), swept
    return (along, across) if tile.raster == "m" else (across, along)
