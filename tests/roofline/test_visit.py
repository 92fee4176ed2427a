"""A visit to a GPU: steps in their order, none twice, the visit over in time, and what was cut off is gone on with."""

import json
import os
import shlex
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest
from made_up_run import HEAD

from kernels.experiments import trial
from kernels.experiments.trial import EXPERIMENTS
from results import visit
from results.visit import STEPS, Step, Visit
from roofline.operations.matmul import OPERATION

ROOT = Path(__file__).parents[2]
MUSTS = ["kernel", "matmuls", "gathers", "links"]

MEASURES = """
import json, pathlib, sys, time
words = sys.argv[1:]
option = next(word for word in words if word.startswith(("--ffn-results=", "--ffn-resume=")))
resumes, path = option.startswith("--ffn-resume"), pathlib.Path(option.partition("=")[2])
run = path if resumes else path / "20260101T000000Z-h100"
run.mkdir(parents=True, exist_ok=True)
line = {"kind": "resumed", "started": ""} if resumes else HEAD | {"kind": "run", "cases": ["a"], "title": str(words)}
with (run / "samples.jsonl").open("a") as journal:
    print(json.dumps(line), file=journal)
"""
"""A stand-in for pytest that measures: it begins a run of the case `a`, or goes on with one."""
WHOLE = """
with (run / "samples.jsonl").open("a") as journal:
    skipped = {"kind": "not_measured", "case": "a", "outcome": "skipped", "reason": "none"}
    print(json.dumps(skipped), json.dumps({"kind": "end"}), sep="\\n", file=journal)
"""
HANGS = "import time; time.sleep(60)"


def python(code: str, *words: str) -> str:
    """The command of a step that executes `code`."""
    return shlex.join(["python", "-c", code, *words])


def measures(then: str = WHOLE) -> str:
    return python(f"HEAD = {HEAD!r}\n{MEASURES}\n{then}")


def measured(then: str = WHOLE, name: str = "one", limit: int = 9) -> Step:
    """A step of the archive `first` whose run is whole, or does something else `then`."""
    return Step(name, 1, limit, measures(then), selects=f"test_{name}", archive="first")


def exits(code: int) -> str:
    return python(f"raise SystemExit({code})")


@pytest.fixture(autouse=True)
def quickly(monkeypatch):
    monkeypatch.setattr(visit, "GRACE_S", 0.5)
    monkeypatch.setattr(visit, "CLOSE_S", 0.5)
    monkeypatch.setattr(visit, "smi", lambda query: "H100")
    monkeypatch.setattr(visit, "triton_version", lambda: "3.9.0")


@pytest.fixture
def make(tmp_path):
    """`make(*steps, seconds)` makes a visit of `steps` to the folder `out`."""

    def run(*steps: Step, seconds: float = 1000.0) -> Visit:
        made = Visit(tmp_path / "out", steps, time.monotonic() + seconds)
        made.run()
        return made

    return run


def held_by(out: Path) -> dict[str, list[str]]:
    """The files of each archive in `out`."""
    names = {}
    for path in out.iterdir():
        with tarfile.open(path) as archive:
            names[path.name] = [member.name for member in archive if member.isfile()]
    return names


def text_of(out: Path, archive: str, name: str) -> str:
    with tarfile.open(out / archive) as file:
        return file.extractfile(name).read().decode()


def test_table_names_what_is_there_and_fits_what_a_visit_brings_home():
    assert [step.name for step in STEPS if step.must] == MUSTS
    assert len({step.name for step in STEPS}) == len(STEPS)
    assert all(step.seconds <= step.limit <= 600 for step in STEPS)
    assert len({step.archive for step in STEPS} - {""}) <= 6
    assert all(step.archive for step in STEPS if step.selects or step.counts)
    paths = [word for step in STEPS for word in step.command.split() if word.startswith("tests/")]
    assert len(paths) > 3
    assert all((ROOT / path).exists() for path in paths)
    tests = {path.stem for path in (ROOT / "tests" / "benchmarks").iterdir()}
    for step in STEPS:
        if visit.TRIAL in step.command:
            options = trial.parser().parse_args(step.command.removeprefix("python -m kernels.trial").split())
            assert 60 * options.minutes <= step.seconds < step.limit - 20, "a trial ends before it is ended"
            assert all(OPERATION.parse(shape)[0].id == shape for shape in options.shapes)
            needs = EXPERIMENTS[options.experiment].triton
            assert (visit.release(step.triton) or (0, 0)) == needs
            assert step.needs != "kernel" or needs == (0, 0), "what no card has run is first run exactly"
    sanitizers = [step.command for step in STEPS if step.command.startswith("compute-sanitizer")]
    assert len(sanitizers) == 2
    assert all("--error-exitcode" in command for command in sanitizers), "else a fault that it finds ends with 0"
    names = {step.name for step in STEPS}
    assert {step.needs for step in STEPS} | {step.counts for step in STEPS} <= names | {""}
    selected = [word for step in STEPS for word in step.selects.split() if word.startswith("test_")]
    assert set(selected) <= tests


