"""The kernel that waits: right for every order and table, on flags that are up, stale or lost. Flags that rise late,
and the tile for Hopper: `kernels.machine`, which runs `waiting`, as it does the kernel that waits for rows."""

from dataclasses import replace

import pytest
import torch
from waiting import PROGRAMS, TABLES, table

from kernels import flagged, flagged_rows
from kernels.contract import Signals
from kernels.signalled import Pieces
from kernels.tiles import choose_for
from roofline.theory import schedule
from roofline.theory.schedule import Grid

RANKS, BLOCKS = 4, 2
ORDER = (2, 0, 3, 1)
pytestmark = pytest.mark.gpu


class Case:
    """x in RANKS chunks of columns, poisoned but for the own one, and a flag for each (row block, source)."""

    def __init__(self, device, dtype, order=ORDER, seed=0, wanted=1):
        like = torch.empty((0, 0), dtype=dtype, device=device)
        self.config = config = choose_for("flagged", like, like)
        self.order, self.chunk = order, 2 * config.block_k
        self.grid = Grid(2 * BLOCKS, 2)
        self.rows, columns = 2 * BLOCKS * config.block_m - 5, 2 * config.block_n - 8
        generator = torch.Generator().manual_seed(seed)

        def values(*shape):
            return torch.randint(-2, 3, shape, generator=generator).to(device, dtype)

        self.source, self.w = values(self.rows, RANKS * self.chunk), values(columns, RANKS * self.chunk)
        self.x = torch.full_like(self.source, torch.nan)
        self.out = torch.full((self.rows, columns), torch.nan, dtype=dtype, device=device)
        self.flags = torch.full((BLOCKS * (RANKS - 1),), wanted - 1, dtype=torch.int32, device=device)
        self.signals = Signals(self.flags, wanted, self.flags.new_zeros(1), 2_000)
        self.bring(0, 0, own=True)

    @property
    def block_rows(self):
        return 2 * self.config.block_m

    def bring(self, block, position, own=False):
        """The piece of one row block (of all, if own) at one position of the order of arrival."""
        rows = slice(None) if own else slice(block * self.block_rows, (block + 1) * self.block_rows)
        columns = slice(self.order[position] * self.chunk, (self.order[position] + 1) * self.chunk)
        self.x[rows, columns] = self.source[rows, columns]
        if position:
            self.flags[block * (RANKS - 1) + position - 1] += 1

    def bring_all(self):
        for block in range(BLOCKS):
            for position in range(1, RANKS):
                self.bring(block, position)

    def plan(self, name, seed=0):
        made = table(name, self.grid, RANKS, BLOCKS, seed)
        return flagged.tile_schedule(made, self.grid, self.order, self.block_rows, self.config, self.x.device)

    def run(self, *plan):
        assert flagged.matmul(self.x, self.w, self.out, self.plan(*plan or ["row_block"]), self.signals) is self.out
        return int(self.signals.lost)

    def is_right(self, *plan):
        """Whether nothing is given up, and the product is right."""
        lost = self.run(*plan)
        return not lost and torch.equal(self.out, (self.source.double() @ self.w.double().T).to(self.out.dtype))


@pytest.fixture
def dtype(dtypes):
    return list(dtypes.values())[-1]


@pytest.fixture
def case(device, dtype):
    return lambda **more: Case(device, dtype, **more)


@pytest.mark.parametrize(
    ("name", "order"), [*((name, ORDER) for name in TABLES), ("row_block", (0, 1, 2, 3)), ("row_block", (3, 2, 1, 0))]
)
def test_right_by_every_table_and_in_every_order(case, name, order):
    one = case(order=order)
    one.bring_all()
    assert one.is_right(name)


@pytest.mark.parametrize("name", ["row_block", "spill_once"])
def test_without_its_wait_the_same_kernel_is_wrong(case, name):
    """What the checks above are worth."""
    one = case()
    one.signals = replace(one.signals, wanted=0)
    assert one.run(name) == 0
    assert one.out.isnan().any()


@pytest.mark.parametrize(("name", "block", "position"), [("spill_once", 0, 1), ("row_block", 1, 3)])
def test_lost_chunk_ends_the_kernel_and_is_told(case, name, block, position):
    one = case()
    one.bring_all()
    one.flags[block * (RANKS - 1) + position - 1] -= 1
    assert one.run(name) == 1 + block * (RANKS - 1) + position - 1


def test_spilled_bytes_are_those_of_the_table(case):
    one = case()
    tile_bytes = one.config.block_m * one.config.block_n * 4
    assert one.plan("chunk_outer").spilled_bytes == 2 * (RANKS - 1) * len(one.grid.tiles) * tile_bytes
    assert one.plan("row_block").spilled_bytes == 0


def test_plans_that_the_kernel_cannot_keep_are_refused(case):
    one = case()
    many = schedule.tile_outer(one.grid, PROGRAMS, 17)
    with pytest.raises(ValueError, match="17 ranks: flagged packs their order in 64 bits, the limit is 16; take"):
        flagged.tile_schedule(many, one.grid, range(17), one.rows, one.config, "cpu")
    across = table("row_block", one.grid, RANKS, BLOCKS, 0)
    with pytest.raises(ValueError, match="row blocks of 5 rows"):
        flagged.tile_schedule(across, one.grid, ORDER, 5, one.config, "cpu")


def test_sizes_that_the_plan_is_not_for_are_refused(case):
    one = case()
    plan, few = one.plan("row_block"), one.config.block_m
    with pytest.raises(ValueError, match="the schedule is for"):
        flagged.matmul(one.x[:few], one.w, one.out[:few], plan, one.signals)
    for k in (RANKS * one.config.block_k // 2, RANKS * one.chunk - 8):
        with pytest.raises(ValueError, match=f"K={k} over 4 ranks"):
            flagged.matmul(one.x[:, :k], one.w[:, :k], one.out, plan, one.signals)
    thirds = Pieces(torch.arange(3, dtype=torch.int32, device=one.x.device), 1, one.config)
    with pytest.raises(ValueError, match="rows over 3 ranks in 1 row blocks: flagged_rows needs a multiple of its"):
        flagged_rows.matmul(one.x, one.w, one.out, thirds, one.signals)


@pytest.mark.parametrize("ranks", [2, 16])
def test_right_for_any_number_of_ranks(device, dtype, ranks):
    """The last one's ring: its order has the highest bits set, or just fits into 32 bits."""
    config = choose_for("flagged", torch.empty((0, 0), dtype=dtype, device=device), torch.empty((0, 0)))
    x, w = (torch.randint(-2, 3, (rows, ranks * config.block_k)).to(device, dtype) for rows in (40, 24))
    grid, order = Grid(-(-40 // config.block_m), 1), [rank % ranks for rank in range(ranks - 1, -1, -1)]
    plan = flagged.tile_schedule(schedule.tile_outer(grid, 1, ranks), grid, order, 40, config, device)
    flags = torch.ones(ranks - 1, dtype=torch.int32, device=device)
    out = flagged.matmul(x, w, x.new_empty(40, 24), plan, Signals(flags, 1, flags.new_zeros(1), 1000))
    assert torch.equal(out, (x.double() @ w.double().T).to(dtype))
