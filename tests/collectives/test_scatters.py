"""Arms whose products are summed over ranks, of one matmul and of a whole layer: right parts, sent when they are
computed, added once and in order."""

import time

import pytest
import torch
from arm_cases import DEPTH, RANKS, ROWS, Layer, Scatter, normal

from collectives.paced import PacedThread, WallClock
from collectives.transfers import LinkError
from roofline.theory.arms import ARMS as ARM_SPECS
from roofline.theory.arms import OverlapPlan
from roofline.theory.schedule import Grid

FAST = 1e6
TWO = {"ranks_per_launch": 2}


EVERY_ARM = [(kind, arm, {}) for kind in (Scatter, Layer) for arm in kind.arms]
BY_RANK = [(kind, arm) for kind, arm, _ in EVERY_ARM if ARM_SPECS[arm].by_rank]
GROUPED = [(kind, arm, {"ranks_per_launch": count}) for kind, arm in BY_RANK for count in (2, 3)]


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize(("kind", "arm", "cut"), EVERY_ARM + GROUPED)
def test_each_arm_is_exact_from_call_to_call(kind, arm, cut, ranks):
    for rank in range(ranks):
        link, case = PacedThread(FAST, rank), kind(rank, ranks)
        for call in range(3):
            case.renew(call)
            assert torch.equal(kind.arms[arm](case.operands, link, **cut), case.expected(arm)), (rank, call)
            timeline = link.timeline()
            assert len(timeline.arrivals_s) == (1 + kind.gathered) * (ranks - 1)
            turns = (1, 0) if arm == "all_reduce" else range(1 + kind.gathered)  # rows, and then parts
            assert [transfer.block for transfer in timeline.transfers] == [
                turn for turn in turns for _ in range(ranks - 1)
            ]


@pytest.mark.parametrize(
    ("kind", "arm", "cut", "steps"),
    [
        (Scatter, "serial", {}, ["down 0-3"]),
        (Scatter, "block_launches", {}, ["down 3", "down 2", "down 1", "down 0"]),
        (Scatter, "block_launches", TWO, ["down 2-3", "down 1", "down 0"]),
        (Layer, "layer_launches", {}, ["up 0", "up 1", "up 2", "up 3", "down 1", "down 2", "down 3", "down 0"]),
        (Layer, "layer_launches", TWO, ["up 0", "up 1", "up 2-3", "down 1-2", "down 3", "down 0"]),
        (Layer, "chained_launches", {}, ["up 0", "up 1", "down 1", "up 2", "down 2", "up 3", "down 3", "down 0"]),
        (Layer, "chained_launches", TWO, ["up 0", "up 1-2", "down 1-2", "up 3", "down 3", "down 0"]),
    ],
)
def test_each_part_goes_once_it_is_computed(kind, arm, cut, steps):
    case, link, done = kind(), PacedThread(FAST), []
    link.clock = WallClock()  # on which a part goes while the next is computed: what is not, is NaN
    operands, scatter = case.operands, getattr(case.operands, "scatter", case.operands)
    multiply, gathered = operands.matmul, kind.gathered * (RANKS - 1)

    def matmul(x, w, out):
        is_up = kind is Layer and w is operands.up
        time.sleep(0.01)
        multiply(x, w, out)
        whole = operands.hidden if is_up else scatter.products
        first = (out.data_ptr() - whole.data_ptr()) * RANKS // (whole.numel() * 4)
        last = first + len(out) * RANKS // len(whole) - 1
        done.append(f"{'up' if is_up else 'down'} {first}" + f"-{last}" * (last > first))

    operands.matmul = matmul
    assert torch.equal(kind.arms[arm](operands, link, **cut), case.expected(arm))
    assert done == steps
    ready_s = link.timeline().ready_s
    assert ready_s[:gathered] == [0.0] * gathered
    assert len(ready_s) == gathered + RANKS - 1


class MadeUpTime:
    """A link and a matmul on which time is counted: `piece_s` a transfer, `row_s` a row, nothing for the rest."""

    kind = "made up"

    def __init__(self, piece_s, row_s):
        self.piece_s, self.row_s, self.now, self.arrivals_s = piece_s, row_s, 0.0, []

    def start(self, transfers, ready):
        self.ready(ready)

    def ready(self, count):
        while len(self.arrivals_s) < count:
            self.arrivals_s.append(max([self.now, *self.arrivals_s[-1:]]) + self.piece_s)

    def wait(self, count):
        self.now = max([self.now, *self.arrivals_s[:count]])

    def finish(self):
        pass

    def matmul(self, x, w, out):
        self.now += len(x) * self.row_s


@pytest.mark.parametrize("t_comm_s", [0.3, 0.7, 1.0, 1.6])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize(("kind", "arm"), BY_RANK)
def test_an_arm_ends_when_the_simulator_says(kind, arm, count, t_comm_s):
    ranks, matmuls = 8, 1 + kind.gathered
    case = kind(0, ranks)
    link = MadeUpTime(t_comm_s / matmuls / (ranks - 1), 1.0 / matmuls / ROWS)
    case.operands.matmul = link.matmul
    kind.arms[arm](case.operands, link, ranks_per_launch=count)
    cut = OverlapPlan(arm, Grid(1, 1), 1, ranks, ranks_per_launch=count)
    assert link.now == pytest.approx(cut.end_s(1.0, t_comm_s))


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
