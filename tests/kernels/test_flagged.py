"""The kernel that waits, where all chunks are here: right by every table, for every order and number of ranks. Flags
that are late, stale or lost: `kernels.machine`, which runs `waiting`, and on a GPU the tests of the arms."""

import pytest
import torch
from waiting import PROGRAMS, TABLES, table

from kernels import flagged, pieces
from kernels.contract import Signals
from kernels.tiles import choose_for
from roofline.theory import schedule
from roofline.theory.schedule import Grid

BLOCKS, GRID = 2, Grid(4, 2)
pytestmark = pytest.mark.gpu


class Case:
    """Whole numbers of x[M, K] in chunks of two steps, two row blocks of two tiles each, and a flag for each piece."""

    def __init__(self, device, dtype, order=(2, 0, 3, 1)):
        like = torch.empty((0, 0), dtype=dtype, device=device)
        self.config, self.order = choose_for("flagged", like, like), order
        self.block_rows, rows, columns = (
            2 * self.config.block_m,
            4 * self.config.block_m - 5,
            2 * self.config.block_n - 8,
        )
        depth, generator = 2 * len(order) * self.config.block_k, torch.Generator().manual_seed(0)
        shapes = (rows, depth), (columns, depth)
        self.x, self.w = (torch.randint(-2, 3, shape, generator=generator).to(device, dtype) for shape in shapes)
        self.out = torch.full((rows, columns), torch.nan, dtype=dtype, device=device)
        flags = torch.ones(BLOCKS * (len(order) - 1), dtype=torch.int32, device=device)
        self.signals = Signals(flags, 1, flags.new_zeros(1), 2_000)

    def plan(self, name):
        made = table(name, GRID, len(self.order), BLOCKS, 0)
        return flagged.tile_schedule(made, GRID, self.order, self.block_rows, self.config, self.x.device)


@pytest.fixture
def make(device, dtypes):
    return lambda **more: Case(device, list(dtypes.values())[-1], **more)


@pytest.mark.parametrize(
    ("name", "order"),
    [
        *((name, (2, 0, 3, 1)) for name in TABLES),
        ("row_block", (3, 2, 1, 0)),
        ("tile_outer", (0, 1)),
        ("tile_outer", tuple(range(15, -1, -1))),  # which has the highest bits set
    ],
)
def test_right_by_every_table_and_in_every_order(make, name, order):
    case = make(order=order)
    assert flagged.matmul(case.x, case.w, case.out, case.plan(name), case.signals) is case.out
    assert int(case.signals.lost) == 0
    assert torch.equal(case.out, (case.x.double() @ case.w.double().T).to(case.out.dtype))


def test_spilled_bytes_are_those_of_the_table(make):
    case = make()
    tile_bytes = case.config.block_m * case.config.block_n * 4
    assert case.plan("chunk_outer").spilled_bytes == 2 * (len(case.order) - 1) * len(GRID.tiles) * tile_bytes
    assert case.plan("row_block").spilled_bytes == 0


def test_plans_that_the_kernel_cannot_keep_are_refused(make):
    case = make()
    many, across = schedule.tile_outer(GRID, PROGRAMS, 17), table("row_block", GRID, len(case.order), BLOCKS, 0)
    with pytest.raises(ValueError, match="17 ranks: flagged packs their order in 64 bits, the limit is 16; take"):
        flagged.tile_schedule(many, GRID, range(17), len(case.x), case.config, "cpu")
    with pytest.raises(ValueError, match="row blocks of 5 rows"):
        flagged.tile_schedule(across, GRID, case.order, 5, case.config, "cpu")


def test_sizes_that_the_plan_is_not_for_are_refused(make):
    case = make()
    plan, few, steps = case.plan("row_block"), case.config.block_m, case.config.block_k
    with pytest.raises(ValueError, match="the schedule is for"):
        flagged.matmul(case.x[:few], case.w, case.out[:few], plan, case.signals)
    for k in (2 * steps, 8 * steps - 8):
        with pytest.raises(ValueError, match=f"K={k} over 4 ranks"):
            flagged.matmul(case.x[:, :k], case.w[:, :k], case.out, plan, case.signals)
    thirds = pieces.Pieces.of_ranks(range(3), 1, case.config, case.x.device)
    with pytest.raises(ValueError, match="rows in 3 pieces: each must be a multiple of the tile's"):
        pieces.matmul(case.x, case.w, case.out, thirds, case.signals)
