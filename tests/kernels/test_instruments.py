"""The clock's instruments: what the host asks of its gates. As compiled, gate and clock are run by
`kernels.machine`; how small they are: test_shipped.py."""

from types import SimpleNamespace

import pytest
import torch

from kernels.bench import instruments


@pytest.fixture
def launched(monkeypatch):
    """What a clock of the CPU enqueues: of each gate its flag, the value that opens it, its patience in microseconds;
    of each reading of the SM clock the tensor and the slot."""
    enqueued = SimpleNamespace(gates=[], readings=[])

    def launch(kind):
        return lambda *args, **more: SimpleNamespace(run=lambda device: kind.append((*args, *more.values())))

    monkeypatch.setattr(instruments, "gate_launch", launch(enqueued.gates))
    monkeypatch.setattr(instruments, "clock_launch", launch(enqueued.readings))
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    return enqueued


def test_opening_lets_all_gates_so_far_go_and_the_next_one_is_closed_again(launched):
    clock = instruments.Instruments("cpu")
    for _ in range(3):
        clock.close()
    flag = launched.gates[0][0]
    assert [wanted - int(flag) for _, wanted, _ in launched.gates] == [0, 1, 2, 3]  # the first only loads the kernel
    clock.open()
    assert all(flag >= wanted for _, wanted, _ in launched.gates)
    clock.close()
    assert flag < launched.gates[-1][1]


def test_gates_are_as_patient_as_the_slowest_call_of_the_host_needs(launched):
    clock = instruments.Instruments("cpu")
    for host_s in (30e-3, 1e-3):
        clock.expect(host_s)
        clock.close()
    assert [patience for *_, patience in launched.gates] == [20_000, 60_000, 20_000]


def test_clock_is_cycles_over_time_and_readings_are_few(launched):
    clock = instruments.Instruments("cpu")
    clock.read_clock(1)
    assert [slot for _, slot in launched.readings] == [0, 1]
    launched.readings[0][0][:2] = torch.tensor([[70_400, 40_000], [66_000, 44_000]])
    assert clock.sm_clocks_hz(2) == pytest.approx([1.76e9, 1.5e9])
    with pytest.raises(IndexError, match="slot 256: 256 readings"):
        clock.read_clock(256)
