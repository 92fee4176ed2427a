"""Links of a GPU as compiled, on the machine: what is launched when, and what is said of what does not come.
That what they bring is exact: tests/machine/links.py; that no kernel is loaded late: test_loads.py.

All of it runs in one process beside this one, which may be interpreting.
"""

import itertools
from types import SimpleNamespace

import links
import pytest
import torch
from arm_cases import Gather, Prefetch

from collectives import all_gather_matmul, device, weight_prefetch
from collectives.transfers import Transfer
from kernels.machine.core.machine import Machine
from kernels.machine.tests.host import Host


def test_rows_that_are_not_aligned_are_refused():
    wide = torch.zeros(4, 9)
    with pytest.raises(ValueError, match="multiples of 16 bytes"):
        device.describe(Transfer(1, 0, wide[:, :8], torch.zeros(4, 8)))


def test_what_the_driver_refuses_is_an_error(monkeypatch):
    monkeypatch.setattr(device, "driver", lambda: SimpleNamespace(cuMade=lambda: 0, cuRefused=lambda: 1))
    device.call_driver("cuMade")
    with pytest.raises(RuntimeError, match="CUDA error 1: cuRefused was refused"):
        device.call_driver("cuRefused")
    assert [device.driver_has(name) for name in ("cuMade", "cuMissing")] == [True, False]


def missing(arm: str, count: int, programs: int | None) -> str:
    """Return what the timeline says where the copier or the engine brings the first `count` chunks, or never runs."""
    with links.on(made := Machine(0)):
        link = links.wire_of(1e9, programs)
        link.patience_s = 3e-5
        move = link.move
        link.move = lambda route, first, end: move(route, first, count) if count else None
        all_gather_matmul.ARMS[arm](Gather().operands, link)
        made.run()
        return link.wrong()


def steps_of_prefetch() -> list[str]:
    """Return what an arm does on its own stream in its second call, by kinds in a row."""
    operands, steps = Prefetch().operands, []
    multiply = operands.matmul
    operands.matmul = lambda *tensors: (steps.append("matmul"), multiply(*tensors))
    with links.on(made := Machine(0)):
        link = links.Wire(1e9, programs=3)
        launch = link.launch
        link.launch = lambda kernel: (steps.append(kernel.kernel.__name__), launch(kernel))
        for _ in range(2):
            steps.clear()
            weight_prefetch.overlapped(operands, link)
        made.run()
    return [step for step, _ in itertools.groupby(step for step in steps if step in ("matmul", "wait_kernel"))]


def rows_before_their_slice(seed: int) -> tuple[int, int]:
    """Return how often a row was there before the slice before its own was due, and how many times were looked at. What
    is left of a transfer behind its last slice, and one that is less than a slice, have their time too."""
    rows, slice_rows, early, looks = 56, 16, [], set()
    source, target, last = torch.ones(rows, 16), torch.zeros(rows, 16), torch.zeros(4, 16)
    slice_ns, begun = slice_rows * source[0].nbytes / 1e-3, torch.zeros(1, dtype=torch.int64)

    def watches(host):
        while True:
            yield
            slices, time_ns = -(-int(target.all(dim=1).sum()) // slice_rows), host.machine.time_ns
            if begun[0] and time_ns not in looks:
                looks.add(time_ns)
                early.append(time_ns < int(begun[0]) + (slices - 1) * slice_ns)

    with links.on(made := Machine(seed)), pytest.MonkeyPatch.context() as patch:
        patch.setattr(device, "SLICE_BYTES", slice_rows * source[0].nbytes)
        link = links.Wire(1e6, programs=3)
        link.launch(device.stamp_launch(begun))
        link.start([Transfer(1, 0, source, target), Transfer(2, 0, source[:4], last)])
        link.finish()
        Host(made, watches)
        made.run()
    assert not link.wrong()
    return sum(early), len(looks)


def main() -> list:
    torch.set_num_threads(1)
    arms = ("chunk_launches", 0, 3), ("serial", 1, 3), ("serial", 1, 0), ("serial", 1, None)
    return [[missing(*arm) for arm in arms], steps_of_prefetch(), rows_before_their_slice(1)]


def test_first_chunk_that_is_missing_is_named_by_the_timeline(outcome):
    """Not the last that was waited for, of a copier that ends early or never runs, and of engines that end early."""
    kinds = "paced", "paced", "paced_engine", "pcie"
    for number, kind, text in zip((1, 2, 2, 2), kinds, outcome[0], strict=True):
        assert text.startswith(f"the {kind} link is dead: chunk {number} (row block 0), which rank {number} sends to ")
        assert "has not arrived: it is 3e-05 s late" in text


def test_copier_begins_before_a_matmul_which_could_keep_it_out(outcome):
    assert outcome[1] == ["wait_kernel", "matmul", "wait_kernel"]


def test_copier_brings_no_row_before_its_slice(outcome):
    early, looks = outcome[2]
    assert early == 0
    assert looks > 100
