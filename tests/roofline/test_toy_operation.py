"""A new operation is its declaration, its runner and its test: all else works on it without knowing of it."""

from dataclasses import replace

import pytest
from toy_project import DOUBLE, Double

from roofline import operations
from roofline.analysis.records import records_of
from roofline.commands import cli

CONFTEST = """
from roofline import operations
from toy_project import DOUBLE

pytest_plugins = ["roofline.pytest_plugin.hooks"]
operations.register(DOUBLE)
"""
TESTS = """
def test_double(ffn_benchmark, shape, contender):
    ffn_benchmark(shape, contender)
"""


def test_it_is_swept_found_by_shares_timed_tabled_plotted_and_compared(run_project, capsys):
    about = {"conftest": CONFTEST, "tests": TESTS, "env": {"DRAW": "1"}, "shares": "new"}
    outcome = run_project("--benchmark-only", "--ffn-tokens=100,300", **about)
    assert outcome.code == 0, outcome.text
    times = {record["case"]: record["time_s"] for record in records_of(outcome.kept)}
    of_row = {"mul": 2e-6, "add": 1e-6}
    expected = {f"double-r{rows}-fp32-{name}": rows * of_row[name] for rows in (100, 300) for name in of_row}
    assert times == pytest.approx(expected)
    row = "| double-r100-fp32 | add | 100 us | 0.00100 | 40 % [40, 40] | 2.000 [2.000, 2.000] | 0.125 | memory |"
    assert row in outcome.report
    assert (outcome.folder / "memory_roofline.svg").exists()
    assert cli.main(["compare", str(outcome.folder), str(outcome.folder)]) == 0
    assert "double-r300-fp32" in capsys.readouterr().out


def test_its_ids_are_read_while_it_is_registered(monkeypatch):
    monkeypatch.setitem(operations.OPERATIONS, "double", DOUBLE)
    assert operations.parse("double-r7-fp32-mul") == (Double(7, "fp32"), "mul")
    with pytest.raises(ValueError, match="is known already"):
        operations.register(DOUBLE)


def test_an_analysis_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="'double': analysis 'gradients' is not known: take throughput or overlap"):
        operations.register(replace(DOUBLE, analysis="gradients"))
