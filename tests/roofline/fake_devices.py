"""A CUDA device, NVML and time without any of them: what they were told to answer."""

import sys
import types

import pytest
from stand_in import Device, make_nvml

from roofline.worker.clocks import Call


class Gated:
    """Instruments, torch.cuda and a world in one, which keep the order of what they are told. It has no pre-roll to
    offer. Once it has `expired`, gates do not wait for the host."""

    def __init__(self):
        self.events, self.expired = [], False
        for word in ("close", "open", "align", "synchronize", "barrier"):
            setattr(self, word, lambda word=word: self.events.append(word))

    def Event(self, enable_timing):  # noqa: N802
        return types.SimpleNamespace(
            record=lambda: self.events.append("event"),
            query=lambda: self.events.append("query") or self.expired,
            elapsed_time=lambda stop: 0.05,
        )

    def expect(self, host_s):
        self.events.append(round(host_s, 3))

    def read_clock(self, slot):
        self.events.append(f"clock {slot}")

    def sm_clocks_hz(self, count):
        assert self.events[-1] == "synchronize"
        return [1.7e9 + slot for slot in range(count)]


class FakeTime:
    """Stands in for the module `time`: what sleeps passes it, and each look a microsecond."""

    def __init__(self):
        self.seconds = 0.0

    def perf_counter(self):
        self.seconds += 1e-6
        return self.seconds

    monotonic = perf_counter

    def sleep(self, seconds):
        self.seconds += seconds


@pytest.fixture
def fake_time(monkeypatch):
    """`fake_time(module)`: the time that `module` has from now on."""

    def install(module):
        monkeypatch.setattr(module, "time", FakeTime())
        return module.time

    return install


@pytest.fixture
def fake_cuda(monkeypatch):
    """`fake_cuda(launch_s)`: torch.cuda, and a kernel whose launch takes the host so long: `cuda.launch_s`."""

    def install(launch_s):
        cuda = Device()
        cuda.launch_s = launch_s
        monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))

        def kernel():
            cuda.host += cuda.launch_s
            cuda.take(50e-6)

        return cuda, Call(kernel)

    return install


@pytest.fixture
def fake_nvml(monkeypatch):
    """The stand-in's NVML, which here tells a power cap (bit 0x4) and three processes, but no power and no
    temperature."""
    nvml = make_nvml()
    nvml.nvmlDeviceGetPowerUsage = nvml.nvmlDeviceGetTemperature = nvml.refuse
    nvml.nvmlDeviceGetCurrentClocksThrottleReasons = lambda handle: 0x4
    nvml.nvmlDeviceGetComputeRunningProcesses = lambda handle: [1, 2, 3]
    cuda = types.SimpleNamespace(
        current_device=lambda: 0, get_device_properties=lambda index: types.SimpleNamespace(uuid="abc")
    )
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    return nvml
