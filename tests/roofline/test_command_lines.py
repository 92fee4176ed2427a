"""Command lines that a stranger types, also in odd places: exit codes, and one line that names the way out where
something is wrong."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from zygote import environment

from conftest import ROOT
from roofline.commands import doctor
from roofline.host.machine import TORCH_INDEX
from roofline.operations import OPERATIONS

ALL, MATMUL, GATHER = (f"tests/benchmarks{file}" for file in ("", "/test_matmul.py", "/test_all_gather_matmul.py"))
LISTED = ("--benchmark-only", "--collect-only", "-q", "--ffn-device=cpu")
ODD = "--ffn-model=xxl/128", "--ffn-tp=8"
"""Sizes that fit matmuls, and no weight prefetch."""
NOISE = re.compile(r"tests collected|^$")
OF_ATTENTION = pytest.mark.skipif("attention" not in OPERATIONS, reason="its folder was taken out")
(CORES,) = [check for check in doctor.CHECKS if check.subject == "cores"]


@pytest.fixture
def typed(zygote):
    """`typed(*words, NAME=value)`: exit code and output of pytest in the checkout; nothing is measured."""
    return zygote.run


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((ALL, "--ffn-quick"), "31 cases on 12 shapes, about 55 s"),
        ((GATHER, "--ffn-link-bandwidth", "450e9,ridge", "--ffn-ranks", "4,8"), "64 cases on 16 shapes, about "),
        pytest.param((ALL, "-k", "test_attention"), "48 cases on 12 shapes, at least ", marks=OF_ATTENTION),
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
        (("--benchmark-compare-fail=mean:5%",), "--benchmark-compare-fail needs --benchmark-compare"),
        (("--ffn-tp=3",), "--ffn-tp: tp=3 does not divide d_ff=3328 of xxl/16: choose a divisor of it"),
        ((ALL, *ODD), "--ffn-ranks: ranks=8 does not divide n=52, which weight_prefetch shards over them"),
        (("--ffn-resume=results/reference/amd-epyc-2026-11-24-3",), "its options are of another version of the suite"),
    ],
)
def test_what_cannot_come_out_is_refused_in_one_line(typed, words, expected):
    code, text = typed(*LISTED, MATMUL, *words)
    assert code == 2
    (line,) = [line for line in text.splitlines() if not NOISE.search(line)]
    assert expected in line


def test_a_run_is_planned_without_torch(light):
    assert "127 cases on 47 shapes, about 6 min 20 s" in light(6.5, "pytest", "-s", *LISTED, ALL)


TIMED = "--benchmark-only "


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--ffn-quick", "--ffn-quick measures: it needs --benchmark-only"),
        ("--lf", "--lf: no cache of earlier tests is kept here"),
        (TIMED + "--ffn-decide=3", "'3' is no share between 0 and 100 %"),
        (TIMED + "--ffn-fail-slower", "without a margin; add --ffn-decide"),
        (TIMED + "--ffn-device=cdua", "--ffn-device 'cdua': it is one of auto, cpu, cuda; did you mean cuda?"),
        (TIMED + "--ffn-resume=results", "results is no run folder"),
        (TIMED + "--ffn-steady=tests", "'tests' is not a whole number from 0 on"),
        (TIMED + "-n2", "tests side by side disturb one another; leave out -n"),
    ],
)
def test_what_cannot_be_timed_is_refused_in_one_line(typed, words, message):
    assert_refused(typed("--ffn-device=cpu", MATMUL, *words.split()), message)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("TRITON_INTERPRET", "true", "interpreted kernels are never timed"),
        ("WORLD_SIZE", "2", "WORLD_SIZE=2 without RANK, MASTER_ADDR, MASTER_PORT: start several ranks"),
    ],
)
def test_an_environment_in_which_nothing_can_be_timed_is_refused_in_one_line(typed, name, value, message):
    assert_refused(typed("--ffn-device=cpu", MATMUL, "--benchmark-only", **{name: value}), message)


def assert_refused(ended: tuple[int, str], message: str) -> None:
    code, text = ended
    assert code == 2
    assert message in text
    assert len(text.strip().splitlines()) == 1


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


ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii", "PYTHONCOERCECLOCALE": "0"}


ENVIRONMENTS = {  # variables, end of the folder's name, what a shell puts behind the command
    "ascii": (ASCII, b"\xc3\xbc", ""),
    "bytes": ({"LC_ALL": "C.UTF-8"}, b"\xff", ""),
    "nobody": ({"HOME": "-"}, b"", ""),
    "missing": ({"HOME": "/nonexistent", "TMPDIR": "/nowhere", "TERM": "", "COLUMNS": "x"}, b"", ""),
    "closed": ({}, b"", "<&- >&-"),
    "full": ({}, b"", ">/dev/full"),
    "head": ({}, b"", "| head -c 1"),
}


BEGIN = """
import os, pwd, sys