class Stand(Visit):
    """A visit to a card that is not there, on a clock of its own: each step takes the seconds of the table, or those
    of `takes`, and ends with the code of `codes`; a run that is ended before is cut off."""

    now_s = 0.0

    def __init__(self, out: Path, minutes: float, takes=(), codes=(), triton="3.9.0"):
        super().__init__(out, STEPS, deadline=60 * minutes)
        self.takes = {step.name: step.seconds for step in STEPS} | dict(takes)
        self.ends_with = dict(codes)
        self.begun: list[str] = []
        self.run()

    def execute(self, command, title, limit, grace_s):
        self.begun.append(title)
        names = title.split("+")
        spent_s = sum(self.had_s.get(name, 0) for name in names)
        resumed = next((Path(word.partition("=")[2]) for word in command if word.startswith("--ffn-resume=")), None)
        measures = bool(self.step(names[0]).selects)
        takes_s = sum(self.takes[name] for name in names) - spent_s + visit.BEGIN_S * measures
        had_s = min(takes_s, limit - grace_s)
        Stand.now_s += had_s
        is_whole = had_s == takes_s
        if measures and names[0] not in self.ends_with:
            folder = resumed or self.work / self.step(names[0]).archive / title / "20260101T000000Z-h100"
            folder.mkdir(parents=True, exist_ok=True)
            self.had_s |= {names[0]: self.had_s.get(names[0], 0) + had_s - visit.BEGIN_S}
            head = HEAD | {"kind": "run", "cases": ["a"]}
            lines = [{"kind": "resumed", "started": ""}] if resumed else [head]
            if is_whole:
                skipped = {"kind": "not_measured", "case": "a", "outcome": "skipped", "reason": "none"}
                lines += [skipped, {"kind": "end"}]
            with (folder / "samples.jsonl").open("a") as journal:
                journal.writelines(json.dumps(line) + "\n" for line in lines)
        return self.ends_with.get(title, 0) if is_whole else None

    had_s: dict[str, float]

    def step(self, name: str) -> Step:
        return next(step for step in STEPS if step.name == name)


@pytest.fixture
def stand(monkeypatch, tmp_path):
    """`stand(minutes, ...)` makes a visit on the clock of `Stand`, to one folder, with the grace that the table has."""
    monkeypatch.setattr(visit, "GRACE_S", 8)
    monkeypatch.setattr(visit, "CLOSE_S", 3)
    monkeypatch.setattr(visit.time, "monotonic", lambda: Stand.now_s)
    Stand.had_s = {}

    def make(minutes, **about):
        Stand.now_s = 0.0
        made = Stand(tmp_path / "out", minutes, **about)
        assert Stand.now_s <= 60 * minutes
        return made

    return make


FIRST = ["doctor", "kernel", "compile", "matmuls+gathers", "links"]


def test_eight_minutes_are_the_picture_and_the_rest_of_fifteen_what_no_card_has_run(stand):
    first = stand(8)
    assert first.begun == [*FIRST[:-1], "foretold", "links", "clusters", "odd-widths"]
    assert 400 < Stand.now_s < 480
    second = stand(5)
    assert second.begun == ["links-beside", "trial-odd", "trial-pair", "scatters", "clocks"]
    assert not any(second.codes.values())


