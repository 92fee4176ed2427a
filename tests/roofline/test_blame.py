"""What becomes of those who are blamed for the end of a worker, and which messages of a worker are handled."""

import socket
from collections import Counter
from inspect import getsource
from types import SimpleNamespace

import pytest

from roofline.store import typed
from roofline.store.outcome import FAILED, Outcome
from roofline.store.run import Round, Shape
from roofline.supervise import child, measuring, stages
from roofline.supervise.blame import TRIES, conclude
from roofline.supervise.child import Told, WorkerEnd
from roofline.theory.work import Work
from roofline.worker.channel import Channel
from roofline.worker.messages import (
    MESSAGES,
    Broke,
    Kind,
    Rejected,
    Request,
    ShapePrepared,
    Step,
    StepBegan,
    Turns,
)


def test_who_has_lost_its_row_is_not_blamed_again_and_the_run_ends():
    """As where what arms are compared with loses the device: no contender can be left out, and all comes again."""
    lost, notes = {}, []
    supervisor = SimpleNamespace(
        outcomes=lost, end_reason="", signals=[], epochs=None, note=lambda *words: notes.append(words)
    )
    supervisor.lose = lambda shape, name, outcome: lost.setdefault(f"{shape}-{name}", outcome)
    worker = Told(SimpleNamespace(suspect="", cases={"up": ["gemm"]}))
    broke, ends = Broke("gemm", Outcome(FAILED, "the device is lost")), Counter()
    for ended in range(1 + TRIES):
        assert supervisor.end_reason == "", ended
        conclude(supervisor, worker, WorkerEnd(StepBegan(Step.TURNS, "up", "gemm"), broke=broke), ends)
    assert supervisor.end_reason == "3 workers ended at their turns: the device is lost"
    assert [*lost] == ["up-gemm"]
    assert len(notes) == TRIES - 1


@pytest.fixture
def ends():
    return [Channel(plug) for plug in socket.socketpair()]


OUTCOME = Outcome(FAILED, "wrong")
SAID = [
    StepBegan(Step.CALL, "up", "gemm", seconds=1.5),
    Rejected("up", "gemm", OUTCOME),
    Broke("", OUTCOME),
    Turns("up", True, "width", [Round(0, ["gemm"], {"gemm": 1}, {"gemm": {"hz": 2.5}})], {"gemm": 0}, [], {}),
    ShapePrepared(Shape("up", "toy", "throughput", {"m": 1}, "fp32", Work(1, 2), "gemm", "cold", {"gemm": {}})),
]


@pytest.mark.parametrize("message", SAID)
def test_a_message_comes_as_it_was_told(ends, message):
    ours, theirs = ends
    ours.acknowledge(stop=False)
    theirs.tell(message)
    assert ours.receive() == message


@pytest.mark.parametrize(
    ("told", "problem"),
    [
        (b"\xff", "JSON is malformed"),
        (b"[]", "Expected `object`, got `array`"),
        (b'{"kind": "Message"}', "it is of unknown kind 'Message'"),
        (b'{"kind": "Rejected", "shape": "up", "name": 7, "outcome": {}}', r"Expected `str`, got `int` - at `\$.name`"),
        (
            b'{"kind": "Broke", "name": "", "outcome": {"outcome": "failed"}}',
            r"Object missing required field `reason` - at `\$.outcome`",
        ),
        (b'{"kind": "StepBegan", "step": "turns", "seconds": 1e400}', "Number out of range"),
    ],
)
def test_what_is_no_message_is_named(ends, told, problem):
    ours, theirs = ends
    theirs.send_bytes(told)
    with pytest.raises(ValueError, match=problem):
        ours.receive()


def test_a_request_of_a_later_version_is_understood(ends):
    ours, theirs = ends
    request = Request(Kind.MEASURE, {}, {"up": ["gemm"]}, passes={"up": 2})
    ours.send_bytes(typed.encoded(vars(request) | {"of_a_later_version": 1}))
    assert theirs.request() == request


def test_every_message_is_handled_by_a_stage():
    source = "".join(map(getsource, (child, stages, measuring)))
    assert [name for name in MESSAGES if f"case {name}(" not in source] == []
