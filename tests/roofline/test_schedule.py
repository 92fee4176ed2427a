"""Every chunk reaches every rank once, over links that carry one at a time, and every tile meets every chunk once."""

import math
from collections import Counter, defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roofline.theory import schedule
from roofline.theory.schedule import TOPOLOGIES, Grid, arrival_order, inner_loops, pieces, sends

RANKS = range(1, 18)
MAKERS = ("tile_outer", "chunk_outer", "row_block", "spill_once")

unhurried = settings(deadline=None)  # a busy machine can stall any example


@st.composite
def tables(draw):
    """A table with the tiles and the number of chunks it was made for."""
    maker = draw(st.sampled_from(MAKERS))
    grid = Grid(draw(st.integers(1, 6)), draw(st.integers(1, 5)))
    programs = draw(st.integers(1, 8))
    arrival_s = sorted(draw(st.lists(st.floats(0, 10), min_size=1, max_size=9)))
    chunk_s = draw(st.floats(0.01, 3))
    if maker == "row_block":
        table = schedule.row_block(grid, programs, [arrival_s] * grid.row_tiles, chunk_s)
    elif maker == "spill_once":
        table = schedule.spill_once(grid, programs, arrival_s, chunk_s)
    else:
        table = getattr(schedule, maker)(grid, programs, len(arrival_s))
    assert len(table) == programs
    return table, grid, len(arrival_s)


@unhurried
@given(tables())
def test_each_tile_meets_each_chunk_once_in_order_and_in_one_program(made):
    table, grid, chunks = made
    met, owners = defaultdict(list), defaultdict(set)
    for program, work_tiles in enumerate(table):
        for work_tile in work_tiles:
            met[work_tile.m, work_tile.n] += range(work_tile.chunk_from, work_tile.chunk_to)
            owners[work_tile.m, work_tile.n].add(program)
    assert met == {(m, n): list(range(chunks)) for m in range(grid.row_tiles) for n in range(grid.column_tiles)}
    assert all(len(programs) == 1 for programs in owners.values())


@unhurried
@given(tables())
def test_what_is_spilled_is_resumed_and_nothing_else_is(made):
    table, _, chunks = made
    for work_tiles in table:
        spilled = {}
        for work_tile in work_tiles:
            assert work_tile.chunk_from < work_tile.chunk_to
            assert work_tile.resume == (work_tile.chunk_from > 0)
            assert work_tile.spill == (work_tile.chunk_to < chunks)
            assert spilled.pop((work_tile.m, work_tile.n), 0) == work_tile.chunk_from
            if work_tile.spill:
                spilled[work_tile.m, work_tile.n] = work_tile.chunk_to
        assert not spilled


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("ranks", RANKS)
def test_links_carry_one_chunk_a_step_and_ranks_send_what_they_have(topology, ranks):
    by_step = defaultdict(list)
    for send in sends(topology, ranks):
        by_step[send.step].append(send)
    here = {rank: {rank} for rank in range(ranks)}
    for step in sorted(by_step):
        links = Counter((send.source, send.destination) for send in by_step[step])
        assert max(links.values()) == 1
        assert all(send.chunk in here[send.source] for send in by_step[step])
        for send in by_step[step]:
            assert send.chunk not in here[send.destination]
            here[send.destination].add(send.chunk)
    assert all(chunks == set(range(ranks)) for chunks in here.values())


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("ranks", RANKS)
def test_the_arrival_order_is_the_own_chunk_and_then_what_the_sends_bring(topology, ranks):
    for rank in range(ranks):
        order = arrival_order(topology, ranks, rank)
        assert order[0] == rank
        steps = {send.chunk: send.step for send in sends(topology, ranks) if send.destination == rank}
        assert sorted(order[1:]) == sorted(steps)
        assert [steps[chunk] for chunk in order[1:]] == sorted(steps.values())


@pytest.mark.parametrize("ranks", RANKS)
def test_rings_use_links_between_neighbours_for_the_fewest_steps(ranks):
    one_way, two_ways, direct = (sends(topology, ranks) for topology in TOPOLOGIES)
    assert all(send.destination == (send.source + 1) % ranks for send in one_way)
    assert all((send.destination - send.source) % ranks in (1, ranks - 1) for send in two_ways)
    assert all(send.source == send.chunk for send in direct)
    steps = [max((send.step for send in made), default=0) for made in (one_way, two_ways, direct)]
    assert steps == [ranks - 1, math.ceil((ranks - 1) / 2), ranks - 1]


