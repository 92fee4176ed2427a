"""The baselines keep the contract too: the same operands, the same guards.

But for what lies behind the rows of x and w, which is no NaN here. A library may load it and multiply it by zero, as
oneDNN does in bf16 on a CPU with AMX: what must not happen is that it counts.
"""

import os
import shutil

import pytest
import torch

from kernels import vendor
from kernels.registry import CONTENDERS

BEHIND = 77.0


@pytest.mark.parametrize("shape", ["1x1x1", "65x129x33", "0x8x8", "8x8x0"])
@pytest.mark.parametrize("kind", ["vendor", "library"])
def test_baselines_write_out(kind, shape, operands, device):
    """The vendor of the device under test, and NumPy, which knows the CPU and fp32 alone."""
    name, where = ("numpy", "cpu") if kind == "library" else ("torch" if device == "cpu" else "cublas", device)
    contender = CONTENDERS[name]
    assert (contender.kind, contender.devices) == (kind, [where])
    for dtype in (torch.float32,) if name == "numpy" else (torch.float32, torch.float16, torch.bfloat16):
        case = operands(*map(int, shape.split("x")), dtype, where=where, behind=BEHIND)
        assert contender.why_not(case.x, case.w) is None
        case.verify(contender.load()(case.x, case.w, case.out))


def test_vendors_refuse_what_is_not_theirs():
    x, w = torch.zeros((4, 8)), torch.zeros((6, 8))
    assert "x is on cpu" in CONTENDERS["cublas"].why_not(x, w)
    with pytest.raises(TypeError, match=r"float16.*float32.*'torch'"):
        vendor.numpy_cpu(x.half(), w.half())


@pytest.mark.slow
def test_inductor(operands, device):
    """Compiles two kernels: the one contender that takes seconds here (minutes at real shapes: not default)."""
    if device == "cpu" and not shutil.which(os.environ.get("CXX", "g++")):
        pytest.skip("Inductor needs a C++ compiler on the CPU")
    case = operands(48, 64, 32, torch.float32)
    result = CONTENDERS["inductor"].load()(case.x, case.w, case.out)
    case.verify(result)
