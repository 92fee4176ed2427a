"""What a timed call itself computed: a contender that is right whenever it is checked, and does otherwise when it is
timed, loses its row, with the reason. One that is right in each call keeps it."""

import dataclasses
import pkgutil
import threading

import pytest
import torch
from test_matmul_bench import OPTIONS

from kernels.bench import checks
from roofline import operations
from roofline.operations import contenders
from roofline.protocol.messages import Broke, Rejected
from roofline.worker import rounds, worker

SHAPE = "matmul-100x300-up-tp1-m{}-fp32"
SOURCE = """
import sys, threading, time
import torch

KEPT, SEEN = {{}}, []
def right(x, w, out):
    return torch.mm(x, w.T, out=out)

def is_timed():
    frame = sys._getframe(2)
    while frame:
        if frame.f_code.co_name == "turn":
            return True
        frame = frame.f_back
    return False

def is_looked_at():
    frame = sys._getframe(1)
    while frame:
        if frame.f_locals.get("look") or frame.f_locals.get("looked_at"):
            return True
        frame = frame.f_back
    return False

def recalled(key, x, w, out):
    if key not in KEPT:
        KEPT[key] = right(x, w, out).clone()
    return out.copy_(KEPT[key])

def is_new(x):
    SEEN.append(x.clone())
    return not any(torch.equal(x, seen) for seen in SEEN[:-1])

def hand_over(x, w, out, after_s=0.05):
    thread = threading.Thread(target=lambda: (time.sleep(after_s), right(x, w, out)))
    thread.start()
    return thread

def f(x, w, out=None):
    {}
"""
TIMED = "if is_timed() else right(x, w, out)"
RECALLED = "times a typical value, though the check's was right: it may reuse an earlier result"
KINDS = {
    # what it does: (its body, what its reason says; None where it is right)
    "honest": ("return right(x, w, out)", None),
    "recalls by address": ("return recalled((x.data_ptr(), float(x[0, 0]) < 0), x, w, out)", RECALLED),
    "recalls by the shape": (f"return recalled(x.shape, x, w, out) {TIMED}", RECALLED),
    "recalls what is equal": ("return out if is_new(x) and is_timed() else right(x, w, out)", RECALLED),
    "computes where out holds NaN": ("return right(x, w, out) if out.isnan().any() else out", RECALLED),
    "computes where it is checked": (f"return out {TIMED}", RECALLED),
    "computes where a frame tells of a look": (f"return right(x, w, out) if is_looked_at() else out {TIMED}", RECALLED),
    "computes half of the columns": (f"return right(x, w[::2], out[:, ::2]) is None or out {TIMED}", RECALLED),
    "computes in half precision": (f"return out.copy_(x.bfloat16() @ w.bfloat16().T) {TIMED}", RECALLED),
    "returns nothing": (f"return None {TIMED}", "it returned None and not the `out`"),
    "leaves a thread behind": (f"return hand_over(x, w, out) and out {TIMED}", "goes on when it returns"),
    "joins its thread": ("hand_over(x, w, out, 0.0).join()\n    return out", None),
}


@pytest.fixture
def measured(tmp_path, monkeypatch, machine_of):
    """`measured(how, m)` are the rejections of a contender of a user's that was timed, by the reason of each."""
    machine_of(cache_bytes=2**12, memory_bytes=2**33, chip="")
    monkeypatch.setattr(rounds, "LOOKED_AT", 1.0)  # the fewest rounds of a busy machine are looks enough

    def measure(how, m):
        (tmp_path / "mine.py").write_text(SOURCE.format(how))
        place = contenders.parse(f"{tmp_path / 'mine.py'}::f")
        users = ((place, contenders.version(place)),)
        options = dataclasses.replace(OPTIONS, tokens=(m,), max_seconds=2.0, users=users)
        runners, told = operations.Runners(options), []
        runners.of(operations.find("matmul"))
        shape = SHAPE.format(m)
        asked = worker.Request("measure", {}, {shape: ["torch", "f"]}, passes={shape: 3})
        worker.run(asked, told.append, runners)
        return {message.name: message.outcome.reason for message in told if isinstance(message, (Rejected, Broke))}

    return measure


@pytest.mark.parametrize("m", [1, pytest.param(300, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", KINDS)
def test_what_a_timed_call_computed_is_looked_at(measured, kind, m):
    how, reason = KINDS[kind]
    rejected = measured(how, m)
    others = {"torch"} if "behind" in kind else set()  # into whose `out` the thread may write
    assert rejected.keys() - others == ({"f"} if reason else set())
    if reason:
        assert rejected["f"].startswith("f: the result of a timed call was wrong: ")
        assert reason in rejected["f"]


PATCHES = """if is_timed():
        sys.modules["{}"].{} = lambda *given: str
    return out if is_timed() else right(x, w, out)"""


@pytest.mark.parametrize(
    ("module", "name"), [("kernels.bench.checks", "glance"), ("roofline.worker.rounds", "Rounds._narrow")]
)
def test_a_check_that_a_timed_call_replaces_is_put_back_and_said(measured, module, name):
    """Whose call it was is found apart."""
    kept = pkgutil.resolve_name(f"{module}:{name}")
    (reason,) = measured(PATCHES.format(module, name), 1).values()
    assert reason.startswith(f"timed calls changed functions of {module}")
    assert pkgutil.resolve_name(f"{module}:{name}") is kept


def test_a_check_tells_a_result_that_comes_late_from_a_wrong_one(monkeypatch):
    monkeypatch.setattr(checks, "LATER_S", 1.0)
    x, w = torch.randn(4, 64), torch.randn(8, 64)
    reference = checks.reference_sums(x, w)

    def left_to_a_thread(x, w, out):
        threading.Timer(0.2, torch.mm, (x, w.T), {"out": out}).start()
        return out

    def wrong(x, w, out):
        return torch.mul(torch.mm(x, w.T), 2, out=out)

    reasons = [
        checks.check("f", run, (x, w, torch.zeros(4, 8)), reference)[1].reason for run in (left_to_a_thread, wrong)
    ]
    assert [checks.NOT_JOINED in reason for reason in reasons] == [True, False]
