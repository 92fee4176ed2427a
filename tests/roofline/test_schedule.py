"""Chunks arrive once each in the order of their topology, every tile meets every chunk once, and the simulator of that
agrees with figures worked out elsewhere, and with a clock that advances one product at a time."""

from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roofline.theory import schedule
from roofline.theory.arms import OverlapPlan, of_operation, plan
from roofline.theory.schedule import Grid, arrival_order, pieces
from roofline.theory.simulator import arrivals, hidden_fraction, product_s, simulate

# The ridge, T_gemm = T_comm: 8 ranks, an H100's 132 SMs, tiles of 128 x 256, B = 8192 rows, F_loc columns.
SMS, RANKS = 132, 8
SHAPES = {2560: Grid(64, 10), 3328: Grid(64, 13)}
TWO_DIGITS = 0.0051
"""The known answers are rounded to two digits, some of them half way."""

times = st.floats(0.01, 100)


@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 17])
def test_chunks_arrive_from_neighbours_or_in_rotation(ranks):
    for i in range(ranks):
        assert arrival_order("ring", ranks, i) == tuple((i - s) % ranks for s in range(ranks))
        assert arrival_order("direct", ranks, i) == tuple((i + s) % ranks for s in range(ranks))


def test_pieces_cover_each_foreign_chunk_and_block_once_block_by_block():
    assert pieces((2, 0, 1), 2) == ((0, 0), (1, 0), (0, 1), (1, 1))


def test_row_block_gives_the_next_tile_to_the_program_that_is_free_first():
    # Program 0 is held by row tile 0 until 6; program 1 takes the rest, which is all here.
    table = schedule.row_block(Grid(4, 1), 2, [(0, 5), (0, 0), (0, 0), (0, 0)], chunk_s=1.0)
    assert [[work_tile.m for work_tile in work_tiles] for work_tiles in table] == [[0], [1, 2, 3]]


@pytest.mark.parametrize(("gemm_over_comm", "hidden", "spills_per_tile"), [(1, 0.875, 5.8), (1.5, 1, 2.3), (8, 1, 0)])
def test_spill_once_hides_as_much_as_chunk_outer_with_fewer_spills(gemm_over_comm, hidden, spills_per_tile):
    grid = Grid(6, 1)  # six tiles for one program: what each of a chip's programs would do
    chunk_s = product_s(grid, 1, RANKS, gemm_over_comm)
    arrival_s = arrivals(RANKS, 1.0, grid.row_tiles)
    table = schedule.spill_once(grid, 1, arrival_s[0], chunk_s)
    end_s = simulate(table, arrival_s, chunk_s).end_s
    assert hidden_fraction(gemm_over_comm, 1.0, end_s) == pytest.approx(hidden)
    assert schedule.spills(table) / 6 == pytest.approx(spills_per_tile, abs=0.051)
    assert schedule.spills(schedule.chunk_outer(grid, 1, RANKS)) == 6 * (RANKS - 1)


WHOLE = schedule.WorkTile(0, 0, 0, 2, False, False)
BEGUN, ENDED = WHOLE._replace(chunk_to=1, spill=True), WHOLE._replace(chunk_from=1, resume=True)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (((WHOLE._replace(chunk_to=3),),), "does not follow chunk 0 of 2"),
        (((WHOLE._replace(spill=True),),), "does not follow"),
        (((WHOLE._replace(resume=True),),), "does not follow"),
        (((BEGUN, BEGUN),), "does not follow chunk 1 of 2"),
        (((BEGUN,), (ENDED,)), "program 1"),
        (((BEGUN,),), "not visited with all 2 chunks"),
        (((WHOLE, WHOLE._replace(n=1)),), "is none of"),
    ],
)
def test_tables_that_do_not_fit_are_refused(table, message):
    schedule.check(((BEGUN, ENDED), ()), Grid(1, 1), 2)
    with pytest.raises(ValueError, match=message):
        schedule.check(table, Grid(1, 1), 2)


