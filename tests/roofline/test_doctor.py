"""What `roofline doctor` finds, by what torch, Triton, NVML and the compiler say on machines that lack something."""

import json
import os
import sys
import types
import warnings
from contextlib import suppress
from dataclasses import asdict

import pynvml
import pytest
import torch
from triton.runtime import build

from roofline import doctor
from roofline.cli import main
from roofline.measure import machine
from roofline.profile import ncu

H100 = types.SimpleNamespace(
    name="NVIDIA H100 80GB HBM3", multi_processor_count=132, major=9, minor=0, L2_cache_size=50 * 2**20,
    total_memory=80 * 2**30, uuid="00000000-1111-2222-3333-444444444444",
)  # fmt: skip


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
    cuda = {
        "is_available": lambda: True,
        "get_device_properties": lambda index: H100,
        "current_device": lambda: 0,
        "mem_get_info": lambda: (79 * 2**30, 80 * 2**30),
        "device_count": lambda: 1,
        "is_initialized": lambda: True,
    }
    nvml = {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlSystemGetDriverVersion": lambda: "580.126.20",
        "nvmlDeviceGetHandleByUUID": lambda uuid: uuid,
        "nvmlDeviceGetClockInfo": lambda handle, kind: 1755,
        "nvmlDeviceGetPowerUsage": lambda handle: 93_000,
        "nvmlDeviceGetTemperature": lambda handle, kind: 34,
        "nvmlDeviceGetCurrentClocksThrottleReasons": lambda handle: 0,
        "nvmlDeviceGetComputeRunningProcesses": lambda handle: [types.SimpleNamespace(pid=os.getpid())],
        "nvmlDeviceGetMigMode": lambda handle: (pynvml.NVML_DEVICE_MIG_DISABLE, 0),
        "nvmlDeviceGetComputeMode": lambda handle: pynvml.NVML_COMPUTEMODE_DEFAULT,
    }
    for module, answers in ((torch.cuda, cuda), (pynvml, nvml)):
        for name, answer in answers.items():
            monkeypatch.setattr(module, name, answer)
    monkeypatch.setattr(ncu, "find", lambda: "/usr/local/cuda/bin/ncu")
    monkeypatch.setattr(ncu, "version", lambda tool: "2025.3.1.0")
    return monkeypatch


def found(about: str) -> doctor.Finding:
    """What the one check of that name finds, as among all."""
    return doctor._asked(getattr(doctor, f"_{about}"))


def raises(error):
    def call(*arguments, **more):
        raise error

    return call


def nvml_error(name: str) -> pynvml.NVMLError:
    """NVML's own, with its own text."""
    return pynvml.NVMLError(getattr(pynvml, f"NVML_ERROR_{name}"))


def test_whole_gpu_has_nothing_lacking(gpu, capsys):
    findings = doctor.examine()
    assert [one.about for one in findings if one.state == doctor.LACKING] == []
    assert {"packages", "device", "compiler", "cache", "nvml", "mode"} <= {one.about for one in findings}
    assert "132 SMs, compute capability 9.0; driver 580.126.20, torch for CUDA 13.0" in found("device").found
    assert found("nvml").found == "1755 MHz, 93 W, 34 C"
    assert main(["doctor"]) == 0
    assert capsys.readouterr().out.endswith("the default run would be whole here\n")


@pytest.mark.parametrize(
    ("warning", "help"),
    [
        # github.com/IEIT-Yuan/Yuan-2.0/issues/65
        ("CUDA initialization: The NVIDIA driver on your system is too old (found version 12040).",
         f"make bench TORCH_INDEX={machine.TORCH_INDEX}"),
        # github.com/hiyouga/LlamaFactory/issues/7888
        ("CUDA initialization: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before "
         "calling NumCudaDevices() that might have already set an error? Error 802: system not yet initialized",
         "nvidia-fabricmanager"),
    ],
)  # fmt: skip
def test_gpu_that_torch_cannot_use_is_told_with_what_torch_says(gpu, warning, help, capsys):
    def is_available():
        warnings.warn(warning, stacklevel=1)
        return False

    gpu.setattr(torch.cuda, "is_available", is_available)
    finding = doctor.examine()[-1]
    assert (finding.about, finding.state) == ("device", doctor.LACKING)
    assert warning in finding.found
    assert help in finding.found
    assert main(["doctor"]) == 1
    with pytest.raises(ValueError, match="cannot use it"):
        machine.choose_device("auto", timed=False)  # plain tests say the same


