"""Who is suspected of what ended or spoilt a worker, who is tried alone, and what is left to measure."""

import socket
from inspect import getsource
from types import SimpleNamespace

import pytest
from made_up_run import END, HEAD, shape

from roofline.analysis.records import frame, records_of
from roofline.analysis.tokens import by_tokens
from roofline.protocol.messages import (
    MESSAGES,
    Broke,
    Channel,
    Request,
    Step,
    StepBegan,
)
from roofline.report.write import write
from roofline.store.outcome import FAILED, Outcome
from roofline.supervise import child, measuring, stages
from roofline.supervise.apart import Trials
from roofline.supervise.blame import conclude
from roofline.supervise.child import Told, WorkerEnd
from roofline.supervise.run_writer import RunWriter

NAMES = ["torch", "a", "b"]


class Made:
    """A run of two shapes, of which nothing is measured yet; what it does with trials is said in a word."""

    def __init__(self, folder):
        ends = []
        self.planned = {"up": NAMES, "down": NAMES}
        cases = [f"{shape}-{name}" for shape, names in self.planned.items() for name in names]
        self.writer = RunWriter(folder / "run", HEAD | {"cases": cases}, ends.append)
        self.trials = Trials(self.writer, self.planned, 60.0, are_possible=True)
        self.session = SimpleNamespace(
            trials=self.trials, writer=self.writer, run=self.writer.run, end=ends.append, epochs=None, signals=[]
        )
        self.ends = ends

    def accuse(self, shape, name, apart="", **about):
        request = Request("check", {}, {shape: [apart]}, apart=apart)
        self.trials.accuse(request, shape, name, Outcome(FAILED, f"{name}: it died"), **about)

    def close(self, shapes, name, seconds=1.0, done=True):
        request = Request("check", {}, {shape: [name] for shape in shapes.split()}, apart=name)
        about = {"seconds": seconds, "is_done": done, "is_stopped": False, "done": shapes.split() if done else []}
        self.trials.close(SimpleNamespace(request=request, **about))

    def end_worker(self, shape, name, apart=""):
        """A worker ends at a call."""
        worker = Told(Request("check", {}, {shape: [apart]}, apart=apart))
        worker.is_stopped = False
        self.session.end_reason = "".join(self.ends)
        conclude(self.session, worker, WorkerEnd(StepBegan(Step.CALL, shape, name), "signal 9"))

    @property
    def lost(self):
        return {case: outcome.reason for case, outcome in self.writer.run.outcomes.items()}


@pytest.fixture
def made(tmp_path):
    return Made(tmp_path)


def test_once_one_was_innocent_the_second_suspect_has_all_of_the_shape_tried_alone(made):
    made.accuse("up", "a")
    made.close("up", "a")
    assert made.trials.left()["up"] == NAMES  # as long as nobody else is suspected
    made.accuse("up", "b")
    assert list(made.trials.waiting) == [("up", "b"), ("up", "torch")]
    assert made.trials.left() == {"up": ["a"], "down": NAMES}
    assert made.lost == {}


def test_the_baseline_is_tried_before_whom_it_failed_beside(made):
    made.accuse("up", "a")
    made.accuse("up", "torch", apart="a")
    made.close("up", "a", done=False)
    assert made.trials.next(made.planned) == ("torch", {"up": ["torch"]})
    made.close("up", "torch")
    assert made.trials.next(made.planned) == ("a", {"up": ["a"]})
    made.accuse("up", "torch", apart="a")
    made.close("up", "a", done=False)
    assert made.lost == {"up-a": "a: alone with torch, which does well without it: torch: it died"}
    assert made.trials.waiting == {}
    made.accuse("down", "a")
    made.accuse("down", "torch", apart="a")
    made.accuse("down", "torch", apart="torch")
    made.close("down", "torch", done=False)
    assert made.trials.next(made.planned) == ("a", {"down": ["a"]})  # without the baseline


def test_who_ends_two_workers_alone_is_not_tried_on_the_rest(made):
    made.planned["gate"] = made.planned["out"] = NAMES
    for name in ("up", "down"):
        made.end_worker(name, "a")
        made.end_worker(name, "a", apart="a")
        made.close(name, "a", done=False)
    assert made.lost == dict.fromkeys(["up-a", "down-a"], "a: signal 9, at its first call")
    reason = "a: not tried alone, alone it failed on 2 shapes."
    assert made.trials.next(made.planned) == ("", {})
    assert made.trials.given_up == {"gate-a": reason, "out-a": reason}
    assert set(map(len, made.trials.left().values())) == {2}


def test_who_is_wrong_alone_on_two_shapes_goes_on_where_it_is_right_beside_others(made):
    made.planned["gate"] = made.planned["out"] = NAMES
    for name in ("up", "down", "gate"):
        made.accuse(name, "a")
    assert made.trials.next(made.planned) == ("a", {"up": ["a"], "down": ["a"], "gate": ["a"]})
    made.accuse("up", "a", apart="a")
    assert not made.trials.why_no_more("a")
    made.accuse("down", "a", apart="a")
    assert made.trials.why_no_more("a")
    made.close("up down", "a")
    assert made.trials.next(made.planned) == ("", {})
    assert [*made.trials.given_up] == ["gate-a"]
    assert made.trials.left()["out"] == NAMES


