"""Each fault is injected into a run of its own: it costs what it struck, with a reason, and nothing else.

The default tier has the common faults; all of them, at each place, are slow.
"""

import os
import signal
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from forked import until

from results import references
from roofline.commands.cli import main
from roofline.host import device_errors

slow = pytest.mark.slow
ALL = [f"m{m}-{name}" for m in (64, 128, 256) for name in ("torch", "numpy")]

IMPATIENT = """
from roofline.supervise import limits

for step in set(limits.LIMIT_S) - {limits.Step.START}:
    limits.LIMIT_S[step] = {"cpu": 2.0}
limits.BASELINE_CALLS = limits.TIMES_OF_RULE = 0
"""
"""What hangs is waited for no longer."""

PLACES = {
    "prepare": "at its preparation",
    "first-numpy": "at its first call",
    "numpy": "at its turns",
    "again-numpy": "at its second check",
}
HUNG = "failed", "hung {where}: it was not over in 2 s, the limit"
OUTCOMES = {
    # fault: (outcome, part of the reason) of what it strikes
    "crash": ("failed", "RuntimeError: no such instruction (conftest.py:"),
    "lost": ("failed", "RuntimeError: CUDA error: an illegal memory access"),
    "hang": HUNG,
    "SIGSTOP": HUNG,
    "SIGKILL": ("failed", "signal 9 (SIGKILL), {where}"),
    "null": ("failed", "signal 11 (SIGSEGV), {where}"),
    "exit": ("failed", "exit code 3: it printed nothing, {where}"),
    "MemoryError": ("skipped", "out of memory: 12 GiB asked for"),
    "greedy": ("skipped", "out of memory: Unable to allocate"),
    "sys.exit": ("failed", "SystemExit: no licence (conftest.py:"),
    "Ctrl-C": ("failed", "KeyboardInterrupt: it said no more (conftest.py:"),
    "own": ("failed", "Own: of its own kind (conftest.py:"),
    "fork": None,
    "noise": None,
    "mute": ("failed", "MuteError: its text raises ValueError"),
    "close": ("failed", "exit code 0: it printed nothing, {where}"),
    "bytes": ("failed", "a message that cannot be read: its length is not that of a message, {where}"),
}
ODD = {"mute", "close", "bytes"}
"""Faults of timed calls alone."""
OF_EACH_KIND = {
    # place and fault of the default tier
    "first-numpy crash",
    "numpy hang",
    "numpy SIGKILL",
    "numpy null",
    "numpy mute",
    "numpy bytes",
    "copy SIGKILL",
}
COMMON = OF_EACH_KIND | {"prepare SIGKILL", "numpy own", "numpy close", "again-numpy null", "torch null"}
"""Those that strike a run of six processes, too."""
STRUCK = [(place, fault) for place in PLACES for fault in OUTCOMES if place == "numpy" or fault not in ODD]
STRUCK += [("torch", "null"), ("first-torch", "null"), ("copy", "SIGKILL"), ("copy", "crash"), ("copy", "hang")]


def lacking(place: str, fault: str) -> dict[str, tuple[str, str]]:
    """Return {case: (outcome, part of its reason)} of what has no number."""
    name = place.rpartition("-")[2]
    if not OUTCOMES[fault] or place == "copy":
        return {}
    if (place, fault) in [("again-numpy", "MemoryError"), ("again-numpy", "greedy")]:
        return {}  # it lacks memory by now, which says nothing of what was timed
    outcome, reason = OUTCOMES[fault]
    where = PLACES[place.replace("torch", "numpy")]
    struck = ("torch", "numpy") if place == "prepare" else (name,)  # nobody knows who it was
    return {f"m128-{name}": (outcome, f"{name}: {reason.format(where=where)}") for name in struck}


ROWS = [  # place, fault, processes, whether it is slow
    *((place, fault, 1, f"{place} {fault}" not in OF_EACH_KIND) for place, fault in STRUCK),
    *((*words.split(), 6, True) for words in sorted(COMMON)),
]


