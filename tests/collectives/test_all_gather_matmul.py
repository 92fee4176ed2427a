"""The arms of the all-gather matmul and of the weight prefetch: right for every rank, on data that is late, stale or
poisoned."""

from dataclasses import replace

import pytest
import torch
from arm_cases import Products, normal

from collectives import all_gather_matmul, on_device, weight_prefetch
from collectives.paced import PacedThread
from collectives.transfers import LinkError
from kernels.contract import interpreted
from kernels.copier import copy_kernel
from roofline.theory.arms import ARMS as ARM_SPECS
from roofline.theory.arms import arms_of

ON_GPU = torch.cuda.is_available() and not interpreted(copy_kernel)
WAITING = {name: on_device.ARMS[name] for name in arms_of("all_gather_matmul", gpu=True) if ARM_SPECS[name].table}
ARMS = all_gather_matmul.ARMS | (WAITING if ON_GPU else {})
every_arm = pytest.mark.parametrize("arm", ARMS)
pytestmark = pytest.mark.gpu


@every_arm
@pytest.mark.parametrize(
    ("rank", "ranks", "rows", "blocks"),
    [
        *((rank, 4, 128, 4) for rank in range(4)),
        *[(0, 2, 128, 1), (0, 8, 96, 96), (0, 4, 100, 7), (0, 4, 10, 8), (0, 4, 1, 1)],
    ],
)
def test_right_on_every_rank_and_on_odd_sizes(arm, rank, ranks, rows, blocks, operands, link, close):
    mine = operands(rank, ranks, rows=rows, blocks=blocks)
    assert ARMS[arm](mine, link(rank=rank)) is mine.out
    close(mine)


@every_arm
@pytest.mark.parametrize("position", range(3))
def test_right_with_a_delay_at_each_position_and_later_by_it(arm, position, operands, troubled_link, close):
    mine = operands()
    wire = troubled_link(position if not arm.startswith("row_block") else 2 * position, seconds=0.05)
    ARMS[arm](mine, wire)  # warm
    wire.timeline()
    for transfer in mine.by_chunk:
        transfer.target.fill_(torch.nan)
    ARMS[arm](mine, wire)
    close(mine)
    timeline = wire.timeline()
    assert timeline.end_s >= max(timeline.arrivals_s) >= 0.045


@every_arm
def test_stale_chunks_are_not_used(arm, operands, link, close):
    """The same buffers and link, other data every time: a chunk of the run before would show."""
    mine, wire = operands(), link()
    for seed in range(5):
        fresh = operands(seed=seed)
        for old, new in zip(mine.shards, fresh.shards, strict=True):
            old.copy_(new)
        mine.columns(mine.rank, mine.gathered).copy_(mine.shards[mine.rank])
        ARMS[arm](mine, wire)
        close(mine)


@every_arm
def test_arm_that_does_not_wait_is_wrong(arm, operands, link, device):
    """What the checks above are worth: without its waits an arm reads poison."""
    mine = operands()
    wire = link(bytes_per_s=4 * sum(transfer.nbytes for transfer in mine.by_chunk))
    wire.wait, signals = lambda count: count, getattr(wire, "signals", None)
    if device == "cpu":  # nobody waits, so time stands still
        wire.finish = lambda: None
    wire.signals = lambda: replace(signals(), wanted=0)
    ARMS[arm](mine, wire)
    assert mine.out.isnan().any()


@every_arm
def test_dead_link_ends_the_arm_with_an_error_and_the_next_run_is_right(arm, operands, troubled_link, close, device):
    mine, wire = operands(), troubled_link(1, seconds=0.0, dies=True, rank=0)
    with pytest.raises(LinkError, match=r"chunk \d .*to rank 0"):
        (ARMS[arm](mine, wire), wire.timeline())  # on a GPU it is the timeline that tells
    if device == "cuda":
        return  # its flags only grow: one run's are lacking for good
    wire.bring = lambda run, index: PacedThread.bring(wire, run, index)
    ARMS[arm](mine, wire)
    close(mine)


def test_chunks_that_are_here_are_taken_together(operands, link, close):
    mine, products = operands(rank=2, chunk_plan=[1, 4], block_plan=[1, 4]), []
    with Products(products):
        ARMS["chunk_launches"](mine, link(bytes_per_s=5e6, rank=2))
    close(mine)
    width = mine.shards[0].shape[1]
    # Chunks 3, 0 and 1 come together: two runs of neighbours.
    assert [w_columns[0] // width for _, w_columns in products] == [1, 2, 1]
    rows, multiply = [], mine.matmul
    mine.matmul = lambda x, w, out: rows.append(len(x)) or multiply(x, w, out)
    ARMS["row_block_launches"](mine, link(bytes_per_s=5e6, rank=2))
    close(mine)
    assert rows == [len(mine.out) // 4, len(mine.out) * 3 // 4]


def test_chunk_launches_sums_half_precision_in_fp32():
    shards = [torch.ones(1, 1, dtype=torch.float16)] * 4
    gathered, w, out = (torch.empty(shape, dtype=torch.float16) for shape in ((1, 4), (1, 4), (1, 1)))
    assert all_gather_matmul.Operands(shards, gathered, w, out).sums.dtype == torch.float32


@pytest.mark.parametrize("rank", range(4))
@pytest.mark.parametrize(("arm", "steps"), [("overlapped", ["matmul", "wait"]), ("serial", ["wait", "matmul"])])
def test_prefetch_multiplies_with_its_layer_and_gathers_the_next(arm, steps, rank, device, dtype, link):
    layers = [normal(layer, 64, 128).to(device, dtype) for layer in range(2)]
    x, shares = normal(2, 24, 128).to(device, dtype), [list(layer.chunk(4)) for layer in layers]
    buffers = [torch.full_like(layer, torch.nan) for layer in layers]
    operands = weight_prefetch.Operands(shares, buffers, x, x.new_full((24, 64), torch.nan), rank)
    wire, taken = link(bytes_per_s=5e6, rank=rank), []
    multiply, wait = operands.matmul, wire.wait
    operands.matmul = lambda *given: taken.append("matmul") or multiply(*given)
    wire.wait = lambda count: taken.append("wait") or wait(count)
    for step in range(4):
        for transfer in operands.next:
            transfer.target.fill_(torch.nan)
        out = weight_prefetch.ARMS[arm](operands, wire)
        wire.timeline()
        reference = x.double() @ layers[step % 2].double().T
        assert (out.double() - reference).norm() / reference.norm() < 3e-3
        assert torch.equal(operands.now, layers[(step + 1) % 2])
    assert taken == 4 * steps