@pytest.mark.parametrize(
    ("left_s", "begun"),
    [
        (300, ["matmuls+gathers", "foretold", "links-beside", "clusters", "odd-widths"]),
        (240, ["matmuls+gathers", "foretold", "clusters", "odd-widths"]),
        (120, ["matmuls+gathers"]),
    ],
)
def test_with_less_than_it_must_do_it_goes_on_with_the_run_that_was_cut_off(stand, left_s, begun):
    """The matmuls take twice their time: the visit before it left most of the gathers."""
    takes = {"matmuls": 390}
    first = stand(8, takes=takes)
    assert first.begun == FIRST
    assert first.codes["matmuls"] is first.codes["gathers"] is None
    second = stand(left_s / 60, takes=takes)
    assert second.begun == begun
    assert [*second.runs_of("gathers").values()] == [left_s == 120]


def test_a_step_that_failed_is_tried_again_unless_it_said_why_it_never_can(stand, capsys):
    first = stand(8, codes={"links": 1, "doctor": visit.REFUSED})
    assert "links-beside: not begun, links ended with exit code 1" in capsys.readouterr().out
    assert first.codes["links"] == 1
    assert stand(8).begun[:2] == ["links", "links-beside"]


def test_a_run_that_failed_at_its_start_is_begun_again_with_what_fits(stand):
    assert stand(8, codes={"matmuls": 1, "matmuls+gathers": 1}).begun[:5] == FIRST
    assert stand(4).begun == ["matmuls"]
    assert stand(8).begun[0] == "gathers"


def test_what_needs_a_newer_triton_says_so_and_is_no_failure(stand, monkeypatch, capsys):
    monkeypatch.setattr(visit, "triton_version", lambda: "3.7.1")
    made = stand(60)
    printed = capsys.readouterr().out
    for name, needed in {"clusters": "3.8", "odd-widths": "3.9", "trial-odd": "3.9", "trial-pair": "3.8"}.items():
        assert f"{name}: not begun, it needs Triton {needed}, and this is 3.7.1" in printed
        assert name not in made.codes
    assert not any(made.codes.values())


def test_where_no_kernel_runs_nothing_is_measured_and_without_torch_compile_what_needs_it_is_left_out(stand, capsys):
    assert stand(8, codes={"kernel": 1}).begun == ["doctor", "kernel"]
    assert "matmuls: not begun, kernel ended with exit code 1" in capsys.readouterr().out
    made = stand(60, codes={"compile": 1})
    assert not {"attention", "training-steps", "gated-layers"} & {*"+".join(made.begun).split("+")}
    assert "gated-layers: not begun, compile ended with exit code 1" in capsys.readouterr().out


def test_another_driver_is_tried_first(stand, monkeypatch):
    stand(8)
    monkeypatch.setattr(visit, "smi", lambda query: "H100" if query == "name" else "999.9")
    assert stand(5).begun[:3] == ["doctor", "kernel", "compile"]


def test_the_whole_list_has_no_limit(stand):
    assert "+".join(stand(float("inf")).begun).split("+") == [step.name for step in STEPS]


def test_runs_with_other_options_are_no_one_run(make):
    """Though nothing is left to do between them."""
    run = {"command": measures(), "archive": "again"}
    made = make(Step("one", 1, 9, selects="test_one", options="", **run), Step("two", 1, 9, selects="test_two", **run))
    assert {folder.parent.name for name in made.codes for folder in made.runs_of(name)} == {"one", "two"}


def test_steps_that_share_an_archive_are_one_run_and_failures_stop_nothing(make, tmp_path, capsys):
    made = make(
        Step("doctor", 1, 9, exits(3)),
        measured(),
        measured(name="two"),
        Step("links", 1, 9, exits(1)),
        Step("scatters", 1, 9, measures(), selects="test_three", archive="second", needs="links"),
        Step("gone", 1, 9, "no-such-tool"),
        Step("last", 1, 9, python("import pathlib, sys; pathlib.Path(sys.argv[1], 'a.json').touch()", "logs")),
    )
    assert made.codes == {"doctor": 3, "one": 0, "two": 0, "links": 1, "gone": visit.NOT_FOUND, "last": 0}
    held = held_by(tmp_path / "out")
    assert held.keys() == {"first.tgz", "logs.tgz"}
    run = "first/one+two/20260101T000000Z-h100/samples.jsonl"
    assert held["first.tgz"] == [run]
    words = json.loads(text_of(tmp_path / "out", "first.tgz", run).splitlines()[0])["title"]
    assert "'-k', '(test_one) or (test_two)'" in words
    assert "--ffn-no-report" in words
    assert "scatters: not begun, links ended with exit code 1" in capsys.readouterr().out
    assert "logs/a.json" in held["logs.tgz"]
    assert "no-such-tool" in text_of(tmp_path / "out", "logs.tgz", "logs/gone.log")
    assert text_of(tmp_path / "out", "logs.tgz", "logs/conditions.txt").count("H100") == 6


