"""The arm `signalled` in the interpreter: each piece is told when it is whole, and added once and in order."""

from dataclasses import replace

import pytest
import torch
from gather_cases import options_of

from collectives import ffn, signalled
from collectives.bench import arms
from collectives.bench import ffn as layer_bench
from collectives.bench import matmul_reduce_scatter as bench
from collectives.links import LinkError, WarmUp
from collectives.matmul_reduce_scatter import ARMS, Operands
from kernels import part_sums
from kernels import signalled as kernel
from roofline.operations.ffn import Ffn
from roofline.operations.matmul_reduce_scatter import MatmulReduceScatter
from roofline.theory.arms import OverlapPlan, plan
from roofline.theory.schedule import Grid

RANKS, HEIGHT, COLUMNS, DEPTH = 3, 64, 80, 40


@pytest.fixture(autouse=True)
def interpreted(device):
    if device == "cuda":
        pytest.skip("on a GPU test_device_scatter runs it")


def values(seed, *shape):
    return torch.randint(-4, 5, shape, generator=torch.Generator().manual_seed(seed)).float()


@pytest.fixture
def make():
    def operands(rank=0, ranks=RANKS, height=HEIGHT):
        out = torch.full((height, COLUMNS), torch.nan)
        found = Operands(values(rank, ranks * height, DEPTH), values(9, COLUMNS, DEPTH), out, ranks, rank)
        for tensor in (found.products, found.arrived):
            tensor.fill_(torch.nan)
        return signalled.added_by_kernel(found)

    return operands


def right(operands):
    return sum(part @ operands.w.T for part in operands.x.chunk(operands.ranks))


@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize("rank", range(RANKS))
def test_each_piece_is_whole_when_its_counter_says_so(rank, blocks, make, deferred_link, monkeypatch):
    """The link brings it in that moment: no sooner, and no later."""
    link, mine, order = deferred_link(), make(rank), []

    def raised(counter, time, by):
        route = link._route
        index = (int(counter.handle.data.item()) - route.counters.data_ptr()) // 4
        route.counters[index] += int(by)
        if route.counters[index] == route.wanted:
            order.append(index)
            route.transfers[index].target.copy_(route.transfers[index].source)
            route.flags[index] += link.programs

    link._move = lambda route: None
    monkeypatch.setattr(kernel, "raise_counter", raised)
    monkeypatch.setattr(signalled, "BLOCKS", (blocks,))
    for call in range(1, 3):
        mine.x.copy_(values(10 + call, *mine.x.shape))
        assert torch.equal(signalled.run(mine, link), right(mine)), call
        link.timeline()
        assert order == call * [*range((RANKS - 1) * blocks)]
        for tensor in (mine.products, mine.arrived):
            tensor.fill_(torch.nan)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("columns", [80, 3])
def test_sums_are_in_fp32_in_the_order_given_and_rounded_once(dtype, columns):
    generator = torch.Generator().manual_seed(columns)
    arrived = torch.randn(3, 37, columns, generator=generator).to(dtype)
    own, out = torch.randn(37, columns, generator=generator).to(dtype), torch.full((37, columns), torch.nan).to(dtype)
    part_sums.add(arrived, own, out)
    sums = arrived[0].float()
    for part in (*arrived[1:-1], own, arrived[-1]):
        sums = sums + part.float()
    assert torch.equal(out, sums.to(dtype))
    with pytest.raises(ValueError, match=r"parts \[3, 37, \d+\], own \[36, .* must be alike"):
        part_sums.add(arrived, own[1:], out)


def test_a_warm_up_runs_both_kernels_of_a_layer():
    x, up, down = values(0, RANKS * HEIGHT, COLUMNS), values(9, DEPTH, COLUMNS), values(8, COLUMNS, DEPTH)
    mine = ffn.Operands(x, up, down, torch.empty(HEIGHT, COLUMNS), RANKS)
    signalled.added_by_kernel(mine.scatter)
    signalled.run(mine, WarmUp())
    assert torch.equal(mine.hidden, x @ up.T)
    assert torch.equal(mine.scatter.products, mine.hidden @ down.T)


