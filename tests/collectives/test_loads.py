"""No kernel is loaded for the first time while a stream waits for what the host is to launch next: that is a hang, and
an H200 had one. Each arm of each operation runs on a stand-in for an H100, which loads as a driver does.

All of it runs in one process beside this one, which may be interpreting.
"""

import contextlib
import io
from collections.abc import Iterator
from dataclasses import replace
from functools import partial, partialmethod

import pytest
import stand_in
from arm_cases import ON_GPU

from roofline.operations import OPERATIONS, Runners
from roofline.operations.gathering import Sweep

pytestmark = pytest.mark.slow
SWEEP = Sweep(rows=(512,), tp=(1,), tokens=(64,), prefetch_tp=(1,), ranks=(4,), wires=("1GBps",))
ENGINES = {"paced_engine": "1GBpsengine", "pcie": "pcie"}
"""The links of copy engines, with a wire each."""
FIRST, LATER = "first process", "later process"


class LateLoadError(Exception):
    """A link launched what its `load` had not loaded."""


def settings(wires=SWEEP.wires) -> Iterator[tuple]:
    """The runner of each operation over a link, with what its arms work on."""
    options = replace(ON_GPU, gather=replace(SWEEP, wires=wires))
    runners = Runners(options)
    for operation in OPERATIONS.values():
        if operation.analysis == "overlap":
            runner = runners.of(operation)
            (case,) = operation.sweep(options)
            yield runner, runner.setting(options, case)


def wrong_with(runner, setting, arm: str, is_first: bool) -> str:
    """What is wrong with `arm` where the runner checks it in a process that has loaded nothing yet, the first of its
    shape or a later one; empty if nothing is."""
    from collectives.bench.runner import off_pace
    from roofline.worker.prepared import Rejection

    stand_in.DEVICE.forget()
    case = setting.case
    try:
        if is_first and (reason := off_pace(setting)):
            return reason
        runner.earlier = {} if is_first else {case.id: {}}
        contender = runner.contenders(case)[arm]
        if reason := runner.why_not(contender, case, setting):
            return reason
        outcome = runner.candidate(contender, None, setting, None)
    except (stand_in.BlockedError, LateLoadError) as error:
        return str(error)
    return outcome.reason if isinstance(outcome, Rejection) else ""


def audit(settings: list[tuple], processes=(FIRST, LATER)) -> Iterator[tuple[tuple[str, str, str], str]]:
    """Each operation, arm and process, with what is wrong there."""
    for runner, setting in settings:
        for arm in runner.arms(setting.case.op, "cuda"):
            for process in processes:
                yield (setting.case.op, arm, process), wrong_with(runner, setting, arm, process == FIRST)


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """Inside, a link that launches what its `load` has not raises LateLoadError."""
    from collectives.device import DeviceLink, PacedCopier
    from collectives.engines import PacedEngine, Pcie

    launch = DeviceLink.launch
    loading = []

    def watched_launch(link, what) -> None:
        name, variant = what.kernel.__name__, stand_in.variant_of(what)
        if not loading and (name, variant) not in stand_in.DEVICE.loaded:
            stand_in.DEVICE.load(name, variant)  # where that hangs, it says so
            raise LateLoadError(f"{name} is loaded behind the load of its link")
        launch(link, what)

    def watched_load(load, link, route) -> None:
        loading.append(link)
        load(link, route)
        loading.clear()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DeviceLink, "launch", watched_launch)
        for kind in (PacedCopier, PacedEngine, Pcie):
            patch.setattr(kind, "load", partialmethod(partial(watched_load, kind.load)))
        yield


class Outcomes:
    """A plugin of pytest: how tests ended, each in a process that has loaded nothing yet."""

    def __init__(self):
        self.of_tests = {}

    def pytest_runtest_setup(self) -> None:
        stand_in.DEVICE.forget()

    def pytest_runtest_logreport(self, report) -> None:
        if report.when == "call" or not report.passed:
            self.of_tests[report.nodeid] = report.longreprtext or report.outcome


def of_gpu_tests() -> dict[str, str]:
    """How those tests end that take one GPU."""
    outcomes, stand_in.LARGE_BYTES = Outcomes(), 2**30
    with contextlib.redirect_stdout(io.StringIO()):
        pytest.main(["tests/collectives/test_on_gpu.py", "-k", "not ranks"], plugins=[outcomes])
    return outcomes.of_tests


def main() -> dict:
    stand_in.install()
    from collectives.bench.setting import Setting

    Setting.rotation = 1  # set of operands: others load nothing more
    made = [*settings()]
    engines = {kind: [*settings((wire,))] for kind, wire in ENGINES.items()}
    with watched():
        outcomes = [*audit(made)]
        of_engines = {kind: [*audit(of_kind, (FIRST,))] for kind, of_kind in engines.items()}
    return {
        "audit": outcomes,
        "engines": of_engines,
        "gpu tests": of_gpu_tests(),
    }


def test_no_arm_loads_a_kernel_while_a_stream_waits(outcome):
    assert {operation for (operation, _, _), _ in outcome["audit"]} == {
        operation.name for operation in OPERATIONS.values() if operation.analysis == "overlap"
    }
    assert [(place, wrong) for place, wrong in outcome["audit"] if wrong] == []


@pytest.mark.parametrize("kind", ENGINES)
def test_each_arm_is_right_over_a_link_of_copy_engines_and_loads_no_kernel_late(outcome, kind):
    arms = [place[:2] for place, _ in outcome["audit"] if place[-1] == FIRST]
    assert [(place[:2], wrong) for place, wrong in outcome["engines"][kind]] == [(arm, "") for arm in arms]


def test_nothing_is_loaded_while_a_stream_waits_in_the_tests_that_take_a_gpu(outcome):
    assert outcome["gpu tests"]
    assert {name: wrong for name, wrong in outcome["gpu tests"].items() if wrong != "passed"} == {}
