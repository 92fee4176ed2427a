"""The arm `signalled`: how parts are added, and what it could reach. That it is exact, piece for piece:
`kernels.machine`."""

import pytest
import torch
from gather_cases import normal

from kernels import part_sums
from roofline.theory.arms import OverlapPlan, plan
from roofline.theory.schedule import Grid


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("columns", [80, 3])
def test_sums_are_in_fp32_in_the_order_given_and_rounded_once(dtype, columns):
    arrived, product = normal(0, 3, 37, columns).to(dtype), normal(1, 37, columns).to(dtype)
    out = torch.empty(37, columns, dtype=dtype)
    part_sums.add(arrived, product, out.fill_(torch.nan))
    sums = arrived[0].float()
    for part in (*arrived[1:-1], product, arrived[-1]):
        sums = sums + part.float()
    assert torch.equal(out, sums.to(dtype))
    with pytest.raises(ValueError, match=r"parts \[3, 37, \d+\], own \[36, .* must be alike"):
        part_sums.add(arrived, product[1:], out)


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
        assert cut.simulate(1.0, t_comm_s).end_s == pytest.approx(max(1.0, free_s))
        up_s = OverlapPlan("chunk_launches", Grid(1, 1), 1, ranks).simulate(1.0, t_comm_s).end_s
        layer = cut._replace(arm="layer_signalled").simulate(2.0, 2 * t_comm_s)
        assert layer.end_s == pytest.approx(up_s + max(1.0, free_s))


def test_a_cut_has_whole_row_tiles_in_each_piece():
    for m in (8192, 1024, 512, 520):
        cut = plan("signalled", m, 8192, 8, 132, 1.0, 1.0)
        assert cut.grid.row_tiles % (8 * cut.row_blocks) == 0
