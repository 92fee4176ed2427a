"""The baselines keep the contract too: the same operands, the same guards.

But for what lies behind the rows of x and w, which is no NaN here. A library may load it and multiply it by zero, as
oneDNN does in bf16 on a CPU with AMX: what must not happen is that it counts.
"""

import contextlib
import os
import shutil

import pytest
import torch

from kernels import vendor
from kernels.registry import CONTENDERS

BEHIND = 77.0


@pytest.mark.parametrize("shape", ["1x1x1", "1x40x72", "65x129x33", "0x8x8", "8x8x0"])
@pytest.mark.parametrize("kind", ["vendor", "library"])
def test_baselines_write_out(kind, shape, operands, device):
    """The vendor of the device under test, and NumPy, which knows the CPU and fp32 alone."""
    name, where = ("numpy", "cpu") if kind == "library" else ("torch" if device == "cpu" else "cublas", device)
    contender = CONTENDERS[name]
    assert (contender.kind, contender.device) == (kind, where)
    for dtype in (torch.float32,) if name == "numpy" else (torch.float32, torch.float16, torch.bfloat16):
        case = operands(*map(int, shape.split("x")), dtype, where=where, behind=BEHIND)
        assert contender.why_not(case.x, case.w) is None
        case.verify(contender.run(case.x, case.w, case.out))


@pytest.mark.parametrize(("used", "right"), [(33, True), (34, False)])
def test_library_may_load_what_is_behind_a_row_but_not_count_it(used, right, operands, monkeypatch):
    def mm(x, wt, out):
        """K in blocks of 32, as a CPU's matrix unit takes it: x as it lies there, w zero from column `used` on."""
        wide_x, wide_w = (each.as_strided((len(each), 64), each.stride()).double() for each in (x, wt.T))
        wide_w[:, used:] = 0
        return out.copy_(wide_x @ wide_w.T)

    monkeypatch.setattr(torch, "mm", mm)
    case = operands(65, 129, 33, torch.bfloat16, where="cpu", behind=BEHIND)
    result = CONTENDERS["torch"].run(case.x, case.w, case.out)
    with contextlib.nullcontext() if right else pytest.raises(AssertionError, match="relative error"):
        case.verify(result)


def test_vendors_refuse_what_is_not_theirs():
    x, w = torch.zeros((4, 8)), torch.zeros((6, 8))
    assert "x is on cpu" in CONTENDERS["cublas"].why_not(x, w)
    assert "'torch'" in CONTENDERS["cublas"].why_not(x, w)
    assert "float16" in CONTENDERS["numpy"].why_not(x.half(), w.half())
    with pytest.raises(TypeError, match=r"float16.*float32.*'torch'"):
        vendor.numpy_mm(x.half(), w.half())


def test_configurations_name_library_and_version():
    x, w = torch.zeros((4, 8)), torch.zeros((6, 8))
    assert CONTENDERS["torch"].config(x, w) == f"torch {torch.__version__}"
    numpy_config = CONTENDERS["numpy"].config(x, w)
    assert numpy_config.startswith("numpy ")
    assert numpy_config.endswith(")")


def test_inductor(operands, device):
    """Compiles two kernels: the one contender that takes seconds here (minutes at real shapes: not default)."""
    if device == "cpu" and not shutil.which(os.environ.get("CXX", "g++")):
        pytest.skip("Inductor needs a C++ compiler on the CPU")
    case = operands(48, 64, 32, torch.float32)
    result = CONTENDERS["inductor"].run(case.x, case.w, case.out)
    case.verify(result)
