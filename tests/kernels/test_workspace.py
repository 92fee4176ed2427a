"""The workspace: kept, one for each stream, and none of them in a CUDA graph."""

import pytest
import torch

from kernels import workspace as workspaces
from kernels.workspace import Workspace, workspace


@pytest.fixture
def no_workspace(monkeypatch):
    monkeypatch.setattr(workspaces, "KEPT", {})


def test_a_workspace_is_kept_and_grows(no_workspace):
    cpu = torch.device("cpu")
    first = workspace(cpu, 100, 4)
    assert workspace(cpu, 50, 4) is first
    wider = workspace(cpu, 50, 9)
    assert (wider.partials.numel(), wider.counters.numel()) == (100, 9)
    assert not wider.counters.any()
    assert workspace(cpu, 100, 9) is wider


class FakeStream:
    cuda_stream = 7


def test_each_stream_has_its_own_workspace_and_a_graph_keeps_none(no_workspace, monkeypatch):
    made, capturing = [], [False]
    monkeypatch.setattr(workspaces, "_new", lambda device, *sizes: made.append(sizes) or _cpu_workspace(*sizes))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: FakeStream)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing[0])
    monkeypatch.setattr(torch.cuda, "device", lambda device: torch.no_grad())
    device = torch.device("cuda", 0)
    first = workspace(device, 10, 2)
    assert workspace(device, 10, 2) is first
    monkeypatch.setattr(FakeStream, "cuda_stream", 8)
    second = workspace(device, 10, 2)
    assert second is not first
    capturing[0] = True
    captured = workspace(device, 10, 2)
    assert captured is not second
    capturing[0] = False
    assert workspace(device, 10, 2) is second
    assert len(made) == 3


def _cpu_workspace(partials: int, counters: int) -> Workspace:
    return Workspace(torch.empty(partials), torch.zeros(counters, dtype=torch.int32))
