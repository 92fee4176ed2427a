"""An arm that sends what it computes, stopped at any of its launches, leaves no stream waiting; its link goes on."""

import itertools
import math

import pytest
import stand_in
import test_loads
import torch
from arm_cases import Layer, Scatter

from collectives.paced import PacedThread
from collectives.transfers import LinkError, WarmUp, ended

ERRORS = KeyboardInterrupt, torch.OutOfMemoryError, ValueError


def run_to(number: int | None, run) -> int:
    """Run `run()`, whose launch `number` raises one of ERRORS. Returns how many launches it came to."""
    numbers, load = itertools.count(), stand_in.DEVICE.load

    def load_or_raise(*about):
        if next(numbers) == number:
            raise ERRORS[number % len(ERRORS)]("made up")
        load(*about)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stand_in.DEVICE, "load", load_or_raise)
        run()
    return next(numbers)


def problem_of(setting, arm, link, number: int, result: torch.Tensor) -> str:
    """What is wrong once `arm` was stopped at its launch `number`; `result` is the right one."""
    operands = setting.sets[0]
    with pytest.raises(ERRORS[number % len(ERRORS)], match="made up"):
        run_to(number, lambda: arm(operands, link))
    stand_in.DEVICE.run()
    if any(stream.queue for stream in stand_in.DEVICE.streams):
        return "a stream waits for ever"
    with pytest.raises(LinkError, match="was abandoned"):
        link.timeline()
    for tensor in [*(transfer.target for transfer in setting.transfers(operands)), operands.out]:
        tensor.fill_(math.nan)
    arm(operands, link)
    link.timeline()
    return "" if torch.equal(operands.out, result) else "the next run is wrong"


def problems_of(setting, arm) -> tuple[int, list[str]]:
    """How many launches the arm makes, and what is wrong where it is stopped at each."""
    stand_in.DEVICE.forget()
    operands, link = setting.sets[0], setting.link()
    arm(operands, WarmUp())
    assert setting.relative_error(arm, link, operands) < 1e-2
    result, count = operands.out.clone(), run_to(None, lambda: arm(operands, link))
    problems = [problem_of(setting, arm, link, number, result) for number in range(count)]
    return count, [f"launch {number}: {problem}" for number, problem in enumerate(problems) if problem]


def main() -> dict:
    """Of each arm of each operation that sends what it computes."""
    stand_in.install()
    from collectives.bench.matmul_reduce_scatter import Summed

    outcomes = {}
    for runner, setting in test_loads.settings():
        op = setting.case.op
        for name, arm in runner.arms(op, "cuda").items() if isinstance(setting, Summed) else ():
            assert setting.why_not(name) is None
            outcomes[f"{op}, {name}"] = problems_of(setting, ended(arm))
    return outcomes


@pytest.mark.slow
def test_arm_that_is_stopped_leaves_no_stream_waiting(elsewhere):
    """On the stand-in for an H100, in a process beside this one, which may be interpreting."""
    outcomes = elsewhere(main)
    assert {name: problems for name, (_, problems) in outcomes.items() if problems} == {}
    assert min(launches for launches, _ in outcomes.values()) > 5


@pytest.mark.parametrize("late", [0, 1, -1])
@pytest.mark.parametrize(("kind", "arm"), [(kind, arm) for kind in (Scatter, Layer) for arm in kind.arms])
def test_arm_that_is_stopped_leaves_no_thread_waiting(kind, arm, late):
    case, link, calls = kind(), PacedThread(1e6), []
    multiply = case.operands.matmul
    case.operands.matmul = lambda *tensors: (calls.append(tensors), multiply(*tensors))
    kind.arms[arm](case.operands, link)
    last = calls[late % len(calls)][2].data_ptr()

    def stops(x, w, out):
        if out.data_ptr() == last:
            raise KeyboardInterrupt
        multiply(x, w, out)

    case.operands.matmul = stops
    with pytest.raises(KeyboardInterrupt):
        ended(kind.arms[arm])(case.operands, link)
    assert "was abandoned" in str(link._run.failure)
    case.operands.matmul = multiply
    case.run(arm, kind.arms[arm], link, 1)
