"""The arm `signalled`: what it adds, what the baselines beside it leave undone, and what it could reach. That it is
exact, piece for piece: `kernels.machine`."""

import itertools

import pytest
import torch
from gather_cases import whole_numbers

from collectives import ffn, signalled
from collectives.links import LinkError, WarmUp
from collectives.matmul_reduce_scatter import ARMS, Operands
from kernels import part_sums, pieces
from kernels.contract import KernelLaunch
from roofline.theory.arms import OverlapPlan, plan
from roofline.theory.schedule import Grid

RANKS, HEIGHT, COLUMNS, DEPTH = 3, 64, 80, 40


@pytest.fixture(autouse=True)
def interpreted(device):
    if device == "cuda":
        pytest.skip("on a GPU test_device_scatter runs it")


@pytest.fixture
def scatter():
    """Operands of a reduce-scatter, everything that is to be written poisoned."""
    out = torch.full((HEIGHT, COLUMNS), torch.nan)
    operands = Operands(whole_numbers(0, RANKS * HEIGHT, DEPTH), whole_numbers(9, COLUMNS, DEPTH), out, RANKS, 0)
    for tensor in (operands.products, operands.arrived):
        tensor.fill_(torch.nan)
    return signalled.added_by_kernel(operands)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("columns", [80, 3])
def test_sums_are_in_fp32_in_the_order_given_and_rounded_once(dtype, columns):
    generator = torch.Generator().manual_seed(columns)
    arrived = torch.randn(3, 37, columns, generator=generator).to(dtype)
    product, out = torch.randn(37, columns, generator=generator).to(dtype), torch.empty(37, columns, dtype=dtype)
    part_sums.add(arrived, product, out.fill_(torch.nan))
    sums = arrived[0].float()
    for part in (*arrived[1:-1], product, arrived[-1]):
        sums = sums + part.float()
    assert torch.equal(out, sums.to(dtype))
    with pytest.raises(ValueError, match=r"parts \[3, 37, \d+\], own \[36, .* must be alike"):
        part_sums.add(arrived, product[1:], out)


def test_a_warm_up_runs_both_kernels_of_a_layer():
    x, up, down = (
        whole_numbers(0, RANKS * HEIGHT, COLUMNS),
        whole_numbers(9, DEPTH, COLUMNS),
        whole_numbers(8, COLUMNS, DEPTH),
    )
    layer = ffn.Operands(x, up, down, torch.empty(HEIGHT, COLUMNS), RANKS)
    signalled.added_by_kernel(layer.scatter)
    signalled.run(layer, WarmUp())
    assert torch.equal(layer.hidden, x @ up.T)
    assert torch.equal(layer.scatter.products, layer.hidden @ down.T)


@pytest.mark.parametrize(
    ("arm", "order"),
    [
        ("scatter", ["matmul", "copy", "wait"]),
        ("serial", ["copy", "wait", "matmul", "copy", "wait"]),
        ("all_reduce", ["matmul", "copy", "wait", "copy", "wait"]),
    ],
)
def test_baseline_multiplies_while_nothing_of_the_link_is_on_the_device(
    arm, order, interpreted_link, scatter, monkeypatch
):
    link, launched, run = interpreted_link(), [], KernelLaunch.run
    layer = ffn.Operands(
        scatter.w, whole_numbers(1, DEPTH, DEPTH), whole_numbers(2, DEPTH, DEPTH), scatter.w[:20].clone(), 4
    )
    signalled.added_by_kernel(layer.scatter)
    operands, arm = (scatter, ARMS["serial"]) if arm == "scatter" else (layer, ffn.ARMS[arm])
    multiply = operands.matmul

    def launch(launch, device):
        launched.append(launch.kernel.__name__.removesuffix("_kernel"))
        return run(launch, device)

    monkeypatch.setattr(KernelLaunch, "run", launch)
    operands.matmul = lambda *tensors: (launched.append("matmul"), multiply(*tensors))
    arm(operands, link)
    steps = (name for name in launched if name in ("matmul", "copy", "wait"))
    assert [name for name, _ in itertools.groupby(steps)] == order
    assert all(torch.equal(transfer.source, transfer.target) for transfer in link.timeline().transfers)


def test_part_that_is_never_computed_is_named_by_the_timeline(interpreted_link, scatter, monkeypatch):
    monkeypatch.setattr(pieces, "raise_counter", lambda *args: None)
    link = interpreted_link()
    signalled.run(scatter, link)
    with pytest.raises(LinkError, match=r"chunk 1 .*which rank 1 sends to rank 0, has not arrived: it was not comp"):
        link.timeline()


@pytest.mark.parametrize("blocks", [1, 4])
@pytest.mark.parametrize("t_comm_s", [0.25, 1.0, 1.5])
def test_own_ideal_is_the_schedule_run_forwards(blocks, t_comm_s):
    """The same tiles in their own order, and the link behind them."""
    for ranks, programs in ((8, 132), (4, 5), (2, 1)):
        rows, columns = ranks * blocks * 2, 7
        cut = OverlapPlan("signalled", Grid(rows, columns), programs, ranks, blocks)
        tile_s, free_s = 1.0 / cut.grid.waves(programs), 0.0
        for piece in range(1, 1 + (ranks - 1) * blocks):
            computed_s = -(-piece * 2 * columns // programs) * tile_s
            free_s = max(free_s, computed_s) + t_comm_s / ((ranks - 1) * blocks)
        assert cut.simulate(1.0, t_comm_s).end_s == pytest.approx(max(1.0, free_s))
        up_s = OverlapPlan("chunk_launches", Grid(1, 1), 1, ranks).simulate(1.0, t_comm_s).end_s
        layer = cut._replace(arm="layer_signalled").simulate(2.0, 2 * t_comm_s)
        assert layer.end_s == pytest.approx(up_s + max(1.0, free_s))


def test_a_cut_has_whole_row_tiles_in_each_piece():
    for m in (8192, 1024, 512, 520):
        cut = plan("signalled", m, 8192, 8, 132, 1.0, 1.0)
        assert cut.grid.row_tiles % (8 * cut.row_blocks) == 0
