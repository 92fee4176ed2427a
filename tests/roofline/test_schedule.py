"""Chunks arrive once each in the order of their topology, and every tile meets every chunk once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roofline.theory import schedule
from roofline.theory.schedule import Grid, arrival_order, inner_loops, pieces


@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 17])
def test_chunks_arrive_from_neighbours_or_in_rotation(ranks):
    for i in range(ranks):
        assert arrival_order("ring", ranks, i) == tuple((i - s) % ranks for s in range(ranks))
        assert arrival_order("direct", ranks, i) == tuple((i + s) % ranks for s in range(ranks))
        order = arrival_order("both_ways", ranks, i)
        assert sorted(order) == list(range(ranks))
        distances = [min((chunk - i) % ranks, (i - chunk) % ranks) for chunk in order]
        assert distances == sorted(distances)  # one more a step, from either side


def test_pieces_cover_each_foreign_chunk_and_block_once_block_by_block():
    made = [(piece.chunk, piece.block) for piece in pieces((2, 0, 1), 2)]
    assert made == [(0, 0), (1, 0), (0, 1), (1, 1)]


def test_an_inner_loop_takes_all_chunks_that_are_here():
    loops = inner_loops([0.0, 1.0, 2.0, 2.5, 9.0], 0, 5, start_s=1.5, chunk_s=0.5)
    assert [(loop.chunk_from, loop.chunk_to, loop.start_s, loop.end_s) for loop in loops] == [
        (0, 2, 1.5, 2.5),
        (2, 4, 2.5, 3.5),
        (4, 5, 9.0, 9.5),
    ]
    assert [loop.look_s for loop in loops] == [1.5, 2.5, 3.5]


def test_row_block_gives_the_next_tile_to_the_program_that_is_free_first():
    # Program 0 is held by row tile 0 until 6; program 1 takes the rest, which is all here.
    table = schedule.row_block(Grid(4, 1), 2, [(0, 5), (0, 0), (0, 0), (0, 0)], chunk_s=1.0)
    assert [[work_tile.m for work_tile in work_tiles] for work_tiles in table] == [[0], [1, 2, 3]]


def test_spill_once_keeps_a_tile_whose_chunks_come_in_time():
    slow_link = schedule.spill_once(Grid(2, 1), 1, (0.0, 9.0), chunk_s=1.0)
    assert [tuple(work_tile) for work_tile in slow_link[0]] == [
        (0, 0, 0, 1, False, True),
        (1, 0, 0, 2, False, False),  # nothing else to do: it waits with the accumulator in registers
        (0, 0, 1, 2, True, False),
    ]
    fast_link = schedule.spill_once(Grid(2, 1), 1, (0.0, 0.5), chunk_s=1.0)
    assert fast_link == schedule.tile_outer(Grid(2, 1), 1, chunks=2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: arrival_order("star", 4, 0), "unknown topology 'star': it is one of ring"),
        (lambda: arrival_order("ring", 0, 0), "ranks=0: it must be 1 or more"),
        (lambda: arrival_order("ring", 4, 4), "rank=4 is not one of 4 ranks: choose 0 to 3"),
        (lambda: pieces(range(4), 0), "blocks=0"),
        (lambda: Grid(0, 3), "row_tiles=0"),
        (lambda: schedule.tile_outer(Grid(2, 2), 0, 4), "programs=0"),
        (lambda: schedule.spill_once(Grid(2, 2), 2, (0, 3, 1), 1.0), "not ascending"),
    ],
)
def test_bad_schedules_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


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
        (((),), r"tile \(0, 0\) is not visited"),
    ],
)
def test_tables_that_do_not_fit_are_refused(table, message):
    schedule.check(((BEGUN, ENDED), ()), Grid(1, 1), 2)
    with pytest.raises(ValueError, match=message):
        schedule.check(table, Grid(1, 1), 2)


@given(
    st.integers(1, 6), st.integers(1, 5), st.integers(1, 8), st.integers(1, 4), st.floats(0.01, 3),
    st.lists(st.floats(0, 10), min_size=1, max_size=9).map(sorted),
)  # fmt: skip
def test_every_schedule_makes_tables_that_fit(rows, columns, programs, group, chunk_s, arrival_s):
    grid, chunks = Grid(rows, columns, group), len(arrival_s)
    for table in (
        schedule.tile_outer(grid, programs, chunks),
        schedule.chunk_outer(grid, programs, chunks),
        schedule.spill_once(grid, programs, arrival_s, chunk_s),
        schedule.row_block(grid, programs, [arrival_s] * rows, chunk_s),
    ):
        schedule.check(table, grid, chunks)
        assert len(table) == programs
    assert schedule.spills(schedule.chunk_outer(grid, programs, chunks)) == rows * columns * (chunks - 1)
