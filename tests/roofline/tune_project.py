"""The real benchmarks' tuning, on a GPU that is made up: kernels of known durations, by configuration and M.

Beside this file lie a copy of the benchmarks' own test, and a table in kernels/configs. The environment
variable FSYNC_KILLS, as in `2`, kills the process in so many-th saving of the table.

    M = 64      one candidate is faster by 10 %
    M = 128     all are alike
    M = 256     all are alike, but for noise of 3 %
    M = 512     as 64; one raises, one is wrong, one spills, and one dies in its tenth round

A second kernel, `other`, is faster by 5 % than the first before that is tuned.
"""

import itertools
import os
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import kernels.bench.instruments as instruments
import kernels.configs as configs
import kernels.contract as contract
import kernels.registry as registry
import kernels.tuning as tuning
import roofline.pytest_plugin.hooks as plugin
from roofline.measure import device_errors, machine, telemetry
from roofline.theory.chips import find
from roofline.theory.waves import GpuSpec

pytest_plugins = ["roofline.pytest_plugin.hooks"]

H200 = GpuSpec.of_chip(find("H200"))
NOW = configs.Config(16, 16, 16, 4, 3)
FAST, RAISES, WRONG, SPILLS, DIES = (replace(NOW, num_stages=stages) for stages in (4, 5, 6, 7, 8))
TOO_LARGE = replace(NOW, num_stages=1000)

torch.set_num_threads(1)  # matmuls of a few microseconds, where workers that wake on a busy machine take milliseconds
NOISE = np.random.default_rng(5)
TOOK_S = [0.0]
CALLS = itertools.count()
SAVED = itertools.count(1)

about = {"device": "cuda", "source": "gpu", "chip": "NVIDIA H200", "sms": 132, "datasheet": None, "driver": "1"}
about |= {"versions": {"torch": "2", "triton": "3"}, "memory_bytes": 10**9, "cache_bytes": 10**6}
plugin.choose_device = lambda wanted, timed: "cuda"
machine.describe = lambda device: dict(about)
telemetry.for_device = lambda device: telemetry.CpuTelemetry()
device_errors.device_lost = lambda device: False
contract.interpreted = lambda kernel: False
instruments.Instruments = lambda: None
configs.FOLDER = Path(__file__).parent / "kernels" / "configs"


def ranked(problem, bases):
    return [NOW, TOO_LARGE, FAST, RAISES, WRONG, SPILLS, DIES]


def run(x, w, out, config=None):
    config = config or configs.choose("fake", "sm90", len(x), 128, 64, torch.float32, H200)
    planted = len(x) == 512
    if planted and config == RAISES:
        raise RuntimeError("no such instruction\nat line 3")
    if planted and config == DIES and next(CALLS) == 10:
        raise RuntimeError("the tenth is too much")
    torch.mm(x, w.T, out=out)
    if planted and config == WRONG:
        out[:, 3] += 1
    faster = config == FAST and len(x) in (64, 512)
    TOOK_S[0] = 1e-3 / (1.1 if faster else 1) * (1 + NOISE.normal(0, 0.03) if len(x) == 256 else 1)
    return out


def run_other(x, w, out):
    torch.mm(x, w.T, out=out)
    TOOK_S[0] = 0.95e-3
    return out


def unsound(kernel, arch, wanted, workers):
    return {one: "spills: 8 bytes of stack, 0 allowed" for one in wanted if one[1] == SPILLS}


registry.KERNELS.clear()
registry.ORDER = (("fake",), ("other",))
tuning.unsound = unsound
for name, function in (("fake", run), ("other", run_other)):
    registry.register(registry.Kernel(
        name=name, run=function, config=lambda x, w: "its tile", why_not=lambda x, w, out=None: None, jit=None,
        example=None, space=tuning.SearchSpace(ranked, tuning.ring_bytes),
    ))  # fmt: skip

from kernels.bench import matmul, tune  # noqa: E402

tune.hardware = lambda: ("sm90", H200)
matmul.probes = lambda options: []
matmul.operands = lambda case, options: [(torch.randn(case.m, 8), torch.randn(8, 8), torch.empty(case.m, 8))]


def fsync(file, sync=os.fsync):
    if next(SAVED) == int(os.environ.get("FSYNC_KILLS", "0")):
        os.kill(os.getpid(), signal.SIGKILL)
    sync(file)


os.fsync = fsync


class FakeClock:
    """Each call took what the kernel said; time passes by that much."""

    timer = "fake_clock_replay"
    passes = 1
    seconds = 0.0

    def now(self):
        return self.seconds

    def turn(self, calls):
        times = []
        for call in calls:
            call()
            times.append(TOOK_S[0])
        self.seconds += sum(times)
        return times


@pytest.fixture(scope="session")
def ffn_clock():
    return FakeClock()