@pytest.mark.parametrize(
    ("place", "fault", "processes"), [pytest.param(*row, marks=[slow] * is_slow) for *row, is_slow in ROWS]
)
def test_a_fault_costs_what_it_struck(by_forks, place, fault, processes):
    at = f"{place} {0 if place == 'copy' else 128} {fault}"
    run, lacks = by_forks(fault=at, processes=processes, more=IMPATIENT), lacking(place, fault)
    assert run.code == any(outcome == "failed" for outcome, _ in lacks.values()), run.text
    assert "Traceback" not in run.text
    assert run.reasons.keys() == lacks.keys()
    for name, (outcome, reason) in lacks.items():
        assert run.reasons[name][0] == outcome
        assert reason in run.reasons[name][1]
    whole = sorted(set(ALL) - lacks.keys())
    assert sorted(run.cases) == sorted(run.rounds) == whole
    assert {shape.stopped_by for shape in run.kept.shapes.values()} <= {"width", "rounds", "time"}
    assert len(run.saved["not_measured"]) == len(lacks)
    assert "go on with it" not in run.text
    no_roof = place == "copy" and fault != "crash"
    assert run.text.count("No shares of the roof: the worker ended by ") == no_roof
    assert bool(run.kept.ceilings) != no_roof
    assert "nothing is left to measure" in run.go_on().text


HELD = (
    IMPATIENT
    + """
import threading
from contextlib import suppress
from types import SimpleNamespace

from roofline.supervise import child

child.DEATH_S = 0.5


def kill_late(group, number):
    def kill():
        with suppress(ProcessLookupError):
            os.killpg(group, number)

    threading.Timer(3.0, kill).start()


child.os = SimpleNamespace(**vars(os) | {"killpg": kill_late})
"""
)
"""A process that is killed is there for another three seconds, as one that a driver holds."""


@pytest.mark.slow
def test_a_process_that_does_not_die_costs_what_it_was_at(by_forks):
    run = by_forks(fault="numpy 128 hang", more=HELD)
    assert run.code == 1
    assert "Traceback" not in run.text
    assert run.reasons.keys() == {"m128-numpy"}
    assert run.reasons["m128-numpy"][1].startswith("numpy: hung at its turns")
    assert "A process that was killed (turns of matmul-xxl/16-up-tp8-m128-fp32) was still there" in run.report
    assert len([note for note in run.kept.notes if "still there" in note]) == 1  # the others end by themselves
    assert_no_share_is_left(run)


@pytest.mark.parametrize(
    ("place", "processes"),
    [("numpy", 1), *(pytest.param(*row, marks=slow) for row in [("first-numpy", 1), ("torch", 1), ("numpy", 6)])],
)
def test_one_death_is_no_proof(by_forks, place, processes):
    """Nobody knows who sent it: the one that was at a call is tried again, alone with the baseline."""
    run = by_forks(fault=f"{place} 128 once", processes=processes)
    assert (run.code, run.reasons) == (0, {})
    assert sorted(run.cases) == sorted(ALL)
    assert not run.kept.unfinished
    of_128 = [shape for shape in run.kept.shapes.values() if shape.get("m") == 128]
    at_least = [len(shape.times_s(name)) >= 30 for shape in of_128 for name in shape.measured]
    assert set(at_least) == {True}


def test_a_suspect_who_was_the_only_contender_is_measured_whole(by_forks):
    run = by_forks("-k", "m128 and numpy", fault="numpy 128 once", passes=3)
    assert (run.code, run.reasons, run.kept.unfinished) == (0, {}, False)
    (shape,) = run.kept.shapes.values()
    assert (shape.stopped_by, shape.passes) == ("width", 3)
    assert run.rows["numpy"]["extra_info"]["notes"] == "measured apart"


def test_who_changes_the_process_in_a_timed_call_loses_the_row(by_forks):
    run = by_forks("-k", "m128", fault="numpy 128 handler")
    reason = "numpy: timed calls changed the handler of signal 14, which others share"
    assert (run.code, run.reasons) == (1, {"m128-numpy": ("failed", reason)})
    assert run.cases == ["m128-torch"]


def test_in_plain_pytest_who_changes_the_process_fails_alone(three_shapes):
    run = three_shapes("-k", "m64", fault="first-numpy 64 handler", timed=False)
    assert "numpy: it changes the handler of signal 14, which others share" in run.text
    assert "1 failed, 1 passed" in run.text


@pytest.mark.parametrize("fault", ["fork", pytest.param("hide", marks=slow)])
def test_what_a_contender_forks_ends_with_its_share_and_says_nothing(three_shapes, fault):
    run = three_shapes("-k", "m128", fault=f"numpy 128 {fault}", shares="new")
    assert (run.code, run.reasons) == (0, {})
    assert_no_share_is_left(run)


