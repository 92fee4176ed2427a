"""The worker: what is switched on around a call, and what it says of each case."""

import json
import sys
import types
from contextlib import contextmanager

import pytest

from roofline import worker
from roofline.measure.prepared import Entrant, PreparedCase, Rejection


@pytest.fixture
def cuda(monkeypatch):
    """A torch that notes what it is asked for, in order."""
    log = []

    @contextmanager
    def profile():
        log.append("start")
        yield
        log.append("stop")

    torch = types.ModuleType("torch")
    torch.cuda = types.SimpleNamespace(
        synchronize=lambda: log.append("wait"),
        _sleep=lambda cycles: log.append("marker"),
        profiler=types.SimpleNamespace(profile=profile),
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    return log


def case(**calls):
    return PreparedCase(None, "v", entrants={name: Entrant(name, call) for name, call in calls.items()})


def told(folder):
    return [(line["step"], "-".join(line["case"]), line["reason"]) for line in worker.progress(folder)]


def test_marker_and_call_alone_are_counted_and_end_before_it_is_switched_off(cuda, tmp_path):
    def prepare(shape, names):
        cuda.append((shape, names))
        return case(**{name: lambda name=name: cuda.append(name) for name in ["cublas", *names]})

    worker.call_each([("shape", "one"), ("shape", "two")], prepare, tmp_path, "cuda")
    of_each = [[("shape", [name]), "wait", "start", "marker", name, "wait", "stop"] for name in ("one", "two")]
    assert cuda == [step for steps in of_each for step in steps]
    assert [step for step, _, _ in told(tmp_path)] == ["prepare", "call", "done"] * 2


def test_case_that_cannot_be_called_says_why_and_the_next_is_called(tmp_path):
    def prepare(shape, chosen):
        if chosen == ["full"]:
            raise MemoryError("12 GiB asked for")
        found = case(right=lambda: None) if chosen == ["right"] else case()
        found.rejected["unable"] = Rejection("skipped", "needs a Hopper")
        found.rejected["wrong"] = Rejection("failed", "is wrong")
        return found

    cases = [("s", name) for name in ("unable", "wrong", "absent", "full", "right")]
    worker.call_each(cases, prepare, tmp_path, "cpu")
    lost = {case: reason for step, case, reason in told(tmp_path) if step == "lost"}
    assert lost == {
        "s-unable": "needs a Hopper",
        "s-wrong": "is wrong",
        "s-absent": "it was left out",
        "s-full": "out of memory: 12 GiB asked for",
    }
    assert told(tmp_path)[-1][:2] == ("done", "s-right")


def test_operands_of_a_case_are_let_go_of_before_the_next_is_prepared(tmp_path):
    alive = []

    def prepare(shape, names):
        assert not any(found.entrants for found in alive)
        alive.append(case(v=lambda: None, **({} if names == ["two"] else {names[0]: lambda: None})))
        return alive[-1]

    worker.call_each([("s", "one"), ("s", "two"), ("s", "three")], prepare, tmp_path, "cpu")
    assert len(alive) == 3


def test_call_that_raises_ends_the_process(tmp_path):
    bad = case(bad=lambda: 1 / 0, next=lambda: None)
    with pytest.raises(SystemExit, match="ZeroDivisionError"):
        worker.call_each([("s", "bad"), ("s", "next")], lambda shape, names: bad, tmp_path, "cpu")
    assert [step for step, _, _ in told(tmp_path)] == ["prepare", "call", "lost"]


def test_line_that_the_end_cut_off_is_left_out(tmp_path):
    assert worker.progress(tmp_path) == []
    line = json.dumps({"step": "call", "case": ["s", "a"], "reason": ""})
    (tmp_path / worker.PROGRESS).write_text(f'{line}\n{{"step": "ca')
    assert told(tmp_path) == [("call", "s-a", "")]
    worker.request(tmp_path, {}, [])
    assert worker.progress(tmp_path) == []
