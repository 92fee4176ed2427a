"""How an arm would be cut on a machine that has not run it, and what it could then reach: for predictions."""

from typing import NamedTuple

from roofline.theory import overlap, schedule
from roofline.theory.schedule import Grid

TILE = (128, 256)
"""Rows and columns of the tile that a compute-bound matmul is taken to have on a GPU."""

BLOCKS = (16, 8, 4, 2, 1)
"""Row blocks that an arm may be cut into, as `collectives` has them."""

MOST_TILES = 2048
"""Of a grid on which the number of row blocks is chosen."""

ARMS = {
    "all_gather_matmul": {"cpu": ("serial", "chunk_launches", "row_block_launches"), "gpu": overlap.ARMS},
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
        cuts = self._cuts
        if len(cuts) > 1:  # which is the best is seen on fewer columns too
            columns = max(1, MOST_TILES // self.grid(max(cuts)).row_tiles)
            few = self._replace(n=min(self.n, columns * TILE[1]))
            cuts = [min(cuts, key=lambda blocks: few._end_s(blocks, t_gemm_s, t_comm_s))]
        return self._end_s(cuts[0], t_gemm_s, t_comm_s)

    def _end_s(self, blocks: int, t_gemm_s: float, t_comm_s: float) -> float:
        grid, workers = self.grid(blocks), self.workers
        if self.arm in ("tile_outer", "chunk_outer"):  # all programs do the same, and none does more than the first
            grid, workers = Grid(grid.waves(workers), 1), 1
        return overlap.own_ideal(self.arm, grid, workers, self.ranks, blocks, t_gemm_s, t_comm_s).end_s

    def spilled_bytes(self, t_gemm_s: float, t_comm_s: float) -> int:
        """Of fp32 accumulators, written and read back, when chunks come at equal intervals: `chunk_outer` spares those
        that the arrivals let it spare."""
        if self.arm != "chunk_outer":
            return 0
        grid = self.grid()
        chunk_s = overlap.product_s(grid, self.workers, self.ranks, t_gemm_s)
        arrival_s = overlap.arrivals(self.ranks, t_comm_s, 1)[0]
        most, rest = divmod(grid.row_tiles * grid.column_tiles, self.workers)
        spills = 0
        for tiles, programs in ((most + 1, rest), (most, self.workers - rest)):
            if tiles and programs:
                spills += programs * schedule.spills(schedule.spill_once(Grid(tiles, 1), 1, arrival_s, chunk_s))
        return 2 * 4 * TILE[0] * TILE[1] * spills
