"""A run of several processes: each makes its share of the passes, and what one dies of costs no more than that."""

import errno
import re
import signal
import subprocess
from pathlib import Path
from statistics import fmean

import pytest
from chosen_options import options

from results import visit
from roofline.protocol.stop_rule import StopRule

ALL = [f"m{m}-{name}" for m in (64, 128, 256) for name in ("torch", "numpy")]

EACH_PASS = """
from roofline.host import telemetry
from roofline.pytest_plugin import narrator
narrator.LOGGED_S = 0
readings = iter(range(99))
telemetry.CpuTelemetry.summary = lambda self: {"others_share": float(next(readings))}

def call(case, *about, call=call):
    time_s = call(case, *about)
    return None if (case.m, time_s) == (256, 0.0009) else time_s
"""
"""A line of progress for each step; the telemetry of a pass is its number among all passes. The host is late for some
samples of numpy."""


def test_each_process_makes_its_share_of_the_passes(three_shapes):
    several = three_shapes(passes=2, processes=3, more=EACH_PASS)
    assert several.code == 0
    assert sorted(several.cases) == sorted(ALL)
    for place, shape in enumerate(several.kept.shapes.values()):
        assert (shape.processes, shape.passes, shape.stopped_by) == (3, 6, "rounds")
        assert [round_.index for round_ in shape.rounds] == list(range(shape.round_count))
        of = {round_.pass_index: round_.process for round_ in shape.rounds}
        assert of == {1: 0, 2: 0, 3: 1, 4: 1, 5: 2, 6: 2}
        first, second = ([each.order for each in shape.rounds if each.process == process][:12] for process in (0, 1))
        assert first != second
        readings = [3 * (round_.pass_index - 1) + place for round_ in shape.rounds]  # each pass counts by its rounds
        assert shape.telemetry == {"others_share": pytest.approx(fmean(readings))}
        assert shape.late == {name: shape.round_count - len(shape.times_s(name)) for name in shape.late}
        # The probe is that which the first process chose.
        assert {round_.process for round_ in shape.rounds if "probe matmul" in round_.time_s} == {0, 1, 2}
    assert [line["when"] for line in several.lines if line["kind"] == "ceiling"] == ["start"] * 3
    assert re.search(r"6 of 18 passes, \d+ s left: turns of matmul-xxl/16-up-tp8-m64-fp32", several.text)


def test_the_number_of_processes_can_be_chosen(three_shapes):
    run = three_shapes("--ffn-processes=2", "-k", "m64", passes=2, processes=3)
    (shape,) = run.kept.shapes.values()
    assert (shape.processes, {round_.process for round_ in shape.rounds}) == (2, {0, 1})


def test_a_share_that_is_killed_keeps_its_whole_passes_and_the_next_makes_the_others(by_forks):
    run = by_forks(passes=2, processes=3, fault="later-numpy 256 SIGKILL")
    assert run.code == 1
    assert run.reasons == {"m256-numpy": ("failed", "numpy: signal 9 (SIGKILL), at its turns")}
    assert sorted(run.cases) == sorted(set(ALL) - {"m256-numpy"})
    for shape in run.kept.shapes.values():
        of = {round_.pass_index: round_.process for round_ in shape.rounds}
        struck = shape.params["m"] == 256
        assert of == {1: 0, 2: 0, 3: 2 if struck else 1, 4: 2, 5: 3, 6: 3}
        assert (shape.processes, shape.passes, shape.stopped_by) == (3 + (not struck), 6, "rounds")
        assert [round_.index for round_ in shape.rounds] == list(range(shape.round_count))


def test_the_rule_of_a_worker_that_makes_some_of_the_passes():
    whole = StopRule.of_options(options("cuda", max_seconds=8.0))
    part = whole.part(4, 16)
    assert whole.part(16, 16) == whole
    assert (whole.max_seconds, whole.min_rounds, whole.max_rounds) == (8.0, 30, 600)
    assert (part.max_seconds, part.min_rounds, part.max_rounds) == (2.0, 8, 150)


def test_processes_that_end_while_marked_ones_are_looked_for_are_passed_over(monkeypatch):
    """Linux then says that there is no such process, where others look for its files."""
    marked = subprocess.Popen(["sleep", "60"], env={"MADE_UP_MARK": "1"})

    def exists(path):
        if path.name == "environ":
            raise ProcessLookupError(errno.ESRCH, "No such process", str(path))
        return True

    monkeypatch.setattr(Path, "exists", exists)
    visit.kill_marked("MADE_UP_MARK", "1")
    assert marked.wait(20) == -signal.SIGKILL
