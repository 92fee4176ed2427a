"""Every tile meets every chunk once. When arms end agrees with figures worked out elsewhere, and with a clock that
advances one product at a time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels import tables
from roofline.theory import schedule
from roofline.theory.arms import ARMS, SIMULATED, OverlapPlan, arms_of, plan
from roofline.theory.schedule import Grid, WorkTile
from roofline.theory.simulator import arrivals, hidden_fraction, product_s

# The ridge, T_gemm = T_comm: 8 ranks, an H100's 132 SMs, tiles of 128 x 256, B = 8192 rows, F_loc columns.
SMS, RANKS = 132, 8
SHAPES = {2560: Grid(64, 10), 3328: Grid(64, 13)}
TWO_DIGITS = 0.0051
"""The known answers are rounded to two digits, some of them half way."""

times = st.floats(0.01, 100)


def test_tiles_of_the_last_wave_are_cut_so_that_programs_end_together():
    # All is here: 14 tiles on 4 programs are 3 waves and 2 tiles, whose halves fill the fourth for half its time.
    pieces, end_s = schedule.cut_last_waves(Grid(14, 1), 4, [(0, 0)] * 14, 1.0, chunk_steps=4, most_parts=8)
    assert end_s == 7
    assert [of_program[3:] for of_program in pieces] == [
        [(12, 0, 0, 4, 0, 0)],
        [(13, 0, 0, 4, 1, 0)],
        [(12, 0, 4, 8, 0, 1)],
        [(13, 0, 4, 8, 1, 1)],
    ]


def end_s_of_pieces(pieces, arrival_s, step_s: float, chunk_steps: int) -> float:
    """When the last program ends, each of which takes one step after another. Pieces that add the sums of others come
    behind those that leave them, in each program, so that none waits for ever."""
    steps = chunk_steps * len(arrival_s[0])
    now_s = [0.0] * len(pieces)
    slots_s: dict[int, float] = {}
    for adds in (False, True):
        for program, of_program in enumerate(pieces):
            for piece in of_program:
                if (piece.peers > 0) != adds:
                    continue
                for step in range(piece.first, piece.last):
                    now_s[program] = max(now_s[program], arrival_s[piece.m][step // chunk_steps]) + step_s
                for slot in range(piece.slot, piece.slot + piece.peers):
                    now_s[program] = max(now_s[program], slots_s[slot])
                if piece.last < steps:
                    slots_s[piece.slot] = now_s[program]
    return max(now_s)


@given(
    st.tuples(st.integers(1, 9), st.integers(1, 5)), st.integers(1, 12), st.integers(2, 6), st.integers(1, 4),
    st.integers(1, 9), st.floats(0.1, 4),
)  # fmt: skip
def test_pieces_have_each_step_once_and_end_when_it_is_said(sizes, programs, chunks, chunk_steps, block_tiles, comm_s):
    grid, steps = Grid(*sizes), chunks * chunk_steps
    arrival_s = arrivals(chunks, comm_s, grid.row_tiles, min(block_tiles, grid.row_tiles))
    chunk_s = programs / (len(grid.tiles) * chunks)
    pieces, end_s = schedule.cut_last_waves(grid, programs, arrival_s, chunk_s, chunk_steps, min(8, steps))
    by_tile = {tile: [] for tile in grid.tiles}
    for piece in (piece for of_program in pieces for piece in of_program):
        by_tile[piece[:2]].append(piece)
    taken = []
    for parts in by_tile.values():
        parts.sort(key=lambda piece: piece.first)
        assert [parts[0].first, *(piece.last for piece in parts)] == [*(piece.first for piece in parts), steps]
        *others, last = parts
        assert [piece.slot for piece in others] == list(range(last.slot, last.slot + last.peers))
        taken += [piece.slot for piece in others]
    assert len({*taken}) == len(taken)
    for of_program in pieces:
        adds = [piece.peers > 0 for piece in of_program]
        assert adds == sorted(adds)
    assert end_s_of_pieces(pieces, arrival_s, chunk_s / chunk_steps, chunk_steps) == pytest.approx(end_s)
    _, whole_s = schedule.cut_last_waves(grid, programs, arrival_s, chunk_s, chunk_steps, most_parts=1)
    assert max(1, comm_s) * (1 - 1e-9) <= end_s <= whole_s * (1 + 1e-9)


@pytest.mark.parametrize(("gemm_over_comm", "hidden", "spills_per_tile"), [(1, 0.875, 5.8), (1.5, 1, 2.3), (8, 1, 0)])
def test_spill_once_hides_as_much_as_chunk_outer_with_fewer_spills(gemm_over_comm, hidden, spills_per_tile):
    grid = Grid(6, 1)  # six tiles for one program: what each of a chip's programs would do
    chunk_s = product_s(grid, 1, RANKS, gemm_over_comm)
    arrival_s = arrivals(RANKS, 1.0, grid.row_tiles)
    table = tables.spill_once(grid, 1, arrival_s[0], chunk_s)
    end_s = end_s_of(table, arrival_s, chunk_s)
    assert hidden_fraction(gemm_over_comm, 1.0, end_s) == pytest.approx(hidden)
    assert tables.spills(table) / 6 == pytest.approx(spills_per_tile, abs=0.051)


def end_s_of(table: schedule.Table, arrival_s, chunk_s: float) -> float:
    """When the last program ends, each of which takes one chunk after another."""
    last_s = 0.0
    for work_tiles in table:
        now_s = 0.0
        for work_tile in work_tiles:
            for chunk in range(work_tile.chunk_from, work_tile.chunk_to):
                now_s = max(now_s, arrival_s[work_tile.m][chunk]) + chunk_s
        last_s = max(last_s, now_s)
    return last_s


def check(table: schedule.Table, grid: Grid, chunks: int) -> None:
    """The work tiles of `table` multiply each tile of `grid` with each of `chunks` chunks, once and in order, in one
    program, and spill what is resumed later and nothing else."""
    done = dict.fromkeys(grid.tiles, 0)
    owners = {}
    for program, work_tiles in enumerate(table):
        for work_tile in work_tiles:
            tile = work_tile[:2]
            assert owners.setdefault(tile, program) == program
            assert done[tile] == work_tile.chunk_from < work_tile.chunk_to
            assert work_tile.resume == (done[tile] > 0)
            assert work_tile.spill == (work_tile.chunk_to < chunks)
            done[tile] = work_tile.chunk_to
    assert set(done.values()) == {chunks}


@given(
    st.tuples(st.integers(1, 6), st.integers(1, 4), st.integers(1, 4)), st.integers(1, 8),
    st.lists(st.floats(0, 10), min_size=1, max_size=8).map(sorted), st.floats(0.01, 3),
)  # fmt: skip
def test_tables_have_each_tile_with_each_chunk_once(sizes, programs, arrival_s, chunk_s):
    grid, chunks = Grid(*sizes), len(arrival_s)
    check(tables.spill_once(grid, programs, arrival_s, chunk_s), grid, chunks)


@pytest.mark.parametrize(
    ("arm", "f_loc", "blocks", "hidden"),
    [
        ("chunk_outer", 2560, 1, 0.875),
        ("row_block", 2560, 16, 0.84),
        ("row_block", 3328, 8, 0.93),
        ("serial", 2560, 1, 0.0),
        ("chunk_launches", 2560, 1, 0.875),
        # A block of 80 or 104 tiles does not fill 132 SMs. The first launch starts at 1/8. Blocks of 104 tiles then
        # take 1/7 each; those of 80 tiles 1/5, so that they queue: 1, 1, 2, 3 and 1 blocks in 1, 1, 2, 2 and 1 waves.
        ("row_block_launches", 2560, 8, 2 - (1 / 8 + 7 / 5)),
        ("row_block_launches", 3328, 8, 2 - (1 / 8 + 8 / 7)),
    ],
)
def test_own_ideals_at_the_ridge(arm, f_loc, blocks, hidden):
    end_s = OverlapPlan(arm, SHAPES[f_loc], SMS, RANKS, blocks).end_s(t_gemm_s=1.0, t_comm_s=1.0)
    assert hidden_fraction(1.0, 1.0, end_s) == pytest.approx(hidden, abs=TWO_DIGITS)


@given(
    st.sampled_from(SIMULATED), st.integers(2, 9), st.integers(1, 4), st.integers(1, 4), st.integers(1, 9), times, times
)
def test_no_arm_beats_the_longer_of_the_two_or_is_slower_than_serial(
    arm, chunks, blocks, columns, programs, gemm, comm
):
    end_s = OverlapPlan(arm, Grid(2 * blocks * chunks, columns), programs, chunks, blocks).end_s(gemm, comm)
    assert end_s >= max(gemm, comm) * (1 - 1e-9)
    tiles = 2 * blocks * chunks * columns
    if arm not in ("overlapped", "chained_launches"):  # whose link may be busy from the begin to the end
        # The last that arrives is still to be computed, or what is sent was computed before.
        assert end_s >= (comm + gemm / tiles / chunks) * (1 - 1e-9)
    if arm != "row_block_launches":  # its blocks end with waves that are not full
        assert end_s <= (gemm + comm) * (1 + 1e-9)


@pytest.mark.parametrize("t_comm_s", [0.3, 2.5])
@pytest.mark.parametrize("arm", arms_of("all_gather_matmul", gpu=True))
def test_planned_arm_has_the_row_blocks_that_end_first(arm, t_comm_s):
    counts = (16, 8, 4, 2, 1) if ARMS[arm].by_block else (1,)
    ends_s = {count: OverlapPlan(arm, Grid(16, 12), 132, 8, count).end_s(1.0, t_comm_s) for count in counts}
    planned = plan(arm, 2048, 3000, 8, 132, 1.0, t_comm_s)
    assert (planned.grid, planned.row_blocks) == (Grid(16, 12), min(ends_s, key=ends_s.get))


@pytest.mark.parametrize("arm", [name for name in arms_of("all_gather_matmul", gpu=True) if ARMS[name].table])
@pytest.mark.parametrize("t_comm_s", [0.011, 0.0953, 0.1, 0.1014, 0.31])
def test_ideal_of_a_table_is_interpolated_well(arm, t_comm_s):
    cut = OverlapPlan(arm, Grid(16, 5), 12, 4, 4 if ARMS[arm].by_block else 1)
    assert cut.ideal_s(0.1, t_comm_s) == pytest.approx(cut.end_s(0.1, t_comm_s), rel=2e-3)


@given(st.integers(1, 20), st.integers(1, 12), st.integers(1, 40), st.integers(2, 9), times, times)
def test_chunk_outer_ends_to_the_bit_when_its_tiles_do(rows, columns, programs, ranks, gemm, comm):
    grid = Grid(rows, columns)
    table = []
    for tiles in schedule.deal(grid, programs):
        table.append([WorkTile(m, n, chunk, chunk + 1) for chunk in range(ranks) for m, n in tiles])
    end_s = end_s_of(table, arrivals(ranks, comm, rows), product_s(grid, programs, ranks, gemm))
    assert OverlapPlan("chunk_outer", grid, programs, ranks).end_s(gemm, comm) == end_s


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


def test_no_two_arms_look_alike():
    for looks in zip(*(arm.look for arm in ARMS.values()), strict=True):
        assert len({*looks}) == len(ARMS)
