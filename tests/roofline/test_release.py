"""Operands of a shape that is done are let go of before the next shape is prepared."""

import dataclasses
import weakref

import pytest
from chosen_options import options
from fake_clock import FakeClock

from roofline import operations
from roofline.protocol.messages import Done
from roofline.worker import worker
from roofline.worker.prepared import Entrant, PreparedCase
from roofline.worker.runner import Runner

SHAPES = [f"matmul-100x300-up-tp1-m{m}-fp32" for m in (16, 32, 64, 128, 256, 512)]


class Operand:
    """Stands for a tensor."""


@pytest.mark.parametrize(("kind", "passes", "at_once"), [("check", 1, 1), ("measure", 1, 1), ("measure", 2, 6)])
def test_operands_of_finished_shapes_are_let_go(tmp_path, monkeypatch, kind, passes, at_once):
    monkeypatch.setenv("PASSES", str(passes))
    operands, alive = weakref.WeakSet(), []

    class Keeper(Runner):
        def clock(self):
            return FakeClock()

        def prepare(self, case, names, first_call):
            operand = Operand()
            operands.add(operand)
            alive.append(len(operands))
            prepared = PreparedCase(case, "torch")
            prepared.entrants["torch"] = Entrant("torch", lambda: 1e-3 if operand else 0)
            return prepared

    operation = dataclasses.replace(operations.OPERATIONS["matmul"], runner=Keeper)
    monkeypatch.setitem(operations.OPERATIONS, "matmul", operation)
    runners, messages = operations.Runners(options(model="100,300", max_seconds="1")), []
    runners.of(operation)
    cases = {shape: ["torch"] for shape in SHAPES}
    asked = worker.Request(kind, {}, cases, passes=dict.fromkeys(SHAPES, passes))
    worker.run(asked, messages.append, runners)
    assert messages[-1] == Done()
    assert len(alive) == 6
    assert max(alive) == at_once
