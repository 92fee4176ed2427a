"""A small benchmark project on a fake clock, run by a real pytest in a process of its own."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

CONFTEST = '''
"""Two contenders of known durations, one that is wrong, one that cannot run; no device is touched."""
import itertools

import pytest

pytest_plugins = ["roofline.plugin"]

TORCH = [0.002, 0.0021, 0.0019, 0.0025]
NUMPY = [0.001, 0.0011, 0.0009, 0.0010]


class FakeClock:
    """Each call returns what it took; time passes by that much."""

    source = "cpu"
    timer = "fake_clock_replay"

    def __init__(self):
        self.seconds = 0.0

    def now(self):
        return self.seconds

    def turn(self, calls):
        times = [call() for call in calls]
        self.seconds += sum(times)
        return times


@pytest.fixture(scope="session")
def ffn_clock():
    return FakeClock()


@pytest.fixture(scope="session")
def ffn_probes():
    from roofline.measure.ceilings import Probe

    return [
        Probe("matmul", "known", 3e9, lambda: 1e-3, "fp32"),
        Probe("matmul", "slower", 1e9, lambda: 1e-3, "fp32"),
        Probe("read", "known", 1e9, lambda: 1e-3),
        Probe("copy", "known", 2e9, lambda: 1e-3),
    ]


@pytest.fixture
def case(request, shape):
    from roofline.theory.work import Matmul

    _, model, layer, tp, m, dtype = shape.split("-")
    return Matmul(model, layer, int(tp[2:]), int(m[1:]), dtype)


@pytest.fixture
def prepare(request):
    def prepare(case, names):
        from roofline.measure.lineup import Lineup

        lineup = Lineup("torch")
        durations = {"torch": TORCH, "numpy": NUMPY}
        for name in dict.fromkeys(["torch", *names]):
            if name == "wrong":
                lineup.wrong[name] = "wrong: relative error 1 is above 1e-05"
            elif name == "unable":
                lineup.unable[name] = "unable: needs a Hopper GPU"
            else:
                # Rotated by the warm-up's one turn, so that round 0 gets the first duration.
                endless = itertools.cycle(durations[name])
                warmed = iter([0.1])
                lineup.ready[name] = lambda e=endless, w=warmed: next(w, None) or next(e)
                lineup.config[name], lineup.relative_error[name] = "known", 1e-7
        return lineup

    return prepare
'''

TESTS = """
import pytest

SHAPE = "matmul-xxl/16-up-tp8-m64-fp32"


@pytest.mark.benchmark(group="ffn")
@pytest.mark.parametrize("contender", ["torch", "numpy", "wrong", "unable"])
@pytest.mark.parametrize("shape", [SHAPE])
def test_matmul(ffn_benchmark, case, contender, prepare):
    ffn_benchmark(case, contender, prepare)
"""


@dataclass
class Outcome:
    code: int
    text: str
    folder: Path | None

    @property
    def saved(self) -> dict:
        return json.loads((self.folder / "benchmark.json").read_text())

    @property
    def rows(self) -> dict[str, dict]:
        return {row["extra_info"]["contender"]: row for row in self.saved["benchmarks"]}


def environment(**extra) -> dict[str, str]:
    """This process's, without the interpreter that tests of kernels switch on."""
    kept = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return kept | {"PYTHONPATH": str(ROOT)} | extra


@pytest.fixture(scope="session")
def run_project(tmp_path_factory):
    """`run_project(*arguments, tests=, conftest=, env=)` runs pytest on the small project and returns its Outcome."""

    def run(*arguments, tests=TESTS, conftest=CONFTEST, env=None) -> Outcome:
        root = tmp_path_factory.mktemp("project")
        (root / "conftest.py").write_text(conftest)
        (root / "test_small.py").write_text(tests)
        (root / "pytest.ini").write_text("[pytest]\n")
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--ffn-device", "cpu", *arguments],
            cwd=root,
            env=environment(**env or {}),
            capture_output=True,
            text=True,
            timeout=120,
        )
        folders = sorted((root / "results" / "local").glob("*"))
        return Outcome(done.returncode, done.stdout + done.stderr, folders[-1] if folders else None)

    return run