if os.environ["HOME"] == "-":
    del os.environ["HOME"]
    pwd.getpwuid = {}.__getitem__
run, contender, out = sys.argv[1:]
"""


COMMANDS = """
from roofline.report import plots
from roofline.commands.cli import main

plots.FIGURES, plots.timeline = {}, lambda run: None
for words in (["--version"], ["account"], ["csv", run], ["compare", run, run], ["report", run], ["counters", run],
              ["csv", run + "/nothing"], ["report", run + "/nothing"], ["nonsense"]):
    try:
        code = main(words)
    except SystemExit as stop:
        code = stop.code
    with open(out, "a") as file:
        print(code, file=file)
"""


BENCH = """
import pytest

words = "--benchmark-only", "--collect-only", "-q", "--ffn-device=cpu", "tests/benchmarks/test_matmul.py"
for more in (f"--ffn-contender={contender}::f", f"--ffn-contender={contender}::none", "--ffn-ranks=x"):
    code = pytest.main([*words, "--ffn-tokens=1", more, "-p", "no:cacheprovider"])
    with open(out, "a") as file:
        print(int(code), file=file)
"""


USUAL = "ascii", "nobody", "closed"


ROWS = [
    pytest.param(name, code, id=f"{name}-{command}", marks=[pytest.mark.slow] * (name not in USUAL or code == BENCH))
    for name in ENVIRONMENTS
    for command, code in (("roofline", COMMANDS), ("bench", BENCH))
]


@pytest.mark.parametrize(("name", "code"), ROWS)
def test_what_raises_outside_of_a_contender_ends_in_one_line(three_shapes, tmp_path, name, code):
    variables, end, redirected = ENVIRONMENTS[name]
    folder, mine = (tmp_path / f"{word}{os.fsdecode(end)}" for word in ("run", "mine"))
    shutil.copytree(three_shapes("-k", "m64").folder, folder)
    mine.with_suffix(".py").write_text("def f(x, w, out=None):\n    return out\n")
    commands, codes = tmp_path / "commands.py", tmp_path / "codes"
    commands.write_text(BEGIN + code)
    words = shlex.join(map(str, [sys.executable, commands, folder, mine.with_suffix(".py"), codes]))
    about = {"env": environment(**variables), "cwd": ROOT, "capture_output": True}
    done = subprocess.run(["sh", "-c", os.fsencode(f"{words} {redirected}")], **about)
    printed = done.stderr + done.stdout
    assert b"Traceback" not in printed
    assert b"INTERNALERROR" not in printed
    if (code, name) in [(BENCH, "full"), (BENCH, "head")]:
        assert len(done.stderr.splitlines()) == 1
    elif name in ("full", "head"):
        assert {*codes.read_text().split()} <= {"0", "2"}
    else:
        assert codes.read_text().split() == (["0"] * 5 + ["2"] * 4 if code == COMMANDS else ["0", "0", "2"])
        assert code == BENCH or len(done.stderr.splitlines()) == 4 + (
            name == "closed"
        )  # where argparse prints the version


UNREAD = """
import pytest