def test_what_has_no_time_is_not_begun_and_named_with_its_seconds(make, capsys):
    made = make(Step("long", 50, 60, exits(0)), Step("short", 1, 2, exits(0)), seconds=10)
    assert made.codes == {"short": 0}
    assert "long: not begun, it takes about 50 s" in capsys.readouterr().out


def test_a_run_that_is_cut_off_is_brought_home_and_gone_on_with(make, tmp_path, capsys):
    hangs = measured(HANGS, limit=6)
    made = make(hangs, Step("two", 1, 9, exits(0)))
    assert made.codes == {"one": None, "two": 0}
    assert "one: cut off at 6 s" in capsys.readouterr().out
    made = make(measured())
    assert made.codes == {"one": 0, "two": 0}
    name = "first/one/20260101T000000Z-h100/samples.jsonl"
    kinds = [json.loads(line)["kind"] for line in text_of(tmp_path / "out", "first.tgz", name).splitlines()]
    assert kinds == ["run", "resumed", "not_measured", "end"]


def test_a_run_that_was_whole_before_it_was_cut_off_is_not_made_again(make, capsys):
    step = measured(f"{WHOLE}\n{HANGS}", limit=6)
    made = make(step)
    assert made.codes == {"one": None}
    assert "one: cut off at 6 s" in capsys.readouterr().out
    assert make(step).tried == set()


def test_a_run_that_cannot_be_gone_on_with_is_begun_anew_and_kept(make, tmp_path):
    make(measured(HANGS, limit=6))
    refuses = f"resumes and sys.exit(2)\n{WHOLE}"
    made = make(measured(refuses))
    assert made.codes == {"one": 0}
    runs = {Path(name).parts[1] for name in held_by(tmp_path / "out")["first.tgz"]}
    assert runs == {"one", "refused-one"}


COUNTS = """
import json, pathlib, sys
with (pathlib.Path(sys.argv[-1]) / "samples.jsonl").open("a") as journal:
    print(json.dumps({"kind": "note", "about": "counters", "text": "counted"}), file=journal)
"""


def test_counting_adds_to_the_run_of_another_step_once_that_is_there(make, tmp_path, capsys):
    run = measured(name="matmuls")
    counters = Step("counters", 1, 9, python(COUNTS), archive="first", counts="matmuls")
    assert make(counters).codes == {}
    assert "counters: not begun, there is no run of matmuls" in capsys.readouterr().out
    assert make(run, counters).codes == {"matmuls": 0, "counters": 0}
    (name,) = held_by(tmp_path / "out")["first.tgz"]
    assert "counted" in text_of(tmp_path / "out", "first.tgz", name).splitlines()[-1]


CHILDREN = """
import os, subprocess, sys, time
child = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
subprocess.Popen([sys.executable, "-c", child], start_new_session=True)
print(os.getpid(), flush=True)
time.sleep(60)
"""


def test_a_step_past_its_limit_is_killed_with_children_that_lead_a_session_of_their_own(make, tmp_path):
    began = time.monotonic()
    make(Step("hangs", 1, 3, python(CHILDREN)), seconds=100)
    assert time.monotonic() - began < 10
    for pid in text_of(tmp_path / "out", "logs.tgz", "logs/hangs.log").split()[:2]:
        until(lambda pid=pid: is_gone(pid))


def is_gone(pid: str) -> bool:
    status = Path(f"/proc/{pid}/status")
    return not status.exists() or "zombie" in status.read_text()


def test_what_is_never_left_out_keeps_its_time(make):
    """The step before it hangs, and may have all but that; the visit is over in time."""
    began = time.monotonic()
    hangs = Step("hangs", 1, 600, python(HANGS))
    made = make(hangs, Step("must", 5, 6, exits(0), must=True), seconds=10)
    assert made.codes == {"hangs": None, "must": 0}
    assert time.monotonic() - began < 10.5


