"""A visit to a GPU: steps in their order, none twice, the visit over in time, and what was cut off is gone on with."""

import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
from importlib.util import find_spec
from pathlib import Path

import pytest
from forked import Fork, until
from made_up_run import END, HEAD

from conftest import ROOT
from kernels.experiments import trial
from kernels.experiments.trial import EXPERIMENTS
from results import visit
from results.visit import STEPS, Step, Visit
from roofline.operations.matmul import OPERATION

MISSING = "no_such_package"
MUSTS = ["kernel", "matmuls", "gathers", "links"]
MEASURES = Step("one", 1, 60, selects="test_one", archive="first")
"""A step whose run is of the case `a`."""
OVER = {"one": 40}
"""Of which it has too many seconds for its limit, and enough for two visits."""
RUN = "20260101T000000Z-h100"
WHOLE = {"kind": "not_measured", "case": "a", "outcome": "skipped", "reason": "none"}, END
COUNTED = {"kind": "note", "about": "counters", "text": "counted"}


@pytest.fixture(autouse=True)
def quickly(monkeypatch, tmp_path):
    monkeypatch.setattr(visit, "GRACE_S", 0.5)
    monkeypatch.setattr(visit, "CLOSE_S", 0.5)
    monkeypatch.setattr(visit, "smi", lambda query: "H100")
    monkeypatch.setattr(visit, "triton_version", lambda: "3.9.0")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.fixture
def make(tmp_path):
    """`make(*steps)` makes a visit of `steps` to the folder `out`, in which each does what its command says."""

    def run(*steps: Step) -> Visit:
        made = Visit(tmp_path / "out", steps)
        made.run()
        return made

    return run


@pytest.fixture
def brought(tmp_path):
    """`brought()`: {archive: {file: its text}} of what the visit has brought home so far."""

    def read() -> dict[str, dict[str, str]]:
        files = {}
        for path in (tmp_path / "out").iterdir():
            with tarfile.open(path) as archive:
                members = [member for member in archive if member.isfile()]
                files[path.name] = {member.name: archive.extractfile(member).read().decode() for member in members}
        return files

    return read


def test_table_names_what_is_there_and_fits_what_a_visit_brings_home():
    assert [step.name for step in STEPS if step.must] == MUSTS
    names = {step.name for step in STEPS}
    assert len(names) == len(STEPS)
    assert all(step.seconds <= step.limit <= 600 for step in STEPS)
    assert len({step.archive for step in STEPS} - {""}) <= 6
    assert all(step.archive for step in STEPS if step.selects or step.counts)
    paths = [word for step in STEPS for word in step.command.split() if word.startswith("tests/")]
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
    assert {step.needs for step in STEPS} | {step.counts for step in STEPS} <= names | {""}
    selected = [word for step in STEPS for word in step.selects.split() if word.startswith("test_")]
    assert set(selected) <= tests


class Stand(Visit):
    """A visit to a card that is not there, on a clock of its own: each step takes the seconds of the table, or those
    of `takes`, and ends with the code that `codes` has for its first time; a run that is ended before is cut off."""

    now_s = 0.0
    had_s: dict[str, float]

    def __init__(self, out: Path, steps: tuple[Step, ...], deadline: float, takes=(), codes=()):
        super().__init__(out, steps, deadline)
        self.takes = {step.name: step.seconds for step in steps} | dict(takes)
        self.ends_with = dict(codes)
        self.commands: dict[str, list[str]] = {}

    @property
    def begun(self) -> list[str]:
        return [*self.commands]

    def execute(self, command, title, limit, grace_s):
        self.commands[title] = command
        names = title.split("+")
        step = next(step for step in self.steps if step.name == names[0])
        spent_s = sum(self.had_s.get(name, 0) for name in names)
        takes_s = sum(self.takes[name] for name in names) - spent_s + visit.BEGIN_S * bool(step.selects)
        had_s = min(takes_s, limit - grace_s)
        Stand.now_s += had_s
        is_whole = had_s == takes_s
        code = self.ends_with.pop(title, 0) if is_whole else None
        if step.counts:
            self.journal(Path(command[-1]), COUNTED)
        if step.selects and not code:
            self.had_s |= {step.name: self.had_s.get(step.name, 0) + had_s - visit.BEGIN_S}
            resumed = next((word.partition("=")[2] for word in command if word.startswith("--ffn-resume=")), None)
            first = {"kind": "resumed", "started": ""} if resumed else HEAD | {"cases": ["a"]}
            folder = Path(resumed or self.work / step.archive / title / RUN)
            self.journal(folder, first, *WHOLE * is_whole)
        return code

    @staticmethod
    def journal(folder: Path, *lines: dict) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "samples.jsonl").open("a") as journal:
            journal.writelines(json.dumps(line) + "\n" for line in lines)


