"""Arms that are one launch: what they could reach, and that they are cut where tiles end. That they are exact:
`kernels.machine`."""

import pytest
import torch

from kernels.tiles import choose
from roofline.theory.arms import TILE, OverlapPlan
from roofline.theory.schedule import Grid


def test_own_ideals_of_launches_are_of_the_kernels_tile():
    """Those of one launch are of the grid that a run notes."""
    tile = choose("persistent", "sm90", 8192, 3328, 16384, torch.bfloat16)
    assert (tile.block_m, tile.block_n) == TILE


@pytest.mark.parametrize("blocks", [1, 4])
@pytest.mark.parametrize("t_comm_s", [0.25, 1.0, 1.5])
def test_own_ideal_is_the_schedule_run_forwards(blocks, t_comm_s):
    """The same tiles in their own order, and the link behind them."""
    for ranks, programs in ((8, 132), (4, 5), (2, 1)):
        rows, columns = ranks * blocks * 2, 7
        cut = OverlapPlan("signalled", Grid(rows, columns), programs, ranks, blocks)
        tile_s, free_s = 1.0 / cut.grid.waves(programs), 0.0
        for piece in range(1, 1 + (ranks - 1) * blocks):
            computed_s = -(-piece * 2 * columns // programs) * tile_s
            free_s = max(free_s, computed_s) + t_comm_s / ((ranks - 1) * blocks)
        assert cut.end_s(1.0, t_comm_s) == pytest.approx(max(1.0, free_s))
        up_s = OverlapPlan("chunk_launches", Grid(1, 1), 1, ranks).end_s(1.0, t_comm_s)
        layer_s = cut._replace(arm="layer_signalled").end_s(2.0, 2 * t_comm_s)
        assert layer_s == pytest.approx(up_s + max(1.0, free_s))
