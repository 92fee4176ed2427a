"""Arms whose products are summed over ranks, of one matmul and of a whole layer: right parts, sent when they are
computed, added once and in order."""

import time

import pytest
import torch
from arm_cases import DEPTH, RANKS, ROWS, Layer, Scatter, normal

from collectives.paced import PacedThread, WallClock
from collectives.transfers import LinkError

FAST = 1e6


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize(("kind", "arm"), [(kind, arm) for kind in (Scatter, Layer) for arm in kind.arms])
def test_each_arm_is_exact_from_call_to_call(kind, arm, ranks):
    for rank in range(ranks):
        link, case = PacedThread(FAST, rank), kind(rank, ranks)
        for call in range(3):
            case.renew(call)
            assert torch.equal(kind.arms[arm](case.operands, link), case.expected(arm)), (rank, call)
            timeline = link.timeline()
            assert len(timeline.arrivals_s) == (1 + kind.gathered) * (ranks - 1)
            turns = (1, 0) if arm == "all_reduce" else range(1 + kind.gathered)  # rows, and then parts
            assert [transfer.block for transfer in timeline.transfers] == [
                turn for turn in turns for _ in range(ranks - 1)
            ]


@pytest.mark.parametrize(
    ("kind", "arm", "steps"),
    [
        (Scatter, "serial", ["down 0"]),
        (Scatter, "block_launches", ["down 3", "down 2", "down 1", "down 0"]),
        (Layer, "layer_launches", ["up 0", "up 1", "up 2", "up 3", "down 1", "down 2", "down 3", "down 0"]),
        (Layer, "chained_launches", ["up 0", "up 1", "down 1", "up 2", "down 2", "up 3", "down 3", "down 0"]),
    ],
)
def test_each_part_goes_once_it_is_computed(kind, arm, steps):
    case, link, done = kind(), PacedThread(FAST), []
    link.clock = WallClock()  # on which a part goes while the next is computed: what is not, is NaN
    operands, scatter = case.operands, getattr(case.operands, "scatter", case.operands)
    multiply, gathered = operands.matmul, kind.gathered * (RANKS - 1)

    def matmul(x, w, out):
        is_up = kind is Layer and w is operands.up
        time.sleep(0.01)
        multiply(x, w, out)
        place = (out.data_ptr() - (operands.hidden if is_up else scatter.products).data_ptr()) // (out.numel() * 4)
        done.append(f"{'up' if is_up else 'down'} {place}")

    operands.matmul = matmul
    assert torch.equal(kind.arms[arm](operands, link), case.expected(arm))
    assert done == steps
    ready_s = link.timeline().ready_s
    assert ready_s[:gathered] == [0.0] * gathered
    assert len(ready_s) == gathered + RANKS - 1


@pytest.mark.parametrize("arm", Scatter.arms)
def test_sums_have_one_order(arm):
    operands = Scatter().operands
    operands.x.copy_(normal(3, ROWS, DEPTH))
    sums = Scatter.arms[arm](operands, PacedThread(FAST))
    in_order = operands.arrived[0].clone()
    for part in [*operands.arrived[1:-1], operands.block(operands.products, 0), operands.arrived[-1]]:
        in_order += part
    assert torch.equal(sums, in_order)


def test_what_is_never_ready_is_an_error_and_the_next_run_is_right():
    case, link = Scatter(), PacedThread(FAST)
    link.start(case.operands.parts, ready=1)
    case.operands.products.zero_()
    with pytest.raises(LinkError, match=r"chunk 2 .* may not go yet"):
        link.wait(2)
    assert torch.equal(Scatter.arms["block_launches"](case.operands, link), case.expected("block_launches"))