def test_what_no_time_is_left_to_try_has_a_reason(made):
    made.accuse("up", "a")
    made.close("up", "a", seconds=61.0)
    made.accuse("down", "b")
    assert made.trials.next(made.planned) == ("", {})
    assert made.trials.given_up == {"down-b": "b: not tried alone, the 60 s for that are over. Beside others: it died."}
    assert made.lost == {}


def test_a_fault_that_goes_on_when_all_have_lost_their_rows_ends_the_run(made):
    """As where what arms are compared with loses the device: no contender can be left out, and all comes again."""
    broke = Broke("a", Outcome(FAILED, "the device is lost"))
    for _ in range(2):
        made.accuse("up", "a", is_sure=True)
        assert made.ends == []
        worker = Told(Request("measure", {}, {"up": ["a"]}))
        made.session.end_reason = ""
        conclude(made.session, worker, WorkerEnd(StepBegan(Step.TURNS, "up"), broke=broke))
    assert made.ends == ["workers end at their turns of up: the device is lost"]


@pytest.mark.parametrize(
    ("told", "problem"),
    [
        (b"\xff", "JSON is malformed"),
        (b"", "Input data was truncated"),
        (b'{"kind": "Message"}', "it is of unknown kind 'Message'"),
        (
            b'{"kind": "Broke", "name": "", "outcome": {"outcome": "failed"}}',
            r"Object missing required field `reason` - at `\$.outcome`",
        ),
    ],
)
def test_what_is_no_message_is_named(told, problem):
    ours, theirs = map(Channel, socket.socketpair())
    theirs.send_bytes(told)
    with pytest.raises(ValueError, match=problem):
        ours.receive()


@pytest.mark.parametrize("raw", [b"\xff" * 64, b"\x7f\xff\xff\xff", b"\0\0\0\x40{"])
def test_bytes_that_are_no_message_do_not_hold_the_run(raw):
    ours, theirs = socket.socketpair()
    theirs.sendall(raw)
    with pytest.raises(ValueError, match="its length is not that of a message"):
        Channel(ours, within_s=1).receive()


def test_every_message_is_handled_by_a_stage():
    source = "".join(map(getsource, (child, stages, measuring)))
    assert [name for name in MESSAGES if f"case {name}(" not in source] == []


def lines_with(*names, apart="", **about):
    """The lines of a shape on which the baseline takes 2 us beside others, 3 us beside who is alone."""
    head, *rounds = shape(16, {"cublas": 3e-6 if apart else 2e-6} | dict.fromkeys(names, 1e-6), **about)
    field = {"apart": apart} if apart else {}
    return [head | field, *[line | field for line in rounds]]


SHAPE = lines_with()[0]["id"]
PLANNED = {SHAPE: ["cublas", "tiled", "decode"]}
LOST = {"kind": "not_measured", "case": f"{SHAPE}-decode", "outcome": "failed", "reason": "why"}
NOT_RUN = LOST | {"outcome": "not_run"}
CUT_OFF = {"stopped_by": "interrupt"}


def test_a_row_that_was_made_apart_is_of_its_own_rounds(loaded, tmp_path, undrawn):
    run = loaded([HEAD, *lines_with("tiled"), *lines_with("decode", apart="decode"), END])
    rows = {record["contender"]: record for record in records_of(run)}
    names = "baseline_time_s", "ratio_to_baseline", "notes"
    assert [rows["tiled"][name] for name in names] == [pytest.approx(2e-6), pytest.approx(2), ""]
    assert [rows["decode"][name] for name in names] == [pytest.approx(3e-6), pytest.approx(3), "measured apart"]
    assert rows["cublas"]["time_s"] == pytest.approx(2e-6)
    assert by_tokens(run, frame(run))["ratio_to_baseline"].tolist() == [pytest.approx(3)]
    assert run.samples().groupby("apart")["contender"].unique().map(sorted).to_dict() == {
        "": ["cublas", "tiled"],
        "decode": ["cublas", "decode"],
    }
    assert write(tmp_path / "run")


@pytest.mark.parametrize(
    ("lines", "together", "alone"),
    [
        ([], ["cublas", "tiled", "decode"], []),
        (lines_with("tiled", "decode", **CUT_OFF), ["cublas", "tiled", "decode"], []),
        (lines_with("tiled", **CUT_OFF), ["cublas", "tiled"], ["decode"]),
        (lines_with("tiled"), [], ["decode"]),
        ([*lines_with("tiled"), LOST], [], []),
        ([*lines_with("tiled"), NOT_RUN], [], ["decode"]),
        (lines_with("decode", apart="decode", **CUT_OFF), ["cublas", "tiled"], ["decode"]),
        ([*lines_with("tiled"), *lines_with("decode", apart="decode", **CUT_OFF)], [], ["decode"]),
    ],
)
def test_what_a_run_has_left(loaded, lines, together, alone):
    run = loaded([HEAD, *lines])
    trials = Trials(SimpleNamespace(run=run), PLANNED, 60.0, are_possible=True)
    assert list(trials.waiting) == [(SHAPE, name) for name in alone]
    assert trials.left() == ({SHAPE: together} if together else {})
    assert run.unfinished == bool(CUT_OFF["stopped_by"] in str(lines) or NOT_RUN in lines)


def test_who_was_not_tried_to_the_end_has_no_row(loaded):
    run = loaded([HEAD, *lines_with("tiled"), *lines_with("decode", apart="decode", **CUT_OFF)])
    assert [record["contender"] for record in records_of(run)] == ["cublas", "tiled"]