def test_shape_that_nobody_can_be_blamed_for_is_tried_once_more(by_forks):
    run = by_forks("-k", "numpy", fault="prepare 128 once")
    assert (run.code, run.reasons) == (0, {})
    assert sorted(run.cases) == ["m128-numpy", "m256-numpy", "m64-numpy"]


DIE_EARLY = """
if "roofline.worker.process" in sys.orig_argv:
    with open("starts", "a") as starts:
        starts.write("x")
        if starts.tell() > 1:  # the first one looks at the machine
            os.kill(os.getpid(), signal.SIGKILL)
"""


def test_shares_that_end_before_they_begin_anything_end_the_run(by_forks):
    run = by_forks(more=DIE_EARLY)
    assert run.code == 1
    assert "workers end at their start: signal 9 (SIGKILL)" in run.text


ENDED = [
    # fault, passes, exit code, what has no number
    ("numpy 128 SIGINT", 3, 2, ALL[4:]),
    ("numpy 128 KILLED", 1, -9, ALL[2:]),
]
ENDED_SLOWLY = [
    ("prepared 64 SIGTERM", 1, 2, ALL),
    ("numpy 128 SIGINT", 1, 2, ALL[4:]),
    ("late 256 SIGTERM", 3, 2, []),  # each has rounds, but not all of them
    ("numpy 128 SIGHUP", 1, 2, ALL[4:]),
    ("first-numpy 128 SIGINT", 1, 2, ALL),
    ("first-numpy 128 KILLED", 1, -9, ALL),
    ("copy 0 KILLED", 1, -9, ALL),
    ("copy 0 SIGINT", 1, 2, ALL),
]


@pytest.mark.parametrize(
    ("fault", "passes", "code", "lacks"), [*ENDED, *(pytest.param(*row, marks=slow) for row in ENDED_SLOWLY)]
)
def test_a_run_that_was_ended_keeps_whole_rounds_and_is_gone_on_with(by_forks, fault, passes, code, lacks):
    run, by = by_forks(fault=fault, passes=passes), fault.split()[-1]
    assert run.code == code
    assert "Traceback" not in run.text
    assert sorted(run.reasons) == sorted(lacks)
    why = "the run was cut off before it" if by == "KILLED" else f"interrupted by {'Ctrl-C' if by == 'SIGINT' else by}"
    assert set(run.reasons.values()) <= {("not_run", why)}
    assert sorted(run.rounds) == sorted(set(ALL) - set(lacks))
    assert run.kept.unfinished
    if by != "KILLED":
        assert "--ffn-resume=results/local/" in run.text
        assert f"cut off: {why}" in run.report
        with pytest.raises(ValueError, match="was cut off"):
            references.add(run.folder, run.root)
    again = run.go_on()
    assert again.code == 0
    assert again.folder.name == run.folder.name
    assert (again.reasons, again.kept.unfinished) == ({}, False)
    assert sorted(again.cases) == sorted(again.measured) == sorted(ALL)


def test_killed_run_leaves_no_process_and_a_journal_that_a_report_is_drawn_of(by_forks):
    run = by_forks(fault="numpy 128 KILLED")
    assert_no_share_is_left(run)
    assert [path.name for path in run.folder.iterdir()] == ["samples.jsonl"]
    assert main(["report", str(run.folder)]) == 0
    assert "- cut off: " in run.report
    assert "| matmul-xxl/16-up-tp8-m64-fp32 | numpy |" in run.report
    assert "m256-fp32-numpy: the run was cut off before it" in run.report


def shares_of(root: Path) -> list[str]:
    """Processes that are shares of runs in `root`: each leads a session of its own."""
    names = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            session = (path / "stat").read_text().rpartition(")")[2].split()[3]
            if session == path.name and (path / "cwd").readlink() == root:
                names.append(path.name)
    return names


def assert_no_share_is_left(run):
    until(lambda: not shares_of(run.root), looks=200)  # what a fault forks ends by itself after 30 s


