"""Command lines that a stranger types: exit codes, and one line that names the way out where something is wrong."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from roofline.commands import doctor
from roofline.host.machine import TORCH_INDEX

ROOT = Path(__file__).parents[2]
ALL, MATMUL, GATHER = (f"tests/benchmarks{file}" for file in ("", "/test_matmul.py", "/test_all_gather_matmul.py"))
LISTED = ("--benchmark-only", "--collect-only", "-q", "--ffn-device=cpu")
ODD = "--ffn-model=xxl/128", "--ffn-tp=8"
"""Sizes that fit matmuls, and no weight prefetch."""
NOISE = re.compile(r"tests collected|^$")
(CORES,) = [check for check in doctor.CHECKS if check.subject == "cores"]


@pytest.fixture
def typed(zygote, environment):
    """`typed(*words)`: exit code and output of pytest in the checkout; nothing is measured."""
    return lambda *words, cwd=ROOT: zygote.run([*words], cwd=str(cwd), env=environment())


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((ALL, "--ffn-quick"), "31 cases on 12 shapes, about 55 s"),
        ((GATHER, "--ffn-link-bandwidth", "450e9,ridge", "--ffn-ranks", "4,8"), "64 cases on 16 shapes, about "),
        ((ALL, "-k", "test_attention"), "48 cases on 12 shapes, at least "),
        ((CORES.way_out.rpartition(": ")[2],), "56 cases on 28 shapes"),  # gathers are left out
        ((MATMUL, *ODD), "28 cases on 14 shapes"),
        ((ALL, "-k", "test_matmul", *ODD), "31 cases on 15 shapes"),
    ],
)
def test_what_will_happen_is_said_at_once(typed, words, expected):
    code, text = typed(*LISTED, *words)
    assert code == 0
    assert expected in text


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--ffn-contenders=persistant",), "did you mean persistent?"),
        pytest.param(
            ("--ffn-device=cuda",),
            "this machine has no NVIDIA GPU; leave it out to use the CPU",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has one"),
        ),
        (("--ffn-token=64",), "did you mean --ffn-tokens?"),
        (("--ffn-tp=3",), "--ffn-tp: tp=3 does not divide d_ff=3328 of xxl/16: choose a divisor of it"),
        ((ALL, *ODD), "--ffn-ranks: ranks=8 does not divide the 52 that weight_prefetch shards over them"),
        (("--ffn-quick", "--ffn-resume=results/reference/nvidia-h100-80gb-hbm3-2026-11-26-6"), "leave out --ffn-quick"),
        (("--ffn-resume=results/reference/amd-epyc-2026-11-24-3",), "its options are of another version of the suite"),
    ],
)
def test_what_cannot_come_out_is_refused_in_one_line(typed, words, expected):
    code, text = typed(*LISTED, MATMUL, *words)
    assert code == 2
    (line,) = [line for line in text.splitlines() if not NOISE.search(line)]
    assert expected in line


def test_a_run_is_planned_without_torch(environment):
    code = (
        "import sys, pytest\nclass Heavy:\n    def pytest_collection_finish(self):\n"
        "        print([name for name in ('torch', 'triton', 'pandas', 'matplotlib') if name in sys.modules])\n"
        "pytest.main(sys.argv[1:], plugins=[Heavy()])"
    )
    command = [sys.executable, "-c", code, "-p", "no:hypothesispytest", *LISTED, ALL]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=True)
    assert "127 cases on 47 shapes, about 6 min 20 s" in done.stdout
    assert "\n[]\n" in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--ffn-quick", MATMUL), "--ffn-quick measures: it needs --benchmark-only"),
        (("--lf", MATMUL), "--lf: no cache of earlier tests is kept here"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_imported(typed, words, message):
    code, text = typed("--ffn-device=cpu", *words)
    assert code == 2
    assert text.startswith(f"Exit: {message}")
    assert len(text.splitlines()) == 1


def test_a_folder_behind_an_option_is_no_root(typed, tmp_path):
    """pytest takes its root from that word: the entry point begins it anew, from the checkout that it is in, and before
    what lies there is run."""
    folder = tmp_path / "with a space"
    folder.mkdir()
    (folder / "conftest.py").write_text("raise SystemExit('it was run')")
    quick = ("--benchmark-only", "--collect-only", "-q", "--ffn-device", "cpu", "--ffn-quick")
    code, text = typed("-p", "roofline_pytest", *quick, "--ffn-results", str(folder), cwd=folder)
    assert code == 0
    assert "31 cases on 12 shapes" in text


def test_without_a_checkout_our_options_are_one_line(typed, tmp_path):
    code, text = typed("-p", "roofline_pytest", "--ffn-quick", f"--rootdir={tmp_path}", cwd=tmp_path)
    assert (code, text) == (2, "--ffn-quick is an option of roofline-ffn: run pytest from its checkout\n")
    assert typed("-p", "roofline_pytest", cwd=tmp_path)[0] == 5  # no business of ours


def test_make_takes_torch_from_an_index_once(tmp_path):
    """Also where `make` has set up the environment before, with the torch that this driver is too old for."""
    (tmp_path / ".installed").touch()

    def commands():
        alone = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}  # as outside `make`
        command = ["make", "-n", "test", f"VENV={tmp_path}", f"TORCH_INDEX={TORCH_INDEX}"]
        return subprocess.run(command, cwd=ROOT, env=alone, capture_output=True, text=True).stdout.splitlines()

    clear, torch_first, project, *_ = commands()
    assert "venv --clear" in clear
    assert torch_first.endswith(f"torch --index-url {TORCH_INDEX}")
    assert "-e" in project
    (tmp_path / ".installed-cu126").touch()
    assert len(commands()) == 1