NO_HEADERS = "#!/bin/sh\necho 'main.c:1:10: fatal error: Python.h: No such file or directory' >&2; exit 1\n"
"""A compiler, as gcc says it: github.com/sgl-project/sglang/issues/1117."""
BUSY = "CUDA error: CUDA-capable device(s) is/are busy or unavailable"
"""github.com/pytorch/pytorch/issues/100691"""


@pytest.mark.parametrize(
    ("module", "name", "answer", "about", "state", "says", "help"),
    [
        (torch, "ones", raises(RuntimeError(f"{BUSY}\nCUDA kernel errors might be asynchronous")), "device",
         doctor.LACKING, f"{H100.name}: {BUSY}", "compute mode"),
        # github.com/rapidsai/dask-cuda/issues/949
        (pynvml, "nvmlDeviceGetHandleByUUID", raises(nvml_error("LIB_RM_VERSION_MISMATCH")), "nvml",
         doctor.LACKING, "RM has detected an NVML/RM version mismatch", "reboot"),
        (pynvml, "nvmlDeviceGetHandleByUUID", raises(nvml_error("LIBRARY_NOT_FOUND")), "nvml",
         doctor.LACKING, "NVML Shared Library Not Found", "nvidia-ml-py"),
        (pynvml, "nvmlDeviceGetPowerUsage", raises(nvml_error("NOT_SUPPORTED")), "nvml",
         doctor.LIMITED, "power_w", ""),
        (pynvml, "nvmlDeviceGetMigMode", lambda handle: (pynvml.NVML_DEVICE_MIG_ENABLE, 1), "mode",
         doctor.LACKING, "MIG is on", ""),
        (pynvml, "nvmlDeviceGetMigMode", raises(nvml_error("NOT_SUPPORTED")), "mode",  # as a card before Ampere says
         doctor.OK, "", ""),
        (pynvml, "nvmlDeviceGetComputeMode", lambda handle: pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS, "mode",
         doctor.LACKING, "", "nvidia-smi -c 0"),
    ],
)  # fmt: skip
def test_answers_of_torch_and_nvml(gpu, module, name, answer, about, state, says, help):
    gpu.setattr(module, name, answer)
    finding = found(about)
    assert finding.state == state
    assert says in finding.found
    assert help in finding.way_out


@pytest.mark.parametrize(
    ("variable", "value", "about", "says", "help"),
    [
        ("CUDA_LAUNCH_BLOCKING", "1", "device", "CUDA_LAUNCH_BLOCKING is set", ""),
        ("TRITON_INTERPRET", "1", "device", "TRITON_INTERPRET is set", ""),
        ("CUDA_DEVICE_MAX_CONNECTIONS", "1", "device", "CUDA_DEVICE_MAX_CONNECTIONS is set", ""),
        ("PATH", "/nowhere", "compiler", "Failed to find C compiler", "gcc, python3-dev"),
        ("CC", "{folder}/cc", "compiler", "'-shared', '-fPIC'", "python3-dev"),
        ("TRITON_CACHE_DIR", "{folder}/cc/cache", "cache", "", "TRITON_CACHE_DIR"),
    ],
)
def test_variables_by_which_something_is_lacking(gpu, tmp_path, variable, value, about, says, help):
    (tmp_path / "cc").write_text(NO_HEADERS)
    (tmp_path / "cc").chmod(0o755)
    gpu.delenv("CC", raising=False)
    gpu.setenv(variable, value.format(folder=tmp_path))
    finding = found(about)
    assert finding.state == doctor.LACKING
    assert says in finding.found
    assert help in finding.way_out
    assert about != "device" or "unset it" in finding.found