@pytest.mark.parametrize(
    ("signals", "code"),
    [
        ((signal.SIGINT, signal.SIGINT), 130),
        pytest.param((signal.SIGKILL,), -9, marks=slow),
        pytest.param((signal.SIGTERM,), 2, marks=slow),
    ],
    ids=["twice", "killed", "once"],
)
def test_a_run_that_is_stuck_ends_at_a_second_signal_or_soon_after_the_first(by_forks, tmp_path, signals, code):
    """No limit is near: the share hangs in C. It ends with the run."""

    def send() -> None:
        until(lambda: shares_of(tmp_path) and (tmp_path / "hangs").exists())
        parent = int(Path("/proc", shares_of(tmp_path)[0], "stat").read_text().rpartition(")")[2].split()[1])
        sent.append(time.monotonic())
        for number in signals:
            os.kill(parent, number)
            time.sleep(1 if signals[1:] else 0)

    sent = []
    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    run = by_forks(fault="numpy 128 hang", root=tmp_path)
    assert time.monotonic() - sent[0] < 20
    sender.join()
    assert run.code == code
    assert ("came after another signal" in run.text) == bool(signals[1:])
    assert {outcome for outcome, _ in run.reasons.values()} == {"not_run"}  # that nobody waited is no evidence
    assert_no_share_is_left(run)
    assert sorted(run.go_on().cases) == sorted(ALL)


def test_contender_that_was_left_out_without_a_word_is_a_failure(three_shapes):
    forgets = "\nRunner.prepare = lambda self, case, *more, prepare=Runner.prepare: prepare(self, case, [])\n"
    outcome = three_shapes("-k", "m64", more=forgets)
    plain = three_shapes("-k", "m64 and numpy", more=forgets, timed=False)
    for run in outcome, plain:
        assert run.code == 1
        assert "numpy: its runner left it out, and did not say why" in run.text
    assert outcome.cases == ["m64-torch"]
    nobody = "\nRunner.prepare = lambda self, case, *more: PreparedCase(case, 'torch')\n"
    outcome = three_shapes("-k", "m64", more=nobody)
    assert outcome.reasons["m64-numpy"] == ("failed", "numpy: its runner left it out, and did not say why")


def test_run_that_could_measure_nothing_that_was_asked_for_is_a_failure(three_shapes):
    outcome = three_shapes("-k", "m128 and numpy", fault="numpy 128 MemoryError")
    assert outcome.code == 1
    assert not (outcome.folder / "benchmark.json").exists()
    skipped, reason = outcome.reasons["m128-numpy"]
    assert skipped == "skipped"
    assert reason.startswith("numpy: out of memory: 12 GiB asked for; the operands take")
    assert "nothing that was asked for could be measured, for the reasons above" in outcome.text


def test_disk_that_fills_up_keeps_what_was_written_and_says_so(three_shapes):
    outcome = three_shapes(file_bytes=25_000)
    assert outcome.code == 1
    full = "the journal could not be written: File too large"
    assert full in outcome.text
    assert outcome.measured == ["m64-torch", "m64-numpy"]
    assert outcome.reasons == dict.fromkeys(ALL[2:], ("not_run", full))
    assert sorted(outcome.go_on().cases) == sorted(ALL)
    outcome = three_shapes(file_bytes=100)  # full from the start
    assert outcome.code == 2
    assert "File too large; choose another with --ffn-results=DIR" in outcome.text


STRIKES = """
def strike(place, number, later=False):
    if (place, number) == ("numpy", 128):
        path = next(Path("results/local").glob("*/samples.jsonl"))
        {}
"""


@pytest.mark.parametrize(
    ("deed", "saved", "resumes"),
    [
        ("path.unlink()", "benchmark.json", False),
        ("path.write_bytes(path.read_bytes()[:-50])", "benchmark.json, report.html, report.md, samples.jsonl", True),
        ("path.rename('old'); path.write_bytes(Path('old').read_bytes())", "benchmark.json, report.html", True),
        ("path.open('a').write('{}' + chr(10))", "benchmark.json, report.html", True),
        ("path.write_bytes(path.read_bytes().replace(b'0.001,', b'0.002,'))", "benchmark.json, report.html", True),
        ("__import__('shutil').rmtree(path.parent)", "nothing is left of it", False),
    ],
    ids=["deleted", "cut", "replaced", "longer", "edited", "no folder"],
)
def test_journal_that_is_no_longer_the_open_file_ends_the_run(three_shapes, deed, saved, resumes):
    run = three_shapes(more=STRIKES.format(deed))
    assert run.code == 1
    assert "the journal could not be written: " in run.text or "b'0.001" in deed
    assert f": {saved}" in run.text
    assert ("go on with it" in run.text) == resumes
    assert ("the report could not be drawn" in run.text) == ("report" not in saved)
    if resumes:
        assert "which was cut where our own last line ends" in run.text
        assert sorted(run.go_on().cases) == sorted(ALL)


