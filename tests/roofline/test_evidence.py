"""`make gpu`: steps in their order, none twice, each within its time, and what was cut off is gone on with."""

import shlex
import sys
from pathlib import Path

import pytest

from roofline import evidence
from roofline.evidence import Evidence, Step, collect

ROOT = Path(__file__).parents[2]


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


@pytest.fixture
def said():
    return []


def test_steps_run_once_in_their_order_and_the_worst_part_counts(tmp_path, said):
    log = tmp_path / "log"
    note = f"open({str(log)!r}, 'a').write"
    steps = [
        Step("one", 1, (python(f"{note}('1')"),)),
        Step("two", 1, (python(f"{note}('2')"), python("raise SystemExit(3)"))),
    ]
    assert collect(Evidence.load(tmp_path), steps, 1e3, said.append) == 1
    assert Evidence.load(tmp_path).ended == {"one": 0, "two": 3}
    assert collect(Evidence.load(tmp_path), steps, 1e3, said.append) == 1
    assert log.read_text() == "12"
    assert said[0] == "2 steps, about 0 min by estimate"


def test_step_that_the_budget_has_no_room_for_is_left_and_told(tmp_path, said):
    steps = [Step("short", 1, (python(""),)), Step("long", 500, (python(""),))]
    assert collect(Evidence.load(tmp_path), steps, 100, said.append) == 3
    assert Evidence.load(tmp_path).ended == {"short": 0}
    assert said[-1] == "left: long; give this command again"


def test_doctor_that_finds_a_lack_is_heard_first(tmp_path, said):
    steps = [Step("doctor", 1, (python("raise SystemExit(1)"),)), Step("next", 1, (python(""),))]
    assert collect(Evidence.load(tmp_path), steps, 100, said.append) == 3
    assert collect(Evidence.load(tmp_path), steps, 100, said.append) == 1  # given again, it goes on
    assert Evidence.load(tmp_path).ended == {"doctor": 1, "next": 0}


@pytest.mark.parametrize(("commit", "asked"), [("abc+dirty", True), ("abc", False)])
def test_what_is_tuned_is_measured_and_is_to_be_committed(tmp_path, said, monkeypatch, commit, asked):
    monkeypatch.setattr(evidence, "commit_of", lambda root: commit)
    steps = [Step("tune", 1, (python(""),)), Step("next", 1, (python(""),))]
    assert collect(Evidence.load(tmp_path), steps, 100, said.append) == 0
    assert Evidence.load(tmp_path).ended.keys() == {"tune", "next"}
    assert said[-1].startswith("commit kernels/configs") == asked


STUBBORN = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(600)"


@pytest.mark.parametrize("code", ["import time; time.sleep(600)", STUBBORN])
def test_step_that_hangs_is_cut_off_and_tried_again(tmp_path, said, code, monkeypatch):
    monkeypatch.setattr(evidence, "GRACE_S", 0.5)
    once = f"import os\nif os.path.exists('flag'): raise SystemExit(0)\nopen('flag', 'w').close()\n{code}"
    monkeypatch.chdir(tmp_path)
    steps = [Step("hangs", 1, (python(once),), limit_s=4)]
    assert collect(Evidence.load(tmp_path), steps, 100, said.append) == 3
    assert "cut off" in said[2]
    assert collect(Evidence.load(tmp_path), steps, 100, said.append) == 0


def test_measuring_goes_on_with_its_own_run_and_counting_with_that_of_another(tmp_path, said):
    make = (
        "import pathlib, sys; folder = pathlib.Path(sys.argv[-1].split('=')[1], 'run'); folder.mkdir(); "
        "(folder / 'samples.jsonl').touch()"
    )
    steps = [Step("matmuls", 1, (python(make),), measures=True), Step("counters", 1, (python(""),), after="matmuls")]
    one = Evidence.load(tmp_path)
    assert one.commands(steps[1])[0][-1] == "--ffn-resume=RUN"
    one.run(steps[0], 60)
    again = Evidence.load(tmp_path)
    assert again.runs == {"matmuls": str(tmp_path / "run")}
    assert again.commands(steps[1])[0][-1] == f"--ffn-resume={tmp_path / 'run'}"
    assert again.commands(steps[0])[0][-2:] == ["--benchmark-only", f"--ffn-resume={tmp_path / 'run'}"]


def test_each_step_fits_into_ten_minutes_and_can_be_typed(tmp_path, capsys):
    assert all(step.estimate_s <= step.limit_s <= 600 for step in evidence.STEPS)
    assert evidence.main(["--list", "--folder", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == sum(len(step.commands) for step in evidence.STEPS)
    for line in lines:
        words = shlex.split(line)
        assert (words[0], words[2:4]) == ("timeout", ["python3", "-m"])
    with pytest.raises(SystemExit):
        evidence.main(["tuning"])
    assert "no step 'tuning': known are doctor, warpgroup" in capsys.readouterr().err


def test_what_a_step_names_is_there():
    words = {word for step in evidence.STEPS for command in step.commands for word in command}
    paths = [ROOT / word for word in words if word.startswith("tests/")]
    assert len(paths) > 5
    assert all(path.exists() for path in paths)


def test_machine_without_a_gpu_is_told_so_and_named_steps_run_again(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(evidence, "gpu_driver", lambda: None)
    with pytest.raises(SystemExit):
        evidence.main(["--folder", str(tmp_path)])
    assert "no NVIDIA GPU; make bench measures the CPU" in capsys.readouterr().err
    ran = []
    monkeypatch.setattr(evidence, "gpu_driver", lambda: "580")
    monkeypatch.setattr(evidence.signals, "install", lambda: None)
    monkeypatch.setattr(evidence, "collect", lambda found, steps, budget_s: ran.extend(found.left(steps)) or 0)
    Evidence(tmp_path, {"doctor": 1, "tune": 0}).save()
    assert evidence.main(["--folder", str(tmp_path), "doctor", "tune"]) == 0
    assert [step.name for step in ran] == ["doctor", "tune"]
