"""Our kernels for any shape against float64: every kind of shape and stride the contract allows, and nothing written or
read beyond it, also of those that are measured on demand alone. The machine goes through all their ways: tests/machine.
Gluon has no interpreter, so its kernels are skipped without a GPU.
"""

import re

import pytest
import torch

from kernels import tiled
from kernels.contract import KernelLaunch
from kernels.registry import CONTENDERS

SHAPES = ["1x1x1", "64x64x64", "65x129x1", "130x200x33", "3x5x200", "17x150x200"]
pytestmark = pytest.mark.gpu
# The fifth row begins beyond 2**31 elements although the stride itself is a 32-bit number.
FAR = 2**29 + 8


OURS = [name for name, contender in CONTENDERS.items() if contender.kind == "triton"]
OF_FP8 = [name for name in OURS if CONTENDERS[name].dtypes]
FEW_ROWS = re.compile("takes up to [0-9]+; use")


@pytest.fixture(params=[name for name in OURS if name not in OF_FP8])
def kernel(request, ours):
    return ours(request.param)


each_dtype = pytest.mark.parametrize("dtype", [0, pytest.param(1, marks=pytest.mark.slow)], indirect=True)


@each_dtype
@pytest.mark.parametrize("shape", SHAPES)
def test_shapes_that_fit_no_tile(kernel, shape, dtype, operands):
    m, n, k = map(int, shape.split("x"))
    case = operands(m, n, k, dtype)
    if reason := CONTENDERS[kernel.name].why_not(case.x, case.w, case.out):
        if FEW_ROWS.search(reason):
            pytest.skip(reason)
        assert re.search(f"out has N={n}, .* TMA stores whole 16 bytes", reason)
        unit = 16 // dtype.itemsize
        case = operands(m, -(-n // unit) * unit, k, dtype)
    case.verify(kernel(case.x, case.w, case.out))


def test_out_is_allocated_when_none_and_a_single_row_may_have_any_stride(kernel, operands, assert_close):
    case = operands(33, 72, 48, torch.float16)
    assert kernel(case.x, case.w).is_contiguous()
    assert_close(kernel(case.x[:1].as_strided((1, 48), (3, 1)), case.w), case.x[:1], case.w)


def test_where_nothing_is_to_be_summed_nothing_is_launched(kernel, operands, device, monkeypatch):
    monkeypatch.setattr(KernelLaunch, "run", None)
    for m, n, k in ((0, 8, 8), (8, 0, 8), (0, 0, 0)):
        x, w = (torch.ones((rows, k), dtype=torch.float16, device=device) for rows in (m, n))
        assert kernel(x, w).shape == (m, n)
        assert kernel.describe(x, w)
    case = operands(9, 8, 0, torch.float16)
    assert (kernel(case.x, case.w, case.out) == 0).all()
    case.verify(case.out)


@pytest.mark.parametrize("which", ["x", "w", "out"])
def test_offsets_beyond_2_to_31(kernel, which, device, assert_close):
    tensors = {name: torch.randn((8, 72), device=device).half() for name in ("x", "w")}
    tensors["out"] = torch.empty((8, 8), dtype=torch.float16, device=device)
    small = tensors[which]
    # 12 GB of address space, of which only the pages behind eight rows are ever touched. An offset that wraps around
    # at 32 bits lands in the first third, so that a wrong kernel fails this test instead of crashing the process.
    storage = torch.empty(2**31 + 7 * FAR + 1024, dtype=torch.float16, device=device)
    far = storage.as_strided(small.shape, (FAR, 1), 2**31)
    tensors[which] = far.copy_(small)
    assert FAR < 2**31 < 7 * FAR
    assert_close(kernel(**tensors), tensors["x"], tensors["w"])


def test_tiled_takes_rows_of_any_stride(device, assert_close):
    buffer = torch.randn(4000, device=device).half()
    w = torch.randn((24, 30), device=device).half()
    for stride in (31, 7, 0):  # odd, overlapping and expanded rows
        x = buffer.as_strided((20, 30), (stride, 1), 1)
        assert_close(tiled.matmul(x, w), x, w)
