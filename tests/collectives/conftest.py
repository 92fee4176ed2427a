"""What the tests of links and arms share: where they run, shards of known data, links that are late or dead."""

import shutil
import subprocess
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from gather_cases import options_of

RANKS, ROWS, DEPTH, COLUMNS = 4, 128, 256, 48
SCALE = 4  # of rows and depth where kernels are compiled: their tiles are larger
FAST = 200e6  # bytes/s: the gather of these sizes takes some 0.5 ms


@pytest.fixture(scope="session")
def device() -> str:
    """A GPU when there is one and kernels are compiled, else the CPU."""
    from collectives.copier import copy_kernel
    from kernels.contract import interpreted

    return "cpu" if interpreted(copy_kernel) or not torch.cuda.is_available() else "cuda"


@pytest.fixture(scope="session")
def dtype(device):
    return torch.bfloat16 if device == "cuda" else torch.float32


@pytest.fixture(autouse=True)
def unhurried(link_clocks):
    """No test of a link of the CPU depends on real time."""


@pytest.fixture(autouse=True)
def few_programs(monkeypatch):
    """As many as the interpreter has, so that programs have several tiles each on a GPU too."""
    from kernels import hopper

    monkeypatch.setattr(hopper, "programs", lambda device: hopper.INTERPRETED_PROGRAMS)


@pytest.fixture(scope="session")
def libcuda(tmp_path_factory):
    """The driver of `libcuda.c`."""
    if not (compiler := shutil.which("cc") or shutil.which("gcc")):
        pytest.skip("there is no C compiler for the stand-in of CUDA's driver")
    made = tmp_path_factory.mktemp("driver") / "libcuda.so.1"
    source, name = Path(__file__).with_name("libcuda.c"), f"-Wl,-soname,{made.name}"
    subprocess.run([compiler, "-shared", "-fPIC", "-Wall", "-Werror", name, source, "-o", made, "-ldl"], check=True)
    return made


@pytest.fixture
def options():
    return options_of()


@pytest.fixture
def operands(device, dtype):
    """`operands(rank=0, ranks=4, **more)` of the all-gather matmul."""
    from collectives.all_gather_matmul import Operands

    def make(rank=0, ranks=RANKS, seed=0, rows=ROWS, columns=COLUMNS, depth=DEPTH, **more):
        generator = torch.Generator().manual_seed(seed)
        scale = SCALE if device == "cuda" else 1
        rows, depth = scale * rows, scale * depth

        def values(*shape):
            return torch.randn(shape, generator=generator).to(device, dtype)

        shards = [values(rows, depth // ranks) for _ in range(ranks)]
        gathered = torch.full((rows, depth), torch.nan, dtype=dtype, device=device)
        w, out = values(columns, depth), torch.full((rows, columns), torch.nan, dtype=dtype, device=device)
        return Operands(shards, gathered, w, out, rank, blocks=more.pop("blocks", 4), **more)

    return make


@pytest.fixture
def poison():
    """`poison(operands)` leaves NaN wherever the link shall bring something, and in the result."""

    def fill(operands):
        for transfer in operands.by_chunk:
            transfer.target.fill_(torch.nan)
        operands.out.fill_(torch.nan)

    return fill


@pytest.fixture
def close():
    """`close(operands)` checks the result against float64."""
    from roofline.measure.prepared import TOLERANCE

    def check(operands):
        reference = torch.cat(list(operands.shards), 1).double() @ operands.w.double().T
        error = (operands.out.double() - reference).norm() / reference.norm()
        limit = TOLERANCE["fp32" if operands.out.dtype == torch.float32 else "bf16"]
        assert error <= limit, f"relative error {error:.2e}"

    return check


@pytest.fixture
def link(device):
    """`link(kind="paced", bytes_per_s=FAST, rank=0)` where the tests run."""
    from collectives.bench import links

    def make(kind="paced", bytes_per_s=FAST, rank=0):
        return links.emulated(kind, device, bytes_per_s, rank)

    return make


@pytest.fixture
def troubled_link(device):
    """`troubled_link(position, seconds)` is late at the transfer there; with `dies=True` that one never comes."""

    def on_cpu(position, seconds, dies, bytes_per_s, rank):
        from collectives.links import PacedThread

        class Troubled(PacedThread):
            slept = 0

            def _move(self, index, source, target):
                if index == position and self.slept < self._sequence:
                    self.slept = self._sequence
                    self.clock.sleep(seconds)
                    if dies:
                        raise OSError("the cable was cut")
                PacedThread._move(index, source, target)

        return Troubled(bytes_per_s, rank)

    def on_cuda(position, seconds, dies, bytes_per_s, rank):
        from collectives import device_links

        class Troubled(device_links.PacedCopier):
            def _move(self, route):
                for first, end in ((0, position), (position, len(route.transfers))):
                    if first == position:
                        torch.cuda._sleep(int(seconds * 1.98e9))
                    if first < end and not (dies and first == position):
                        of = route.part(first, end)
                        counted = self._counted() and replace(self._counted(), flags=of.counters)
                        launch = device_links.copy_launch(of, self._times, self.bytes_per_s, counted=counted)
                        launch.run(self._times.device)

        return Troubled(bytes_per_s, rank)

    def make(position, seconds=0.03, dies=False, bytes_per_s=FAST, rank=0):
        return (on_cpu if device == "cpu" else on_cuda)(position, seconds, dies, bytes_per_s, rank)

    return make


class Stream:
    """Stands in for a CUDA stream: what is in its `queue` is launched when the consumer waits for it, and no sooner."""

    def __init__(self, priority=0):
        self.queue = []

    def wait_stream(self, other):
        pass


@pytest.fixture
def deferred_link(device, monkeypatch):
    """`deferred_link()`: the GPU's paced link in the interpreter, the copier of each transfer running when it is waited
    for."""
    from collectives import device_links

    if device == "cuda":
        pytest.skip("on a GPU the links' own tests run it")
    for name, stand_in in (("Stream", Stream), ("current_stream", Stream), ("stream", nullcontext)):
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(device_links, "PATIENCE_LOOKS", 100)

    class Deferred(device_links.PacedCopier):
        device, timed = "cpu", False
        _gone = device_links.DeviceLink._gone  # which waits for no copier to run

        def _move(self, route):
            counted = self._counted()
            for part in (route.part(index, index + 1) for index in range(len(route.transfers))):
                about = dict(timed=False, counted=counted and replace(counted, flags=part.counters))
                self._stream.queue.append(device_links.copy_launch(part, self._times, 1e9, **about))

        def _begun(self):
            self._brought = 0

        def signals(self, count=0):
            while self._stream.queue and self._brought < count:
                self._stream.queue.pop(0).run(self._times.device)
                self._brought += 1
            return super().signals(count)

    return lambda: Deferred(1e9, programs=2)
