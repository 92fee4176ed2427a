"""The kernels that wait: what they refuse, and what their launches hold. `kernels.machine` runs them, by every table,
with flags that are late, stale or lost; on a GPU the tests of the arms do."""

from itertools import pairwise

import pytest
import torch

from kernels import flagged, hopper, pieces, tables
from kernels.contract import Signals
from kernels.flagged import Config
from roofline.theory import schedule
from roofline.theory.schedule import Grid
from roofline.theory.simulator import arrivals

CONFIG, GRID, RANKS = Config(128, 32, 64, 8, 2, subtile=2), Grid(4, 2), 4
SPILLING = tables.spill_once(GRID, 3, range(RANKS), 0.01)
SIGNALS = Signals(torch.ones(6, dtype=torch.int32), 1, torch.zeros(1, dtype=torch.int32), 1)
X, W, OUT = (torch.zeros(shape, dtype=torch.float16) for shape in ((507, 1024), (56, 1024), (507, 56)))


@pytest.fixture(autouse=True)
def any_machine(monkeypatch):
    monkeypatch.setattr(hopper, "require_hopper", lambda x, name: None)


def pieces_of(ranks: int, most_parts: int):
    arrival_s = arrivals(ranks, 0.1, GRID.row_tiles, 2)
    pieces, _ = schedule.cut_last_waves(GRID, 3, arrival_s, 1.0, max(1, 1024 // ranks // CONFIG.block_k), most_parts)
    return pieces


def plan(table=None, order=range(RANKS), block_rows=256) -> tables.TileSchedule:
    table = table or pieces_of(len(order), most_parts=1)
    return tables.tile_schedule(table, GRID, order, block_rows, CONFIG, "cpu")


def test_spilled_bytes_are_those_of_the_table():
    assert plan().spilled_bytes == 0
    spilling = plan(SPILLING)
    held = 3  # tiles, one a program, that stay in registers from chunk to chunk
    assert spilling.spilled_bytes == 2 * (RANKS - 1) * (len(GRID.tiles) - held) * 128 * 32 * 4
    assert spilling.spilled.shape == (len(GRID.tiles), 128, 32)
    cut = plan(pieces_of(RANKS, most_parts=3))  # 8 tiles on 3 programs: 2 tiles in 3 parts each, of which 2 are left
    assert (cut.slots, cut.spilled_bytes) == (4, 2 * 4 * 128 * 32 * 4)


@pytest.mark.parametrize("order", [(2, 0, 3, 1), tuple(range(16)), tuple(range(15, -1, -1))])
def test_a_launch_holds_its_table_and_the_order_of_arrival(order):
    made = plan(order=order)
    args = flagged.prepare(X, W, OUT, made, SIGNALS).args
    assert -(2**63) <= args["order"] < 2**63
    assert tuple(args["order"] >> 4 * position & 15 for position in range(len(order))) == order
    assert (args["row_tiles"], args["CHUNK"]) == (2, 1024 // len(order))
    rows, ends = args["work_tiles_ptr"].tolist(), args["first_ptr"].tolist()
    programs = [rows[start:end] for start, end in pairwise(ends)]
    assert programs == [[list(piece) for piece in program] for program in made.table]


@pytest.mark.parametrize(
    ("refused", "message"),
    [
        (lambda: plan(order=range(17)), "17 ranks: flagged packs their order in 64 bits, the limit is 16; take fewer"),
        (lambda: plan(block_rows=5), "row blocks of 5 rows: flagged needs a multiple of its tile's 128; take fewer"),
        (lambda: flagged.require(X[:128], W, OUT[:128], plan()), "out is 1 x 2 tiles, the schedule is for"),
        (lambda: flagged.require(X[:, :64], W[:, :64], OUT, plan()), "K=64 over 4 ranks: flagged needs chunks"),
        (
            lambda: flagged.require(X, W, OUT, plan(SPILLING)),
            "the schedule is not of pieces, and flagged keeps sums",
        ),
        (
            lambda: pieces.require(X, W, OUT, pieces.Pieces.of_ranks(range(3), 1, CONFIG, "cpu")),
            "507 rows in 3 pieces: each must be a multiple of the tile's 128 rows; take fewer",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_the_way_out(refused, message):
    with pytest.raises(ValueError, match=message):
        refused()


def test_pieces_are_numbered_in_the_order_of_computing():
    made = pieces.Pieces.of_ranks((2, 0, 1), 2, CONFIG, "cpu")
    assert made.order.tolist() == [4, 5, 0, 1, 2, 3]
    assert (made.count, made.tiles(torch.empty(6 * 256, 56))) == (4, 2 * 2)