class Summary:
    def pytest_sessionfinish(self):
        raise BrokenPipeError(32, "Broken pipe")

words = "--benchmark-only", "--collect-only", "-q", "--ffn-device=cpu", "tests/benchmarks/test_matmul.py"
pytest.main([*words, "-p", "no:cacheprovider"], plugins=[Summary()])
"""


def test_where_nobody_reads_the_end_there_is_one_line():
    """As where `head` closes the pipe while pytest sums up."""
    done = subprocess.run([sys.executable, "-c", UNREAD], env=environment(), cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert re.fullmatch(r"BrokenPipeError: .*: outside of all contenders, this ends the run\n", done.stderr)


def test_a_reader_that_has_read_enough_is_no_error():
    command = [sys.executable, "-m", "roofline", "account", "--fsdp", "8"]
    done = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT)
    done.stdout.close()
    assert (done.stderr.read(), done.wait()) == (b"", 0)


def test_doctests_of_every_package_run(pytestconfig):
    """Plain `pytest`, as `make test` calls it, looks for them in the folders of `testpaths` alone."""
    packages = {path.parent for path in ROOT.glob("[!.]*/__init__.py")}
    examples = {package.name for package in packages if any(">>> " in p.read_text() for p in package.rglob("*.py"))}
    assert {"kernels", "collectives", "roofline"} <= examples <= set(pytestconfig.getini("testpaths"))


def test_where_benchmarks_are_timed_only_they_are_imported(pytestconfig):
    ignored = pytestconfig.pluginmanager.get_plugin(str(ROOT / "conftest.py")).pytest_ignore_collect
    timed, tests = (SimpleNamespace(option=SimpleNamespace(benchmark_only=timed)) for timed in (True, False))
    for path in ("kernels/tiled.py", "collectives", "roofline/theory/work.py", "tests/kernels/test_matmul.py"):
        assert ignored(ROOT / path, timed)
        assert not ignored(ROOT / path, tests)
    assert not ignored(ROOT / "tests/benchmarks/test_matmul.py", timed)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("", "required: command"),
        ("acount", "did you mean account?"),
        ("report nowhere", "nowhere is no run folder"),
        ("compare a", "of 1 runs, which are NEW?"),
        ("compare a b c", "of 3 runs, which are NEW?"),
        ("compare a a --new b", "a is given twice on one side"),
        ("account --fdsp 8", "unrecognized arguments: --fdsp 8; did you mean --fsdp?"),
        ("account --model xxk", "unknown model 'xxk': did you mean xxl?"),
        ("account --chip h100", "unknown chip 'h100': known are H100 SXM, H100 PCIe, H200"),
        ("account --memory 80", "'80' is no size above 0 in GB or GiB, as 80GB or 80GiB (a GiB is 2**30 bytes)"),
        ("account --tokens -5", "'-5' is not a whole number of tokens, 0 to 1e15"),
        ("account --flops 275", "'275' is below 1e+09: did you mean 275e12 FLOP/s, which is 275 TFLOP/s?"),
        ("account --case l1-d70-b1-t1-step-fp32", "the width is a multiple of 64"),
        ("account --tp 9", "--tp 9 does not divide F = 53248: take a divisor of it"),
        ("account --tp 13", "tp=13: groups of 13 devices do not pack into nodes of 8: let them divide it"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, expected, refused):
    assert expected in refused(*arguments.split())


def test_a_package_that_is_missing_is_named_with_the_way_out(monkeypatch, refused):
    monkeypatch.setitem(sys.modules, "pandas", None)
    run = str(ROOT / "results/reference/nvidia-h100-80gb-hbm3-2026-11-26-6")
    assert "it needs pandas, which this Python lacks: python3 -m pip install pandas" in refused("compare", run, run)