@pytest.fixture
def stand(monkeypatch, tmp_path):
    """`stand(minutes, ...)` makes a visit on the clock of `Stand`, to one folder, with the grace that the table has."""
    monkeypatch.setattr(visit, "GRACE_S", 8)
    monkeypatch.setattr(visit, "CLOSE_S", 3)
    monkeypatch.setattr(visit.time, "monotonic", lambda: Stand.now_s)
    Stand.had_s = {}

    def make(minutes, *steps, **about):
        Stand.now_s = 0.0
        made = Stand(tmp_path / "out", steps or STEPS, 60 * minutes, **about)
        made.run()
        assert Stand.now_s <= 60 * minutes
        return made

    return make


FIRST = ["doctor", "kernel", "compile", "matmuls+gathers", "links"]


def test_eight_minutes_are_the_picture_and_the_rest_of_fifteen_what_no_card_has_run(stand, capsys):
    first = stand(8)
    assert "links-beside: not begun, it takes about " in capsys.readouterr().out
    assert first.begun == [*FIRST[:-1], "foretold", "links", "clusters", "odd-widths"]
    assert 400 < Stand.now_s < 480
    second = stand(5)
    assert second.begun == ["links-beside", "trial-odd", "trial-pair", "scatters", "clocks"]
    assert not any(second.codes.values())


