"""How an arm would be cut on a machine that has not run it, and what it could then reach: for predictions."""

from typing import NamedTuple

from roofline.analysis.overlap import simulator
from roofline.theory import schedule
from roofline.theory.schedule import Grid

TILE = (128, 256)
"""Rows and columns of the tile that a compute-bound matmul is taken to have on a GPU."""

BLOCKS = (16, 8, 4, 2, 1)
"""Row blocks that an arm may be cut into, as `collectives` has them."""

MOST_TILES, TO_CHOOSE = 4096, 1024
"""Of a grid that is simulated, and of one on which the number of row blocks is chosen."""

ARMS = {
    "all_gather_matmul": {"cpu": ("serial", "chunk_launches", "row_block_launches"), "gpu": simulator.ARMS},
    "weight_prefetch": {"cpu": ("serial", "overlapped"), "gpu": ("serial", "overlapped")},
}
"""By operation and kind of machine."""


class Planned(NamedTuple):
    """One arm on P ranks: `workers` is 1 without a GPU, where a row block is a tile."""

    arm: str
    m: int
    n: int
    ranks: int
    workers: int = 1

    def grid(self, blocks: int = 1) -> Grid:
        if self.workers == 1:
            return Grid(blocks, 1)
        return Grid(max(blocks, -(-self.m // TILE[0])), -(-self.n // TILE[1]))

    @property
    def _cuts(self) -> list[int]:
        """Row blocks to choose from: divisors of the rows, and on a GPU of the row tiles."""
        if not self.arm.startswith("row_block"):
            return [1]
        gpu = self.workers > 1
        return [b for b in BLOCKS if self.m % b == 0 and (not gpu or -(-self.m // TILE[0]) % b == 0)]

    def ideal_s(self, t_gemm_s: float, t_comm_s: float) -> float:
        """What the arm could reach, in the best number of row blocks."""
        if self.arm == "overlapped":
            return max(t_gemm_s, t_comm_s)
        few = self._with(TO_CHOOSE)
        blocks = min(self._cuts, key=lambda blocks: few._end_s(blocks, t_gemm_s, t_comm_s))
        return self._with(MOST_TILES)._end_s(blocks, t_gemm_s, t_comm_s)

    def _with(self, most: int) -> "Planned":
        """At most so many tiles: columns and workers are fewer alike, so that there are about as many waves."""
        grid = self.grid()
        columns = max(1, min(grid.column_tiles, most // grid.row_tiles))
        workers = max(2, round(self.workers * columns / grid.column_tiles))
        return self if columns == grid.column_tiles else self._replace(n=columns * TILE[1], workers=workers)

    def _end_s(self, blocks: int, t_gemm_s: float, t_comm_s: float) -> float:
        grid, workers = self.grid(blocks), self.workers
        if self.arm in ("tile_outer", "chunk_outer"):  # all programs do the same, and none does more than the first
            grid, workers = Grid(grid.waves(workers), 1), 1
        return simulator.own_ideal(self.arm, grid, workers, self.ranks, blocks, t_gemm_s, t_comm_s).end_s

    def spilled_bytes(self, t_gemm_s: float, t_comm_s: float) -> int:
        """Of fp32 accumulators, written and read back, when chunks come at equal intervals: `chunk_outer` spares those
        that the arrivals let it spare."""
        if self.arm != "chunk_outer":
            return 0
        grid = self.grid()
        chunk_s = simulator.product_s(grid, self.workers, self.ranks, t_gemm_s)
        arrival_s = simulator.arrivals(self.ranks, t_comm_s, 1)[0]
        most, rest = divmod(grid.row_tiles * grid.column_tiles, self.workers)
        spills = 0
        for tiles, programs in ((most + 1, rest), (most, self.workers - rest)):
            if tiles and programs:
                spills += programs * schedule.spills(schedule.spill_once(Grid(tiles, 1), 1, arrival_s, chunk_s))
        return 2 * 4 * TILE[0] * TILE[1] * spills
