"""A small benchmark project on a fake clock, run by a real pytest in a process of its own."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

CONFTEST = (Path(__file__).parent / "small_project.py").read_text()

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
    return kept | {"PYTHONPATH": os.pathsep.join([str(ROOT), kept.get("PYTHONPATH", "")])} | extra


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
