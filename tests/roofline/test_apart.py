"""Rows of contenders that took turns alone with the baseline, and what a run has left to measure."""

from types import SimpleNamespace

import pytest
from made_up_run import END, HEAD, shape

from roofline.analysis.records import frame, records_of
from roofline.analysis.tokens import by_tokens
from roofline.report.write import write
from roofline.supervise.apart import Trials
from roofline.supervise.measuring import passes_left


def made(*names, apart="", **about):
    """The lines of a shape on which the baseline takes 2 us beside others, 3 us beside who is alone."""
    head, *rounds = shape(16, {"cublas": 3e-6 if apart else 2e-6} | dict.fromkeys(names, 1e-6), **about)
    field = {"apart": apart} if apart else {}
    return [head | field, *[line | field for line in rounds]]


SHAPE = made()[0]["id"]
PLANNED = {SHAPE: ["cublas", "tiled", "decode"]}
LOST = {"kind": "not_measured", "case": f"{SHAPE}-decode", "outcome": "failed", "reason": "why"}
NOT_RUN = LOST | {"outcome": "not_run"}
CUT_OFF = {"stopped_by": "interrupt"}


def test_a_row_that_was_made_apart_is_of_its_own_rounds(loaded, tmp_path, undrawn):
    run = loaded([HEAD, *made("tiled"), *made("decode", apart="decode"), END])
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
        ([NOT_RUN], ["cublas", "tiled", "decode"], []),
        (made("tiled", "decode", **CUT_OFF), ["cublas", "tiled", "decode"], []),
        (made("tiled", **CUT_OFF), ["cublas", "tiled"], ["decode"]),
        (made("tiled"), [], ["decode"]),
        ([*made("tiled"), LOST], [], []),
        ([*made("tiled"), NOT_RUN], [], ["decode"]),
        (made("decode", apart="decode", **CUT_OFF), ["cublas", "tiled"], ["decode"]),
        ([*made("tiled"), *made("decode", apart="decode", **CUT_OFF)], [], ["decode"]),
    ],
)
def test_what_a_run_has_left(loaded, lines, together, alone):
    run = loaded([HEAD, *lines])
    trials = Trials(SimpleNamespace(run=run), PLANNED, 60.0, are_possible=True)
    assert list(trials.waiting) == [(SHAPE, name) for name in alone]
    assert trials.left() == ({SHAPE: together} if together else {})
    assert run.unfinished == bool(CUT_OFF["stopped_by"] in str(lines) or NOT_RUN in lines)


def test_who_was_not_tried_to_the_end_has_no_row(loaded):
    run = loaded([HEAD, *made("tiled"), *made("decode", apart="decode", **CUT_OFF)])
    assert [record["contender"] for record in records_of(run)] == ["cublas", "tiled"]


def test_a_process_makes_what_is_left_of_its_passes_where_no_other_is_behind():
    assert passes_left({"up": 0, "down": 0}, passes=4) == {"up": 4, "down": 4}
    assert passes_left({"up": 4, "down": 1}, passes=4) == {"down": 3}
    assert passes_left({"up": 4, "down": 4}, passes=4) == {"up": 4, "down": 4}
    assert passes_left({}, passes=4) == {}