@pytest.mark.parametrize(
    ("left_s", "begun"),
    [
        (300, ["matmuls+gathers", "foretold", "links-beside", "clusters", "odd-widths"]),
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
    said = capsys.readouterr().out
    for name in {"attention", "training-steps", "gated-layers"} & {step.name for step in STEPS}:
        assert f"{name}: not begun, compile ended with exit code 1" in said


def test_the_whole_list_has_no_limit(stand):
    made = stand(float("inf"))
    assert "+".join(made.begun).split("+") == [
        step.name for step in STEPS if not step.package or find_spec(step.package)
    ]


def test_a_step_whose_package_is_not_there_is_not_begun(stand, capsys):
    made = stand(float("inf"), Step("lacking", 1, 9, "true", needs="", package=MISSING), Step("there", 1, 9, needs=""))
    assert made.begun == ["there"]
    assert f"lacking: not begun, {MISSING} is not installed" in capsys.readouterr().out


def test_steps_that_share_an_archive_are_one_run(stand, brought):
    two = Step("two", 1, 60, selects="test_two", archive="first")
    made = stand(9, MEASURES, two)
    assert made.codes == {"one": 0, "two": 0}
    assert [*brought()["first.tgz"]] == [f"first/one+two/{RUN}/samples.jsonl"]
    command = made.commands["one+two"]
    assert command[-2:] == ["-k", "(test_one) or (test_two)"]
    assert "--ffn-no-report" in command


def test_failures_stop_nothing_but_what_needs_them_and_logs_come_home(make, brought, capsys):
    made = make(
        Step("doctor", 1, 9, "sh -c 'exit 3'"),
        Step("scatters", 1, 9, "true", needs="doctor"),
        Step("gone", 1, 9, "no-such-tool"),
        Step("last", 1, 9, "sh -c 'echo {} > $0/a.json' logs"),
    )
    assert made.codes == {"doctor": 3, "gone": visit.NOT_FOUND, "last": 0}
    assert "scatters: not begun, doctor ended with exit code 3" in capsys.readouterr().out
    logs = brought()["logs.tgz"]
    assert "logs/a.json" in logs
    assert "no-such-tool" in logs["logs/gone.log"]
    assert logs["logs/conditions.txt"].count("H100") == 4


def test_a_run_that_is_cut_off_is_brought_home_and_gone_on_with(stand, brought, capsys):
    made = stand(9, MEASURES, Step("two", 1, 9), takes=OVER)
    assert made.codes == {"one": None, "two": 0}
    assert "one: cut off at 60 s" in capsys.readouterr().out
    made = stand(9, MEASURES, takes=OVER)
    assert made.codes == {"one": 0, "two": 0}
    lines = brought()["first.tgz"][f"first/one/{RUN}/samples.jsonl"].splitlines()
    assert [json.loads(line)["kind"] for line in lines] == ["run", "resumed", "not_measured", "end"]


def test_a_run_that_cannot_be_gone_on_with_is_begun_anew_and_kept(stand, brought):
    stand(9, MEASURES, takes=OVER)
    made = stand(9, MEASURES, takes=OVER, codes={"one": visit.REFUSED})
    assert made.codes == {"one": 0}
    runs = {Path(name).parts[1] for name in brought()["first.tgz"]}
    assert runs == {"one", "refused-one"}


def test_counting_adds_to_the_run_of_another_step_once_that_is_there(stand, brought, capsys):
    counters = Step("counters", 1, 9, archive="first", counts="one")
    assert stand(9, counters).codes == {}
    assert "counters: not begun, there is no run of one" in capsys.readouterr().out
    assert stand(9, MEASURES, counters).codes == {"one": 0, "counters": 0}
    (journal,) = brought()["first.tgz"].values()
    assert "counted" in journal.splitlines()[-1]


def test_a_step_past_its_limit_is_killed_with_children_that_lead_a_session_of_their_own(make, brought):
    make(Step("hangs", 1, 3, "sh -c 'setsid sleep 60 & echo $$ $!; wait'"))
    for pid in brought()["logs.tgz"]["logs/hangs.log"].split()[:2]:
        until(lambda pid=pid: is_gone(pid))


def is_gone(pid: str) -> bool:
    status = Path(f"/proc/{pid}/status")
    return not status.exists() or "zombie" in status.read_text()


def test_what_is_never_left_out_keeps_its_time(stand):
    """The step before it hangs, and may have all but that."""
    made = stand(1, Step("hangs", 1, 600), Step("must", 20, 25, must=True), takes={"hangs": 600})
    assert made.codes == {"hangs": None, "must": 0}


@pytest.mark.parametrize(
    ("name", "other", "message"),
    [
        ("smi", "H200", "visits to H100, and this is H200: choose another OUT"),
        ("triton_version", "3.7.1", r"visits under Triton 3\.9\.0, and this is 3\.7\.1: choose another OUT, or bring"),
    ],
)
def test_another_card_or_triton_is_refused(make, monkeypatch, name, other, message):
    make(Step("one", 1, 9, "true"))
    monkeypatch.setattr(visit, name, lambda *query: other)
    with pytest.raises(ValueError, match=message):
        make()


def test_without_a_gpu_it_says_what_to_do(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(visit, "smi", lambda query: "")
    monkeypatch.setattr(visit, "gpu_driver", lambda: None)
    assert visit.main([f"--out={tmp_path}"]) == 2
    assert "no NVIDIA GPU: make bench measures the CPU" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("number", "code", "archives", "left"),
    [(signal.SIGKILL, -9, {"first.tgz"}, ["two"]), (signal.SIGTERM, 130, {"first.tgz", "second.tgz"}, [])],
    ids=["killed", "interrupted"],
)
def test_a_visit_that_is_ended_in_a_step_has_brought_home_those_before(
    stand, brought, monkeypatch, tmp_path, number, code, archives, left
):
    """Interrupted, it brings what that step has, too. The visit is a fork that hangs at the end of its second step."""
    steps = MEASURES, Step("two", 1, 60, selects="test_two", archive="second")

    class HeldUp(Stand):
        def execute(self, command, title, *limits):
            code = super().execute(command, title, *limits)
            if title == "two":
                (tmp_path / "begun").touch()
                Visit.execute(self, ["sleep", "9"], title, *limits)
            return code

    monkeypatch.setattr(visit, "Visit", HeldUp)
    child = Fork(lambda: visit.main([f"--out={tmp_path / 'out'}"], steps))
    until((tmp_path / "begun").exists)
    os.kill(child.pid, number)
    assert child.wait() == code
    held = brought()
    assert held.keys() - {"logs.tgz"} == archives
    assert [*held["first.tgz"]] == [f"first/one/{RUN}/samples.jsonl"]
    assert stand(9, *steps).begun == left


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
