"""What matmul and link take from one another: by known answers, and on a GPU's committed gathers beside what they
measured."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roofline.analysis import overlap
from roofline.analysis.overlap import ArmSamples
from roofline.store import journal
from roofline.theory import contention
from roofline.theory.arms import OverlapPlan
from roofline.theory.contention import EXPECTED, Measured, Slowdowns, slowdowns
from roofline.theory.schedule import Grid

REFERENCE = Path(__file__).parents[2] / "results" / "reference"
H200, H100 = "nvidia-h200-2026-11-26-2", "nvidia-h100-80gb-hbm3-2026-11-26-2"
ALONE = Slowdowns(1.0, 1.0)


def measured(own_s, link_s, slower=ALONE, **about):
    return Measured(own_s, link_s, slower, (own_s, link_s), **about)


@pytest.mark.parametrize(
    ("alone_s", "beside_s", "expected"),
    [
        ((4.0, 1.0), (4.5, 1.5), (1.5, 1.5)),  # the matmul did 1 while the link moved, and 3 after it
        ((1.0, 4.0), (2.0, 4.5), (2.0, 4 / 3)),
        ((4.0, 1.0), (3.9, 1.0), (1.0, 1.0)),  # noise
    ],
)
def test_slowdown_is_that_of_the_time_in_which_both_ran(alone_s, beside_s, expected):
    assert slowdowns(alone_s, beside_s) == pytest.approx(expected, rel=0.12)


times = st.floats(0.1, 10)


@given(times, times, st.sampled_from([1, 2, 4]), st.sampled_from([2, 3, 8]))
def test_without_contention_it_is_the_own_ideal(gemm_s, comm_s, blocks, ranks):
    for arm in ("row_block", "row_block_launches"):
        plan = OverlapPlan(arm, Grid(8, 3), 5, ranks, blocks)
        end_s = EXPECTED[arm](plan, measured(gemm_s, comm_s))
        assert end_s == pytest.approx(plan.end_s(gemm_s, comm_s)), arm
    plan = plan._replace(arm="chunk_launches")
    assert EXPECTED[plan.arm](plan, measured(gemm_s, comm_s, sums_s=0.0)) == pytest.approx(plan.end_s(gemm_s, comm_s))


@pytest.mark.parametrize(
    ("own_s", "link_s", "slower", "end_s"),
    [
        # one tile, two ranks: half of it until 1, then the other chunk is here and nothing moves
        (2.0, 1.0, (1.0, 1.0), 2.0),
        # the link, slowed by a half, brings the chunk at 1.5, when 0.75 are done at half the pace: 1.25 are left
        (2.0, 1.0, (2.0, 1.5), 2.75),
        # the link is slowed only until the half is done, and then the kernel waits
        (2.0, 4.0, (1.0, 2.0), 5.5),
    ],
)
def test_each_is_slower_only_while_the_other_works(own_s, link_s, slower, end_s):
    plan = OverlapPlan("row_block", Grid(1, 1), 1, ranks=2)
    assert EXPECTED["row_block"](plan, measured(own_s, link_s, Slowdowns(*slower))) == pytest.approx(end_s)


def test_each_piece_costs_a_kernel_that_waits_so_much():
    plan = OverlapPlan("row_block", Grid(4, 1), 1, ranks=3, row_blocks=4)
    assert EXPECTED["row_block"](plan, measured(8.0, 1.0, piece_s=0.1)) == pytest.approx(8.0 + 8 * 0.1)


def test_launch_of_a_vendor_stays_off_the_sms_of_the_copier_while_it_runs():
    # Each of two launches has 12 tiles of a second. The first has 3 of 4 SMs, and the copier's from 2.5 on: 9 tiles
    # begin before 3, one at 2.5, and the last two at 3. The second one takes three waves.
    plan = OverlapPlan("chunk_launches", Grid(12, 1), 4, ranks=2)
    about = measured(6.0, 2.5, copier_sms=1, sums_s=0.0)
    assert EXPECTED["chunk_launches"](plan, about) == pytest.approx(4.0 + 3.0)


def test_sums_of_chunks_pass_through_memory():
    plan = OverlapPlan("chunk_launches", Grid(4, 1), 4, ranks=4)
    short, long = 4 * contention.SUMS_SHOW_S, 16 * contention.SUMS_SHOW_S
    sums_s = 1e-6
    about = [measured(own_s, own_s / 1e6, sums_s=sums_s) for own_s in (short, long)]
    ends_s = [EXPECTED["chunk_launches"](plan, each) for each in about]
    # The others' chunks are here together: sums are written, read and written, and made the result.
    extra_s = [end_s - own_s for end_s, own_s in zip(ends_s, (short, long), strict=True)]
    assert extra_s == pytest.approx([sums_s * (1 + 2 / 3**0.5 + 1.5), sums_s * (0.5 + 2 / 12**0.5 + 1.5)])
    assert EXPECTED["chunk_launches"](plan, measured(1.0, 1.0)) is None


def errors(run, arm):
    """Return {shape: what is foreseen of `arm` less what it hid}."""
    errors = {}
    for shape in run.shapes.values():
        if arm in shape.measured and shape.of_role("preset"):
            record = overlap.record(run, shape, arm)
            errors[shape.id] = record["hidden_expected"] - record["hidden_fraction"]
    return errors


@pytest.fixture(scope="module")
def runs():
    return {name: journal.load(REFERENCE / name) for name in (H200, H100)}


@pytest.mark.parametrize(
    ("name", "arm", "shapes", "within_05", "within_10"),
    [
        (H200, "row_block", 12, 12, 12),
        (H100, "row_block", 13, 13, 13),  # on which nothing was fitted
        (H200, "row_block_launches_persistent", 12, 11, 12),
        (H100, "row_block_launches_persistent", 13, 10, 13),
        (H200, "chunk_launches", 12, 9, 12),
        (H100, "chunk_launches", 13, 9, 12),
        (H200, "row_block_launches", 12, 8, 9),
        (H100, "row_block_launches", 13, 4, 5),
    ],
)
def test_hidden_of_the_committed_runs_is_foreseen(runs, name, arm, shapes, within_05, within_10):
    off = [abs(error) for error in errors(runs[name], arm).values()]
    assert len(off) == shapes
    assert sum(error <= 0.05 for error in off) >= within_05
    assert sum(error <= 0.10 for error in off) >= within_10


def test_each_shape_is_foreseen_by_a_cost_of_pieces_that_is_fitted_on_the_others(runs, monkeypatch):
    run, arm = runs[H200], "row_block"
    shapes = [shape for shape in run.shapes.values() if arm in shape.measured]
    hidden = {shape.id: overlap.record(run, shape, arm)["hidden_fraction"] for shape in shapes}
    by_cost = {}
    for piece_s in (0.0, 0.2e-6, 0.3e-6, 0.4e-6, 0.5e-6, 0.6e-6, 0.8e-6):
        monkeypatch.setattr(overlap, "PIECE_S", piece_s)
        by_cost[piece_s] = {}
        for shape in shapes:
            foreseen = ArmSamples(shape, arm).hidden_expected(run)
            by_cost[piece_s][shape.id] = foreseen - hidden[shape.id]
    for left_out in hidden:
        squares = {
            cost: sum(error**2 for shape, error in of_shapes.items() if shape != left_out)
            for cost, of_shapes in by_cost.items()
        }
        fitted = min(squares, key=squares.get)
        assert abs(by_cost[fitted][left_out]) <= 0.05, (left_out, fitted)
    assert min(squares, key=squares.get) == pytest.approx(contention.PIECE_S, abs=0.11e-6)
    worst = max(abs(error) for error in by_cost[0.0].values())
    assert worst > 0.1  # without it


def test_what_is_foreseen_knows_nothing_of_the_arms_own_time(runs):
    run, arm = runs[H200], "row_block"
    shape = next(iter(run.shapes.values()))
    before = ArmSamples(shape, arm).hidden_expected(run)
    times = [round_.time_s[arm] for round_ in shape.rounds]
    try:
        for round_ in shape.rounds:
            round_.time_s[arm] *= 2
        assert ArmSamples(shape, arm).hidden_expected(run) == before
    finally:
        for round_, time_s in zip(shape.rounds, times, strict=True):
            round_.time_s[arm] = time_s
