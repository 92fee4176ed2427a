"""`.ci/slow` runs the slow tests of what was touched, and the machine's; each slow test is of something."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from conftest import ROOT

OF_OPERATIONS = [name for name in ("tests/attention", "tests/step") if (ROOT / name).is_dir()]
KERNELS = " ".join(sorted([*OF_OPERATIONS, "tests/collectives/test_loads.py", "tests/kernels", "tests/machine"]))
COLLECTIVES, PLANTED = "tests/collectives", "tests/machine/test_planted.py"
NEWEST = {"test-triton-newest": "-m slow -k 'planted or largest'"}
MACHINE = "-m 'slow or not slow'"
FAULTS = "tests/roofline/test_faults.py"
MARKED = re.compile(r"mark\.slow|marks=slow|^@slow", re.MULTILINE)


GIT = """#!/bin/sh
case "$*" in
  "diff --name-only HEAD") ;;
  diff*) echo "$TOUCHED" ;;
  *) echo 0123456789 ;;
esac
"""
"""Stands for git: nothing was touched since HEAD."""


@pytest.fixture
def slow(tmp_path):
    """`slow(*touched)`: the words of each target of `make` after a commit that touches these paths; `about` is the
    environment."""
    for name, text in (("make", '#!/bin/sh\necho "make $*"\n'), ("git", GIT)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)

    def run(*touched, **about):
        env = {name: value for name, value in os.environ.items() if not name.startswith("CI")}
        env |= {"PATH": f"{tmp_path}{os.pathsep}{env['PATH']}", "TOUCHED": "\n".join(touched)} | about
        done = subprocess.run(["bash", ".ci/slow"], cwd=ROOT, env=env, capture_output=True, text=True)
        asked = re.findall(r"^make ([\w-]+) ?(?:ARGS=)?(.*)$", done.stdout, re.MULTILINE)
        return done.returncode, dict(asked), done.stdout

    return run


@pytest.mark.parametrize(
    ("touched", "expected"),
    [
        (["docs/how.md", PLANTED], {"test-slow": PLANTED}),
        (["kernels/tiled.py"], {"test-slow": KERNELS} | NEWEST),
        (["kernels/machine/lint.py"], {"test-slow": KERNELS, "test-machine": MACHINE} | NEWEST),
        (["kernels/machine/tests/test_ptx.py"], {"test-machine": MACHINE}),
        (
            ["tests/machine/links.py", "collectives/paced.py"],
            {"test-slow": " ".join(sorted(f"{COLLECTIVES} {KERNELS} {PLANTED}".split()))} | NEWEST,
        ),
        (["collectives/bench/runner.py", FAULTS], {"test-slow": f"{COLLECTIVES} {PLANTED} {FAULTS}"} | NEWEST),
        (["docs/how.md"], {}),
    ],
)  # fmt: skip
def test_a_push_runs_the_slow_tests_of_what_it_touches(slow, touched, expected):
    code, asked, said = slow(*touched)
    assert code == 0
    assert asked == expected
    assert "slow tests since " in said


@pytest.mark.parametrize(
    ("about", "asked"),
    [
        ({"CI_SLOW": "0"}, {}),
        ({"CI_SLOW": "1"}, {"test-slow": "", "test-machine": MACHINE, "test-newest": ""}),
        ({"CI_BASE": "HEAD"}, {}),
    ],
)
def test_all_or_none_or_since_another_commit(slow, about, asked):
    assert slow("roofline/analysis/paced.py", **about)[:2] == (0, asked)


def test_each_slow_test_is_of_something(slow):
    products = ["kernels/x.py", "collectives/x.py", "roofline/worker/x.py", "roofline/analysis/x.py"]
    _, asked, _ = slow(*products)
    covered = {ROOT / word for word in asked["test-slow"].split()}
    marked = [path for path in (ROOT / "tests").rglob("test_*.py") if MARKED.search(path.read_text())]
    left = [path for path in marked if not {path, *path.parents} & covered and path != Path(__file__)]
    assert (len(marked) > 5, left) == (True, [])
