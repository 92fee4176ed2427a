"""Each fault is injected into a run of its own, and the data is there afterwards, with a reason for all that is not."""

import functools
import resource
import subprocess
import sys
from contextlib import suppress
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

ALL = [f"m{m}-{name}" for m in (64, 128, 256) for name in ("torch", "numpy")]

FULL = "out of memory: 12 GiB asked for"
CRASH = ("failed", "numpy: RuntimeError: no such instruction (conftest.py:")
LOST = ("not_run", "the device was lost at matmul-xxl/16-up-tp8-m128-fp32")
ILLEGAL = ("failed", "an illegal memory access")
KILLED = ("not_run", "the run was cut off before it")
STRUCK = [
    # fault, passes, exit code, {what has no number: (outcome, a part of the reason)}, exit code of the run that goes on
    ("nowhere 0 nothing", 1, 0, {}, 2),
    ("nowhere 0 nothing", 3, 0, {}, 2),
    ("prepare 128 MemoryError", 1, 0, {"m128": ("skipped", FULL)}, 2),
    ("numpy 128 MemoryError", 1, 0, {"m128-numpy": ("skipped", f"numpy: {FULL}")}, 2),
    ("numpy 128 crash", 1, 1, {"m128-numpy": CRASH}, 2),
    ("numpy 128 crash", 3, 1, {"m128-numpy": CRASH}, 2),
    ("prepare 128 lost", 1, 1, {"m128": ILLEGAL, "m256": LOST}, 1),  # what broke it is not tried again
    ("numpy 128 lost", 1, 1, {"m128-numpy": ILLEGAL, "m128-torch": LOST, "m256": LOST}, 1),
    ("prepared 64 SIGTERM", 1, 2, {"m": ("not_run", "interrupted by SIGTERM")}, 0),
    ("numpy 128 SIGINT", 1, 2, {"m256": ("not_run", "interrupted by Ctrl-C")}, 0),
    ("numpy 128 SIGTERM", 1, 2, {"m256": ("not_run", "interrupted by SIGTERM")}, 0),
    ("numpy 128 SIGHUP", 1, 2, {"m256": ("not_run", "interrupted by SIGHUP")}, 0),
    ("numpy 128 SIGTERM", 3, 2, {"m256": ("not_run", "interrupted by SIGTERM")}, 0),
    ("late 256 SIGTERM", 3, 2, {}, 0),  # each has rounds, but not all of them
    ("prepare 128 SIGKILL", 1, -9, {"m128": KILLED, "m256": KILLED}, 0),
    ("numpy 128 SIGKILL", 1, -9, {"m128": KILLED, "m256": KILLED}, 0),
    ("numpy 128 SIGKILL", 3, -9, {"m128": KILLED, "m256": KILLED}, 0),
    ("copy 0 SIGKILL", 1, -9, {"m": KILLED}, 0),
    ("copy 0 crash", 1, 0, {}, 2),
]


@pytest.fixture(scope="module")
def struck(three_shapes):
    """`struck(fault, passes)`: the run that it struck, made once. It does not go on by itself."""
    stays = {"ROOFLINE_FRESH": "1"}
    return functools.cache(lambda fault, passes=1: three_shapes(fault=fault, passes=passes, env=stays))


@pytest.mark.parametrize(("fault", "passes", "code", "lacks", "code_again"), STRUCK)
def test_a_fault_costs_what_it_struck_and_the_run_that_goes_on_has_the_rest(
    struck, fault, passes, code, lacks, code_again
):
    run = struck(fault, passes)
    assert run.code == code
    assert "Traceback" not in run.text
    told = {name: about for key, about in lacks.items() for name in [*ALL, "ceilings-end"] if name.startswith(key)}
    assert run.reasons.keys() == told.keys()
    for name, (outcome, reason) in told.items():
        assert run.reasons[name][0] == outcome
        assert reason in run.reasons[name][1]
    assert sorted(run.rounds) == sorted(set(ALL) - told.keys())
    if code >= 0:
        assert len(run.saved["not_measured"]) == len(told)
    if code in (0, 1):
        assert sorted(run.cases) == sorted(run.measured) == sorted(run.rounds)
    again = run.go_on()
    assert again.code == code_again
    if code_again == 2:
        assert "nothing is left to measure" in again.text
        return
    stays = {name for name, (outcome, _) in told.items() if outcome == "failed"}
    assert again.folder.name == run.folder.name
    assert again.reasons.keys() == stays
    assert sorted(again.cases) == sorted(again.measured) == sorted(set(ALL) - stays)


def test_after_a_lost_device_the_command_goes_on_in_a_fresh_process(struck):
    run = struck("numpy 128 SIGTERM").go_on("--ffn-counters", fault="numpy 256 lost")
    assert run.code == 1
    assert run.text.count("a fresh process goes on with what is left") == 1
    assert sorted(run.measured) == sorted(set(ALL) - {"m256-numpy"})
    assert run.reasons.keys() == {"m256-numpy"}
    assert {c["when"] for c in journal.load(run.folder).ceilings} == {"start", "resume"}
    assert "Counters: none were read" in run.text  # they were asked for late: the run itself does not say so


