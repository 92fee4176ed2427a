"""The feed-forward layer: right sums from rows that are gathered, used when they are here, sent when they are ready."""

import pytest
import torch

from collectives.ffn import ARMS, Operands
from collectives.links import PacedThread

every_arm = pytest.mark.parametrize("arm", ARMS)
RANKS, ROWS, WIDTH, HIDDEN = 4, 24, 16, 12
FAST = 1e6


def values(seed, *shape):
    return torch.randint(-4, 5, shape, generator=torch.Generator().manual_seed(seed)).float()


def poison(operands):
    """All that an arm writes, and, but of the arm that has them, all tokens of other ranks."""
    for tensor in (operands.hidden, operands.scatter.products, operands.scatter.arrived, operands.out, operands.whole):
        tensor.fill_(torch.nan)
    for rank in operands.sources:
        operands.scatter.block(operands.gathered, rank).fill_(torch.nan)


@pytest.fixture
def make():
    """`make(rank=0)`: operands of whole numbers, everything that is to be written poisoned."""

    def operands(rank=0, ranks=RANKS):
        out = torch.full((ROWS // ranks, WIDTH), torch.nan)
        found = Operands(values(0, ROWS, WIDTH), values(1, HIDDEN, WIDTH), values(2, WIDTH, HIDDEN), out, ranks, rank)
        poison(found)
        return found

    return operands


def right(operands, arm):
    """In one process each part that arrives is the own product for some rank, and the sums of all ranks are alike."""
    products = operands.x @ operands.up.T @ operands.down.T
    total = sum(products.chunk(operands.ranks))
    return total.repeat(operands.ranks, 1) if arm == "all_reduce" else total


@every_arm
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_each_arm_is_exact_from_call_to_call(arm, ranks, make):
    for rank in range(ranks):
        link, operands = PacedThread(FAST, rank), make(rank, ranks)
        for call in range(3):
            operands.x.copy_(values(10 * call, ROWS, WIDTH))
            operands.scatter.block(operands.gathered, rank).copy_(operands.scatter.block(operands.x, rank))
            assert torch.equal(ARMS[arm](operands, link), right(operands, arm)), (rank, call)
            assert len(link.timeline().arrivals_s) == 2 * (ranks - 1)
            poison(operands)


@pytest.mark.parametrize(
    ("arm", "steps"),
    [
        ("layer_launches", ["up 0", "up 1", "up 2", "up 3", "down 1", "down 2", "down 3", "down 0"]),
        ("chained_launches", ["up 0", "up 1", "down 1", "up 2", "down 2", "up 3", "down 3", "down 0"]),
    ],
)
def test_each_part_goes_once_it_is_computed(arm, steps, make):
    operands, link, done = make(), PacedThread(FAST), []
    multiply, move = operands.matmul, link._move

    def matmul(x, w, out):
        layer, of = ("up", operands.hidden) if w is operands.up else ("down", operands.scatter.products)
        done.append(f"{layer} {(out.data_ptr() - of.data_ptr()) // (out.numel() * 4)}")
        multiply(x, w, out)

    def moved(index, source, target):
        assert (source.view("float32") < 1e9).all()  # no NaN: it is computed
        if index >= RANKS - 1:
            assert f"down {operands.sources[index - RANKS + 1]}" in done
        move(index, source, target)

    operands.matmul, link._move = matmul, moved
    assert torch.equal(ARMS[arm](operands, link), right(operands, arm))
    assert done == steps
    assert link.timeline().ready_s[: RANKS - 1] == [0.0] * (RANKS - 1)


def test_sizes_that_do_not_fit_are_refused():
    x, up, out = torch.zeros(ROWS, WIDTH), torch.zeros(HIDDEN, WIDTH), torch.zeros(ROWS // RANKS, WIDTH)
    with pytest.raises(ValueError, match=r"up is \[F_loc, 16\] and down \[16, F_loc\], not \[12, 16\] and"):
        Operands(x, up, torch.zeros(HIDDEN, WIDTH), out, RANKS)
