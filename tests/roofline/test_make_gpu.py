"""`make gpu`: steps in their order, none twice, each within its time, and what was cut off is gone on with."""

import os
import re
import shlex
import subprocess
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
PARTS = [f"correct-{part}" for part in ("persistent", "kernels", "machine", "waiting", "rest")]
NAMES = ["doctor", "warpgroup", *PARTS, "tune", "matmuls", "gathers", "layers", "attention", "steps", "counters"]

STAND_IN = """#!/bin/sh
[ "$1" = -c ] && exit 0
echo "$*" >> {log}
for word; do case $word in --ffn-results=*) mkdir -p "${{word#*=}}/run" ;; esac; done
case "$*" in {fails}) exit 3 ;; esac
"""


class Make:
    """`make gpu` into `folder`, whose python3 notes what it is called for and exits with 3 for what `fails`."""

    def __init__(self, folder, fails="nothing"):
        self.folder, self.log, self.python = folder / "gpu", folder / "log", folder / "python3"
        self.python.write_text(STAND_IN.format(log=self.log, fails=fails))
        self.python.chmod(0o755)

    def __call__(self, *words):
        alone = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "DEADLINE"))}
        command = ["make", "gpu", "SYSTEM=1", f"PYTHON={self.python}", f"GPU={self.folder}", *words]
        done = subprocess.run(command, cwd=ROOT, env=alone, capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout

    @property
    def calls(self):
        return self.log.read_text().splitlines() if self.log.exists() else []

    @property
    def stamps(self):
        """{step: its exit code}"""
        return {path.name: int(path.read_text()) for path in self.folder.iterdir() if path.is_file()}


def steps_of(text):
    """Return {name: (estimate, limit, words of the command)} of what `make -n gpu` prints."""
    lines = text.replace("\\\n", " ").splitlines()
    commands = [shlex.split(line) for line in lines if line.startswith(".ci/step ")]
    return {Path(words[1]).name: (int(words[2]), int(words[3]), words[4:]) for words in commands}


def test_each_step_fits_into_ten_minutes_can_be_typed_and_names_what_is_there(tmp_path):
    code, text = Make(tmp_path)("-n")
    steps = steps_of(text)
    assert (code, list(steps)) == (0, NAMES)
    assert all(estimate <= limit <= 600 for estimate, limit, _ in steps.values())
    paths = [word for *_, words in steps.values() for word in words if word.startswith("tests/")]
    assert len(paths) > 5
    assert all((ROOT / path).exists() for path in paths)


def test_steps_run_once_in_their_order_and_one_that_fails_counts(tmp_path):
    make = Make(tmp_path, fails='*"-k warpgroup"')
    code, text = make()
    assert code != 0
    assert make.stamps == dict.fromkeys(NAMES, 0) | {"warpgroup": 3}
    assert re.search(r"warpgroup:3$", text, re.MULTILINE)
    calls = make.calls
    assert len(calls) == len(NAMES)
    run = make.folder / "runs" / "matmuls" / "run"
    assert calls[0].endswith("-m roofline doctor")
    assert calls[-1].endswith(f"--ffn-resume={run}/ --ffn-counters=48")
    assert make()[0] != 0
    assert make.calls == calls
    (make.folder / "warpgroup").write_text("0\n")
    assert make()[0] == 0
    (make.folder / "matmuls").unlink()  # measuring goes on with its own run
    ((*_, words),) = steps_of(make("-n")[1]).values()
    assert words[-2:] == ["--benchmark-only", f"--ffn-resume={run}/"]


def test_step_that_the_budget_has_no_room_for_is_not_begun_and_told(tmp_path):
    make = Make(tmp_path, fails="*doctor")
    code, text = make("BUDGET=200")
    assert (code != 0, make.calls) == (True, ["-m roofline doctor"])  # which is heard first
    assert f"mend what it says and remove {make.folder}/doctor, or go on" in text
    code, text = make("BUDGET=200")
    assert code != 0
    assert sorted(make.stamps) == ["doctor", "layers", "warpgroup"]
    assert re.search(r"tune: not begun: about 240 s by estimate, and (199|200) s of BUDGET are left", text)
    assert "left: correct-persistent " in text
    make()
    assert make.stamps == dict.fromkeys(NAMES, 0) | {"doctor": 3}


def test_step_that_hangs_and_hears_no_ctrl_c_is_cut_off_and_leaves_no_stamp(tmp_path):
    rest = {"DEADLINE": str(int(time.time()) + 1000), "GRACE_S": "0.5"}
    words = f"{tmp_path / 'hangs'} 1 1 sh -c".split()
    command = [ROOT / ".ci" / "step", *words, "trap '' INT; while :; do sleep 0.1; done"]
    done = subprocess.run(command, env=os.environ | rest, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "hangs: cut off after 1 s")
    assert list(tmp_path.iterdir()) == []
