"""Files of a user's in another folder: a contender, and the operation of docs/your-operation.md, to their points on the
roofline."""

import importlib.util
import os
import re
import sys
from pathlib import Path

import pytest

import roofline
from conftest import ROOT
from roofline.analysis.memory_roof import ceilings_of
from roofline.analysis.records import records_of
from roofline.commands import cli
from roofline.operations import base, contenders
from roofline.store.conditions import conditions

PAGE = (ROOT / "docs" / "your-operation.md").read_text()
FILE = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)[1]
SMALL = ["--ffn-max-seconds=0.1", "--ffn-processes=1"]
SMALL_CACHE = """
from roofline.host import machine
machine._last_level_cache_bytes = lambda: 2**20
"""
"""A plugin of pytest. Operands and probes go through eight times the cache, and a virtual machine names that of its
whole host."""


@pytest.fixture
def run(tmp_path, zygote, environment):
    """`run(*words)`: the exit code and what pytest says of files in a folder of a user's; `shares` as for
    `run_project`."""
    (tmp_path / "norm_matmul.py").write_text(FILE)
    (tmp_path / "small_cache.py").write_text(SMALL_CACHE)
    places = os.pathsep.join([str(tmp_path), environment()["PYTHONPATH"]])

    def begin(*words: str, shares: str = "") -> tuple[int, str]:
        env = environment(PYTHONPATH=places, SHARES=shares)
        return zygote.run(["-q", "-p", "no:cacheprovider", "-p", "small_cache", *words], cwd=str(ROOT), env=env)

    return begin


def test_it_is_measured_tabled_drawn_and_compared(run, tmp_path, capsys):
    words = f"--ffn-operations={tmp_path}/norm_matmul.py", "--ffn-tokens=2", f"--ffn-results={tmp_path / 'runs'}"
    code, text = run("--benchmark-only", *words, "--ffn-max-seconds=0.1", "--ffn-processes=2")
    assert code == 0, text
    assert "2 cases on 1 shapes" in text
    folder = next((tmp_path / "runs").iterdir())
    rows = {record["case"]: record for record in records_of(roofline.load(folder))}
    assert [*rows] == ["norm_matmul-m2-d1024-fp32-norm_first", "norm_matmul-m2-d1024-fp32-norm_last"]
    assert all(row["of_roof"] and row["relative_error"] < 1e-5 for row in rows.values())
    assert cli.main(["report", str(folder)]) == 0
    assert (folder / "memory_roofline.svg").exists()
    assert cli.main(["compare", str(folder), str(folder)]) == 0
    assert "norm_matmul-m2-d1024-fp32-norm_last" in capsys.readouterr().out


def test_it_is_checked_where_nothing_is_timed_and_a_wrong_one_fails(run, tmp_path):
    (tmp_path / "norm_matmul.py").write_text(FILE.replace("return (x @ w.T) *", "return 1.1 * (x @ w.T) *"))
    code, text = run(f"--ffn-operations={tmp_path}/norm_matmul.py", "--ffn-tokens=2")
    assert code == 1
    assert "norm_last: relative error 1.00e-01 is above 1e-05" in text
    assert "1 failed, 1 passed" in text


@pytest.mark.parametrize(
    ("folder", "module"), [("plain", "plain.mine"), ("v1.2", "v1_2.mine"), (".hidden", "_hidden.mine")]
)
def test_a_class_is_found_by_its_file_where_no_import_finds_it(folder, module, tmp_path, monkeypatch):
    """pytest makes a module's name of the path below its root, without dots in the names of folders."""
    file = tmp_path / folder / "mine.py"
    file.parent.mkdir()
    file.write_text("class Mine: pass")
    monkeypatch.syspath_prepend(tmp_path)
    spec = importlib.util.spec_from_file_location(module, file)
    loaded = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, module, loaded)
    spec.loader.exec_module(loaded)
    place = base.place_of(loaded.Mine)
    assert place == ("plain.mine:Mine" if folder == "plain" else f"{file}::Mine")
    assert contenders.loaded(place).__name__ == "Mine"


def test_a_file_of_before_the_rooms_had_their_names_runs_and_is_warned(run, tmp_path):
    earlier = Path(__file__).parent / "users_files" / "norm_matmul.txt"
    (tmp_path / "norm_matmul.py").write_text(earlier.read_text())
    code, text = run(f"--ffn-operations={tmp_path}/norm_matmul.py", "--ffn-tokens=2")
    assert code == 0, text
    assert "2 passed" in text
    assert "roofline.measure.prepared has moved" in text