@pytest.mark.parametrize("ranks", RANKS)
def test_the_ring_uses_the_chunks_of_the_exercise_and_the_fabric_rotates(ranks):
    for i in range(ranks):
        assert arrival_order("ring", ranks, i) == tuple((i - s) % ranks for s in range(ranks))
        assert arrival_order("direct", ranks, i) == tuple((i + s) % ranks for s in range(ranks))


def test_every_rank_receives_one_chunk_a_step_over_the_fabric():
    received = Counter((send.step, send.destination) for send in sends("direct", 8))
    assert set(received.values()) == {1}


@unhurried
@given(st.permutations(range(6)), st.integers(1, 9), st.sampled_from(schedule.MAJORS))
def test_pieces_cover_each_foreign_chunk_and_block_once_in_the_order_asked(order, blocks, major):
    made = [(piece.chunk, piece.block) for piece in pieces(order, blocks, major)]
    assert sorted(made) == sorted((chunk, block) for chunk in order[1:] for block in range(blocks))
    keys = [(order.index(chunk), block) if major == "chunk" else (block, order.index(chunk)) for chunk, block in made]
    assert keys == sorted(keys)


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
    ("call", "said"),
    [
        (lambda: sends("star", 4), "unknown topology 'star': it is one of ring"),
        (lambda: sends("ring", 0), "ranks=0: it must be 1 or more"),
        (lambda: arrival_order("ring", 4, 4), "rank=4 is not one of 4 ranks: choose 0 to 3"),
        (lambda: arrival_order("ring", 4, -1), "rank=-1"),
        (lambda: pieces(range(4), 2, "row"), "unknown major 'row'"),
        (lambda: pieces((), 2, "chunk"), "chunks=0"),
        (lambda: pieces(range(4), 0, "chunk"), "blocks=0"),
        (lambda: Grid(0, 3), "row_tiles=0"),
        (lambda: Grid(2, 3, group=0), "group=0"),
        (lambda: Grid(2, 2).waves(0), "programs=0"),
        (lambda: schedule.tile_outer(Grid(2, 2), 0, 4), "programs=0"),
        (lambda: schedule.chunk_outer(Grid(2, 2), 2, 0), "chunks=0"),
        (lambda: schedule.row_block(Grid(2, 2), 2, [(0, 1)], 1.0), "1 rows for 2 row tiles"),
        (lambda: schedule.spill_once(Grid(2, 2), 2, (0, 3, 1), 1.0), "not ascending"),
    ],
)
def test_bad_schedules_are_named(call, said):
    with pytest.raises(ValueError, match=said):
        call()


WHOLE = schedule.WorkTile(0, 0, 0, 2, False, False)
BEGUN, ENDED = WHOLE._replace(chunk_to=1, spill=True), WHOLE._replace(chunk_from=1, resume=True)


@pytest.mark.parametrize(
    ("table", "said"),
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
def test_tables_that_do_not_fit_are_refused(table, said):
    schedule.check(((BEGUN, ENDED), ()), Grid(1, 1), 2)
    with pytest.raises(ValueError, match=said):
        schedule.check(table, Grid(1, 1), 2)


@given(
    st.integers(1, 6), st.integers(1, 5), st.integers(1, 4), st.integers(1, 5), st.integers(1, 4), st.floats(0.01, 2)
)
@settings(max_examples=60, deadline=None)
def test_every_schedule_makes_tables_that_fit(rows, columns, programs, chunks, group, chunk_s):
    grid, arrival_s = Grid(rows, columns, group), [j / chunks for j in range(chunks)]
    for table in (
        schedule.tile_outer(grid, programs, chunks),
        schedule.chunk_outer(grid, programs, chunks),
        schedule.spill_once(grid, programs, arrival_s, chunk_s),
        schedule.row_block(grid, programs, [arrival_s] * rows, chunk_s),
    ):
        schedule.check(table, grid, chunks)
    assert schedule.spills(schedule.chunk_outer(grid, programs, chunks)) == rows * columns * (chunks - 1)
