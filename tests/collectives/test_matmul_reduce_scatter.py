"""The matmul whose product is summed over ranks: right parts, sent when they are computed, added once and in order."""

import time

import pytest
import torch

from collectives.links import LinkError, PacedThread
from collectives.matmul_reduce_scatter import ARMS, Operands

every_arm = pytest.mark.parametrize("arm", ARMS)
RANKS, ROWS, COLUMNS, DEPTH = 4, 24, 16, 12
FAST = 1e6


def values(seed, *shape):
    return torch.randint(-4, 5, shape, generator=torch.Generator().manual_seed(seed)).float()


@pytest.fixture
def make():
    """`make(rank=0)`: operands of whole numbers, everything that is to be written poisoned."""

    def operands(rank=0, ranks=RANKS, seed=0):
        out = torch.full((ROWS // ranks, COLUMNS), torch.nan)
        found = Operands(values(seed, ROWS, DEPTH), values(seed + 1, COLUMNS, DEPTH), out, ranks, rank)
        for tensor in (found.products, found.arrived):
            tensor.fill_(torch.nan)
        return found

    return operands


def right(operands):
    """In one process what arrives is the own product for some rank, of each rank once."""
    return sum(part @ operands.w.T for part in operands.x.chunk(operands.ranks))


@every_arm
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_each_arm_is_exact_from_call_to_call(arm, ranks, make):
    for rank in range(ranks):
        link, operands = PacedThread(FAST, rank), make(rank, ranks)
        for call in range(3):
            operands.x.copy_(values(10 * call, ROWS, DEPTH))
            assert torch.equal(ARMS[arm](operands, link), right(operands)), (rank, call)
            operands.products.fill_(torch.nan)


def test_the_link_has_a_part_as_soon_as_it_is_computed_and_no_sooner(make):
    for arm, early in (("block_launches", True), ("serial", False)):
        operands, link, computed = make(), PacedThread(FAST), []
        multiply, move = operands.matmul, link._move

        def moved(index, source, target, computed=computed, move=move, early=early):
            assert len(computed) >= (index + 1 if early else 1)
            assert (source.view("float32") < 1e9).all()  # no NaN: it is computed
            move(index, source, target)

        def matmul(x, w, out, computed=computed, multiply=multiply, link=link):
            time.sleep(0.01)
            assert link._job is not None
            multiply(x, w, out)
            computed.append(len(x))

        operands.matmul, link._move = matmul, moved
        assert torch.equal(ARMS[arm](operands, link), right(operands))
        assert computed == ([ROWS // RANKS] * RANKS if early else [ROWS])
        timeline = link.timeline()
        assert len(timeline.ready_s or timeline.arrivals_s) == RANKS - 1


@every_arm
def test_sums_have_one_order_whenever_parts_arrive(arm, make):
    operands = make()
    operands.x.copy_(torch.randn(ROWS, DEPTH, generator=torch.Generator().manual_seed(3)))
    expected = None
    for late in range(RANKS - 1):
        link = PacedThread(FAST)
        link._move = lambda index, source, target, late=late: (
            time.sleep(0.01 * (index == late)),
            PacedThread._move(index, source, target),
        )
        found = ARMS[arm](operands, link).clone()
        in_order = operands.arrived[0].clone()
        for part in [*operands.arrived[1:-1], operands.block(operands.products, 0), operands.arrived[-1]]:
            in_order += part
        assert torch.equal(found, in_order)
        assert expected is None or torch.equal(found, expected)
        expected = found


def test_what_is_never_ready_is_an_error_and_the_next_run_is_right(make):
    operands, link = make(), PacedThread(FAST)
    link.start(operands.parts, ready=1)
    operands.products.zero_()
    with pytest.raises(LinkError, match=r"chunk 2 .* may not go yet"):
        link.wait(2)
    assert torch.equal(ARMS["block_launches"](operands, link), right(operands))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"ranks": 1}, "ranks=1: a reduce-scatter needs 2 or more"),
        ({"ranks": 5}, "5 ranks do not divide B=24"),
        ({"rank": 4}, "rank 4 of 4"),
        ({"w": torch.zeros(COLUMNS, DEPTH + 1)}, r"w is \[D, 12\] and out \[6, D\]"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(given, said):
    about = {"x": torch.zeros(ROWS, DEPTH), "w": torch.zeros(COLUMNS, DEPTH), "ranks": RANKS, "rank": 0} | given
    with pytest.raises(ValueError, match=said):
        Operands(out=torch.zeros(ROWS // RANKS, COLUMNS), **about)
