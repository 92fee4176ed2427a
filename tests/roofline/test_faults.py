"""Each fault is injected into a run of its own, and the data is there afterwards, with a reason for all that is not."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from roofline.cli import main
from roofline.measure import faults
from roofline.report import journal, references
from roofline.report.compare import compare, summary
from roofline.report.records import derive_all

CONFTEST = (Path(__file__).parent / "small_project.py").read_text()

ALL = ["m64-torch", "m64-numpy", "m128-torch", "m128-numpy", "m256-torch", "m256-numpy"]


def measured(outcome):
    return [f"m{r['m']}-{r['contender']}" for r in derive_all(journal.load(outcome.folder)) if r["rounds"] >= 30]


def reasons(outcome):
    """{m64-torch: (outcome, reason)} of what has no number."""
    return {
        "-".join(entry["case"].split("-")[4::2]): (entry["outcome"], entry["reason"])
        for entry in journal.load(outcome.folder).missing
    }


def test_run_without_a_fault_measures_all(three_shapes):
    outcome = three_shapes()
    assert outcome.code == 0
    assert sorted(outcome.cases) == sorted(ALL)
    assert "not_measured" in outcome.saved
    assert not outcome.saved["not_measured"]
    assert "go on with it" not in outcome.text


def test_operands_that_do_not_fit_skip_their_shape(three_shapes):
    outcome = three_shapes(fault="prepare 128 MemoryError")
    assert outcome.code == 0
    assert sorted(outcome.cases) == sorted(set(ALL) - {"m128-torch", "m128-numpy"})
    assert reasons(outcome)["m128-numpy"] == ("skipped", "numpy: out of memory: 12 GiB asked for")


@pytest.mark.parametrize(
    ("fault", "code", "outcome", "said"),
    [
        ("crash", 1, "failed", "numpy: RuntimeError: no such instruction (small_project.py:"),
        ("MemoryError", 0, "skipped", "numpy: out of memory: 12 GiB asked for"),
    ],
)
def test_contender_that_dies_while_it_is_timed_leaves_the_others_theirs(three_shapes, fault, code, outcome, said):
    run = three_shapes(fault=f"numpy 128 {fault}")
    assert run.code == code
    assert sorted(run.cases) == sorted(set(ALL) - {"m128-numpy"})
    assert reasons(run).keys() == {"m128-numpy"}
    assert reasons(run)["m128-numpy"][0] == outcome
    assert reasons(run)["m128-numpy"][1].startswith(said.replace("small_project.py", "conftest.py"))
    assert not journal.load(run.folder).interrupted


@pytest.mark.parametrize("place", ["prepare", "numpy"])
def test_lost_device_ends_the_run_and_it_can_be_gone_on_with(three_shapes, place):
    run = three_shapes(fault=f"{place} 128 lost")
    assert run.code == 1
    assert sorted(run.cases) == ["m64-numpy", "m64-torch"]
    told = reasons(run)
    assert told["m128-numpy"][0] == told["m128-torch"][0] == "failed"
    assert "an illegal memory access" in told["m128-numpy"][1]
    assert told["m256-torch"] == told["m256-numpy"]
    assert told["m256-torch"][0] == "not_run"
    assert "the device was lost at matmul-xxl/16-up-tp8-m128-fp32" in told["m256-torch"][1]
    assert {c["when"] for c in journal.load(run.folder).ceilings} == {"start"}
    again = three_shapes(f"--ffn-resume={run.folder}", root=run.root)
    assert again.code == 1  # what broke it is not tried again, and stays a failure
    assert again.folder == run.folder
    assert sorted(again.cases) == ["m256-numpy", "m256-torch", "m64-numpy", "m64-torch"]
    assert reasons(again).keys() == {"m128-torch", "m128-numpy"}
    assert {c["when"] for c in journal.load(run.folder).ceilings} == {"start", "resume", "end"}


@pytest.mark.parametrize(("signal", "name"), [("SIGINT", "Ctrl-C"), ("SIGTERM", "SIGTERM"), ("SIGHUP", "SIGHUP")])
def test_interruption_keeps_all_that_was_measured(three_shapes, signal, name):
    run = three_shapes(fault=f"numpy 128 {signal}")
    assert run.code == 2
    assert measured(run) == ["m64-torch", "m64-numpy"]
    kept = journal.load(run.folder).shapes["matmul-xxl/16-up-tp8-m128-fp32"]
    assert kept["stopped_by"] == "interrupt"
    assert [len(times) for times in kept["times_s"].values()] == [9, 9]
    assert "cut short" in (run.folder / "report.md").read_text()
    assert reasons(run)["m256-numpy"] == ("not_run", f"interrupted by {name}")
    shape = "matmul-xxl/16-up-tp8-m256-fp32"
    assert f"not run: {shape}-torch, {shape}-numpy: interrupted by {name}" in run.text
    assert "--ffn-resume=results/local/" in run.text
    again = three_shapes(f"--ffn-resume={run.folder}", root=run.root)
    assert again.code == 0
    assert sorted(again.cases) == sorted(measured(again)) == sorted(ALL)
    assert not reasons(again)


def test_interruption_before_the_first_whole_round_leaves_no_row(three_shapes):
    run = three_shapes(fault="prepared 64 SIGTERM")
    assert run.code == 2
    assert measured(run) == []
    assert set(reasons(run).values()) == {("not_run", "interrupted by SIGTERM")}


@pytest.mark.parametrize("place", ["prepare", "numpy"])
def test_kill_between_two_shapes_or_within_one_loses_only_what_had_not_ended(three_shapes, place, capsys):
    run = three_shapes(fault=f"{place} 128 SIGKILL")
    assert run.code == -9
    assert [path.name for path in run.folder.iterdir()] == ["samples.jsonl"]
    assert measured(run) == ["m64-torch", "m64-numpy"]
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
    run = three_shapes(env={"VISITS": "3"})
    assert run.code == 0
    assert sorted(measured(run)) == sorted(ALL)
    assert "pass 3 of 3 over 3 shapes done" in run.text
    shapes = journal.load(run.folder).shapes.values()
    for shape in shapes:
        assert (shape["visit"], shape["stopped_by"]) == (3, "width")
        assert {len(times) for times in shape["times_s"].values()} == {shape["rounds"]}
        assert 400 < shape["rounds"] < 600  # the last visit may stop early, those before it have a third of 600 each
    lines = [json.loads(line) for line in (run.folder / "samples.jsonl").read_text().splitlines()]
    order = [line["shape"].split("-m")[1] for line in lines if line["kind"] in ("shape", "visit")]
    assert order == ["64-fp32", "128-fp32", "256-fp32"] * 3


@pytest.mark.parametrize(("signal", "code"), [("SIGKILL", -9), ("SIGTERM", 2)])
def test_pass_that_is_cut_short_leaves_the_visits_before_it(three_shapes, signal, code):
    run = three_shapes(env={"VISITS": "3"}, fault=f"numpy 128 {signal}")
    assert run.code == code
    assert measured(run) == ["m64-torch", "m64-numpy"]
    assert journal.load(run.folder).shapes["matmul-xxl/16-up-tp8-m64-fp32"]["rounds"] == 200
    again = three_shapes(f"--ffn-resume={run.folder}", root=run.root, env={"VISITS": "3"})
    assert again.code == 0
    assert sorted(again.cases) == sorted(ALL)
    assert all(shape["rounds"] > 400 for shape in journal.load(run.folder).shapes.values())


def test_contender_that_dies_in_a_pass_leaves_the_others_theirs(three_shapes):
    run = three_shapes(env={"VISITS": "3"}, fault="numpy 128 crash")
    assert run.code == 1
    assert sorted(run.cases) == sorted(set(ALL) - {"m128-numpy"})
    assert reasons(run).keys() == {"m128-numpy"}


def test_pass_that_is_cut_short_is_no_whole_run(three_shapes):
    run = three_shapes(env={"VISITS": "3"}, fault="late 256 SIGTERM")
    assert run.code == 2
    assert journal.load(run.folder).unfinished
    assert not reasons(run)  # each has rounds, but not all of them
    assert "go on with it" in run.text
    assert "cut off (interrupted by SIGTERM)" in (run.folder / "report.md").read_text()
    with pytest.raises(ValueError, match="was cut off"):
        references.add(run.folder, run.root)
    assert "NEW was cut short" in "\n".join(summary(compare(*[journal.load(run.folder)] * 2, by="time")))


def test_reason_of_a_wrong_contender_is_kept_when_the_run_is_cut_short(run_project):
    run = run_project("--benchmark-only", env={"VISITS": "3", "FAULT": "numpy 64 SIGKILL"})
    assert run.code == -9
    run = run_project("--benchmark-only", env={"VISITS": "3", "FAULT": "late 64 SIGKILL"})
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
    assert sorted(again.cases) == sorted(measured(again)) == sorted(ALL)


def test_shape_whose_samples_a_kill_cut_off_is_measured_again(three_shapes):
    run = three_shapes()
    path = run.folder / "samples.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    last = max(index for index, line in enumerate(lines) if '"kind": "shape"' in line)
    path.write_text("".join(lines[: last + 8]))
    assert journal.load(run.folder).interrupted == ["matmul-xxl/16-up-tp8-m256-fp32"]
    again = three_shapes(f"--ffn-resume={run.folder}", root=run.root)
    assert again.code == 0
    assert sorted(measured(again)) == sorted(ALL)


def test_own_json_is_written_where_no_case_has_a_number(three_shapes, tmp_path):
    run = three_shapes(f"--benchmark-json={tmp_path / 'mine.json'}", fault="prepared 64 SIGTERM")
    assert run.code == 2
    assert len(run.saved["not_measured"]) == 6
    assert (run.folder / "report.md").exists()


def test_interruption_of_the_last_ceilings_is_told(three_shapes):
    hit = CONFTEST.replace(
        'Probe("copy", "known", 2e9, lambda: 1e-3)',
        'Probe("copy", "known", 2e9, lambda c=itertools.count(): next(c) == 200 and os.kill(os.getpid(), 15) or 1e-3)',
    )
    run = three_shapes(conftest=hit)
    assert run.code == 2
    assert "interrupted by SIGTERM: the last ceilings were not measured" in run.text
    assert sorted(run.cases) == sorted(ALL)


def test_resume_of_a_selection_leaves_the_rest_for_later(three_shapes):
    run = three_shapes(fault="prepare 128 SIGKILL")
    again = three_shapes(f"--ffn-resume={run.folder}", "-k", "m128", root=run.root)
    assert again.code == 0
    assert reasons(again) == dict.fromkeys(["m256-torch", "m256-numpy"], ("not_run", "not selected"))
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
    assert sorted(measured(again)) == sorted(ALL)


def test_disk_that_fills_up_keeps_what_was_written_and_says_so(three_shapes):
    conftest = CONFTEST + "\nimport roofline.report.journal as journal\njournal.ROOM_BYTES = 0\n"
    outcome = three_shapes(conftest=conftest, file_bytes=250_000)
    assert outcome.code == 1
    assert "the journal could not be written: File too large" in outcome.text
    assert measured(outcome) == ["m64-torch", "m64-numpy"]
    assert reasons(outcome)["m256-torch"] == ("not_run", "the journal could not be written: File too large")
    assert reasons(outcome)["m128-torch"] == reasons(outcome)["m256-torch"]
    again = three_shapes(f"--ffn-resume={outcome.folder}", root=outcome.root)
    assert again.code == 0
    assert sorted(again.cases) == sorted(ALL)


def test_full_disk_is_told_before_anything_is_measured(three_shapes):
    outcome = three_shapes(file_bytes=1_000_000)
    assert outcome.code == 2
    assert "cannot write the run folder" in outcome.text
    assert "File too large; choose another with --ffn-results=DIR" in outcome.text
    assert outcome.folder is None


def test_json_that_cannot_be_saved_costs_neither_journal_nor_report(three_shapes):
    blocked = CONFTEST.replace(
        'strike("prepared", case)',
        'request.config.stash[__import__("roofline.plugin").plugin.STATE].folder.joinpath("benchmark.json").mkdir'
        "(exist_ok=True)",
    )
    outcome = three_shapes(conftest=blocked)
    assert outcome.code == 1
    assert "benchmark.json could not be written" in outcome.text
    assert sorted(measured(outcome)) == sorted(ALL)
    assert "m256-fp32 | numpy |" in (outcome.folder / "report.md").read_text()


def test_ceilings_that_fail_at_the_end_cost_no_row(three_shapes):
    once = CONFTEST.replace(
        'Probe("copy", "known", 2e9, lambda: 1e-3)',
        'Probe("copy", "known", 2e9, lambda left=iter([1e-3] * 200): next(left))',
    )
    outcome = three_shapes(conftest=once)
    assert sorted(outcome.cases) == sorted(ALL)
    entries = {entry["case"]: entry for entry in outcome.saved["not_measured"]}
    assert entries["ceilings-end"]["outcome"] == "failed"
    assert outcome.code == 1


def test_ceilings_that_fail_at_the_start_end_the_run_with_their_reason(three_shapes):
    broken = CONFTEST.replace('Probe("copy", "known", 2e9, lambda: 1e-3)', 'Probe("copy", "known", 2e9, lambda: 1 / 0)')
    outcome = three_shapes(conftest=broken)
    assert outcome.code == 1
    assert {reason for _, reason in reasons(outcome).values()} == {
        "the ceilings could not be measured: ZeroDivisionError: division by zero (conftest.py:%s)"
        % (broken[: broken.index("1 / 0")].count("\n") + 1)
    }
    assert "6 skipped" in outcome.text
    assert {entry["case"] for entry in outcome.saved["not_measured"]} >= {"matmul-xxl/16-up-tp8-m64-fp32-numpy"}


def test_x_stops_at_the_first_failure_and_the_rest_has_a_reason(three_shapes):
    outcome = three_shapes("-x", fault="numpy 128 crash")
    assert outcome.code == 1
    assert reasons(outcome)["m256-torch"] == ("not_run", "stopping after 1 failures")
    assert sorted(outcome.cases) == ["m128-torch", "m64-numpy", "m64-torch"]
    again = three_shapes(f"--ffn-resume={outcome.folder}", root=outcome.root)
    assert sorted(again.cases) == sorted(set(ALL) - {"m128-numpy"})


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


@pytest.mark.parametrize(
    ("error", "outcome", "said"),
    [
        (MemoryError("12 GiB"), "out of memory", "out of memory: 12 GiB"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: 9"), "out of memory", "out of memory: Default"),
        (NotImplementedError("no fp8 here"), "not supported", "not supported: no fp8 here"),
        (type("OutOfResources", (Exception,), {})("shared memory, Required: 3"), "not supported", "not supported: sha"),
        (ValueError("K\nis odd"), None, "ValueError: K"),
    ],
)
def test_what_an_exception_means(error, outcome, said):
    assert faults.lack(error) == outcome
    assert faults.reason(error).startswith(said)
    assert "\n" not in faults.reason(error)


def test_torch_out_of_memory_is_no_crash():
    import torch

    assert faults.lack(torch.OutOfMemoryError("CUDA out of memory")) == "out of memory"
    with pytest.raises(RuntimeError) as error:
        torch.empty(2**60)
    assert faults.lack(error.value) == "out of memory"


def test_device_is_lost_when_it_answers_no_more(monkeypatch):
    import torch

    assert not faults.device_lost("cpu")
    monkeypatch.setattr(torch, "ones", lambda *a, **k: (_ for _ in ()).throw(RuntimeError("CUDA error: illegal")))
    assert faults.device_lost("cuda")
    monkeypatch.setattr(torch, "ones", lambda *a, **k: (_ for _ in ()).throw(torch.OutOfMemoryError("full")))
    assert not faults.device_lost("cuda")


LOSES_THE_CONTEXT = """
import torch
from roofline.measure import faults

