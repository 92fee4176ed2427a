"""Matmuls from a user's file: what is taken, what is refused and in which words, and what becomes of them."""

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from test_matmul_bench import CASE, OPTIONS

from kernels import vendor
from kernels.bench import matmul
from kernels.recording import launches_of
from kernels.registry import Planner
from roofline.operations import contenders
from roofline.worker.prepared import PreparedCase, Rejection

SOURCE = """
import torch
import roofline

def right(x, w, out=None):
    return torch.mm(x, w.T, out=out)

@roofline.contender(label="by hand", tolerance=0.5, supports=lambda m, n, k, dtype: k == 100, devices="cpu")
def rough(x, w, out=None):
    return torch.mm(x, 1.01 * w.T, out=out)

def wrong(x, w, out=None):
    torch.mm(x, w.T, out=out)[7, 40:48] += 1
    return out

def nothing(x, w, out=None):
    pass

def narrow(x, w):
    return x @ w.T

def turned(x, w, out=None):
    right(x, w, out)
    w.t_()
    return out

def shrunk(x, w, out=None):
    return right(x, w, out).resize_(1, 1)

def replaced(x, w, out=None):
    out.data = x @ w.T
    return out

class Sub(torch.Tensor):
    pass

def classed(x, w, out=None):
    right(x, w, out).__class__ = Sub
    return out

class Silent(Exception):
    def __str__(self):
        raise SystemExit

def wordless(x, w, out=None):
    raise Silent

class Nameless:
    def __repr__(self):
        raise SystemExit

def nameless(x, w, out=None):
    return Nameless()
"""
KERNEL = "import triton\n\n@triton.jit\ndef kernel(x, w, out):\n    pass\n"


@pytest.fixture
def place(tmp_path):
    """`place(name, source)` is where a function of a file is found."""

    def write(name: str, source: str = SOURCE) -> str:
        (tmp_path / "mine.py").write_text(source)
        contenders.load.cache_clear()
        vendor.of_user.cache_clear()
        for module in [module for module in sys.modules if module.startswith("mine_")]:
            del sys.modules[module]
        return contenders.parse(f"{tmp_path / 'mine.py'}::{name}")

    return write


def prepare(*places: str, case=CASE, **options) -> PreparedCase:
    options = replace(OPTIONS, users=tuple((place, contenders.version(place)) for place in places), **options)
    return matmul.Runner(options).prepare(case, Planner(options).names(case))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mine.py", "it is written FILE::NAME or module:NAME"),
        ("no_such.py::f", "there is no file no_such.py"),
        (f"{Path(__file__).parents[2]}/README.md::f", "README.md is no file that Python imports"),
    ],
)
def test_place_that_is_none_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        contenders.parse(text)


@pytest.mark.parametrize(
    ("name", "source", "message"),
    [
        ("rihgt", SOURCE, "rihgt is not in it; did you mean right? its functions are right, rough,"),
        ("narrow", SOURCE, "it takes (x, w), and is called as narrow(x, w, out=out)"),
        ("f", "x = 1\nraise SystemExit('stop here')", "its import failed in line 2: SystemExit: stop here: what ends"),
        ("kernel", KERNEL, "kernel is a kernel; name the function f(x, w, out=None) that launches it"),
    ],
)
def test_file_that_cannot_be_loaded_gets_one_line(place, name, source, message):
    problem = matmul.Runner(replace(OPTIONS, users=((place(name, source), ""),))).problem()
    assert message in problem
    assert "\n" not in problem


@pytest.mark.parametrize("by", ["{0}/mine.py::f", "kernels.fast:f"])
def test_a_package_of_a_name_of_ours_is_told_with_both_paths(tmp_path, monkeypatch, by):
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "fast.py").write_text("def f(x, w, out=None): pass")
    (tmp_path / "mine.py").write_text("from kernels.fast import f")
    monkeypatch.syspath_prepend(tmp_path)
    both = f"kernels is {Path(vendor.__file__).parent} here, and not {tmp_path}/kernels: rename that, or"
    with pytest.raises(ValueError, match=re.escape(both)):
        contenders.load(contenders.parse(by.format(tmp_path)))


