"""Files of a user's in another folder: a contender, and the operation of docs/your-operation.md, to their points on the
roofline."""

import functools
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
from roofline.host import container
from roofline.operations import base, contenders
from roofline.store.conditions import conditions, threads_text

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
def run(tmp_path, zygote):
    """`run(*words)`: the exit code and what pytest says of files in a folder of a user's; `shares` as for
    `run_project`."""
    (tmp_path / "norm_matmul.py").write_text(FILE)
    (tmp_path / "small_cache.py").write_text(SMALL_CACHE)
    return functools.partial(zygote.run, "-q", "-p", "small_cache", pythonpath=tmp_path)


def test_it_is_measured_tabled_drawn_and_compared(run, tmp_path, capsys):
    words = f"--ffn-operations={tmp_path}/norm_matmul.py", "--ffn-tokens=2", f"--ffn-results={tmp_path / 'runs'}"
    code, text = run("--benchmark-only", *words, "--ffn-max-seconds=0.2", "--ffn-processes=2")
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
    (tmp_path / "norm_matmul.py").write_text(FILE.replace("return ((x @ w.T)", "return (1.1 * (x @ w.T)"))
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
    [
        pytest.param("--n", 0, "2 passed", marks=pytest.mark.slow),
        ("n", 2, "norm_matmul.py: its import failed: SystemExit: 2: what ends the process"),
    ],
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
    assert "--ffn-operations 'norm_matmull.py': it is one of matmul, " in text
    assert "or a file of Python, from the folder you are in" in text
    assert len(text.splitlines()) == 1


def test_a_contender_is_measured_beside_the_baseline(run, tmp_path):
    one_thread = "import torch\n\ntorch.set_num_threads(1)\n"  # which is put back: it is measured on all
    (tmp_path / "mine.py").write_text(f"{one_thread}def f(x, w, out=None):\n    return torch.mm(x, w.T, out=out)\n")
    words = "--ffn-tokens=2", "--ffn-tp=8", "--ffn-layers=up", "tests/benchmarks", f"--ffn-results={tmp_path / 'runs'}"
    code, text = run("--benchmark-only", "--ffn-no-report", f"--ffn-contender={tmp_path}/mine.py::f", *words, *SMALL)
    assert code == 0, text
    run = roofline.load(next((tmp_path / "runs").iterdir()))
    assert [record["contender"] for record in records_of(run)] == ["torch", "f"]
    version = contenders.version(f"{tmp_path / 'mine.py'}::f")
    assert f", {threads_text(container.cores())}" in conditions(run.metadata)["chip"]
    assert conditions(run.metadata)["contenders"] == f"mine.py::f {version}"
    assert not any(ceiling.by.endswith("-f") for ceiling in ceilings_of(run))  # a user's kernel sets no roof


CULPRITS = """
import argparse, ctypes, os, signal, socket, struct, sys, threading, time
import numpy, torch

argparse.ArgumentParser().parse_args()  # of what a worker is given there is nothing
CALLS, KEPT = [], []

def innocent(x, w, out=None):
    return torch.mm(x, w.T, out=out)

class Odd(Exception):
    def __str__(self):
        raise ValueError
    __repr__ = __str__

class Sub(torch.Tensor):
    pass

def culprit(does, before=False):
    def run(x, w, out=None):
        CALLS.append(1)  # three are of its checks
        is_timed = len(CALLS) > 3
        if before and is_timed:
            does(x, w, out)
        out = innocent(x, w, out)
        returned = does(x, w, out) if is_timed and not before else out
        return returned if isinstance(returned, Odd) else out
    return run

def throw(error):
    raise error

def later(does):
    return culprit(lambda *given: threading.Timer(0.003, does).start(), True)

def ring(*given):
    signal.signal(signal.SIGALRM, lambda *given: throw(RuntimeError("it rings")))
    signal.setitimer(signal.ITIMER_REAL, 0.0004)

def set_data(x, w, out):
    out.data = torch.mm(x, w.T)

def set_class(x, w, out):
    out.__class__ = Sub

def open_all(*given):
    try:
        while True:
            KEPT.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        pass

def take_all(*given):
    size = 2**30
    while size > 2**12:
        try:
            KEPT.append(numpy.empty(size, "u1"))
        except MemoryError:
            size //= 2

def send(text):
    for number in range(3, 64):
        try:
            plug = socket.socket(fileno=os.dup(number))
        except OSError:
            continue
        if plug.family == socket.AF_UNIX:
            plug.sendall(text)

main = threading.main_thread().ident
set_error = ctypes.pythonapi.PyThreadState_SetAsyncExc
mute = culprit(lambda *given: throw(Odd()))
odd = culprit(lambda *given: Odd())
timer = culprit(ring, True)
asynchronous = later(lambda: set_error(ctypes.c_ulong(main), ctypes.py_object(ArithmeticError)))
thread = later(lambda: ctypes.string_at(0))
turns = culprit(lambda x, w, out: w.t_())
resized = culprit(lambda x, w, out: out.resize_(1, 1))
data = culprit(set_data)
of_class = culprit(set_class)
writes = culprit(lambda x, w, out: w.fill_(1.0))
device = culprit(lambda *given: torch.set_default_device("meta"))
autocast = culprit(lambda *given: torch.autocast("cpu", dtype=torch.bfloat16).__enter__())
traces = culprit(lambda *given: sys.settrace(lambda *about: None))
sleep = culprit(lambda *given: setattr(time, "sleep", print))
randint = culprit(lambda *given: setattr(torch, "randint", print))
norm = culprit(lambda *given: setattr(torch.Tensor, "norm", print))
opens = culprit(open_all)
closes = culprit(lambda *given: os.closerange(3, 256))
takes = culprit(take_all)
noise = culprit(lambda *given: send(bytes([255]) * 64))
long = culprit(lambda *given: send(struct.pack("!i", 2**31 - 1)))
no_json = culprit(lambda *given: send(struct.pack("!i", 8) + b"notjson!"))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("culprit", "reason"),
    [
        ("mute", "Odd: its text raises ValueError"),
        ("odd", "it returned a Odd and not the `out`"),
        ("timer", "it rings"),
        ("asynchronous", "ArithmeticError"),
        ("thread", "SIGSEGV"),
        ("turns", "it changed the tensor w itself"),
        ("resized", "it returned another tensor"),
        ("data", "it returned another tensor"),
        ("of_class", "it returned a Sub"),
        ("writes", "timed calls wrote into their inputs, which others read"),
        ("device", "torch.set_default_device"),
        ("autocast", "torch.autocast of cpu"),
        ("traces", "sys.settrace"),
        ("sleep", "time.sleep"),
        ("randint", "torch.randint"),
        ("norm", "torch.Tensor.norm"),
        ("opens", "Too many open files"),
        ("closes", "exit code 0"),
        ("takes", "out of memory|Cannot allocate memory"),
        ("noise", "its length is not that of a message"),
        ("long", "its length is not that of a message"),
        ("no_json", "JSON is malformed"),
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
