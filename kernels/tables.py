"""Tables of work tiles for the kernels that wait: how they lie on the device, and one with as few spills as arrivals
allow. `roofline.theory.schedule` says what a table is."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from kernels.contract import Signals
from kernels.tiles import Config
from roofline.theory.schedule import Grid, Piece, Table, WorkTile, deal

MOST_RANKS = 16  # the order of arrival is packed in 64 bits


@dataclass(frozen=True)
class TileSchedule:
    """A table of work tiles on the device, made by `tile_schedule` for a shape, an order of arrival and a height of row
    blocks."""

    table: Table | list[list[Piece]]
    grid: Grid
    order: tuple[int, ...]
    block_rows: int
    config: Config
    work_tiles: Tensor
    """int32 [work tiles, 6], program after program: the fields of a `Piece`, or of a `WorkTile`."""
    first: Tensor
    """int32 [programs + 1]: where in `work_tiles` those of each program begin."""
    spilled: Tensor
    """fp32 [tiles, BLOCK_M, BLOCK_N], or empty where no `WorkTile` is spilled."""

    @property
    def slots(self) -> int:
        """How many programs leave sums of a tile to another."""
        return sum(getattr(piece, "peers", 0) for pieces in self.table for piece in pieces)

    @property
    def spilled_bytes(self) -> int:
        """The bytes of accumulators that one launch writes and reads back."""
        return 2 * (spills(self.table) + self.slots) * self.config.block_m * self.config.block_n * 4

    def require(self, x: Tensor, w: Tensor) -> None:
        """ValueError for sizes that this was not made for."""
        (m, k), n, ranks, config = x.shape, w.shape[0], len(self.order), self.config
        if k % ranks or k // ranks % config.block_k:
            raise ValueError(
                f"K={k} over {ranks} ranks: flagged needs chunks of a multiple of {config.block_k} columns; take fewer"
            )
        rows, columns = config.tile_counts(m, n)
        if (rows, columns) != (self.grid.row_tiles, self.grid.column_tiles):
            raise ValueError(
                f"out is {rows} x {columns} tiles, the schedule is for {self.grid}; make one for this shape"
            )

    def arguments(self, x: Tensor, signals: Signals) -> dict[str, Any]:
        """The arguments of a kernel for the table and the flags that it waits for."""
        ranks = len(self.order)
        order = sum(chunk << (4 * position) for position, chunk in enumerate(self.order))
        return dict(
            work_tiles_ptr=self.work_tiles, first_ptr=self.first, flags_ptr=signals.flags, wanted=signals.wanted,
            lost_ptr=signals.lost, patience=signals.patience, order=order - (order >> 63 << 64),
            row_tiles=-(-self.block_rows // self.config.block_m), CHUNK=x.shape[1] // ranks, RANKS=ranks,
        )  # fmt: skip


def tile_schedule(
    table: Table | list[list[Piece]],
    grid: Grid,
    order: Sequence[int],
    block_rows: int,
    config: Config,
    device: torch.device | str,
) -> TileSchedule:
    """Put `table`, which has all of `grid` with all chunks, on `device`: work tiles of `flagged_spills`, or pieces of
    `flagged`.

    `order`: chunk numbers in the order of arrival, the own one first. `block_rows`: rows of a row block, which has
    flags of its own; M where the rows are not cut. Raises ValueError for more than MOST_RANKS ranks, and tiles that lie
    across row blocks.
    """
    if len(order) > MOST_RANKS:
        raise ValueError(
            f"{len(order)} ranks: flagged packs their order in 64 bits, the limit is {MOST_RANKS}; take fewer"
        )
    if block_rows % config.block_m and -(-block_rows // config.block_m) < grid.row_tiles:
        raise ValueError(
            f"row blocks of {block_rows} rows: flagged needs a multiple of its tile's {config.block_m}; take fewer"
        )
    ends = torch.tensor([0, *map(len, table)], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    work_tiles = torch.tensor([work_tile for program in table for work_tile in program], dtype=torch.int32)
    tiles = len(grid.tiles) if spills(table) else 0
    spilled = torch.empty((tiles, config.block_m, config.block_n), dtype=torch.float32, device=device)
    return TileSchedule(table, grid, tuple(order), block_rows, config, work_tiles.to(device), ends.to(device), spilled)


def spills(table: Table | list[list[Piece]]) -> int:
    """The number of times that the work tiles of `table` write an accumulator. Each is read back once."""
    return sum(getattr(work_tile, "spill", False) for work_tiles in table for work_tile in work_tiles)


def spill_once(grid: Grid, programs: int, arrival_s: Sequence[float], chunk_s: float) -> Table:
    """Chunk-wise, with the accumulator kept in registers where possible, so that fewer tiles are spilled.

    `arrival_s[j]`: when all rows of the chunk at position j are expected here. `chunk_s`: as in `row_block`. A program
    stays with its tile while chunks for it are here. Then, if all chunks are here, it takes any unfinished tile; else
    an untouched one; else the tile with the fewest chunks done; else it waits with the accumulator in registers.
    """
    table = []
    for tiles in deal(grid, programs):
        work_tiles = []
        for tile, begin, end in _spill_once_plan(len(tiles), tuple(arrival_s), chunk_s):
            work_tiles.append(WorkTile(*tiles[tile], begin, end, begin > 0, end < len(arrival_s)))
        table.append(tuple(work_tiles))
    return tuple(table)


@cache  # many programs have as many tiles
def _spill_once_plan(tiles: int, arrival_s: tuple[float, ...], chunk_s: float) -> list[tuple[int, int, int]]:
    """(tile, chunk_from, chunk_to) of each work tile of a program that has `tiles` tiles."""
    chunks = len(arrival_s)
    done = [0] * tiles
    plan: list[tuple[int, int, int]] = []
    now = 0.0
    held = -1
    while min(done, default=chunks) < chunks:
        here = sum(arrival <= now for arrival in arrival_s)
        tile = held
        if held < 0 or done[held] >= here:
            # An untouched tile has the fewest chunks done. Once all chunks are here, any unfinished tile will do.
            tile = done.index(min(done))
        if done[tile] >= here:
            now = arrival_s[here]  # nothing to do; every tile has all that is here
            continue
        if tile == held:
            plan[-1] = (tile, plan[-1][1], done[tile] + 1)
        else:
            plan.append((tile, done[tile], done[tile] + 1))
        done[tile] += 1
        now += chunk_s
        held = tile if done[tile] < chunks else -1
    return plan
