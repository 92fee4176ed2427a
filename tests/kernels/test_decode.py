"""The matmul for few rows: right for every number of rows, however K is split, to the same bits each time. Its tiles
for Hopper, and what it leaves in its workspace: `kernels.machine`."""

import math

import pytest
import torch

from kernels import decode, hopper
from kernels.registry import CONTENDERS
from kernels.tiles import Config
from kernels.workspace import Workspace

# 3 tiles of 64 rows and 7 steps of 32, both ragged: whole tiles, and a split of 5, which does not divide 7.
RAGGED = {"n": 150, "k": 200}
pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def runnable(device):
    probe = torch.zeros((16, 16), dtype=torch.float16, device=device)
    if reason := CONTENDERS["decode"].why_not(probe, probe):
        pytest.skip(reason)  # on a GPU that is no Hopper; never in the interpreter


@pytest.fixture
def programs(monkeypatch):
    """`programs(count)`: as if there were so many SMs."""
    return lambda count: monkeypatch.setattr(hopper, "programs", lambda device: count)


def small(m: int, split: int = 0) -> Config:
    block_m = next(block for block in (16, 32, 64) if m <= block)
    return Config(block_m, 64, 32, num_warps=4, num_stages=3, split=split)


def poisoned(deal, config: Config, device, count: int) -> Workspace:
    """Return a workspace of exactly what the launch may use: NaN, and all counters at `count`."""
    slots = (deal.tiles + deal.programs - 1) * config.block_n * config.block_m
    counters = torch.full((deal.tiles,), count, dtype=torch.int32, device=device)
    return Workspace(torch.full((slots,), math.nan, device=device), counters)


@pytest.mark.parametrize("m", [1, 16, 17, 64])
def test_right_for_every_number_of_rows_by_the_table(m, dtypes, operands):
    for dtype in dtypes.values():
        case = operands(m, **RAGGED, dtype=dtype)
        case.verify(decode.matmul(case.x, case.w, case.out))


@pytest.mark.parametrize("split", [2, 5, pytest.param(7, marks=pytest.mark.slow)])
def test_right_however_k_is_split(split, operands, programs):
    config = small(33, split)
    for count in (1, 2, 4, 5, 40):  # one run over all tiles; runs across tiles; a tile over many; more SMs than parts
        programs(count)
        case = operands(33, **RAGGED, dtype=torch.float16)
        case.verify(decode.matmul(case.x, case.w, case.out, config))


def test_nobody_adds_up_before_all_have_counted_themselves_in(operands, programs):
    programs(5)
    case = operands(16, **RAGGED, dtype=torch.float16)
    config = small(16, 5)
    deal = decode.deal_for(case.x, case.w, config)
    workspace = poisoned(deal, config, case.x.device, -1)  # one more to come
    decode.prepare(case.x, case.w, case.out, config, workspace).run(case.x.device)
    assert workspace.counters.tolist() == [1, 2, 1]  # 15 parts in runs of 3: tiles are shared by 2, 3 and 2 programs
    assert case.out.isnan().all()


def test_shares_are_those_of_the_deal(device, programs):
    programs(8)
    x, w = (torch.ones((rows, 224), dtype=torch.float16, device=device) for rows in (16, 150))  # 7 steps of 32
    config = small(16, 5)
    deal = decode.deal_for(x, w, config)
    workspace, end = poisoned(deal, config, device, -9), 0
    decode.prepare(x, w, x.new_empty(16, 150), config, workspace).run(x.device)
    for program, run in enumerate(deal.runs):
        start, end = end, end + run
        for tile in range(start // 7, (end - 1) // 7 + 1):
            steps = min(end, 7 * tile + 7) - max(start, 7 * tile)
            share = workspace.partials[(tile + program) * config.block_n * config.block_m]  # a sum of ones: columns
            assert share == 32 * steps or (steps == 7 and share.isnan())


@pytest.fixture
def backwards(device, monkeypatch):
    """`backwards()`: from now on the interpreter runs the last program first."""
    if device != "cpu":
        pytest.skip("a GPU chooses the order of programs by itself")
    from triton.runtime.interpreter import interpreter_builder as builder

    forwards = builder.set_grid_idx
    return lambda: monkeypatch.setattr(
        builder, "set_grid_idx", lambda x, y, z: forwards(builder.grid_dim[0] - 1 - x, y, z)
    )


def test_the_same_bits_whoever_comes_last(operands, programs, backwards):
    programs(5)
    case = operands(16, **RAGGED, dtype=torch.float32)  # sums that are not rounded: another order would show
    forwards = decode.matmul(case.x, case.w, config=small(16, 5))
    backwards()
    assert torch.equal(decode.matmul(case.x, case.w, config=small(16, 5)), forwards)


def test_sums_are_rounded_once(device, programs):
    programs(2)
    # Two halves of K on two programs: 2048 and 1 are exact in fp16, 2049 is not, and 2049 + 1 is 2050.
    x = torch.ones((2, 64), dtype=torch.float16, device=device)
    w = torch.zeros((1, 64), dtype=torch.float16, device=device)
    w[0, 0], w[0, 1], w[0, 32] = 2048, 1, 1
    assert decode.matmul(x, w, config=small(2, 2)).tolist() == [[2050.0], [2050.0]]


def test_rows_of_w_any_multiple_of_16_bytes_apart(device, assert_close):
    buffer, x = torch.randn(20_000, device=device).half(), torch.randn((5, 32), device=device).half()[:, :30]
    for stride in (32, 40, 104):
        w = buffer.as_strided((66, 30), (stride, 1), 8)
        out = torch.full((5, 99), math.nan, dtype=torch.float16, device=device)[:, 3:69]  # no alignment at all
        assert_close(decode.matmul(x, w, out), x, w)


def test_what_does_not_fit_is_refused_with_the_way_out(device):
    x, w = (torch.zeros((rows, 64), dtype=torch.float16, device=device) for rows in (17, 8))
    with pytest.raises(ValueError, match=r"M=17 rows, the tile has room for 16; change the configuration"):
        decode.matmul(x, w, config=small(16))
    with pytest.raises(ValueError, match=r"split=3: a tile has 2 steps along k, choose 1 to 2"):
        decode.matmul(x, w, config=small(17, split=3))


def test_the_configuration_tells_the_split(device, programs):
    programs(132)
    x, w = (torch.empty((rows, 16384), dtype=torch.float16, device=device) for rows in (2, 6656))
    assert str(decode.deal_for(x, w, Config(16, 128, 128, 4, 6)).split) == "5"
    assert CONTENDERS["decode"].describe(x, w).endswith(f"split{decode.config_for(x, w).split}")