def test_it_is_measured_beside_the_baseline_alone_and_says_where_it_is_from(place):
    prepared = prepare(place("right"), place("rough"))
    assert prepared.contenders == ["torch", "right", "rough"]
    configs = {name: entrant.config for name, entrant in prepared.entrants.items()}
    assert configs["rough"] == f"by hand, mine.py::rough {contenders.version(place('right'))}, tolerance 0.5"
    assert prepared.entrants["rough"].relative_error == pytest.approx(0.01, rel=0.1)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("wrong", "above 1e-05, the limit for fp32; the worst is out[7, 32:48], off by"),
        ("nothing", "it returned None and not the `out` that it was given, torch.float32 [300, 300]"),
        ("nameless", "it returned a Nameless and not the `out`"),
        ("wordless", "Silent: its text raises SystemExit (mine.py:"),
        ("turned", "it changed the tensor w itself"),
        ("shrunk", "it changed the tensor out itself"),
        ("replaced", "it changed the tensor out itself"),
        ("classed", "it changed the tensor out itself"),
    ],
)
def test_what_is_wrong_is_told_and_costs_nobody_else(place, name, message):
    prepared = prepare(place(name), place("right"))
    assert prepared.contenders == ["torch", "right"]
    rejected = prepared.rejected[name]
    assert rejected.outcome == "failed"
    assert message in rejected.reason


def test_what_it_does_not_support_is_skipped(place):
    other = replace(CASE, model="200x300")
    rejected = prepare(place("rough"), case=other, model="200x300").rejected["rough"]
    assert rejected == Rejection("skipped", "rough is declared not to support m=300, n=300, k=200 in fp32")
    with pytest.raises(ValueError, match="declared for cpu, x is on meta"):
        matmul.of_run(replace(OPTIONS, users=((place("rough"), ""),)))["rough"].load().require(
            *torch.empty(2, 8, 8).to("meta")
        )


def test_it_may_be_the_baseline(place):
    users = ((place("right"), ""),)
    assert Planner(replace(OPTIONS, users=users)).names(CASE) == ["torch", "right"]
    assert Planner(replace(OPTIONS, users=users, contenders=("numpy",))).names(CASE) == ["numpy", "right"]
    assert prepare(place("right"), baseline="right").baseline == "right"
    assert prepare(place("right"), baseline="right").contenders == ["right"]


def test_files_of_two_folders_have_neighbours_of_their_own(tmp_path):
    source = "from factors import FACTOR\n\ndef f(x, w, out=None):\n    return FACTOR"
    for folder, factor in (("one", 1), ("two", 2)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "factors.py").write_text(f"FACTOR = {factor}")
        (tmp_path / folder / "mine.py").write_text(source)
    places = [contenders.parse(f"{tmp_path / folder / 'mine.py'}::f") for folder in ("one", "two")]
    assert [contenders.load(place)(0, 0) for place in places] == [1, 2]
    assert "factors" not in sys.modules


def test_a_file_that_has_changed_since_the_run_began_is_refused(place):
    users = ((place("right"), contenders.version(place("right"))),)
    place("right", SOURCE.replace("torch.mm(x, w.T, out=out)", "out.fill_(0)", 1))
    problem = matmul.Runner(replace(OPTIONS, users=users)).problem()
    assert "the file is not what it was when the run began; begin a new run" in problem


def test_what_launches_nothing_has_nothing_to_look_at(place):
    with pytest.raises(ValueError, match="launches no Triton kernel"):
        launches_of(contenders.load(place("right")), *torch.zeros(3, 8, 8))
    with pytest.raises(ValueError, match="on tensors of a CPU it raises ZeroDivisionError"):
        launches_of(lambda x, w, out: 1 / 0, *torch.zeros(3, 8, 8))
