"""The arms over a paced link: right for every rank, on data that is late, stale or poisoned; parts are sent once they
are computed, and added in order. Over real ranks: test_ranks_links; over a GPU's links: test_loads, and the machine."""

from functools import partial

import pytest
import torch
from arm_cases import ROWS, SIZES, Gather, Layer, Prefetch, Products, Scatter
from test_on_gpu import FLAGGED, NO_GPU

from collectives import all_gather_matmul, weight_prefetch
from collectives.paced import PacedThread
from collectives.transfers import LinkError
from roofline.theory.arms import ARMS as ARM_SPECS
from roofline.theory.arms import OverlapPlan
from roofline.theory.schedule import Grid

FAST = 1e6

GATHERING = Gather.arms | ({} if NO_GPU else FLAGGED)
EVERY_ARM = [(kind, arm, {}) for kind in (Gather, Scatter, Layer) for arm in kind.arms]
BY_RANK = [(kind, arm) for kind, arm, _ in EVERY_ARM if ARM_SPECS[arm].by_rank]
GROUPED = [(kind, arm, {"ranks_per_launch": count}) for kind, arm in BY_RANK for count in (2, 3)]

each_gathering = pytest.mark.parametrize("arm", GATHERING)


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize(("kind", "arm", "cut"), EVERY_ARM + GROUPED)
def test_each_arm_is_exact_from_call_to_call(kind, arm, cut, ranks):
    for rank in range(ranks):
        link, case = PacedThread(FAST, rank), kind(rank, ranks)
        for call in range(3):
            case.run(arm, partial(kind.arms[arm], **cut), link, call)


@pytest.mark.parametrize(("rows", "blocks"), [(96, 96), (100, 7), (10, 8), (1, 1)])
def test_row_blocks_may_be_ragged_or_hold_no_row(rows, blocks):
    case = Gather(sizes=(rows, 16, 48), blocks=blocks)
    assert torch.equal(GATHERING["row_block_launches"](case.operands, PacedThread(FAST)), case.expected(""))


@pytest.fixture
def gather(device, dtype):
    """A gather of four ranks where the tests run."""
    return Gather(sizes=SIZES[device], blocks=4, device=device, dtype=dtype)


@pytest.mark.gpu
@each_gathering
@pytest.mark.parametrize("position", range(3))
def test_a_gather_is_right_with_a_delay_at_each_position_and_later_by_it(arm, position, gather, troubled_link):
    link = troubled_link(position if not arm.startswith("row_block") else 2 * position, seconds=0.05)
    for call in range(2):  # the first one warms up
        timeline = gather.run(arm, GATHERING[arm], link, call)
    assert timeline.end_s >= max(timeline.arrivals_s) >= 0.045


@pytest.mark.gpu
@each_gathering
def test_dead_link_ends_the_arm_with_an_error_and_the_next_run_is_right(arm, gather, troubled_link, device):
    wire = troubled_link(1, seconds=0.0, dies=True)
    with pytest.raises(LinkError, match=r"chunk \d .*to rank 0"):
        (GATHERING[arm](gather.operands, wire), wire.timeline())  # on a GPU it is the timeline that tells
    if device == "cuda":
        return  # its flags only grow: one run's are lacking for good
    wire.bring = lambda run, index: PacedThread.bring(wire, run, index)
    assert torch.equal(GATHERING[arm](gather.operands, wire), gather.expected(arm))


def test_chunks_that_are_here_are_taken_together():
    case = Gather(2, blocks=4)
    link = PacedThread(FAST, 2)
    rows = []
    operands = case.operands
    multiply = operands.matmul
    operands.chunk_plan = operands.block_plan = [1, 4]
    with Products() as products:
        assert torch.equal(GATHERING["chunk_launches"](operands, link), case.expected(""))
    width = operands.shards[0].shape[1]
    # Chunks 3, 0 and 1 come together: two runs of neighbours.
    assert [w_columns[0] // width for _, w_columns in products.shapes] == [1, 2, 1]
    operands.matmul = lambda x, w, out: rows.append(len(x)) or multiply(x, w, out)
    assert torch.equal(GATHERING["row_block_launches"](operands, link), case.expected(""))
    assert rows == [ROWS // 4, ROWS * 3 // 4]


def test_chunk_launches_sums_half_precision_in_fp32():
    shards = [torch.ones(1, 1, dtype=torch.float16)] * 4
    gathered, w, out = (torch.empty(shape, dtype=torch.float16) for shape in ((1, 4), (1, 4), (1, 1)))
    assert all_gather_matmul.Operands(shards, gathered, w, out).sums.dtype == torch.float32


@pytest.mark.gpu
@pytest.mark.parametrize("rank", range(4))
@pytest.mark.parametrize(("arm", "steps"), [("overlapped", ["matmul", "wait"]), ("serial", ["wait", "matmul"])])
def test_prefetch_multiplies_with_its_layer_and_gathers_the_next(arm, steps, rank, device, dtype, link):
    case = Prefetch(rank, sizes=(24, 64, 128), device=device, dtype=dtype)
    operands, wire = case.operands, link(5e6, rank)
    taken = []
    multiply = operands.matmul
    wait = wire.wait
    operands.matmul = lambda *given: taken.append("matmul") or multiply(*given)
    wire.wait = lambda count: taken.append("wait") or wait(count)
    for step in range(4):
        for transfer in operands.next:
            transfer.target.fill_(torch.nan)
        assert torch.equal(weight_prefetch.ARMS[arm](operands, wire), case.x @ case.layers[step % 2].T)
        wire.timeline()
        assert torch.equal(operands.now, case.layers[(step + 1) % 2])
    assert taken == 4 * steps


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
    operands.x.normal_(generator=torch.Generator().manual_seed(3))
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
    case.run("block_launches", Scatter.arms["block_launches"], link)
