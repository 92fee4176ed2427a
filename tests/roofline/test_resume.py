"""Runs that were cut off, by a signal, a kill or a lost device: what they keep, and how they are gone on with."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from roofline.cli import main
from roofline.measure import device_errors
from roofline.measure.prepared import Entrant, PreparedCase
from roofline.measure.rounds import CallError
from roofline.measure.session import Session
from roofline.report import references
from roofline.report.compare import compare, summary
from roofline.store import journal

CONFTEST = (Path(__file__).parent / "small_project.py").read_text()

ALL = ["m64-torch", "m64-numpy", "m128-torch", "m128-numpy", "m256-torch", "m256-numpy"]


@pytest.mark.parametrize("place", ["prepare", "numpy"])
def test_lost_device_ends_the_run_and_it_can_be_gone_on_with(three_shapes, place):
    run = three_shapes(fault=f"{place} 128 lost")
    assert run.code == 1
    assert sorted(run.cases) == ["m64-numpy", "m64-torch"]
    told = run.reasons
    broken = ["m128-numpy", "m128-torch"] if place == "prepare" else ["m128-numpy"]
    assert [name for name in told if told[name][0] == "failed"] == sorted(broken, reverse=True)
    assert "an illegal memory access" in told["m128-numpy"][1]
    assert told["m256-torch"] == told["m256-numpy"]
    assert told["m256-torch"][0] == "not_run"
    assert "the device was lost at matmul-xxl/16-up-tp8-m128-fp32" in told["m256-torch"][1]
    assert {c["when"] for c in journal.load(run.folder).ceilings} == {"start"}
    again = three_shapes(f"--ffn-resume={run.folder}", root=run.root)
    assert again.code == 1  # what broke it is not tried again, and stays a failure
    assert again.folder == run.folder
    assert sorted(again.cases) == sorted(set(ALL) - set(broken))
    assert again.reasons.keys() == set(broken)
    assert {c["when"] for c in journal.load(run.folder).ceilings} == {"start", "resume", "end"}


@pytest.mark.parametrize(
    ("ready", "error", "failed"),
    [
        (["torch", "numpy", "ours"], CallError("torch"), ["torch"]),
        (["torch", "numpy", "ours"], CallError("link"), ["numpy", "ours"]),  # which is no contender
        (["torch", "numpy", "ours"], RuntimeError("of the clock"), ["numpy", "ours"]),
        (["torch"], RuntimeError("of the clock"), ["torch"]),
    ],
)
def test_lost_device_has_somebody_fail_so_that_the_next_run_comes_further(ready, error, failed, monkeypatch):
    monkeypatch.setattr(device_errors, "device_lost", lambda device: True)
    session, call = Session.__new__(Session), lambda: None
    session.options = SimpleNamespace(device="cuda")
    found = PreparedCase(None, "torch", entrants={name: Entrant(name, call) for name in ready})
    found.entrants["link"] = Entrant("link", call, "link")
    error.__cause__ = RuntimeError("an illegal memory access")
    assert session._take_out(found, error) == failed
    assert list(found.rejected) == failed
    assert found.device_lost
    assert not found.entrants


@pytest.mark.parametrize(("signal", "name"), [("SIGINT", "Ctrl-C"), ("SIGTERM", "SIGTERM"), ("SIGHUP", "SIGHUP")])
def test_interruption_keeps_all_that_was_measured(three_shapes, signal, name):
    run = three_shapes(fault=f"numpy 128 {signal}")
    assert run.code == 2
    assert run.measured == ["m64-torch", "m64-numpy"]
    kept = journal.load(run.folder).shapes["matmul-xxl/16-up-tp8-m128-fp32"]
    assert kept.stopped_by == "interrupt"
    assert [len(kept.times_s(name)) for name in ("torch", "numpy")] == [9, 9]
    assert "cut short" in (run.folder / "report.md").read_text()
    assert run.reasons["m256-numpy"] == ("not_run", f"interrupted by {name}")
    shape = "matmul-xxl/16-up-tp8-m256-fp32"
    assert f"not run: {shape}-torch, {shape}-numpy: interrupted by {name}" in run.text
    assert "--ffn-resume=results/local/" in run.text
    again = three_shapes(f"--ffn-resume={run.folder}", root=run.root)
    assert again.code == 0
    assert sorted(again.cases) == sorted(again.measured) == sorted(ALL)
    assert not again.reasons


def test_interruption_before_the_first_whole_round_leaves_no_row(three_shapes):
    run = three_shapes(fault="prepared 64 SIGTERM")
    assert run.code == 2
    assert run.measured == []
    assert set(run.reasons.values()) == {("not_run", "interrupted by SIGTERM")}


@pytest.mark.parametrize("place", ["prepare", "numpy"])
def test_kill_between_two_shapes_or_within_one_loses_only_what_had_not_ended(three_shapes, place, capsys):
    run = three_shapes(fault=f"{place} 128 SIGKILL")
    assert run.code == -9
    assert [path.name for path in run.folder.iterdir()] == ["samples.jsonl"]
    assert run.measured == ["m64-torch", "m64-numpy"]
    assert main(["report", str(run.folder)]) == 0
    report = (run.folder / "report.md").read_text()
    assert "This run was cut off" in report
    assert "| matmul-xxl/16-up-tp8-m64-fp32 | numpy |" in report
    assert "m256-fp32-numpy: the run was cut off before it" in report
    capsys.readouterr()
    again = three_shapes(f"--ffn-resume={run.folder}", root=run.root)
    assert again.code == 0
    assert sorted(again.cases) == sorted(ALL)


def test_passes_over_all_shapes_give_each_its_rounds(three_shapes):
    run = three_shapes(env={"PASSES": "3"})
    assert run.code == 0
    assert sorted(run.measured) == sorted(ALL)
    assert "pass 3 of 3 over 3 shapes done" in run.text
    shapes = journal.load(run.folder).shapes.values()
    for shape in shapes:
        assert (shape.passes, shape.stopped_by) == (3, "width")
        assert {len(shape.times_s(name)) for name in ("torch", "numpy")} == {shape.round_count}
        assert 400 < shape.round_count < 600  # the last pass may stop early, those before it have a third of 600 each
    lines = [json.loads(line) for line in (run.folder / "samples.jsonl").read_text().splitlines()]
    order = [(line.get("id") or line["shape"]).split("-m")[1] for line in lines if line["kind"] in ("shape", "pass")]
    assert order == ["64-fp32", "128-fp32", "256-fp32"] * 3


@pytest.mark.parametrize(("signal", "code"), [("SIGKILL", -9), ("SIGTERM", 2)])
def test_pass_that_is_cut_short_leaves_the_passes_before_it(three_shapes, signal, code):
    run = three_shapes(env={"PASSES": "3"}, fault=f"numpy 128 {signal}")
    assert run.code == code
    assert run.measured == ["m64-torch", "m64-numpy"]
    assert journal.load(run.folder).shapes["matmul-xxl/16-up-tp8-m64-fp32"].round_count == 200
    again = three_shapes(f"--ffn-resume={run.folder}", root=run.root, env={"PASSES": "3"})
    assert again.code == 0
    assert sorted(again.cases) == sorted(ALL)
    assert all(shape.round_count > 400 for shape in journal.load(run.folder).shapes.values())


def test_contender_that_dies_in_a_pass_leaves_the_others_theirs(three_shapes):
    run = three_shapes(env={"PASSES": "3"}, fault="numpy 128 crash")
    assert run.code == 1
    assert sorted(run.cases) == sorted(set(ALL) - {"m128-numpy"})
    assert run.reasons.keys() == {"m128-numpy"}


def test_pass_that_is_cut_short_is_no_whole_run(three_shapes):
    run = three_shapes(env={"PASSES": "3"}, fault="late 256 SIGTERM")
    assert run.code == 2
    assert journal.load(run.folder).unfinished
    assert not run.reasons  # each has rounds, but not all of them
    assert "go on with it" in run.text
    assert "cut off (interrupted by SIGTERM)" in (run.folder / "report.md").read_text()
    with pytest.raises(ValueError, match="was cut off"):
        references.add(run.folder, run.root)
    assert "NEW was cut short" in "\n".join(summary(compare(*[journal.load(run.folder)] * 2, by="time")))


def test_reason_of_a_wrong_contender_is_kept_when_the_run_is_cut_short(run_project):
    run = run_project("--benchmark-only", env={"PASSES": "3", "FAULT": "numpy 64 SIGKILL"})
    assert run.code == -9
    run = run_project("--benchmark-only", env={"PASSES": "3", "FAULT": "late 64 SIGKILL"})
    assert {entry["outcome"] for entry in journal.load(run.folder).missing} == {"failed", "skipped"}


def test_run_that_was_killed_in_its_first_ceilings_can_be_gone_on_with(three_shapes):
    killed = CONFTEST.replace(
        'Probe("copy", "known", 2e9, lambda: 1e-3)',
        'Probe("copy", "known", 2e9, lambda: os.environ.get("FAULT") and os.kill(os.getpid(), 9) or 1e-3)',
    )
    run = three_shapes(conftest=killed, fault="copy 0 SIGKILL")
    assert run.code == -9
    assert len((run.folder / "samples.jsonl").read_text().splitlines()) == 1
    again = three_shapes(f"--ffn-resume={run.folder}", root=run.root, conftest=killed)
    assert again.code == 0
    assert sorted(again.cases) == sorted(again.measured) == sorted(ALL)


def test_shape_whose_samples_a_kill_cut_off_is_measured_again(three_shapes):
    run = three_shapes()
    path = run.folder / "samples.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    last = max(index for index, line in enumerate(lines) if '"kind": "shape"' in line)
    path.write_text("".join(lines[: last + 8]))
    assert journal.load(run.folder).interrupted == ["matmul-xxl/16-up-tp8-m256-fp32"]
    again = three_shapes(f"--ffn-resume={run.folder}", root=run.root)
    assert again.code == 0
    assert sorted(again.measured) == sorted(ALL)


def test_interruption_of_the_last_ceilings_is_told(three_shapes):
    hit = CONFTEST.replace(
        'Probe("copy", "known", 2e9, lambda: 1e-3)',
        'Probe("copy", "known", 2e9, lambda c=itertools.count(): next(c) == 200 and os.kill(os.getpid(), 15) or 1e-3)',
    )
    run = three_shapes(conftest=hit)
    assert run.code == 2
    assert "interrupted by SIGTERM: the last ceilings were not measured" in run.text
    assert sorted(run.cases) == sorted(ALL)


HIT = "os.kill(os.getpid(), signal.SIGTERM)"


@pytest.mark.parametrize(
    ("conftest", "told"),
    [
        (
            f"{CONFTEST}\nfrom roofline.analysis.base import Figure\nFigure.is_drawn = lambda *a: {HIT}\n",
            "the report could not be drawn (interrupted by SIGTERM); try again with: python3 -m roofline report ",
        ),
        (
            f"{CONFTEST}\n\ndef pytest_benchmark_update_json():\n    {HIT}\n",
            "interrupted by SIGTERM at its end; draw the report with: python3 -m roofline report ",
        ),
    ],
    ids=["plots", "json"],
)
def test_interruption_at_the_end_is_told_and_the_run_is_saved(three_shapes, conftest, told, capsys):
    run = three_shapes(conftest=conftest)
    assert run.code == 2
    assert told in run.text
    assert "Traceback" not in run.text
    assert run.text.count("saved in results/local/") == 1
    assert "go on with it" not in run.text  # all is measured
    assert sorted(run.measured) == sorted(ALL)
    assert main(["report", str(run.folder)]) == 0
    capsys.readouterr()


def test_resume_of_a_selection_leaves_the_rest_for_later(three_shapes):
    run = three_shapes(fault="prepare 128 SIGKILL")
    again = three_shapes(f"--ffn-resume={run.folder}", "-k", "m128", root=run.root)
    assert again.code == 0
    assert again.reasons == dict.fromkeys(["m256-torch", "m256-numpy"], ("not_run", "not selected"))
    last = three_shapes(f"--ffn-resume={run.folder}", root=run.root)
    assert sorted(last.cases) == sorted(ALL)


def test_line_that_a_kill_cut_off_is_dropped_when_the_run_is_gone_on_with(three_shapes):
    run = three_shapes(fault="prepare 256 SIGKILL")
    path = run.folder / "samples.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + whole.splitlines()[-1][:40])
    again = three_shapes(f"--ffn-resume={run.folder}", root=run.root)
    assert again.code == 0
    assert path.read_bytes().startswith(whole)
    assert sorted(again.measured) == sorted(ALL)


def test_resume_goes_on_under_the_same_conditions_only(three_shapes, tmp_path, capsys):
    run = three_shapes(fault="prepare 128 SIGKILL")
    path = run.folder / "samples.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    head = json.loads(lines[0])
    head["commit"], head["method_version"] = "fedcba9", 0
    path.write_text("".join([json.dumps(head) + "\n", *lines[1:]]))
    again = three_shapes(f"--ffn-resume={run.folder}", root=run.root)
    assert again.code == 2
    assert "method was 0, is " in again.text
    assert "commit was fedcba9, is " in again.text
    assert path.read_text() == "".join([json.dumps(head) + "\n", *lines[1:]])


def test_resume_of_the_selected_cases_only(three_shapes):
    run = three_shapes("-k", "numpy", fault="prepare 128 SIGKILL")
    again = three_shapes(f"--ffn-resume={run.folder}", root=run.root)
    assert again.code == 0
    assert sorted(again.cases) == ["m128-numpy", "m256-numpy", "m64-numpy"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--ffn-resume=results/local/RUN"], "nothing is left to measure"),
        (["--ffn-resume=results/local/RUN", "--ffn-tokens", "4"], "leave out --ffn-tokens"),
        (["--ffn-resume=results"], "results is no run folder"),
    ],
)
def test_resume_that_makes_no_sense_is_one_line(three_shapes, finished, arguments, said):
    outcome = three_shapes(*(a.replace("RUN", finished.folder.name) for a in arguments), root=finished.root)
    assert outcome.code == 2
    assert said in outcome.text
    assert len(outcome.text.strip().splitlines()) == 1


@pytest.fixture(scope="module")
def finished(run_project):
    return run_project("--benchmark-only", "-k", "torch or numpy")


def test_resume_without_timing_is_refused(run_project, finished):
    outcome = run_project(f"--ffn-resume={finished.folder}")
    assert outcome.code == 2
    assert "it needs --benchmark-only" in outcome.text
