"""The matmul for few rows: to the same bits each time, and rounded once. That it is right: test_matmul.py. How it is
dealt to the SMs: test_stream_k.py. However K is split, its tiles for Hopper, and what it leaves in its workspace:
`kernels.machine`."""

import math

import pytest
import torch

from kernels import decode, hopper
from kernels.decode import Config
from kernels.registry import CONTENDERS

# 3 tiles of 64 rows and 7 steps of 32, both ragged: whole tiles, and runs of steps, of at least 4.
RAGGED = {"n": 150, "k": 200}
pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def runnable(ours):
    ours("decode")


@pytest.fixture
def programs(monkeypatch):
    """`programs(count)`: as if there were so many SMs."""
    return lambda count: monkeypatch.setattr(hopper, "programs", lambda device: count)


def small(m: int, split: int = 0) -> Config:
    block_m = next(block for block in (16, 32, 64) if m <= block)
    return Config(block_m, 64, 32, num_warps=4, num_stages=3, split=split)


def test_the_same_bits_whoever_comes_last(operands, programs, device, monkeypatch):
    if device != "cpu":
        pytest.skip("a GPU chooses the order of programs by itself")
    from triton.runtime.interpreter import interpreter_builder as builder

    programs(5)
    case = operands(16, **RAGGED, dtype=torch.float32)  # sums that are not rounded: another order would show
    in_order, place = decode.matmul(case.x, case.w, config=small(16, 2)), builder.set_grid_idx
    monkeypatch.setattr(builder, "set_grid_idx", lambda x, y, z: place(builder.grid_dim[0] - 1 - x, y, z))
    assert torch.equal(decode.matmul(case.x, case.w, config=small(16, 2)), in_order)


def test_sums_are_rounded_once(device, programs):
    programs(2)
    # Two halves of K on two programs: 2048 and 1 are exact in fp16, 2049 is not, and 2049 + 1 is 2050.
    x, w = (torch.full((rows, 256), float(rows == 2), dtype=torch.float16, device=device) for rows in (2, 1))
    w[0, 0], w[0, 1], w[0, 128] = 2048, 1, 1
    assert decode.matmul(x, w, config=small(2, 2)).tolist() == [[2050.0], [2050.0]]


def test_rows_of_w_are_any_multiple_of_16_bytes_apart(device, assert_close):
    x, w = (torch.randn((rows, 40), device=device).half()[:, :30] for rows in (5, 66))
    out = torch.full((5, 99), math.nan, dtype=torch.float16, device=device)[:, 3:69]  # no alignment at all
    assert_close(decode.matmul(x, w, out), x, w)


def test_the_configuration_tells_the_split(device):
    x, w = (torch.empty((rows, 1024), dtype=torch.float16, device=device) for rows in (2, 64))
    assert " split" in CONTENDERS["decode"].load().describe(x, w)
