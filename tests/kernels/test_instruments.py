"""The clock's instruments: what the host asks of its gates, and those of a GPU. As compiled, gate and clock are run by
`kernels.machine`; how small they are: test_beside.py."""

import time
from types import SimpleNamespace

import pytest
import torch

from kernels.bench import instruments

pytestmark = pytest.mark.gpu


@pytest.fixture
def gates(monkeypatch):
    """What each gate is enqueued with: its flag, the value that opens it, its patience in microseconds."""
    enqueued = []

    def gate_launch(flag, wanted, patience):
        return SimpleNamespace(run=lambda device: enqueued.append((flag, wanted, patience)))

    monkeypatch.setattr(instruments, "gate_launch", gate_launch)
    monkeypatch.setattr(instruments.Instruments, "read_clock", lambda self, slot: None)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    return enqueued


def test_opening_lets_all_gates_so_far_go_and_the_next_one_is_closed_again(gates):
    clock = instruments.Instruments("cpu")
    for _ in range(3):
        clock.close()
    flag = gates[0][0]
    assert [wanted - int(flag) for _, wanted, _ in gates] == [0, 1, 2, 3]  # the first only loads the kernel
    clock.open()
    assert all(flag >= wanted for _, wanted, _ in gates)
    clock.close()
    assert flag < gates[-1][1]


def test_gates_are_as_patient_as_the_slowest_call_of_the_host_needs(gates):
    clock = instruments.Instruments("cpu")
    for host_s in (0, 30e-3, 1e-3):
        clock.expect(host_s)
        clock.close()
    assert [patience for *_, patience in gates[1:]] == [20_000, 60_000, 20_000]


def test_clock_is_cycles_over_time(gates):
    clock = instruments.Instruments("cpu")
    clock._readings[:2] = torch.tensor([[70_400, 40_000], [66_000, 44_000]])
    assert clock.sm_clocks_hz(2) == pytest.approx([1.76e9, 1.5e9])


def test_more_calls_in_a_turn_than_readings_are_kept_is_told():
    with pytest.raises(IndexError, match="slot 256: 256 readings"):
        instruments.Instruments.read_clock(None, 256)


def test_on_a_gpu_gates_hold_what_comes_after_and_the_clock_is_plausible(device):
    if device == "cpu":
        pytest.skip("needs a GPU")
    gpu_instruments = instruments.Instruments()
    gpu_instruments.close()
    behind = torch.cuda.Event()
    behind.record()
    gpu_instruments.read_clock(1)
    time.sleep(2e-3)
    held = not behind.query()
    gpu_instruments.open()
    torch.cuda.synchronize()
    assert held
    assert 0.2e9 < gpu_instruments.sm_clocks_hz(2)[1] < 4e9
