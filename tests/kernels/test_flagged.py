"""The kernel that waits: right for every order and table, on flags that are late, out of order, stale or lost."""

import random
import threading
import time
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest
import torch

from kernels import flagged
from kernels.contract import Signals
from kernels.tiles import arch_of, choose_for, table
from roofline.theory import schedule, simulator
from roofline.theory.schedule import Grid, WorkTile

RANKS, BLOCKS, PROGRAMS = 4, 2, 3
ORDER = (2, 0, 3, 1)


class Case:
    """x in RANKS chunks of columns, poisoned but for the own one, and a flag for each (row block, source)."""

    def __init__(self, device, dtype, order=ORDER, blocks=BLOCKS, seed=0, wanted=1, config=None):
        like = torch.empty((0, 0), dtype=dtype, device=device)
        self.config = config = config or choose_for("flagged", like, like)
        self.order, self.blocks, self.chunk = order, blocks, 2 * config.block_k
        self.grid = Grid(2 * blocks, 2)
        self.rows, columns = 2 * blocks * config.block_m - 5, 2 * config.block_n - 8
        generator = torch.Generator().manual_seed(seed)

        def values(*shape):
            return torch.randint(-2, 3, shape, generator=generator).to(device, dtype)

        self.source, self.w = values(self.rows, RANKS * self.chunk), values(columns, RANKS * self.chunk)
        self.x = torch.full_like(self.source, torch.nan)
        self.out = torch.full((self.rows, columns), torch.nan, dtype=dtype, device=device)
        self.flags = torch.full((blocks * (RANKS - 1),), wanted - 1, dtype=torch.int32, device=device)
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
        for block in range(self.blocks):
            for position in range(1, RANKS):
                self.bring(block, position)

    def table(self, name):
        arrival_s = simulator.arrivals(RANKS, 1.0, self.grid.row_tiles, self.blocks)
        return {
            "tile_outer": lambda: schedule.tile_outer(self.grid, PROGRAMS, RANKS),
            "chunk_outer": lambda: schedule.chunk_outer(self.grid, PROGRAMS, RANKS),
            "spill_once": lambda: schedule.spill_once(self.grid, PROGRAMS, (0.0, 0.3, 0.6, 0.9), 0.1),
            "row_block": lambda: schedule.row_block(self.grid, PROGRAMS, arrival_s, 0.1),
        }[name]()

    def plan(self, table):
        table = self.table(table) if isinstance(table, str) else table
        height = self.block_rows if self.blocks > 1 else self.rows
        return flagged.tile_schedule(table, self.grid, self.order, height, self.config, self.x.device)

    def run(self, table="row_block"):
        assert flagged.matmul(self.x, self.w, self.out, self.plan(table), self.signals) is self.out
        return int(self.signals.lost)

    def is_right(self, table="row_block"):
        """Whether nothing is given up, and the product is right."""
        lost = self.run(table)
        return not lost and torch.equal(self.out, (self.source.double() @ self.w.double().T).to(self.out.dtype))


@pytest.fixture
def dtype(dtypes):
    return list(dtypes.values())[-1]


@pytest.fixture
def case(device, dtype):
    return lambda **more: Case(device, dtype, **more)


@pytest.fixture
def interpreted_only(device):
    if device == "cuda":
        pytest.skip("a host thread cannot write device memory while a kernel spins; the arms' tests have late flags")


def later(one, steps, pause_s=0.03):
    """A thread that takes each of `steps` after a pause. It may be late: `one` is as patient as can be."""
    one.signals = replace(one.signals, patience=10**9)

    def run():
        for step in steps:
            time.sleep(pause_s)
            step()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


TABLES = ("tile_outer", "chunk_outer", "spill_once", "row_block")


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), ORDER])
def test_right_by_every_table_in_every_order(case, table, order):
    one = case(order=order)
    one.bring_all()
    assert one.is_right(table)


def any_table(grid, seed):
    """Each tile's chunks cut anywhere, dealt to anybody, the work tiles of a program in any order that goes forward."""
    rng = random.Random(seed)
    table = [[] for _ in range(PROGRAMS)]
    for m, n in grid.tiles:
        cuts = [0, *sorted(rng.sample(range(1, RANKS), rng.randrange(RANKS))), RANKS]
        runs = [WorkTile(m, n, a, b, a > 0, b < RANKS) for a, b in pairwise(cuts)]
        own = rng.choice(table)
        places = sorted(rng.randrange(len(own) + 1) for _ in runs)
        for shift, (place, work_tile) in enumerate(zip(places, runs, strict=True)):
            own.insert(place + shift, work_tile)
    return tuple(map(tuple, table))


@pytest.mark.parametrize("seed", range(3))
def test_right_by_any_table(case, seed):
    one = case()
    one.bring_all()
    assert one.is_right(any_table(one.grid, seed))