@st.composite
def tables(draw):
    """Draw a grid, a table for it by expected arrivals, other arrivals to simulate it on, and a chunk's time."""
    grid = Grid(*(draw(st.integers(1, most)) for most in (6, 4, 4)))
    chunks, programs, chunk_s = draw(st.integers(1, 8)), draw(st.integers(1, 8)), draw(st.floats(0.01, 3))
    row = st.lists(st.floats(0, 10), min_size=chunks, max_size=chunks).map(sorted)
    name, expected_s = draw(st.sampled_from(("tile_outer", "chunk_outer", "spill_once", "row_block"))), draw(row)
    by = {"row_block": ([expected_s] * grid.row_tiles, chunk_s), "spill_once": (expected_s, chunk_s)}
    table = getattr(schedule, name)(grid, programs, *by.get(name, (chunks,)))
    return grid, table, draw(st.lists(row, min_size=grid.row_tiles, max_size=grid.row_tiles)), chunk_s


@given(tables())
def test_every_table_fits_no_chunk_is_used_before_it_is_here_and_no_program_does_two_things_at_once(made):
    grid, table, arrival_s, chunk_s = made
    schedule.check(table, grid, len(arrival_s[0]))
    ran = simulate(table, arrival_s, chunk_s)
    free_s = [0.0] * len(table)
    for span in ran.spans:
        assert span.start_s >= max(arrival_s[span.m][span.chunk_from : span.chunk_to])
        assert span.start_s >= span.look_s >= free_s[span.program]
        assert span.end_s - span.start_s == pytest.approx(chunk_s * (span.chunk_to - span.chunk_from))
        free_s[span.program] = span.end_s
    products = sorted((s.program, s.m, s.n, c) for s in ran.spans for c in range(s.chunk_from, s.chunk_to))
    assert products == sorted((p, v.m, v.n, c) for p, vs in enumerate(table) for v in vs for c in range(*v[2:4]))
    assert ran.end_s == max(free_s)
    # Without losses a program is as fast as one that takes chunk after chunk.
    ends_s = [0.0] * len(table)
    for program, m, chunk in ((p, v.m, c) for p, vs in enumerate(table) for v in vs for c in range(*v[2:4])):
        ends_s[program] = max(ends_s[program], arrival_s[m][chunk]) + chunk_s
    assert ran.end_s == pytest.approx(max(ends_s))


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
    ideal = OverlapPlan(arm, SHAPES[f_loc], SMS, RANKS, blocks).simulate(t_gemm_s=1.0, t_comm_s=1.0)
    assert hidden_fraction(1.0, 1.0, ideal.end_s) == pytest.approx(hidden, abs=TWO_DIGITS)
    if arm.endswith("launches"):  # each takes some, and all of them are taken
        taken = []
        for launch in ideal.spans:
            here = product(range(launch.chunk_from, launch.chunk_to), range(launch.block_to))
            new = [pair for pair in here if pair not in taken]
            assert new
            taken += new
        assert sorted(taken) == list(product(range(RANKS), range(blocks)))


EVERY_ARM = [arm for op in ("all_gather_matmul", "matmul_reduce_scatter", "ffn", "weight_prefetch")
             for arm in of_operation(op, gpu=True)]  # fmt: skip


@given(
    st.sampled_from(EVERY_ARM), st.integers(2, 9), st.integers(1, 4), st.integers(1, 4), st.integers(1, 9), times, times
)
def test_no_arm_beats_the_longer_of_the_two_or_is_slower_than_serial(
    arm, chunks, blocks, columns, programs, gemm, comm
):
    ideal = OverlapPlan(arm, Grid(2 * blocks * chunks, columns), programs, chunks, blocks).simulate(gemm, comm)
    assert ideal.end_s >= max(gemm, comm) * (1 - 1e-9)
    if arm != "row_block_launches":  # its blocks end with waves that are not full
        assert ideal.end_s <= (gemm + comm) * (1 + 1e-9)


