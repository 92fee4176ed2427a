"""Contenders that hang or die lose their own row: they are tried in a process beside the run."""

import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path

import pytest
from trial_project import BAD

from roofline import trial, worker
from roofline.measure.prepared import PreparedCase, Rejection
from roofline.store import journal

HERE = Path(__file__).parent
CONFTEST = (HERE / "small_project.py").read_text() + "\n__import__('trial_project').install()\n"
S64, S128 = "matmul-xxl/16-up-tp8-m64-fp32", "matmul-xxl/16-up-tp8-m128-fp32"
CASES = [*((S64, name) for name in ("torch", *BAD, "numpy")), (S128, "torch"), (S128, "idle")]

TESTS = f"""
import pytest

@pytest.mark.parametrize(("shape", "contender"), {CASES})
def test_matmul(ffn_benchmark, shape, contender):
    ffn_benchmark(shape, contender)
"""

REASONS = {
    "sleeps": "sleeps: hung for 3 s, in its first call",
    "locks": "locks: hung for 3 s, in its first call",
    "spins": "spins: hung for 3 s, in its first call",
    "null": "null: signal 11 (SIGSEGV), in its first call",
    "exits": "exits: exit code 3: ",
    "killed": "killed: signal 9 (SIGKILL), in its first call",
    "greedy": "greedy: out of memory: ",
    "raises": "raises: ZeroDivisionError: division by zero",
}


@pytest.fixture(scope="module")
def run(run_project):
    return run_project(
        "--benchmark-only",
        conftest=CONFTEST,
        tests=TESTS,
        env={"PYTHONPATH": f"{HERE}:{HERE.parents[1]}"},
    )


def test_each_loses_its_own_row_alone(run):
    assert run.code == 1
    assert sorted(run.cases) == ["m128-torch", "m64-numpy", "m64-torch"]
    told = run.reasons
    assert told.pop("m128-idle") == ("failed", "idle: it stopped to work")
    assert sorted(told) == sorted(f"m64-{name}" for name in BAD)
    for case, (outcome, reason) in told.items():
        name = case.partition("-")[2]
        assert outcome == ("skipped" if name == "greedy" else "failed"), case
        assert reason.startswith(REASONS[name]), reason
    kept = journal.load(run.folder)
    assert all(len(kept.shapes[shape].times_s("torch")) >= 30 for shape in (S64, S128))


def test_its_price_is_told(run):
    assert "trying 12 cases beside the run" in run.text
    assert "12 cases in " in (note := journal.load(run.folder).notes_by_topic["trial"])
    assert note.endswith(" 8 lost.")


def test_who_is_wrong_after_it_was_timed_has_no_samples(run):
    kept = journal.load(run.folder)
    assert kept.measured(S128) == ["torch"]
    assert len(kept.shapes[S128].times_s("idle")) >= 30  # the journal has them; no table does
    assert "idle |" not in (run.folder / "report.md").read_text()


def test_what_goes_over_a_link_is_tried_last_and_alone(monkeypatch):
    monkeypatch.setattr(trial, "cores", lambda: 16)
    gather = "all_gather_matmul-xxl-up-p8-tp8-m8192-bf16-ridge"
    shapes = {f"matmul-xxl-up-tp8-m{m}-bf16": ["tiled"] for m in (1, 2, 3, 4, 5)} | {gather: ["serial"]}
    *parts, last = trial._parts(shapes, "cuda")
    assert [len(part) for part in parts] == [2, 1, 1, 1]
    assert last == {gather: ["serial"]}
    monkeypatch.setattr(trial, "cores", lambda: 2)
    assert [len(part) for part in trial._parts(shapes, "cuda")] == [5, 1]
    assert [len(part) for part in trial._parts(shapes, "cpu")] == [5, 1]


SLEEPING = [sys.executable, "-c", "import time; time.sleep(600)"]


def test_interrupted_trial_leaves_no_process(tmp_path):
    one = trial.Trial({S64: ["sleeps"]}, {}, tmp_path, "cpu")
    thread = threading.Thread(target=one._watch, args=(tmp_path, SLEEPING, time.monotonic() + 600))
    thread.start()
    while not one._process:
        time.sleep(0.01)
    one.stop("it was interrupted")
    thread.join(300)
    assert one._process.returncode == -9
    one.run()
    assert one.untried == {(S64, "sleeps"): "it was interrupted"}


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (SLEEPING, "the 0.2 s that this may take were over"),
        ([sys.executable, "-c", ""], "came no further: exit code 0"),
    ],
)
def test_trial_that_comes_no_further_ends_and_says_so(tmp_path, monkeypatch, command, why):
    monkeypatch.setattr(trial.worker, "request", lambda *asked: command)
    monkeypatch.setattr(trial, "BOX_S", 0.2 if command is SLEEPING else 300)
    one = trial.Trial({S64: ["ours"]}, {}, tmp_path, "cpu")
    one.run()
    assert why in one.untried[S64, "ours"]
    assert one.lost == {}


def step(step, name, **more):
    return {"step": step, "case": [S64, name], "reason": "why"} | more


@pytest.mark.parametrize(
    ("steps", "lost", "untried", "left"),
    [
        ([step("prepare", ""), step("call", "a")], {"a"}, set(), {"b"}),
        ([step("prepare", "")], set(), set(), {"a", "b"}),  # once more
        ([step("untried", "a"), step("done", "b")], set(), {"a"}, set()),
        ([step("lost", "vendor", outcome="failed"), step("done", "a")], {"vendor"}, set(), {"b"}),
    ],
)
def test_what_a_worker_said_before_its_end(tmp_path, steps, lost, untried, left):
    one, rest, died = trial.Trial({}, {}, tmp_path, "cuda"), {S64: ["a", "b"]}, set()
    one._settle(rest, steps, "signal 9 (SIGKILL)", died)
    assert {name for _, name in one.lost} == lost
    assert {name for _, name in one.untried} == untried
    assert set(rest.get(S64, ())) == left
    if steps[-1]["step"] == "prepare":
        one._settle(rest, steps, "signal 9 (SIGKILL)", died)
        assert {name for _, name in one.lost} == {"a", "b"}


@pytest.mark.parametrize("is_lost", [False, True])
def test_case_that_cannot_be_prepared_is_not_tried_and_said_so(tmp_path, monkeypatch, is_lost):
    def prepare(shape, names, first_call):
        raise MemoryError("12 GiB")

    monkeypatch.setattr(worker.device_errors, "device_lost", lambda device: is_lost)
    with pytest.raises(SystemExit) if is_lost else nullcontext():
        worker.try_each([(S64, "a"), (S128, "a")], prepare, tmp_path, "cuda", {})
    told = [(line["step"], line["reason"]) for line in worker.progress(tmp_path)]
    assert told == [("prepare", ""), ("untried", "out of memory: 12 GiB")] * (1 if is_lost else 2)


def test_what_finds_no_memory_beside_others_is_not_tried_and_what_cannot_run_has_its_answer(tmp_path):
    reasons = {"full": "full: out of memory: 12 GiB", "unable": "unable needs Hopper"}
    found = PreparedCase(None, "", rejected={name: Rejection("skipped", why) for name, why in reasons.items()})
    worker.try_each([(S64, name) for name in reasons], lambda *asked: found, tmp_path, "cuda", {})
    steps = [(line["step"], line["case"][1]) for line in worker.progress(tmp_path)]
    assert steps == [("prepare", ""), ("untried", "full"), ("done", "full"), ("done", "unable")]
