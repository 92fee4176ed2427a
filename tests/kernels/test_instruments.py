"""The clock's instruments: the gate in the interpreter, and a GPU's own. How small they are: test_compiled.py."""

import functools
import time

import pytest
import torch

from kernels.bench import instruments
from kernels.bench.instruments import gate_launch


@pytest.fixture
def interpreted(device, monkeypatch):
    """Instruments of the CPU whose gates have no timer, and whose clock is not read."""
    if device == "cuda":
        pytest.skip("a GPU has real ones")
    untimed = functools.partial(gate_launch, gap=0, timed=False)
    for where, name, stand_in in (
        (instruments, "gate_launch", untimed),
        (instruments, "PATIENCE_US", 5000),
        (instruments.Instruments, "read_clock", lambda self, slot: None),
        (torch.Tensor, "pin_memory", lambda self: self),
        (torch.cuda, "synchronize", lambda device: None),
    ):
        monkeypatch.setattr(where, name, stand_in)
    return instruments.Instruments("cpu")


@pytest.fixture
def looks(monkeypatch):
    """`looks(call)`: how often gates load their flag, interpreted. `looks.then` is {look: what happens before}."""
    from triton.runtime.interpreter import InterpreterBuilder

    load, seen = InterpreterBuilder.create_load, []

    def look(builder, *arguments):
        seen.append(builder)
        count.then.get(len(seen), lambda: None)()
        return load(builder, *arguments)

    def count(call):
        seen.clear()
        call()
        return len(seen)

    count.then = {}
    monkeypatch.setattr(InterpreterBuilder, "create_load", look)
    return count


def test_gate_holds_until_the_host_opens_it_and_opening_lets_earlier_ones_go(interpreted, looks):
    interpreted._closed = 4  # gates that are closed, one behind the other
    looks.then = {50: interpreted.open}
    assert looks(lambda: interpreted._gate(4)) == 50
    looks.then = {}
    assert [looks(lambda number=number: interpreted._gate(number)) for number in (1, 2, 3, 4)] == [1] * 4
    assert looks(interpreted.close) == 5001  # the next one is closed again, but not for ever
    interpreted.expect(host_s=3e-3)
    assert looks(interpreted.close) == 6001
    interpreted.expect(host_s=1e-3)
    assert looks(interpreted.close) == 5001


def test_clock_is_cycles_over_time(interpreted):
    interpreted._readings[:2] = torch.tensor([[70_400, 40_000], [66_000, 44_000]])
    assert interpreted.sm_clocks_hz(2) == pytest.approx([1.76e9, 1.5e9])


def test_more_calls_in_a_turn_than_readings_are_kept_is_told():
    with pytest.raises(IndexError, match="slot 256: 256 readings"):
        instruments.Instruments.read_clock(None, 256)


def test_on_a_gpu_gates_hold_what_comes_after_and_the_clock_is_plausible(device):
    if device == "cpu":
        pytest.skip("needs a GPU")
    found = instruments.Instruments()
    found.close()
    behind = torch.cuda.Event()
    behind.record()
    found.read_clock(1)
    time.sleep(2e-3)
    held = not behind.query()
    found.open()
    torch.cuda.synchronize()
    assert held
    assert 0.2e9 < found.sm_clocks_hz(2)[1] < 4e9