def test_interruption_keeps_the_whole_rounds_and_tells_how_to_go_on(struck):
    run = struck("numpy 128 SIGTERM")
    assert run.rounds | {"m128-torch": 9, "m128-numpy": 9} == run.rounds
    assert run.kept.shapes["matmul-xxl/16-up-tp8-m128-fp32"].stopped_by == "interrupt"
    assert "cut short" in run.report
    shape = "matmul-xxl/16-up-tp8-m256-fp32"
    assert f"not run: {shape}-torch, {shape}-numpy: interrupted by SIGTERM" in run.text
    assert "--ffn-resume=results/local/" in run.text
    assert "go on with it" not in struck("nowhere 0 nothing").text


def test_killed_run_has_its_journal_and_a_report_is_drawn_of_it(struck):
    run = struck("numpy 128 SIGKILL")
    assert [path.name for path in run.folder.iterdir()] == ["samples.jsonl"]
    assert main(["report", str(run.folder)]) == 0
    report = run.report
    assert "- cut off: " in report
    assert "| matmul-xxl/16-up-tp8-m64-fp32 | numpy |" in report
    assert "m256-fp32-numpy: the run was cut off before it" in report


def test_passes_over_all_shapes_give_each_its_rounds(struck):
    run = struck("nowhere 0 nothing", 3)
    for shape in run.kept.shapes.values():
        assert (shape.passes, shape.stopped_by) == (3, "width")
        assert {len(shape.times_s(name)) for name in ("torch", "numpy")} == {shape.round_count}
        assert 400 < shape.round_count < 600  # the last pass may stop early, those before it have a third of 600 each
    order = [
        (line.get("id") or line["shape"]).split("-m")[1] for line in run.lines if line["kind"] in ("shape", "pass")
    ]
    assert order == ["64-fp32", "128-fp32", "256-fp32"] * 3


def test_pass_that_is_cut_short_leaves_the_passes_before_it(struck):
    run = struck("numpy 128 SIGTERM", 3)
    assert (run.rounds["m64-torch"], run.rounds["m64-numpy"]) == (200, 200)
    assert min(run.go_on().rounds.values()) > 400


def test_pass_that_is_cut_short_is_no_whole_run(struck):
    run = struck("late 256 SIGTERM", 3)
    assert run.kept.unfinished
    assert "go on with it" in run.text
    assert "cut off: interrupted by SIGTERM" in run.report
    with pytest.raises(ValueError, match="was cut off"):
        references.add(run.folder, run.root)
    assert "NEW was cut short" in "\n".join(summary(compare([run.kept], [run.kept], by="time")))


def test_reason_of_a_wrong_contender_is_kept_when_the_run_is_cut_short(run_project):
    run = run_project("--benchmark-only", passes=3, fault="late 64 SIGKILL")
    assert {entry["outcome"] for entry in run.kept.missing} == {"failed", "skipped"}


def test_contender_that_was_left_out_without_a_word_is_a_failure(three_shapes):
    forgets = "\nRunner.prepare = lambda self, case, *more, known=Runner.prepare: known(self, case, [])\n"
    outcome = three_shapes("-k", "m64", more=forgets)
    assert outcome.code == 1
    assert "ffn_prepare left out numpy" in outcome.text
    assert outcome.cases == ["m64-torch"]
    plain = three_shapes("-k", "m64 and numpy", more=forgets, timed=False)
    assert plain.code == 1
    assert "ffn_prepare left out numpy" in plain.text


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [(["-k", "m128"], "prepare 128 MemoryError"), (["-k", "m128 and numpy"], "numpy 128 MemoryError")],
)
def test_run_that_could_measure_nothing_that_was_asked_for_is_a_failure(three_shapes, arguments, fault):
    outcome = three_shapes(*arguments, fault=fault)
    assert outcome.code == 1
    assert outcome.cases == []
    assert outcome.reasons["m128-numpy"] == ("skipped", f"numpy: {FULL}")
    assert "nothing that was asked for could be measured, for the reasons above" in outcome.text


def test_disk_that_fills_up_keeps_what_was_written_and_says_so(three_shapes):
    outcome = three_shapes(more="\nfrom roofline.store import journal\njournal.ROOM_BYTES = 0\n", file_bytes=25_000)
    assert outcome.code == 1
    assert "the journal could not be written: File too large" in outcome.text
    assert outcome.measured == ["m64-torch", "m64-numpy"]
    full = ("not_run", "the journal could not be written: File too large")
    assert outcome.reasons == dict.fromkeys(ALL[2:], full)
    again = outcome.go_on()
    assert again.code == 0
    assert sorted(again.cases) == sorted(ALL)


def test_full_disk_is_told_before_anything_is_measured(three_shapes):
    outcome = three_shapes(file_bytes=1_000_000)
    assert outcome.code == 2
    assert "cannot write the run folder" in outcome.text
    assert "File too large; choose another with --ffn-results=DIR" in outcome.text
    assert outcome.folder is None


