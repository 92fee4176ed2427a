"""`make against`: two checkouts by turns, what it says before it begins, and its exit codes. Its runs are stand-ins."""

import subprocess
import sys
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from made_up_run import END, HEAD, save, shape

from conftest import ROOT
from results import against
from roofline.worker import METHOD_VERSION


class StandIn:
    """Takes the place of pytest: notes in which checkout it is begun, and as which commit, and writes a run there."""

    def __init__(self):
        self.begun = []
        self.factor = 1.0
        """What `tiled` of the checkout `new` takes over that of `base`."""
        self.code = 0

    def run(self, command, *, cwd, env, **settings):
        *begin, _, results = command
        if "nothing" in command:
            return CompletedProcess(command, 5, "no tests collected (9 deselected) in 1.00s\n", "")
        if "--collect-only" in command:
            return CompletedProcess(command, 0, "2 cases on 1 shapes, about 1 min 10 s\n", "")
        assert begin == [sys.executable, "-m", "pytest", "--benchmark-only", "-k"]
        self.begun.append((cwd.name, env.get("ROOFLINE_COMMIT")))
        times = {"cublas": 1e-4, "tiled": 2e-4 * (self.factor if cwd.name == "new" else 1.0)}
        into = Path(results.removeprefix("--ffn-results="))
        into.mkdir(parents=True, exist_ok=True)
        save(into / f"run-{len(self.begun)}", [HEAD, *shape(16, times), END])
        return CompletedProcess(command, self.code)


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """In place of pytest, where this checkout is `new`, and `base` beside it another one."""
    made = StandIn()
    for name, version in (("new", METHOD_VERSION), ("base", METHOD_VERSION), ("older", 1)):
        (tmp_path / name / "roofline" / "worker").mkdir(parents=True)
        (tmp_path / name / "roofline" / "worker" / "__init__.py").write_text(f"METHOD_VERSION = {version}\n")
    monkeypatch.setattr(against, "ROOT", tmp_path / "new")
    monkeypatch.setattr(subprocess, "run", made.run)
    monkeypatch.setenv("ROOFLINE_COMMIT", "abc")
    monkeypatch.chdir(tmp_path / "new")
    return made


@pytest.mark.parametrize(("factor", "code", "verdicts"), [(1.05, 1, "1 SLOWER"), (1.0, 0, "0 SLOWER")])
def test_checkouts_take_turns_and_are_compared(stand_in, capsys, factor, code, verdicts):
    stand_in.factor = factor
    assert against.main(["../base", "3", "-k", "m16"]) == code
    base, new = ("base", None), ("new", "abc")
    assert stand_in.begun == [base, new, new, base, base, new]
    out = capsys.readouterr().out
    assert "6 runs by turns, each of 2 cases on 1 shapes, about 1 min 10 s: about 7 min in all" in out
    assert "3 a side have a standard error of 1.1 % on an idle machine" in out
    assert "below 2.2 % would not be seen in a single case; SLOWER takes 3 %" in out
    assert verdicts in out
    assert "runs: 3 BASE, 3 NEW" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("../other 3", "BASE=../other is no checkout of roofline-ffn: git worktree add ../base main makes one"),
        (". 3", "BASE=. is this checkout itself: give another"),
        ("../older 3", f"BASE=../older measures by another method than this checkout, {METHOD_VERSION}"),
        ("../base 0", "N=0 is no count of runs a side: give a whole number from 1 on"),
        ("../base 3 -k nothing", "nothing can be measured: no tests collected"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_any_run(stand_in, capsys, words, message):
    assert against.main(words.split()) == 2
    assert capsys.readouterr().err.startswith(f"make against: {message}")
    assert stand_in.begun == []


def test_a_run_that_does_not_end_well_ends_all(stand_in, capsys):
    stand_in.code = 1
    assert against.main(["../base", "3", "-k", "m16"]) == 2
    assert stand_in.begun == [("base", None)]
    assert "run 1, of base, ended with exit code 1, see above: nothing is compared" in capsys.readouterr().err


def test_make_hands_on_what_it_is_given():
    words = ["BASE=../base", "ARGS=-k 'm16 and tiled' --ffn-quick", "ENV=", "PY=python"]
    made = subprocess.run(["make", "-n", "against", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    assert 'results.against "../base" "3" -k \'m16 and tiled\' --ffn-quick\n' in made.stdout
