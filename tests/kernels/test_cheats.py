"""Contenders that look faster than their work: each is refused before it is timed, or loses its samples afterwards."""

import dataclasses
import threading
import time
from pathlib import Path

import pytest
import torch

from kernels import CONTENDERS
from kernels.bench import matmul
from roofline.measure.prepared import PreparedCase
from roofline.operations.matmul import Matmul
from roofline.options import Options

CASE = Matmul("100,300", "up", 1, 300, "fp32")
OPTIONS = Options("cpu", True, "100x300", ("up",), (300,), (1,), ("fp32",), None, 0, 1.0, Path("unused"))


@pytest.fixture
def prepare(monkeypatch):
    """`prepare(run)`: the prepared case in which `run` stands for NumPy's."""

    def prepare(run):
        monkeypatch.setitem(CONTENDERS, "numpy", dataclasses.replace(CONTENDERS["numpy"], run=run))
        return matmul.Runner(OPTIONS).prepare(CASE, ["numpy"])

    return prepare


def right(x, w, out):
    return torch.mm(x, w.T, out=out)


def returns_the_last_result():
    last = []

    def run(x, w, out):
        last.append(last[0] if last else x @ w.T)
        return out.copy_(last[-1])

    return run


def computes_on_the_first_call_only():
    calls = []

    def run(x, w, out):
        calls.append(1)
        return right(x, w, out) if len(calls) == 1 else out

    return run


def knows_its_seed():
    known = {}

    def run(x, w, out):
        answer = known.setdefault(w.data_ptr(), (x @ w.T).clone())  # as a table of answers made beforehand
        return out.copy_(answer)

    return run


class Lazy(torch.Tensor):
    """Computes when somebody looks."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        plain = [arg.work() if isinstance(arg, Lazy) else arg for arg in args]
        return function(*plain, **(kwargs or {}))


def keeps_work_back():
    def run(x, w, out):
        lazy = out.as_subclass(Lazy)
        lazy.work = lambda: right(x, w, out)
        return lazy

    return run


def returns_a_tensor_of_its_own():
    return lambda x, w, out: x @ w.T


def works_after_it_returned():
    def late(x, w, out):
        time.sleep(0.2)
        right(x, w, out)

    def run(x, w, out):
        threading.Thread(target=late, args=(x.clone(), w, out)).start()
        return out

    return run


@pytest.mark.parametrize(
    ("cheat", "said"),
    [
        (returns_the_last_result, "of inputs that it had not seen"),
        (computes_on_the_first_call_only, "left unwritten"),
        (knows_its_seed, "of inputs that it had not seen"),
        (keeps_work_back, "another tensor than the `out`"),
        (returns_a_tensor_of_its_own, "another tensor than the `out`"),
        (works_after_it_returned, "left unwritten"),
    ],
)
def test_cheats_are_refused_before_they_are_timed(prepare, cheat, said):
    found = prepare(cheat())
    assert found.contenders == ["torch"]
    assert found.rejected["numpy"].outcome == "failed"
    assert said in found.rejected["numpy"].reason


def test_inputs_are_as_they_were_after_the_checks(prepare):
    seen = []
    found = prepare(lambda x, w, out: seen.append(x.clone()) or right(x, w, out))
    found.entrants["numpy"].call()
    assert torch.equal(seen[0], -seen[1])
    assert any(torch.equal(seen[-1], x) for x, _, _ in matmul.operands(CASE, OPTIONS))


def test_cheat_that_begins_once_it_was_checked_is_found_out_afterwards(prepare):
    calls = []

    def stops_working(x, w, out):
        calls.append(1)
        return right(x, w, out) if len(calls) < 5 else out

    entrant = prepare(stops_working).entrants["numpy"]
    for _ in range(5):
        entrant.call()
    rejection = entrant.recheck()
    assert rejection.outcome == "failed"
    assert "left unwritten" in rejection.reason


@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize(("written", "said"), [("x", "input x,"), ("w", "input w,"), ("xw", "input x and w,")])
def test_who_writes_into_inputs_is_refused_and_the_next_is_not(written, said, raises):
    def run(x, w, out):
        right(x, w, out)
        for operand in written:
            (x if operand == "x" else w).zero_()
        if raises:
            raise RuntimeError("no such instruction")
        return out

    contenders = {"numpy": dataclasses.replace(CONTENDERS["numpy"], run=run), "torch": CONTENDERS["torch"]}
    found = PreparedCase(CASE, "torch")
    matmul.enter(found, CASE, OPTIONS, contenders)
    assert found.contenders == ["torch"]
    assert found.rejected["numpy"].outcome == "failed"
    assert ("no such instruction" if raises else said) in found.rejected["numpy"].reason
