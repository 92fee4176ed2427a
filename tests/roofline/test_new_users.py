"""What a new user's machine and kernels do: kinds of events, each with its smallest input and the right outcome."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from roofline.host import container
from roofline.operations import contenders
from roofline.supervise import metadata

ROOT = Path(__file__).parents[2]
STRIKES = """
def strike(place, number, later=False):
    if (place, number, later) == ("first-numpy", 128, False):
        DEED
"""

FIRST_CALL = """
from roofline.supervise import limits

limits.LIMIT_S[limits.Step.CALL], limits.BASELINE_CALLS, limits.FIRST_CALL_S = {"cpu": 1.0}, 0, {"usual": 3.5}


def spin(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def compile_elsewhere():
    if pid := os.fork():
        return os.waitpid(pid, 0)
    os.setsid()
    spin(1.5)
    os._exit(0)


def strike(place, number, later=False):
    if (place, later) == ("first-numpy", False):
        DEED
"""
"""What is usual is a second without the CPU, and 3.5 with it."""
IDLE = "in its first call: it was not over in 1 s, the limit of one that uses no CPU; --ffn-first-call-seconds sets"
BUSY = "in its first call: it was not over in 3.5 s, the limit; --ffn-first-call-seconds sets another"

CALLS = [  # what a first call does, options, why it has no number
    ("spin(1.5)", "", ""),
    ("compile_elsewhere()", "", ""),
    ("time.sleep(1.5)", "--ffn-first-call-seconds=30", ""),
    ("time.sleep(60)", "", IDLE),
    ("spin(60)", "", BUSY),
    ("spin(60)", "--ffn-first-call-seconds=0.5", "it was not over in 0.5 s"),
]


@pytest.mark.parametrize(("deed", "option", "reason"), CALLS)
def test_a_first_call_has_patience_while_it_uses_the_cpu(three_shapes, deed, option, reason):
    run = three_shapes("-k", "m64", *option.split(), more=FIRST_CALL.replace("DEED", deed), shares="forks")
    assert [*run.reasons] == ["m64-numpy"] * bool(reason)
    assert run.code == bool(reason)
    assert reason in run.text


def machine_of(tmp_path, monkeypatch, files: dict[str, str]):
    """Return `roofline.host.container` on a machine whose files of Linux are these alone."""
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(container, "PROC", tmp_path / "proc")
    monkeypatch.setattr(container, "GROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(container, "affinity", lambda: 8)
    for cached in (container.memory_bytes, container.worker_bytes):
        monkeypatch.setattr(container, cached.__name__, cached.__wrapped__)
    return container


GB = 10**9
V1, V2 = "4:memory:/docker/a\n3:cpu,cpuacct:/docker/a\n2:pids:/\n", "0::/pod/a\n"
CONTAINERS = [  # files of the machine, cores, what a worker may take
    ({}, 8, None),
    ({"proc/self/cgroup": V2, "cgroup/cpu.max": "max 100000", "cgroup/pod/a/memory.max": "max\n"}, 8, None),
    ({"proc/self/cgroup": V2, "cgroup/pod/a/cpu.max": "250000 100000\n"}, 2, None),
    ({"proc/self/cgroup": V2, "cgroup/pod/cpu.max": "50000 100000"}, 1, None),
    ({"proc/self/cgroup": "0::/\n", "cgroup/cpu.max": "300000 100000", "cgroup/memory.max": "2000000000"}, 3, 2 * GB),
    ({"proc/self/cgroup": V1, "cgroup/cpu,cpuacct/docker/cpu.cfs_quota_us": "400000",
      "cgroup/cpu,cpuacct/docker/cpu.cfs_period_us": "100000"}, 4, None),
    ({"proc/self/cgroup": V1, "cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1",
      "cgroup/memory/docker/a/memory.limit_in_bytes": "9223372036854771712",
      "cgroup/memory/docker/memory.limit_in_bytes": "1000000000"}, 8, GB),
    ({"proc/meminfo": "MemTotal: 9 kB\nMemAvailable:   500000 kB\n"}, 8, 512_000_000),
]  # fmt: skip


@pytest.mark.parametrize(("files", "cores", "worker_bytes"), CONTAINERS)
def test_a_container_has_the_cores_and_the_memory_of_all_its_groups(tmp_path, monkeypatch, files, cores, worker_bytes):
    of = machine_of(tmp_path, monkeypatch, files)
    assert of.cores() == cores
    assert of.worker_bytes() == (worker_bytes or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def test_limits_of_a_process_and_what_a_share_takes_of_them():
    code = "from roofline.host import container; from roofline.worker import process; process.bind('cpu')\n"
    code += "import resource; print(container.worker_bytes(), resource.getrlimit(resource.RLIMIT_DATA)[0])"
    for limits, expected in (("-v 4000000", "2048000000 2048000000"), ("-d 1000000", "1024000000 1024000000")):
        command = f"ulimit -S {limits}; exec {sys.executable} -c {shlex.quote(code)}"
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, cwd=ROOT)
        assert done.stdout.split("\n")[0] == expected, done.stderr


MEMORY = """
from roofline.host import container

container.worker_bytes = lambda: 500_000
"""
LACKS = [  # what the first call of numpy at m128 does, why it has no number
    ("bytearray(2**60)", "numpy: out of memory: it said no more"),
    ("numpy.empty(2**60, numpy.uint8)", "numpy: out of memory: Unable to allocate 1.00 EiB"),
    ("__import__('torch').empty(2**50, dtype=__import__('torch').uint8)", "out of memory: [enforce fail"),
]


@pytest.mark.parametrize(("deed", "reason"), LACKS)
def test_what_lacks_memory_says_so_in_words_of_operands(three_shapes, deed, reason):
    run = three_shapes("-k", "m128", more=STRIKES.replace("DEED", deed))
    assert [*run.reasons] == ["m128-numpy"]
    assert reason in run.reasons["m128-numpy"][1]
    assert "two sets of x[128, 1024], w[416, 1024] and out[128, 416] take 0.00488 GB, a worker may take " in run.text


def test_a_shape_that_does_not_fit_costs_its_own_rows_and_is_known_before_it_begins(three_shapes):
    run = three_shapes(more=MEMORY.replace("500_000", "4_800_000"))
    assert "a worker may take 0.0 GB of memory" in run.text
    assert sorted(run.reasons) == ["m128-numpy", "m128-torch", "m256-numpy", "m256-torch"]
    assert {outcome for outcome, _ in run.reasons.values()} == {"skipped"}
    assert ": choose fewer --ffn-tokens, a larger --ffn-tp or a smaller --ffn-model" in run.reasons["m128-torch"][1]
    assert run.measured == ["m64-torch", "m64-numpy"]


NO_COMMIT = [  # environment, begun by git init, what the report says
    ({"GIT_TEST_ASSUME_DIFFERENT_OWNER": "1"}, True, "safe.directory {}, or set ROOFLINE_COMMIT to it."),
    ({"PATH": "/nowhere"}, True, "git could not be run (No such file or directory); set ROOFLINE_COMMIT"),
    ({}, True, "git says 'fatal: "),
    ({"LANG": "de_DE.UTF-8"}, False, "git says 'fatal: not a git repository (or any of the parent directories): .git'"),
]


@pytest.mark.parametrize(("environment", "is_repository", "told"), NO_COMMIT)
def test_an_unknown_commit_says_why_and_the_way_out(tmp_path, monkeypatch, environment, is_repository, told):
    if is_repository:
        subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert metadata.commit_of(tmp_path) == "unknown"
    assert told.format(tmp_path) in metadata.why_unknown(tmp_path)


def test_a_report_says_why_its_commit_is_unknown(three_shapes):
    run = three_shapes("-k", "m64", env={"PATH": "/nowhere"})
    assert run.code == 0
    assert "The commit is unknown: git could not be run" in run.report


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

for figures in (plots.FIGURES, plots.OF_RUN):
    figures |= dict.fromkeys(figures, lambda about: None)
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
def test_what_raises_outside_of_a_contender_ends_in_one_line(three_shapes, environment, tmp_path, name, code):
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


def test_where_nobody_reads_the_end_there_is_one_line(environment):
    """As where `head` closes the pipe while pytest sums up."""
    done = subprocess.run([sys.executable, "-c", UNREAD], env=environment(), cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert re.fullmatch(r"BrokenPipeError: .*: outside of all contenders, this ends the run\n", done.stderr)


def test_a_contender_may_lie_in_a_folder_of_any_bytes(tmp_path):
    file = Path(os.fsdecode(os.fsencode(tmp_path / "mine") + b"\xff.py"))
    file.write_text("def f(x, w, out=None):\n    return out\n")
    assert contenders.load(f"{file}::f")(1, 2, out=3) == 3
