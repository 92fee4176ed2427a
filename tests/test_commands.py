"""What the commands of kernels, the machine and a pack are told wrongly: one line, and exit code 2."""

import json

import pytest
import torch
import triton

from kernels import inspect, trial
from results import loops, unpack
from tests import hopper

INTERPRETING = "TRITON_INTERPRET is set, so nothing would be compiled; run it under `env -u TRITON_INTERPRET`"
REFUSED = [
    (inspect.main, ["tile"], "argument KERNEL: no kernel tile, there are decode, persistent,"),
    (loops.main, [], "there is nothing to do: write with --out FILE, or compare with --against FILE"),
    (loops.main, ["tile", "--out", "x"], "argument KERNEL: no kernel tile, there are decode, persistent,"),
    (loops.main, ["--against", "missing"], "argument --against: missing is none that --out has written: [Errno 2]"),
    (loops.main, ["--against", "other"], "argument --against: other is none that --out has written: it has no kernels"),
    (trial.main, [], "torch finds no GPU here: run this on a Hopper, or with --dry"),
    (hopper.main, ["tile"], "argument KERNEL: no cases of tile, there are "),
    (hopper.main, ["--perturb", "3"], "--gpu and --perturb run on a Hopper GPU, and torch finds none; without"),
    (unpack.main, ["nowhere.tar.xz", "nowhere"], "No such file or directory: 'nowhere.tar.xz'"),
]


@pytest.fixture(autouse=True, scope="module")
def imported():
    """All kernels: where they are first imported while Triton does not interpret, no later test could run them."""
    hopper.every()


@pytest.fixture
def refused(monkeypatch, tmp_path, capsys):
    """`refused(main, words, interpret)`: the line, in a folder with the file `other`, without a GPU."""

    def run(main, words, *, interpret=False) -> str:
        monkeypatch.setattr(triton.knobs.runtime, "interpret", interpret)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        monkeypatch.chdir(tmp_path)
        (tmp_path / "other").write_text(json.dumps({"triton": "3.7.1"}))
        with pytest.raises(SystemExit, match=r"^2$"):
            main(words)
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        return error

    return run


@pytest.mark.parametrize(("main", "words", "message"), REFUSED)
def test_bad_input_is_one_line_and_exit_code_2(main, words, message, refused):
    assert message in refused(main, words)


@pytest.mark.parametrize("main", [inspect.main, loops.main, hopper.main])
def test_where_triton_interprets_nothing_is_compiled(main, refused):
    assert INTERPRETING in refused(main, [], interpret=True)


def test_a_run_of_no_case_is_no_success(capsys, monkeypatch):
    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)
    assert hopper.main(["stamp", "--only", "no-case-is-called-so"]) == 1
    assert ": 0 cases under " in capsys.readouterr().out
