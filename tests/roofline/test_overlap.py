"""The simulator against figures worked out elsewhere, and against a clock that advances one product at a time."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roofline.theory import schedule
from roofline.theory.arms import OverlapPlan, of_operation, plan
from roofline.theory.schedule import Grid
from roofline.theory.simulator import arrivals, hidden_fraction, product_s, simulate

ARMS = of_operation("all_gather_matmul", gpu=True)

# The ridge, T_gemm = T_comm: 8 ranks, an H100's 132 SMs, tiles of 128 x 256, B = 8192 rows, F_loc columns.
SMS, RANKS = 132, 8
SHAPES = {2560: Grid(64, 10), 3328: Grid(64, 13)}
TWO_DIGITS = 0.0051
"""The known answers are rounded to two digits, some of them half way."""


times = st.floats(0.01, 100)


@pytest.mark.parametrize(
    ("arm", "f_loc", "blocks", "hidden"),
    [
        ("chunk_outer", 2560, 1, 0.875),
        ("chunk_outer", 3328, 1, 0.875),
        ("row_block", 2560, 8, 0.83),
        ("row_block", 2560, 16, 0.84),
        ("row_block", 3328, 8, 0.93),
        ("row_block", 3328, 16, 0.91),
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


@pytest.mark.parametrize(
    ("gemm_over_comm", "hidden", "spills_per_tile"),
    [(0.5, 0.875, 5.8), (1, 0.875, 5.8), (1.25, 1, 4.0), (1.5, 1, 2.3), (2, 1, 1.3), (3, 1, 0.83), (8, 1, 0)],
)
def test_spill_once_hides_as_much_as_chunk_outer_with_fewer_spills(gemm_over_comm, hidden, spills_per_tile):
    grid = Grid(6, 1)  # six tiles for one program: what each of a chip's programs would do
    chunk_s = product_s(grid, 1, RANKS, gemm_over_comm)
    arrival_s = arrivals(RANKS, 1.0, grid.row_tiles)
    table = schedule.spill_once(grid, 1, arrival_s[0], chunk_s)
    end_s = simulate(table, arrival_s, chunk_s).end_s
    assert hidden_fraction(gemm_over_comm, 1.0, end_s) == pytest.approx(hidden)
    assert sum(work_tile.spill for work_tile in table[0]) / 6 == pytest.approx(spills_per_tile, abs=0.051)


@st.composite
def simulated(draw):
    """Draw a table made from expected arrivals, and other arrivals to simulate it on."""
    grid = Grid(draw(st.integers(1, 4)), draw(st.integers(1, 3)))
    programs, chunks = draw(st.integers(1, 5)), draw(st.integers(1, 7))
    rows = st.lists(st.floats(0, 10), min_size=chunks, max_size=chunks).map(sorted)
    expected_s, chunk_s = draw(rows), draw(st.floats(0.01, 3))
    table = draw(
        st.sampled_from(
            [
                schedule.tile_outer(grid, programs, chunks),
                schedule.chunk_outer(grid, programs, chunks),
                schedule.spill_once(grid, programs, expected_s, chunk_s),
                schedule.row_block(grid, programs, [expected_s] * grid.row_tiles, chunk_s),
            ]
        )
    )
    arrival_s = draw(st.lists(rows, min_size=grid.row_tiles, max_size=grid.row_tiles))
    return table, arrival_s, chunk_s


@given(simulated())
def test_no_chunk_is_used_before_it_is_here_and_no_program_does_two_things_at_once(made):
    table, arrival_s, chunk_s = made
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


@given(simulated())
def test_without_losses_a_program_is_as_fast_as_one_that_takes_chunk_after_chunk(made):
    table, arrival_s, chunk_s = made
    ends_s = []
    for work_tiles in table:
        now = 0.0
        for work_tile in work_tiles:
            for chunk in range(work_tile.chunk_from, work_tile.chunk_to):
                now = max(now, arrival_s[work_tile.m][chunk]) + chunk_s
        ends_s.append(now)
    assert simulate(table, arrival_s, chunk_s).end_s == pytest.approx(max(ends_s))


@pytest.mark.parametrize(
    ("blocks", "first_row", "last_row"), [(1, (0, 3, 6), (0, 3, 6)), (2, (0, 1.5, 3), (0, 4.5, 6))]
)
def test_pieces_arrive_at_equal_intervals(blocks, first_row, last_row):
    assert arrivals(3, 6.0, row_tiles=4, blocks=blocks) == (first_row, first_row, last_row, last_row)


@given(st.sampled_from(ARMS), st.integers(2, 9), st.integers(1, 4), st.integers(1, 4), st.integers(1, 9), times, times)
def test_no_arm_beats_the_longer_of_the_two_or_is_slower_than_serial(
    arm, chunks, blocks, columns, programs, gemm, comm
):
    ideal = OverlapPlan(arm, Grid(2 * blocks, columns), programs, chunks, blocks).simulate(gemm, comm)
    assert ideal.end_s >= max(gemm, comm) * (1 - 1e-9)
    if arm != "row_block_launches":  # its blocks end with waves that are not full
        assert ideal.end_s <= (gemm + comm) * (1 + 1e-9)
    assert ideal.end_s == max(span.end_s for span in ideal.spans)


@given(st.integers(2, 16), times, times)
def test_a_reduce_scatter_takes_as_long_as_the_all_gather_that_runs_backwards(ranks, gemm, comm):
    """Forwards, each part is sent when it is computed and the one before is gone."""
    sent_s = computed_s = 0.0
    for _ in range(ranks - 1):
        computed_s += gemm / ranks
        sent_s = max(sent_s, computed_s) + comm / (ranks - 1)
    backwards = OverlapPlan("block_launches", Grid(1, 1), 1, ranks).simulate(gemm, comm)
    assert backwards.end_s == pytest.approx(max(sent_s, gemm))
    assert backwards.end_s == OverlapPlan("chunk_launches", Grid(1, 1), 1, ranks).simulate(gemm, comm).end_s
    ends_s = [span.end_s for span in backwards.spans]
    assert ends_s == sorted(ends_s)
    assert sum(span.end_s - span.start_s for span in backwards.spans) == pytest.approx(gemm)
    assert backwards.spans[-1].end_s <= backwards.end_s


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
    assert max(gemm, comm) * (1 - 1e-9) <= of_chain.end_s <= of_layer.end_s * (1 + 1e-9)
    for timeline in (of_layer, of_chain):
        assert sum(span.end_s - span.start_s for span in timeline.spans) == pytest.approx(gemm)
        assert all(span.end_s <= then.start_s * (1 + 1e-9) for span, then in pairwise(timeline.spans))


def test_hidden_is_all_or_nothing_at_the_ends():
    assert hidden_fraction(3.0, 2.0, 5.0) == 0.0
    assert hidden_fraction(3.0, 2.0, 3.0) == 1.0
    assert hidden_fraction(2.0, 3.0, 6.0) == -0.5  # slower than serial


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: OverlapPlan("magic", Grid(1, 1), 1, 2, 1).simulate(1.0, 1.0), "unknown arm 'magic': it is one of"),
        (lambda: OverlapPlan("row_block", Grid(4, 1), 1, 2, 3).simulate(1.0, 1.0), "blocks=3 does not divide"),
        (lambda: OverlapPlan("serial", Grid(4, 1), 0, 2, 1).simulate(1.0, 1.0), "programs=0"),
        (lambda: OverlapPlan("serial", Grid(4, 1), 1, 2, 1).simulate(-1.0, 1.0), "t_gemm_s=-1"),
        (lambda: arrivals(0, 1.0, 4), "chunks=0"),
        (lambda: arrivals(2, -0.5, 4), "t_comm_s=-0.5: it must be 0 or more"),
        (lambda: simulate((), (), -1.0), "chunk_s=-1"),
        (lambda: hidden_fraction(1.0, 0.0, 1.0), "t_comm_s=0: it must be above 0"),
    ],
)
def test_bad_overlaps_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


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