def test_json_that_cannot_be_saved_costs_neither_journal_nor_report(three_shapes):
    in_the_way = "[folder.joinpath('benchmark.json').mkdir() for folder in Path('results/local').iterdir()]"
    outcome = three_shapes(more=f"\ndef pytest_benchmark_update_json():\n    {in_the_way}\n")
    assert outcome.code == 1
    assert "benchmark.json could not be written" in outcome.text
    assert ": report.html, report.md, samples.jsonl\n" in outcome.text
    assert sorted(outcome.measured) == sorted(ALL)
    assert "m256-fp32 | numpy |" in outcome.report
    theirs = three_shapes("-k", "m64", "--benchmark-json=/proc/nowhere/mine.json")
    assert theirs.code == 1
    assert "pytest-benchmark could not save what it was asked for" in theirs.text
    assert sorted(theirs.cases) == ["m64-numpy", "m64-torch"]  # by our own


def test_x_stops_at_the_first_failure_and_the_rest_has_a_reason(three_shapes):
    outcome = three_shapes("-x", fault="numpy 128 crash")
    assert outcome.code == 1
    assert outcome.reasons["m256-torch"] == ("not_run", "stopping after 1 failures")
    assert sorted(outcome.cases) == ["m128-torch", "m64-numpy", "m64-torch"]
    assert sorted(outcome.go_on().cases) == sorted(set(ALL) - {"m128-numpy"})


@pytest.mark.parametrize(
    ("place", "told"),
    [
        (
            "from roofline.report import tables\ntables.markdown",
            "the report could not be drawn (interrupted by SIGTERM); ",
        ),
        ("pytest_benchmark_update_json", "interrupted by SIGTERM at its end; draw the report with: "),
    ],
    ids=["report", "json"],
)
def test_interruption_at_the_end_is_told_and_the_run_is_saved(three_shapes, place, told):
    run = three_shapes(more=f"\n{place} = lambda *a: os.kill(os.getpid(), signal.SIGTERM)\n")
    assert run.code == 2
    assert told in run.text
    assert "python3 -m roofline report " in run.text
    assert "Traceback" not in run.text
    assert run.text.count("saved in results/local/") == 1
    assert "go on with it" not in run.text  # all is measured
    assert sorted(run.measured) == sorted(ALL)
    assert main(["report", str(run.folder)]) == 0


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
    assert device_errors.lack(error) == outcome
    assert device_errors.reason(error).startswith(said)
    assert "\n" not in device_errors.reason(error)


@pytest.mark.parametrize("lacks", ["compiler", "Python.h"])
def test_triton_without_what_it_compiles_its_loader_with_is_no_crash(lacks, monkeypatch, tmp_path):
    build = pytest.importorskip("triton.runtime.build")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    with suppress(AttributeError):  # Triton looks for a compiler once, from 3.8 on
        monkeypatch.setattr(build, "_find_compiler", build._find_compiler.__wrapped__)
    if lacks == "compiler":
        monkeypatch.delenv("CC", raising=False)
        monkeypatch.setattr(build.shutil, "which", lambda name: None)
    else:
        monkeypatch.setattr(build.sysconfig, "get_paths", lambda scheme: {"include": str(tmp_path)})
    with pytest.raises((RuntimeError, subprocess.CalledProcessError)) as error:
        build.compile_module_from_src("#include <Python.h>", "loader")
    assert device_errors.lack(error.value) == "not supported"


def test_torch_out_of_memory_is_no_crash():
    import torch

    assert device_errors.lack(torch.OutOfMemoryError("CUDA out of memory")) == "out of memory"
    with pytest.raises(RuntimeError) as error:
        torch.empty(2**60)
    assert device_errors.lack(error.value) == "out of memory"


def test_device_is_lost_when_it_answers_no_more(monkeypatch):
    import torch

    assert not device_errors.device_lost("cpu")
    monkeypatch.setattr(torch, "ones", lambda *a, **k: (_ for _ in ()).throw(RuntimeError("CUDA error: illegal")))
    assert device_errors.device_lost("cuda")
    monkeypatch.setattr(torch, "ones", lambda *a, **k: (_ for _ in ()).throw(torch.OutOfMemoryError("full")))
    assert not device_errors.device_lost("cuda")


LOSES_THE_CONTEXT = """
import torch
from roofline.measure import device_errors

assert not device_errors.device_lost("cuda")
try:
    torch.zeros(4, device="cuda")[torch.tensor([10**6], device="cuda")].sum().item()
except Exception as error:
    print(device_errors.lack(error), device_errors.device_lost("cuda"))
"""


@pytest.mark.skipif("not __import__('torch').cuda.is_available()", reason="loses a real CUDA context: needs a GPU")
def test_real_cuda_context_is_seen_to_be_lost(environment):
    done = subprocess.run([sys.executable, "-c", LOSES_THE_CONTEXT], capture_output=True, text=True, env=environment())
    assert done.stdout.splitlines()[-1] == "None True"


def test_journal_takes_a_failed_write_back(tmp_path):
    writer = journal.Journal(tmp_path)
    writer.write({"kind": "run", "x": 1})
    before = (tmp_path / journal.NAME).read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 10, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            writer.write({"kind": "end", "y": "long enough to be cut in pieces"})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (tmp_path / journal.NAME).read_bytes() == before