@pytest.mark.parametrize(
    ("deed", "reason"),
    [
        ("os.write(1, b'cut' * 10**7 + b'the end'); os._exit(3)", f"exit code 3: {'cut' * 331}the end, at its turns"),
        (r"print('\x1b[31m\x07red', flush=True); os._exit(3)", r"numpy: exit code 3: \x1b[31m\x07red, at its turns"),
        (r"raise RuntimeError('\n\x1b[2J')", r"RuntimeError: \x1b[2J (conftest.py:"),
    ],
    ids=["much", "escapes", "raised"],
)
def test_last_words_are_bounded_and_plain(by_forks, deed, reason):
    run = by_forks("-k", "m128", more=STRIKES.format(deed))
    assert reason in run.reasons["m128-numpy"][1]
    assert reason in run.text
    assert "\x1b" not in run.text


def test_a_worker_that_cannot_begin_ends_the_run_and_says_why(by_forks):
    run = by_forks("-k", "m64", more="\n__import__('tempfile').tempdir = '/nowhere'\n")
    assert "a worker could not begin: " in run.text
    assert "set TMPDIR to a folder that can be written" in run.text


def test_json_that_cannot_be_saved_costs_neither_journal_nor_report(three_shapes):
    in_the_way = "[folder.joinpath('benchmark.json').mkdir() for folder in Path('results/local').iterdir()]"
    first = "\nimport pytest\n@pytest.hookimpl(tryfirst=True)\ndef pytest_benchmark_update_json():\n    "
    outcome = three_shapes("-k", "m64", more=f"{first}{in_the_way}\n")
    assert outcome.code == 1
    assert "could not save what it was asked for: [Errno 21] Is a directory: '/" in outcome.text
    assert ": report.html, report.md, samples.jsonl\n" in outcome.text
    theirs = three_shapes("-k", "m64", "--benchmark-json=/proc/nowhere/mine.json")
    assert theirs.code == 1
    assert "pytest-benchmark could not save what it was asked for" in theirs.text
    assert sorted(theirs.cases) == ["m64-numpy", "m64-torch"]  # by our own


def test_x_loses_no_row_of_what_is_measured(three_shapes):
    outcome = three_shapes("-x", fault="numpy 128 crash")
    assert outcome.code == 1
    assert sorted(outcome.measured) == sorted(outcome.cases) == sorted(set(ALL) - {"m128-numpy"})


@pytest.mark.parametrize(
    "place",
    ["from roofline.report import tables\ntables.markdown", "pytest_benchmark_update_json"],
    ids=["report", "json"],
)
def test_interruption_at_the_end_is_told_and_the_run_is_saved(three_shapes, place):
    run = three_shapes(more=f"\n{place} = lambda *a: os.kill(os.getpid(), signal.SIGTERM)\n")
    assert run.code == 2
    assert "interrupted by SIGTERM at its end; draw the report with: python3 -m roofline report " in run.text
    assert "Traceback" not in run.text
    assert "go on with it" not in run.text  # all is measured
    assert sorted(run.measured) == sorted(ALL)


@pytest.mark.parametrize(
    ("error", "outcome", "reason"),
    [
        (MemoryError("12 GiB"), "out of memory", "out of memory: 12 GiB"),
        (type("OutOfMemoryError", (RuntimeError,), {})("CUDA out of memory"), "out of memory", "out of memory: CUDA"),
        (type("OutOfResources", (Exception,), {})("shared memory, Required: 3"), "not supported", "not supported: sha"),
        (subprocess.CalledProcessError(1, ["gcc", "-shared", "-fPIC"]), "not supported", "not supported: Command"),
        (ValueError("K\nis odd"), None, "ValueError: K"),
    ],
)
def test_what_an_exception_means(error, outcome, reason):
    assert device_errors.lack(error) == outcome
    assert device_errors.reason(error).startswith(reason)
    assert "\n" not in device_errors.reason(error)


def test_device_is_lost_when_it_answers_no_more(monkeypatch):
    import torch

    assert not device_errors.device_lost("cpu")
    for error, is_lost in ((RuntimeError("CUDA error: illegal"), True), (torch.OutOfMemoryError("full"), False)):
        monkeypatch.setattr(torch, "ones", lambda *a, error=error, **k: (_ for _ in ()).throw(error))
        assert device_errors.device_lost("cuda") == is_lost