@pytest.mark.parametrize(
    ("name", "other", "message"),
    [
        ("smi", "H200", "visits to H100, and this is H200: choose another OUT"),
        ("triton_version", "3.7.1", r"visits under Triton 3\.9\.0, and this is 3\.7\.1: choose another OUT, or bring"),
    ],
)
def test_another_card_or_triton_is_refused(make, monkeypatch, name, other, message):
    make(Step("one", 1, 9, exits(0)))
    monkeypatch.setattr(visit, name, lambda *query: other)
    with pytest.raises(ValueError, match=message):
        make(Step("one", 1, 9, exits(0)))


def test_without_a_gpu_it_says_what_to_do(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(visit, "smi", lambda query: "")
    monkeypatch.setattr(visit, "gpu_driver", lambda: None)
    assert visit.main([f"--out={tmp_path}"]) == 2
    assert "no NVIDIA GPU: make bench measures the CPU" in capsys.readouterr().err


def test_an_archive_that_is_damaged_is_named(make, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "first.tgz").write_bytes(b"no archive")
    with pytest.raises(ValueError, match=r"first\.tgz cannot be unpacked"):
        make(Step("one", 1, 9, exits(0)))


HELD_UP = """
from results import visit
from results.visit import Step
import sys
visit.smi = lambda query: "H100"
visit.triton_version = lambda: "3.9.0"
steps = tuple(Step(**about) for about in {steps!r})
sys.exit(visit.main(["--out={out}"], steps))
"""


def held_up(steps: list[dict], folder: Path, archive: str) -> subprocess.Popen:
    """A visit to the folder `out` in `folder` that has begun the run of this archive."""
    command = [sys.executable, "-c", HELD_UP.format(steps=steps, out=folder / "out")]
    process = subprocess.Popen(command, env=os.environ | {"TMPDIR": str(folder)}, cwd=ROOT)
    until(lambda: list(folder.glob(f"roofline-visit-*/{archive}/*/*/begun")))
    return process


def test_killed_in_a_step_the_archives_before_it_are_whole(make, tmp_path):
    """The step waits to be killed in, until a file is there."""
    waits = f"while not pathlib.Path({str(tmp_path / 'go')!r}).exists(): time.sleep(0.05)\n"
    first = {"name": "first", "seconds": 1, "limit": 60, "selects": "test_one", "archive": "before"}
    second = {"name": "second", "seconds": 1, "limit": 60, "selects": "test_two", "archive": "killed"}
    first["command"] = measures()
    second["command"] = measures(f"(run / 'begun').write_text('')\n{waits}{WHOLE}")
    process = held_up([first, second], tmp_path, "killed")
    process.kill()
    process.wait()
    (tmp_path / "go").write_text("")  # who was waiting ends
    held = held_by(tmp_path / "out")
    assert len(held["before.tgz"]) == 1
    assert "killed.tgz" not in held
    made = make(Step(**first), Step(**second))
    assert made.codes == {"first": 0, "second": 0}
    assert made.tried == {"second"}


def until(holds, within_s=30.0):
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_visit_that_is_interrupted_saves_what_its_step_has(tmp_path):
    steps = [{"name": "one", "seconds": 1, "limit": 60, "selects": "test_one", "archive": "first"}]
    steps[0]["command"] = measures("(run / 'begun').write_text('')\n" + HANGS)
    process = held_up(steps, tmp_path, "first")
    process.terminate()
    assert process.wait(20) == 130
    assert len(held_by(tmp_path / "out")["first.tgz"]) == 2


def test_a_first_visit_too_short_is_refused_and_minutes_of_make_gpu_count_from_its_own_start(tmp_path):
    command = ["make", "gpu", "SYSTEM=1", f"PYTHON={sys.executable}", f"OUT={tmp_path / 'out'}", "MINUTES=1"]
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho H100\n")
    smi.chmod(0o755)
    alone = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    alone["PATH"] = f"{tmp_path}:{alone['PATH']}"
    done = subprocess.run(command, cwd=ROOT, env=alone, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "kernel, matmuls, gathers, links take about 397 s, and 5" in done.stderr
    assert "give more MINUTES" in done.stderr
