"""A new operation is its declaration, its runner and its test: all else works on it without knowing of it."""

import functools

import pytest
from toy_project import DOUBLE, Double

import roofline
from roofline import cli, operations
from roofline.analysis.records import records_of

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
SHAPES = {"double-r100-fp32": 100, "double-r300-fp32": 300}
SECONDS = {"mul": 2e-6, "add": 1e-6}


@pytest.fixture(scope="module")
def start(run_project):
    return functools.partial(run_project, "--benchmark-only", conftest=CONFTEST, tests=TESTS)


def test_it_is_swept_timed_gone_on_with_tabled_plotted_and_compared(start, capsys):
    stopped = start("--ffn-tokens=100,300", env={"STOPS": "1"})
    whole = stopped.go_on(env={"DRAW": "1"})
    assert (stopped.code, whole.code) == (2, 0), whole.text
    run = roofline.load(whole.folder)
    assert run.shapes["double-r100-fp32"].params == {"rows": 100, "dtype": "fp32"}
    times = {(record["case"].rpartition("-")[0], record["contender"]): record["time_s"] for record in records_of(run)}
    expected = {(shape, name): rows * s for shape, rows in SHAPES.items() for name, s in SECONDS.items()}
    assert times == pytest.approx(expected)
    row = "| double-r100-fp32 | add | 100 us | 0.00100 | 40 % [40, 40] | 2.000 [2.000, 2.000] | 0.125 | memory |"
    assert row in whole.report
    assert (whole.folder / "memory_roofline.svg").exists()
    assert cli.main(["compare", str(whole.folder), str(whole.folder)]) == 0
    assert "double-r300-fp32" in capsys.readouterr().out


def test_shares_find_it_where_it_is_declared(start):
    run = start("--ffn-tokens=100", shares=True)
    assert run.code == 0, run.text
    assert len(records_of(roofline.load(run.folder))) == 2


def test_names_of_its_contenders_are_known(start):
    refused = start("--ffn-contenders=ad")
    assert refused.code == 2
    assert "did you mean add?" in refused.text


def test_its_ids_are_read_while_it_is_registered(monkeypatch):
    monkeypatch.setitem(operations.OPERATIONS, "double", DOUBLE)
    assert operations.parse("double-r7-fp32-mul") == (Double(7, "fp32"), "mul")
    with pytest.raises(ValueError, match="is known already"):
        operations.register(DOUBLE)
    monkeypatch.undo()
    with pytest.raises(ValueError, match="no operation 'double'"):
        operations.parse("double-r7-fp32-mul")
