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
        ("", "required: command"),
        ("acount", "did you mean account?"),
        ("report nowhere", "nowhere is no run folder"),
        ("compare a", "of 1 runs, which are NEW?"),
        ("compare a b c", "of 3 runs, which are NEW?"),
        ("compare a a --new b", "a is given twice on one side"),
        ("account --fdsp 8", "unrecognized arguments: --fdsp 8; did you mean --fsdp?"),
        ("account --model xxk", "unknown model 'xxk': did you mean xxl?"),
        ("account --chip h10", "did you mean h100sxm?"),
        ("account --memory 80", "'80' is no size above 0 in GB or GiB, as 80GB or 80GiB (a GiB is 2**30 bytes)"),
        ("account --tokens -5", "'-5' is not a whole number of tokens, 0 to 1e15"),
        ("account --flops 275", "'275' is below 1e+09: did you mean 275e12 FLOP/s, which is 275 TFLOP/s?"),
        ("account --case l1-d70-b1-t1-step-fp32", "the width is a multiple of 64"),
        ("account --tp 9", "--tp 9 does not divide F = 53248: take a divisor of it"),
        ("account --tp 13", "tp=13: groups of 13 devices do not pack into nodes of 8: let them divide it"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, expected, refused):
    assert expected in refused(*arguments.split())


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
