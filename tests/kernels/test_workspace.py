"""The workspace: kept, one for each stream, and none of them in a CUDA graph."""

from types import SimpleNamespace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from kernels import workspace as workspaces
from kernels.workspace import workspace

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def no_workspace(monkeypatch):
    monkeypatch.setattr(workspaces, "KEPT", {})


def test_a_workspace_is_kept_and_grows():
    cpu = torch.device("cpu")
    first = workspace(cpu, 100, 4)
    assert workspace(cpu, 50, 4) is first
    wider = workspace(cpu, 50, 9)
    assert (wider.partials.numel(), wider.counters.numel()) == (100, 9)
    assert not wider.counters.any()
    assert workspace(cpu, 100, 9) is wider
    assert workspace(cpu, 101, 9) is not wider


def test_each_stream_has_a_workspace_and_a_graph_keeps_none(monkeypatch):
    stream, capturing = SimpleNamespace(cuda_stream=7), []
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: stream)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: bool(capturing))
    monkeypatch.setattr(torch.cuda, "device", lambda device: torch.no_grad())
    device = torch.device("cuda", 0)
    with FakeTensorMode():  # CUDA tensors without a GPU
        first = workspace(device, 10, 2)
        assert workspace(device, 10, 2) is first
        stream.cuda_stream = 8
        second = workspace(device, 10, 2)
        assert second is not first
        capturing.append("a graph")
        assert workspace(device, 10, 2) is not second
        capturing.clear()
        assert workspace(device, 10, 2) is second