@pytest.mark.parametrize(
    ("argument", "code", "told"),
    [("--n", 0, "2 passed"), ("n", 2, "norm_matmul.py: its import failed: SystemExit: 2: what ends the process")],
)
def test_a_file_that_reads_a_command_line_at_its_head_is_not_given_pytests(run, tmp_path, argument, code, told):
    head = f"import argparse\np = argparse.ArgumentParser()\np.add_argument('{argument}')\np.parse_args()\n"
    (tmp_path / "norm_matmul.py").write_text(head + FILE)
    ended, text = run(f"--ffn-operations={tmp_path}/norm_matmul.py", "--ffn-tokens=2")
    assert ended == code, text
    assert told in text


def test_a_file_that_is_not_there_is_told_in_a_line(run):
    code, text = run("--ffn-operations=norm_matmull.py")
    assert code == 2
    assert "--ffn-operations 'norm_matmull.py': there is no such file of Python" in text
    assert len(text.splitlines()) == 1


def test_a_contender_is_measured_beside_the_baseline(run, tmp_path):
    (tmp_path / "mine.py").write_text("import torch\n\ndef f(x, w, out=None):\n    return torch.mm(x, w.T, out=out)\n")
    words = "--ffn-tokens=2", "--ffn-tp=8", "--ffn-layers=up", "tests/benchmarks", f"--ffn-results={tmp_path / 'runs'}"
    code, text = run("--benchmark-only", "--ffn-no-report", f"--ffn-contender={tmp_path}/mine.py::f", *words, *SMALL)
    assert code == 0, text
    run = roofline.load(next((tmp_path / "runs").iterdir()))
    assert [record["contender"] for record in records_of(run)] == ["torch", "f"]
    version = contenders.version(f"{tmp_path / 'mine.py'}::f")
    assert conditions(run.metadata)["contenders"] == f"mine.py::f {version}"
    assert not any(ceiling.by.endswith("-f") for ceiling in ceilings_of(run))  # a user's kernel sets no roof


CULPRITS = """
import argparse, ctypes, signal, threading, time
import torch

argparse.ArgumentParser().parse_args()  # of what a worker is given there is nothing
CALLS = []

def innocent(x, w, out=None):
    return torch.mm(x, w.T, out=out)

def is_timed():
    CALLS.append(1)  # three are of its checks
    return len(CALLS) > 3

def thread(x, w, out=None):
    if is_timed():
        threading.Thread(target=lambda: time.sleep(0.003) or ctypes.string_at(0), daemon=True).start()
    return innocent(x, w, out)

def timer(x, w, out=None):
    if is_timed():
        signal.signal(signal.SIGALRM, rings)
        signal.setitimer(signal.ITIMER_REAL, 0.0004)
    return innocent(x, w, out)

def rings(number, frame):
    raise RuntimeError("it rings")

def turns(x, w, out=None):
    innocent(x, w if w.shape[1] == x.shape[1] else w.T, out)
    if is_timed():
        w.t_()
    return out

def autocast(x, w, out=None):
    if is_timed():
        torch.autocast("cpu", dtype=torch.bfloat16).__enter__()
    return innocent(x, w, out)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("culprit", "reason"),
    [
        ("thread", "SIGSEGV"),
        ("timer", "it rings"),
        ("turns", "last stride|cannot be multiplied"),
        ("autocast", "torch.autocast of cpu"),
    ],
)
def test_the_culprit_alone_loses_its_row(run, tmp_path, culprit, reason):
    """What it does strikes whoever has the next turn."""
    (tmp_path / "mine.py").write_text(CULPRITS)
    given = [f"--ffn-contender={tmp_path}/mine.py::{name}" for name in ("innocent", culprit)]
    words = "--ffn-tokens=64", "--ffn-tp=8", "--ffn-layers=up", f"--ffn-results={tmp_path / 'runs'}"
    more = "--ffn-max-seconds=0.5", "--ffn-processes=1", "tests/benchmarks"
    code, text = run("--benchmark-only", "--ffn-no-report", *given, *words, *more, shares="forks")
    assert code == 1, text
    run = roofline.load(next((tmp_path / "runs").iterdir()))
    assert sorted(record["contender"] for record in records_of(run)) == ["innocent", "torch"]
    (lost,) = [outcome for case, outcome in run.outcomes.items() if case in run.metadata["cases"]]
    assert lost.case.endswith(f"-{culprit}")
    assert re.search(reason, lost.reason)


def test_a_contender_may_lie_in_a_folder_of_any_bytes(tmp_path):
    file = Path(os.fsdecode(os.fsencode(tmp_path / "mine") + b"\xff.py"))
    file.write_text("def f(x, w, out=None):\n    return out\n")
    assert contenders.load(f"{file}::f")(1, 2, out=3) == 3
