"""The `roofline` command: quick, and one line for bad input."""

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from kernels.registry import CONTENDERS
from roofline.theory.arms import ARMS, PERSISTENT

ROOT = Path(__file__).parents[2]


def test_a_reader_that_has_read_enough_is_no_error():
    command = [sys.executable, "-m", "roofline", "account", "--fsdp", "8"]
    done = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT)
    done.stdout.close()
    assert (done.stderr.read(), done.wait()) == (b"", 0)


def test_doctests_of_every_package_run(pytestconfig):
    """Plain `pytest`, as `make test` calls it, looks for them in the folders of `testpaths` alone."""
    packages = {path.parent for path in ROOT.glob("[!.]*/__init__.py")}
    examples = {package.name for package in packages if any(">>> " in p.read_text() for p in package.rglob("*.py"))}
    assert {"kernels", "collectives", "roofline"} <= examples <= set(pytestconfig.getini("testpaths"))


def test_where_benchmarks_are_timed_only_they_are_imported(pytestconfig):
    ignored = pytestconfig.pluginmanager.get_plugin(str(ROOT / "conftest.py")).pytest_ignore_collect
    timed, tests = (SimpleNamespace(option=SimpleNamespace(benchmark_only=timed)) for timed in (True, False))
    for path in ("kernels/tiled.py", "collectives", "roofline/theory/work.py", "tests/kernels/test_matmul.py"):
        assert ignored(ROOT / path, timed)
        assert not ignored(ROOT / path, tests)
    assert not ignored(ROOT / "tests/benchmarks/test_matmul.py", timed)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["acount"], "did you mean account?"),
        (["account", "--fsdpp", "1"], "unrecognized arguments: --fsdpp 1; did you mean --fsdp?"),
        (["report", "nowhere"], "nowhere is no run folder"),
        (["compare", "a", "b", "c"], "of 3 runs, which are NEW?"),
        (["compare", "a", "a", "--new", "b"], "a is given twice on one side"),
        ([], "required: command"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, expected, refused):
    assert expected in refused(*arguments)


def test_a_package_that_is_missing_is_named_with_the_way_out(monkeypatch, refused):
    monkeypatch.setitem(sys.modules, "pandas", None)
    run = str(ROOT / "results/reference/nvidia-h100-80gb-hbm3-2026-11-26-6")
    assert "it needs pandas, which this Python lacks: python3 -m pip install pandas" in refused("compare", run, run)


def test_page_describes_every_arm_and_every_contender():
    page = (ROOT / "docs" / "kernel.md").read_text(encoding="utf-8")
    described = {}
    for table in re.findall(r"^\| (?:arm|contender) \|.*\n(?:\|.*\n)+", page, re.MULTILINE):
        firsts = [row.split("|")[1] for row in table.splitlines()[2:]]
        described.setdefault(table.split("|")[1].strip(), set()).update(re.findall(r"`(\w+)`", " ".join(firsts)))
    assert described["arm"] == {*ARMS, f"ARM{PERSISTENT}"}
    assert {*CONTENDERS} <= described["contender"]