@pytest.mark.parametrize(
    ("capability", "state"), [((9, 0), "ok"), ((10, 0), "ok"), ((8, 0), "ok"), ((7, 5), "lacking")]
)
def test_cards_of_other_generations(gpu, capability, state):
    card = types.SimpleNamespace(**vars(H100) | dict(zip(("major", "minor"), capability, strict=True)))
    gpu.setattr(torch.cuda, "get_device_properties", lambda index: card)
    assert found("device").state == state
    assert ("left out" in found("device").found) == (state == "ok" and capability != (9, 0))


def test_compiler_that_works_is_called_although_a_cache_could_answer(gpu, tmp_path):
    compiler, called = tmp_path / "cc", tmp_path / "called"
    compiler.write_text(f'#!/bin/sh\necho called >> {called}\nwhile [ "$1" != -o ]; do shift; done; : > "$2"\n')
    compiler.chmod(0o755)
    gpu.setenv("CC", str(compiler))
    assert [found("compiler").state for _ in range(2)] == [doctor.OK, doctor.OK]
    assert called.read_text().count("called") == 2


def test_what_nvml_does_not_tell_here_costs_no_whole_run(gpu):
    for name in ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetComputeMode", "nvmlDeviceGetMigMode"):
        gpu.setattr(pynvml, name, raises(nvml_error("NOT_SUPPORTED")))
    assert {found(about).state for about in ("mode", "others")} == {doctor.LIMITED}


@pytest.mark.parametrize(
    ("pids", "initialized", "found_others"),
    [([4711], False, 1), ([os.getpid(), 4711], True, 1), ([4711, 4712], True, 1), ([4711], True, 0)],
)
def test_processes_of_others(gpu, pids, initialized, found_others):
    """In a container NVML knows this one by another number."""
    running = [types.SimpleNamespace(pid=pid, usedGpuMemory=3 * 2**30) for pid in pids]
    gpu.setattr(pynvml, "nvmlDeviceGetComputeRunningProcesses", lambda handle: running)
    gpu.setattr(torch.cuda, "is_initialized", lambda: initialized)
    assert found("others").state == (doctor.LIMITED if found_others else doctor.OK)
    assert not found_others or "1 other processes on the card hold 3.0 GiB" in found("others").found


def test_counters_bindings_and_peers_are_asked_for_by_few(gpu):
    gpu.setattr(ncu, "why_not", lambda device: ncu.FORBIDDEN)
    gpu.setattr(torch.cuda, "device_count", lambda: 4)
    gpu.setattr(torch.cuda, "can_device_access_peer", lambda one, other: other != 3)
    gpu.setattr(machine, "native_atomics", lambda one, other: other != 2)
    assert found("counters").found == ncu.FORBIDDEN
    assert found("peers").found == "4 GPUs, and GPU 0 does not reach 2, 3 with atomics"
    assert {found(name).state for name in ("counters", "peers")} == {doctor.LIMITED}
    assert main(["doctor"]) == 0


def test_packages_that_are_missing_or_too_old(monkeypatch):
    versions = {"torch": "2.9.1"}

    def version(name):
        if name == "pandas":
            raise doctor.metadata.PackageNotFoundError(name)
        return versions.get(name, "99")

    monkeypatch.setattr(doctor.metadata, "version", version)
    (finding,) = [one for one in doctor.examine() if one.state == doctor.LACKING]
    assert finding.about == "packages"
    assert "torch 2.9.1, asked for is >=2.12" in finding.found
    assert "no pandas>=2.2" in finding.found


def test_cpu_with_one_core_and_no_room(monkeypatch, capsys):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0}, raising=False)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: types.SimpleNamespace(free=5e6))
    monkeypatch.setattr(machine, "gpu_driver", lambda: None)
    assert main(["doctor", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert not told["whole"]
    assert [one["about"] for one in told["findings"] if one["state"] == "lacking"] == ["cores", "results"]
    assert told["findings"] == [asdict(one) for one in doctor.examine()]


def test_check_that_raises_costs_no_other_its_answer(gpu):
    gpu.setitem(sys.modules, "triton", None)
    states = {one.about: one.state for one in doctor.examine()}
    assert (states["compiler"], states["cache"], states["nvml"]) == (doctor.LACKING, doctor.LACKING, doctor.OK)