@pytest.mark.parametrize("arm", ["serial of a scatter", "serial", "all_reduce"])
def test_baseline_multiplies_while_nothing_of_the_link_is_on_the_device(arm, deferred_link, make):
    link, one = deferred_link(), make()
    layer = ffn.Operands(one.w, values(1, DEPTH, DEPTH), values(2, DEPTH, DEPTH), one.w[:20].clone(), 4)
    signalled.added_by_kernel(layer.scatter)
    mine, run = (layer, ffn.ARMS[arm]) if arm in ffn.ARMS else (one, ARMS["serial"])
    multiply, waiting = mine.matmul, []
    mine.matmul = lambda *tensors: (waiting.append(len(link._stream.queue)), multiply(*tensors))
    run(mine, link)
    assert waiting == [0] * (2 if arm in ffn.ARMS else 1)
    assert not link._stream.queue
    transfers = link.timeline().transfers
    assert all(torch.equal(one.source, one.target) for one in transfers)


def test_part_that_is_never_told_is_named_by_the_timeline(deferred_link, make, monkeypatch):
    monkeypatch.setattr(kernel, "raise_counter", lambda *args: None)
    link = deferred_link()
    signalled.run(make(), link)
    with pytest.raises(LinkError, match=r"chunk 1 .*which rank 1 sends to rank 0, has not arrived: it was not comp"):
        link.timeline()
    link._lost.fill_(1)  # rows that came after they were given up
    link._at_once = 1
    for flag in link._route.flags:
        flag.fill_(link._route.runs * link.programs)
    with pytest.raises(LinkError, match=r"has not arrived: it is .* s late"):
        link.timeline()


LAYER_LAUNCHES = ["serial", "all_reduce", "layer_launches", "chained_launches"]


@pytest.mark.parametrize(
    ("module", "case", "own"),
    [
        (bench, MatmulReduceScatter("32x32", "down", 1, 96, "fp32", 3, "1GBps"), ["serial", "block_launches"]),
        (layer_bench, Ffn("32x32", "up_down", 1, 96, "fp32", 3, "1GBps"), LAYER_LAUNCHES),
    ],
)
def test_arms_of_a_gpu_are_prepared_checked_and_called(module, case, own, deferred_link, monkeypatch):
    runner, told = module.Runner(options_of()), module.Runner.setting.telling
    monkeypatch.setattr(bench.Telling, "telling_arms", lambda self, device=None: {told: signalled.run})
    monkeypatch.setattr(runner.setting, "link", lambda self, kind=None: deferred_link())
    monkeypatch.setattr(arms, "off_pace", lambda setting: None)
    on_gpu = [*own, f"{own[1 + (module is layer_bench)]}_persistent", told]
    assert [arm for arm in runner.arms("cuda") if "all_cores" not in arm] == on_gpu
    found = runner.prepare(case, on_gpu)
    assert {*found.contenders} | found.rejected.keys() == {*on_gpu}
    assert found.contenders == [arm for arm in on_gpu if arm not in found.rejected]
    assert all("persistent needs" in one.reason for one in found.rejected.values()), found.rejected
    assert {*own, told} <= {*found.contenders}
    assert max(found.entrants[name].relative_error for name in found.contenders) < 1e-6
    entrant = found.entrants[told]
    tile = "32x32x32 warps4 stages2 group4 subtile2"
    up = f"flagged_rows {tile}, " * (module is layer_bench)
    assert entrant.config == f"{up}1 row blocks, signalled {tile}, sums in fp32"
    assert entrant.facts == {"row_blocks": 1}
    for name in found.contenders:
        found.entrants[name].call()
        line = found.entrants[name].call.notes()["timeline"]
        assert len(line["arrivals_s"]) == len(line["ready_s"]) == 2 * (1 + (module is layer_bench))
        assert line["ready_s"][:2] == [0.0] * 2 or name == "all_reduce" or module is bench
    few = replace(case, m=48)
    assert "signalled needs a multiple" in runner.prepare(few, [told]).rejected[told].reason
    monkeypatch.setattr(runner.setting, "link_kind", "nccl")
    assert "NCCL's kernels need some; take " in runner.prepare(case, [told]).rejected[told].reason


@pytest.mark.parametrize("blocks", [1, 2, 4])
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
        found = plan("signalled", m, 8192, 8, 132, 1.0, 1.0)
        assert found.grid.row_tiles % (8 * found.row_blocks) == 0