@given(st.integers(2, 16), times, times)
def test_a_layer_takes_the_sum_of_its_halves_and_chained_hides_what_lies_between(ranks, gemm, comm):
    layer, chained, half = (
        OverlapPlan(f"{arm}_launches", Grid(1, 1), 1, ranks) for arm in ("layer", "chained", "block")
    )
    of_layer, of_chain = (plan.simulate(gemm, comm) for plan in (layer, chained))
    assert of_layer.end_s == pytest.approx(2 * half.simulate(gemm / 2, comm / 2).end_s)
    # Forwards: all rows, then each part when it is computed and the one before is gone.
    piece_s, now_s, sent_s = comm / (ranks - 1) / 2, gemm / ranks / 2, comm / 2
    for rank in range(1, ranks):
        now_s = max(now_s, rank * piece_s) + gemm / ranks
        sent_s = max(now_s, sent_s) + piece_s
    assert of_chain.end_s == pytest.approx(max(now_s + gemm / ranks / 2, sent_s))
    assert of_chain.end_s <= of_layer.end_s * (1 + 1e-9)
    for timeline in (of_layer, of_chain):
        assert sum(span.end_s - span.start_s for span in timeline.spans) == pytest.approx(gemm)
        assert all(span.end_s <= then.start_s * (1 + 1e-9) for span, then in pairwise(timeline.spans))


@pytest.mark.parametrize("t_comm_s", [0.3, 2.5])
@pytest.mark.parametrize("arm", ["chunk_outer", "row_block", "row_block_launches", "chunk_launches"])
def test_planned_arm_is_what_the_simulator_says_of_the_whole_grid(arm, t_comm_s):
    planned = plan(arm, 2048, 3000, 8, 132, 1.0, t_comm_s)
    cuts = (16, 8, 4, 2, 1) if arm.startswith("row_block") else (1,)
    ends = [OverlapPlan(arm, Grid(16, 12), 132, 8, b).simulate(1.0, t_comm_s).end_s for b in cuts]
    assert planned.predicted_s(1.0, t_comm_s) == pytest.approx(min(ends))


def test_planned_arm_of_many_tiles_is_simulated_on_fewer():
    many = plan("row_block", 8192, 53248, 8, 132, 1.0, 1.0)
    whole = OverlapPlan("row_block", Grid(64, 208), 132, 8, 16).simulate(1.0, 1.0).end_s
    assert many.predicted_s(1.0, 1.0) == pytest.approx(whole, rel=0.01)


@pytest.mark.parametrize("arm", ["chunk_outer", "row_block"])
@pytest.mark.parametrize("t_comm_s", [0.011, 0.0953, 0.1, 0.1014, 0.31])
def test_ideal_of_a_table_is_interpolated_well(arm, t_comm_s):
    cut = OverlapPlan(arm, Grid(16, 5), 12, 4, 4 if arm == "row_block" else 1)
    assert cut.ideal_s(0.1, t_comm_s) == pytest.approx(cut.simulate(0.1, t_comm_s).end_s, rel=2e-3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: arrival_order("star", 4, 0), "unknown topology 'star': it is one of ring"),
        (lambda: arrival_order("ring", 4, 4), "rank=4 is not one of 4 ranks: choose 0 to 3"),
        (lambda: Grid(0, 3), "row_tiles=0: it must be 1 or more"),
        (lambda: schedule.spill_once(Grid(2, 2), 2, (0, 3, 1), 1.0), "not ascending"),
        (lambda: OverlapPlan("magic", Grid(1, 1), 1, 2, 1).simulate(1.0, 1.0), "unknown arm 'magic': it is one of"),
        (lambda: OverlapPlan("row_block", Grid(4, 1), 1, 2, 3).simulate(1.0, 1.0), "blocks=3 does not divide"),
        (lambda: OverlapPlan("serial", Grid(4, 1), 1, 2, 1).simulate(-1.0, 1.0), "t_gemm_s=-1: it must be 0 or more"),
        (lambda: hidden_fraction(1.0, 0.0, 1.0), "t_comm_s=0: it must be above 0"),
    ],
)
def test_bad_schedules_and_overlaps_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
