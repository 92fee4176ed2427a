"""What `roofline doctor` finds, by what torch, Triton and the compiler say on machines that lack something."""

import os
import re
import sys
import types
import warnings
from contextlib import redirect_stdout, suppress
from io import StringIO
from unittest.mock import Mock

import pytest
import torch
from stand_in import make_nvml, properties_of
from triton.runtime import build

from roofline.commands import doctor
from roofline.commands.cli import main
from roofline.host import machine

H100 = properties_of("H100")


@pytest.fixture(autouse=True)
def free_environment(monkeypatch):
    for variable in ("TRITON_INTERPRET", "CUDA_LAUNCH_BLOCKING", "CUDA_DEVICE_MAX_CONNECTIONS"):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    """An H100 on which all is well. Its tests change one answer of torch or NVML."""
    with suppress(AttributeError):  # Triton looks for a compiler once, from 3.8 on
        monkeypatch.setattr(build, "_find_compiler", build._find_compiler.__wrapped__)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    on_cpu = torch.ones
    monkeypatch.setattr(torch, "ones", lambda *sizes, device: on_cpu(*sizes))
    monkeypatch.setitem(sys.modules, "pynvml", make_nvml())
    cuda = {"is_available": True, "current_device": 0, "device_count": 1, "mem_get_info": (79 * 2**30, 80 * 2**30)}
    for name, answer in (cuda | {"get_device_properties": H100}).items():
        monkeypatch.setattr(torch.cuda, name, returns(answer))
    return monkeypatch


def find(about: str) -> list[str]:
    """Return what is printed of the check of that name: what it finds, and where that is lacking its cost and the way
    out."""
    with redirect_stdout(StringIO()) as printed:
        doctor.is_lacking(next(check for check in doctor.CHECKS if check.subject == about))
    return [line.strip() for line in printed.getvalue().splitlines()]


def returns(answer):
    return lambda *arguments, **more: answer


def test_whole_gpu_has_nothing_lacking(gpu, capsys):
    assert main(["doctor"]) == 0
    *findings, whole = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in findings] == [["ok", "packages"], ["ok", "device"], ["ok", "compiler"]]
    assert "4 SMs, compute capability 9.0; driver made up, torch for CUDA 13.0" in findings[1]
    assert whole == "the default run would be whole here"


OLD_DRIVER = "CUDA initialization: The NVIDIA driver on your system is too old (found version 12040)."
"""github.com/IEIT-Yuan/Yuan-2.0/issues/65"""


def test_gpu_that_torch_cannot_use_is_told_with_what_torch_says(gpu, capsys):
    def is_available():
        warnings.warn(OLD_DRIVER, stacklevel=1)
        return False

    gpu.setattr(torch.cuda, "is_available", is_available)
    text, *remedy = find("device")
    assert remedy == ["nothing is measured"]
    assert OLD_DRIVER in text
    assert f"make bench TORCH_INDEX={machine.TORCH_INDEX}" in text
    assert main(["doctor"]) == 1
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["ok", "lacking", "nothing", "the"]
    with pytest.raises(ValueError, match="cannot use it"):
        machine.choose_device("auto", timed=False)  # plain tests say the same


NO_HEADERS = "#!/bin/sh\necho 'main.c:1:10: fatal error: Python.h: No such file or directory' >&2; exit 1\n"
"""A compiler, as gcc says it: github.com/sgl-project/sglang/issues/1117."""
BUSY = "CUDA error: CUDA-capable device(s) is/are busy or unavailable"
"""github.com/pytorch/pytorch/issues/100691"""


def test_a_gpu_that_others_have_is_told_with_its_way_out(gpu):
    gpu.setattr(torch, "ones", Mock(side_effect=RuntimeError(f"{BUSY}\nCUDA kernel errors might be asynchronous")))
    text, _, way_out = find("device")
    assert BUSY in text
    assert "compute mode" in way_out


@pytest.mark.parametrize(
    ("major", "says", "is_lacking"), [(10, "left out, and its rows say so", False), (7, "below capability 8.0", True)]
)
def test_generation_of_a_card(gpu, major, says, is_lacking):
    card = types.SimpleNamespace(**vars(H100) | {"major": major})
    gpu.setattr(torch.cuda, "get_device_properties", returns(card))
    text, *remedy = find("device")
    assert bool(remedy) == is_lacking
    assert says in text


def test_interpreter_is_to_be_switched_off(gpu):
    gpu.setenv("TRITON_INTERPRET", "1")
    assert re.search("TRITON_INTERPRET is set.*unset it", find("device")[0])


def test_compiler_without_headers(gpu, tmp_path):
    (tmp_path / "cc").write_text(NO_HEADERS)
    (tmp_path / "cc").chmod(0o755)
    gpu.setenv("CC", str(tmp_path / "cc"))
    assert "python3-dev" in find("compiler")[2]


def test_packages_that_are_missing_or_too_old(monkeypatch):
    def version(name):
        if name == "pandas":
            raise doctor.metadata.PackageNotFoundError(name)
        return "2.9.1" if name == "torch" else "99"

    monkeypatch.setattr(doctor.metadata, "version", version)
    text, *remedy = find("packages")
    assert remedy
    assert "torch 2.9.1, asked for is >=2.11" in text
    assert "no pandas>=2.2" in text


def test_cpu_with_one_core(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0}, raising=False)
    assert find("cores")[0].startswith("lacking")