assert not faults.device_lost("cuda")
try:
    torch.zeros(4, device="cuda")[torch.tensor([10**6], device="cuda")].sum().item()
except Exception as error:
    print(faults.lack(error), faults.device_lost("cuda"))
"""


@pytest.mark.skipif("not __import__('torch').cuda.is_available()", reason="loses a real CUDA context: needs a GPU")
def test_real_cuda_context_is_seen_to_be_lost(environment):
    done = subprocess.run([sys.executable, "-c", LOSES_THE_CONTEXT], capture_output=True, text=True, env=environment())
    assert done.stdout.splitlines()[-1] == "None True"


def test_journal_takes_a_failed_write_back(tmp_path, monkeypatch):
    writer = journal.Journal(tmp_path / "run")
    writer.write({"kind": "run", "x": 1})
    before = (tmp_path / "run" / "samples.jsonl").read_bytes()

    class Full:
        """A disk that takes ten bytes and no more."""

        def __init__(self, file):
            self._file = file

        def __getattr__(self, name):
            return getattr(self._file, name)

        def write(self, data):
            if len(data) < 40:
                raise OSError(28, "No space left on device")
            return self._file.write(data[:10])

    writer._file = Full(writer._file)
    with pytest.raises(OSError, match="No space left"):
        writer.write({"kind": "end", "y": "long enough to be cut in pieces"})
    assert (tmp_path / "run" / "samples.jsonl").read_bytes() == before


def test_folder_that_cannot_hold_a_run_is_left_as_it_was(tmp_path, monkeypatch):
    def full(self, data):
        self.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        journal.Journal(tmp_path / "run")
    assert not (tmp_path / "run").exists()
