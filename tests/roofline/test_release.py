"""Operands of a shape that is done are let go of before the next shape is prepared."""

import dataclasses
import weakref

import pytest
from fake_clock import FakeClock

from roofline.measure import telemetry
from roofline.measure.prepared import Entrant, PreparedCase
from roofline.measure.session import Session
from roofline.operations import parse
from roofline.options import Options

SHAPES = [f"matmul-100x300-up-tp1-m{m}-fp32" for m in (16, 32, 64, 128, 256, 512)]


class Operand:
    """Stands for a tensor."""


@pytest.mark.parametrize(("processes", "passes", "at_once"), [(1, 1, 1), (3, 1, 1), (1, 2, 6)])
def test_operands_of_finished_shapes_are_let_go(tmp_path, monkeypatch, processes, passes, at_once):
    monkeypatch.setenv("PASSES", str(passes))
    monkeypatch.setenv("PROCESSES", str(processes))
    operands, alive = weakref.WeakSet(), []

    def prepare(shape, names, first_call):
        operand = Operand()
        operands.add(operand)
        alive.append(len(operands))
        prepared = PreparedCase(parse(shape)[0], "torch")
        prepared.entrants["torch"] = Entrant("torch", lambda: 1e-3 if operand else 0, config="", relative_error=0.0)
        return prepared

    options = Options("cpu", True, "100x300", ("up",), (16,), (1,), ("fp32",), None, 0, 1.0, tmp_path)
    metadata = {"machine": {"source": "cpu"}, "method_version": 4, "cases": []}
    session = Session(
        dataclasses.replace(options, processes=processes), tmp_path / "run", FakeClock(),
        telemetry.for_device("cpu"), metadata, {shape: ["torch"] for shape in SHAPES},
    )  # fmt: skip
    session.measure_elsewhere = lambda process: ""
    session.begin(list, when="start")
    session.measure(SHAPES[0], prepare)
    for shape in SHAPES[1:]:
        session.measure(shape, prepare)
    assert len(alive) == 6
    assert max(alive) == at_once