@pytest.mark.parametrize("forwards", [True, False])
@pytest.mark.parametrize("table", TABLES)
def test_right_on_chunks_that_come_late_one_after_another_or_out_of_order(case, table, forwards, interpreted_only):
    one = case()
    pieces = [(block, position) for block in range(BLOCKS) for position in range(1, RANKS)]
    thread = later(one, [partial(one.bring, *piece) for piece in (pieces if forwards else reversed(pieces))])
    right = one.is_right(table)
    thread.join()
    assert right


@pytest.mark.parametrize("table", TABLES)
def test_without_its_wait_the_same_kernel_is_wrong(case, table):
    """What the checks above are worth."""
    one = case()
    one.signals = replace(one.signals, wanted=0)
    assert one.run(table) == 0
    assert one.out.isnan().any()


@pytest.mark.parametrize(("block", "position"), [(0, 1), (1, 2), (1, 3)])
@pytest.mark.parametrize("table", ["spill_once", "row_block"])
def test_lost_chunk_ends_the_kernel_and_is_told(case, block, position, table):
    one = case()
    one.bring_all()
    one.flags[block * (RANKS - 1) + position - 1] -= 1
    assert one.run(table) == 1 + block * (RANKS - 1) + position - 1


def test_once_one_is_lost_the_others_are_not_waited_for_and_the_first_stays_told(case):
    one = case()
    one.signals = replace(one.signals, patience=10**9)  # hours
    one.signals.lost.fill_(5)
    assert one.run() == 5


def test_flags_of_the_launch_before_are_stale(case):
    one = case(wanted=3)
    one.bring_all()
    assert one.run() == 0
    one.signals = replace(one.signals, wanted=4)
    assert one.run() == 1


@pytest.mark.parametrize("table", ["spill_once", "row_block"])
def test_launches_follow_one_another_on_flags_that_only_grow(case, table):
    one = case()
    for run in range(1, 4):
        one.signals = replace(one.signals, wanted=run)
        one.source.copy_(case(seed=run).source)
        one.x.fill_(torch.nan)
        one.bring(0, 0, own=True)
        one.bring_all()
        assert one.is_right(table)


@pytest.mark.parametrize("arch", ["sm90", "interpreter"])
def test_every_checked_in_configuration(case, arch, device):
    if device == "cuda" and arch != arch_of(torch.device(device)):
        pytest.skip(f"{arch} is not for this GPU")
    entries = [entry for entry in table(arch).entries if entry.kernel in ("flagged", "flagged_spills")]
    assert len(entries) == 2
    for entry in entries:
        one = case(blocks=1, config=entry.config)
        one.bring_all()
        assert one.is_right("chunk_outer" if entry.kernel == "flagged_spills" else "tile_outer")


def test_spilled_bytes_are_those_of_the_table(case):
    one = case()
    tile_bytes = one.config.block_m * one.config.block_n * 4
    assert one.plan("chunk_outer").spilled_bytes == 2 * (RANKS - 1) * len(one.grid.tiles) * tile_bytes
    assert one.plan("row_block").spilled_bytes == 0


def test_more_ranks_than_an_order_holds_are_refused(case):
    one = case()
    table = schedule.tile_outer(one.grid, PROGRAMS, 17)
    with pytest.raises(ValueError, match="17 ranks: flagged packs their order in 64 bits, the limit is 16; take"):
        flagged.tile_schedule(table, one.grid, range(17), one.rows, one.config, "cpu")


def test_tiles_across_row_blocks_are_refused(case):
    one = case()
    with pytest.raises(ValueError, match="row blocks of 5 rows"):
        flagged.tile_schedule(one.table("row_block"), one.grid, ORDER, 5, one.config, "cpu")


def test_sizes_that_the_plan_is_not_for_are_refused(case):
    one = case()
    plan, few = one.plan("row_block"), one.config.block_m
    with pytest.raises(ValueError, match="the schedule is for"):
        flagged.matmul(one.x[:few], one.w, one.out[:few], plan, one.signals)
    for k in (RANKS * one.config.block_k // 2, RANKS * one.chunk - 8):
        with pytest.raises(ValueError, match=f"K={k} over 4 ranks"):
            flagged.matmul(one.x[:, :k], one.w[:, :k], one.out, plan, one.signals)


@pytest.mark.parametrize("ranks", [2, 9, 16])
def test_right_for_any_number_of_ranks(device, dtype, ranks):
    """The last one's ring: its order has the highest bits set, or just fits into 32 bits."""
    config = choose_for("flagged", torch.empty((0, 0), dtype=dtype, device=device), torch.empty((0, 0)))
    x, w = (torch.randint(-2, 3, (rows, ranks * config.block_k)).to(device, dtype) for rows in (40, 24))
    grid, order = Grid(-(-40 // config.block_m), 1), [rank % ranks for rank in range(ranks - 1, -1, -1)]
    plan = flagged.tile_schedule(schedule.tile_outer(grid, 1, ranks), grid, order, 40, config, device)
    flags = torch.ones(ranks - 1, dtype=torch.int32, device=device)
    out = flagged.matmul(x, w, x.new_empty(40, 24), plan, Signals(flags, 1, flags.new_zeros(1), 1000))
    assert torch.equal(out, (x.double() @ w.double().T).to(dtype))
