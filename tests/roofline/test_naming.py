"""Names of kernels: asked for after the last timed round, once for each shape; a profiler that fails is told."""

import sys
import types
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from roofline.report.format import kernels_text
from roofline.worker import launches

NAMED = f"""{(Path(__file__).parent / "small_project.py").read_text()}
from roofline.supervise import stages
from roofline.worker import launches

stages.NAMED = "cpu"
"""
FOUND = NAMED + "launches.of_call = lambda call: call() and 'spin<1>(int) + ' + call.run.args[1]\n"
DIES = NAMED + "launches.of_call = lambda call: os.kill(os.getpid(), signal.SIGKILL)\n"
FAILS = FOUND + (
    "def of_call(call, of_call=launches.of_call):\n"
    "    if call.run.args[0].m == 128:\n        raise RuntimeError('no CUPTI here')\n"
    "    return of_call(call)\nlaunches.of_call = of_call\n"
)


def kernels(outcome):
    return {
        f"m{shape.params['m']}-{name}": entrant["kernel_name"]
        for shape in outcome.kept.shapes.values()
        for name, entrant in shape.entrants.items()
        if "kernel_name" in entrant
    }


def test_names_are_asked_for_once_after_all_that_is_timed_and_a_failure_costs_them_alone(three_shapes):
    outcome = three_shapes(conftest=FAILS)
    assert outcome.code == 0
    names = {f"m{m}-{name}": f"spin<1>(int) + {name}" for m in (64, 256) for name in ("torch", "numpy")}
    assert kernels(outcome) == names
    assert "spin + numpy" in outcome.report
    kinds = [line["kind"] for line in outcome.lines]
    last = max(index for index, kind in enumerate(kinds) if kind in ("round", "pass", "ceiling"))
    assert (kinds.index("kernels") > last, kinds.count("kernels")) == (True, 2)
    assert "Kernel names: not all were found: RuntimeError: no CUPTI here" in outcome.text


def test_profiler_that_dies_costs_names_alone(by_forks):
    outcome = by_forks(conftest=DIES)
    assert outcome.code == 0
    assert len(outcome.cases) == 6
    assert "Kernel names: not all were found: signal 9 (SIGKILL), at its first call" in outcome.text


@pytest.fixture
def profiler(monkeypatch):
    """torch with a profiler that sees `traces`, one for each time it is used: lists of (name, start, device)."""

    def install(*traces):
        left = iter(traces)

        @contextmanager
        def profile(activities):
            assert activities == [torch.profiler.ProfilerActivity.CUDA]
            space, device = types.SimpleNamespace, torch.autograd.DeviceType
            events = [
                space(name=name, time_range=space(start=start), device_type=getattr(device, where))
                for name, start, where in next(left)
            ]
            yield space(events=lambda: events)

        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
        monkeypatch.setattr(torch.profiler, "profile", profile)

    return install


def test_kernels_are_joined_in_the_order_of_their_start(profiler):
    profiler([("reduce", 5, "CUDA"), ("cudaLaunchKernel", 1, "CPU"), ("split", 2, "CUDA")])
    assert launches.of_call(lambda: None) == "split + reduce"
    profiler([], [("k", 1, "CUDA")])  # the first trace may be empty, and the second may not
    assert launches.of_call(lambda: None) == "k"
    profiler([], [])
    with pytest.raises(RuntimeError, match="the profiler saw no kernel"):
        launches.of_call(lambda: None)


def test_a_binary_is_that_of_all_kernels_that_a_call_launches_by_triton(monkeypatch):
    class CompiledKernel:
        def __init__(self, code):
            self.asm = {"cubin": code}

        def launch_metadata(self, grid, stream, *arguments):
            return None

    def launching(*codes):
        return lambda: [CompiledKernel(code).launch_metadata((1,), 0) for code in codes]

    compiler = types.SimpleNamespace(CompiledKernel=CompiledKernel)
    monkeypatch.setitem(sys.modules, "triton.compiler.compiler", compiler)
    binaries = [launches.binary_of(launching(*codes)) for codes in ([b"a"], [b"a"], [b"b"], [b"a", b"b"], [])]
    assert binaries[0] == binaries[1]
    assert len({*binaries}) == 4
    assert binaries[-1] == ""
    monkeypatch.delitem(sys.modules, "triton.compiler.compiler")
    assert launches.binary_of(launching(b"a")) == "", "where nobody has imported Triton"


def test_names_of_kernels_are_short_in_tables():
    names = "void at::native::(anonymous namespace)::sum_kernel<4>(int)", "sm90_" + 60 * "x"
    assert kernels_text(" + ".join(names)) == f"sum_kernel + sm90_{40 * 'x'}..."
