"""What the tests of links and arms share: where they run, and links that are late or dead."""

import pytest
import torch
from cut_off import cut_off  # noqa: F401 a fixture

FAST = 200e6  # bytes/s


@pytest.fixture(scope="session")
def dtype(device):
    return torch.bfloat16 if device == "cuda" else torch.float32


@pytest.fixture(autouse=True)
def unhurried(link_clocks):
    """No test of a link of the CPU depends on real time."""


@pytest.fixture(autouse=True)
def few_operands(small_cache):
    """No test here times anything."""


@pytest.fixture(autouse=True)
def few_programs(monkeypatch):
    """So that programs have several tiles each on a GPU too."""
    from kernels import hopper

    monkeypatch.setattr(hopper, "programs", lambda device: 3)


@pytest.fixture
def link(device):
    """`link(bytes_per_s=FAST, rank=0)`: the paced one where the tests run."""
    from collectives.device import PacedCopier
    from collectives.paced import PacedThread

    def make(bytes_per_s=FAST, rank=0):
        return (PacedThread if device == "cpu" else PacedCopier)(bytes_per_s, rank)

    return make


@pytest.fixture
def troubled_link(device):
    """`troubled_link(position, seconds)` is late at the transfer there; with `dies=True` that one never comes."""
    from collectives.device import PacedCopier
    from collectives.paced import PacedThread

    def make(position, seconds, dies=False, bytes_per_s=FAST):
        class OnCpu(PacedThread):
            def bring(self, run, index):
                self.is_next = index == position
                super().bring(run, index)

            def copy(self, index, source, target):
                if self.is_next:
                    self.is_next = False
                    self.clock.sleep(seconds)
                    if dies:
                        raise OSError("the cable was cut")
                PacedThread.copy(index, source, target)

        class OnCuda(PacedCopier):
            def move(self, route, first, end):
                parts = (first, min(end, position)), (max(first, position), end)
                for part in (part for part in parts if part[0] < part[1]):
                    if part[0] == position:
                        torch.cuda._sleep(int(seconds * 1.98e9))
                    if not dies or part[1] <= position:
                        super().move(route, *part)

        return (OnCpu if device == "cpu" else OnCuda)(bytes_per_s)

    return make


@pytest.fixture(scope="module")
def outcome(request, elsewhere):
    """What `main` of the module of the test returns, in a process beside this one, which may be interpreting."""
    return elsewhere(request.module.main)
