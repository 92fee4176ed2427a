"""A benchmark run whose arms are compared with calls beside them: what is journalled, kept, resumed and reported."""

import functools

import pytest
from features import unfilled

from roofline.analysis.records import records_of

CONFTEST = """
import dataclasses, os

from fake_clock import FakeClock

from roofline import operations
from roofline.worker.clocks import Call
from roofline.worker.prepared import Entrant, PreparedCase
from roofline.worker.runner import Runner

pytest_plugins = ["roofline.pytest_plugin.hooks"]


def noted(name, time_s):
    counts = []

    def run():
        counts.append(name)
        return time_s * (1 + 0.01 * (len(counts) % 7))

    def notes():
        if os.environ.get("FAULT") == f"{name} dies" and len(counts) == 20:
            raise RuntimeError("the paced link is dead: chunk 3")
        timeline = {"transfers": [[1, 0]], "arrivals_s": [0.5 * time_s], "waits": [[1, 0.0, time_s]]}
        return {"last_arrival_s": time_s, "timeline": timeline | {"end_s": time_s}}

    return Call(run, notes=notes)


class Gathers(Runner):
    def clock(self):
        return FakeClock()

    def prepare(self, case, names, first_call):
        times = {"serial": 7e-3, "row_block": 5e-3}
        prepared = PreparedCase(case, "serial")
        for name in dict.fromkeys(["serial", *names]):
            prepared.entrants[name] = Entrant(name, noted(name, times[name]), config="known", relative_error=0.0)
        for name, role, time_s in (("gemm torch", "gemm", 4e-3), ("link", "link", 3e-3)):
            prepared.entrants[name] = Entrant(name, noted(name, time_s), role, "known")
        asked = float(os.environ.get("ASKED", "1")) * case.work.wire_bytes / 3e-3
        prepared.facts = {"ranks": 4, "wire": "ridge", "link": "paced", "link_bytes_per_s_requested": asked}
        prepared.facts |= {"row_blocks": 2, "workers": 1, "row_tiles": 2, "column_tiles": 1}
        return prepared


OPERATION = operations.all_gather_matmul.OPERATION
operations.OPERATIONS[OPERATION.name] = dataclasses.replace(OPERATION, runner=Gathers)
"""

TESTS = """
import pytest


@pytest.mark.parametrize("contender", ["serial", "row_block"])
@pytest.mark.parametrize("shape", [f"all_gather_matmul-16x32-up-p4-tp1-m{m}-fp32-ridge" for m in (64, 128)])
def test_all_gather_matmul(ffn_benchmark, shape, contender):
    ffn_benchmark(shape, contender)
"""


@pytest.fixture(scope="module")
def run(run_project):
    return functools.partial(run_project, "--benchmark-only", conftest=CONFTEST, tests=TESTS)


def test_link_that_dies_alone_takes_the_hidden_fraction_and_no_times(run):
    outcome = run(fault="link dies")
    assert outcome.code == 1
    for record in records_of(outcome.kept):
        assert record["hidden_fraction"] is None
        assert record["time_s"] == pytest.approx({"serial": 7e-3, "row_block": 5e-3}[record["contender"]], rel=0.1)
    assert [missing.case.rpartition("-")[2] for missing in outcome.kept.missing] == ["link", "link"]


def test_link_that_is_slower_in_the_rounds_than_it_is_asked_for_voids_them(run):
    outcome = run(passes=3, asked=1.2)
    assert unfilled(outcome.kept, "void link") == []
    assert {record["hidden_fraction"] for record in records_of(outcome.kept)} == {None}
    assert "void: link off its pace by -1" in outcome.report
    timelines = [(line["shape"], line["contender"]) for line in outcome.lines if line["kind"] == "timeline"]
    assert len(set(timelines)) == len(timelines) == 8  # one of each, whatever the passes
