"""Ranks that fail, are killed, stop or hang: each ends its case or the run, named, within a bound, and nothing is lost.

Most runs are of zygote's stand-in for torchrun, whose ranks are forks. ROOFLINE_REPEAT=200 repeats what is planted.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from roofline.report.write import write
from roofline.store import journal

ROOT = Path(__file__).parents[2]
CASES = ["tests/benchmarks/test_all_gather_matmul.py", "tests/benchmarks/test_weight_prefetch.py"]
SMALL = ["--ffn-model=xxl/128", "--ffn-tp=1", "--ffn-tokens=1024,1040", "--ffn-max-seconds=0.2", "--ffn-device=cpu"]
BOUNDS = {"ROOFLINE_PATIENCE_S": "8", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "20"}
BOUND_S = 90.0
REPEATS = range(int(os.environ.get("ROOFLINE_REPEAT", "1")))


@dataclass
class Ended:
    """A run of several ranks, and what goes on with it."""

    code: int
    text: str
    folder: Path | None
    go_on: Callable[..., "Ended"]

    @property
    def kept(self) -> journal.Run:
        return journal.load(self.folder)


@pytest.fixture(scope="module")
def ranks(zygote, environment, tmp_path_factory):
    """`ranks(*arguments, fault=...)`: the end of two ranks, or `count`, that measure in a new folder."""

    def run(*arguments, fault="", count=2, into=None, timed=True) -> Ended:
        into = into or tmp_path_factory.mktemp("ranks")
        words = ["-p", "no:cacheprovider", "-p", "planted", *["--benchmark-only"] * timed, *arguments, *CASES]
        env = environment(**BOUNDS, RANKS=str(count), FAULT=fault, TMPDIR=str(into))
        code, text = zygote.run(words, cwd=str(ROOT), env=env, timeout_s=BOUND_S)
        folder = max(into.glob("results/*-*"), default=None)
        return Ended(code, text, folder, partial(run, f"--ffn-resume={folder}", into=into))

    def begin(*arguments, given=SMALL, **about) -> Ended:
        into = tmp_path_factory.mktemp("ranks")
        return run(*given, f"--ffn-results={into / 'results'}", *arguments, into=into, **about)

    return begin


@pytest.mark.parametrize("repeat", REPEATS)
@pytest.mark.parametrize(
    ("fault", "out"),
    [
        ("1 call raise", ["chunk_launches"]),
        ("0 check raise", ["chunk_launches"]),
        ("1 prepare raise", ["serial", "overlapped"]),
        ("0 plan raise", ["serial", "chunk_launches", "row_block_launches"]),
    ],
)
def test_rank_that_raises_costs_its_case_and_the_next_has_a_fresh_group(ranks, fault, out, repeat):
    run = ranks(fault=fault)
    assert "exit codes of the ranks: 1 0" in run.text
    for entry in run.kept.missing:
        assert f"rank {fault[0]}: ArithmeticError: planted (planted.py" in entry["reason"]
    assert {entry["case"].rpartition("-")[2] for entry in run.kept.missing} == set(out)
    whole = {name: run.kept.measured(name) for name in run.kept.shapes}
    assert sum(map(len, whole.values())) == 10 - len(run.kept.missing)
    assert not run.kept.interrupted


@pytest.mark.parametrize("repeat", REPEATS)
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("1 configure raise", "rank 1: failed: ArithmeticError: planted"),
        ("1 collect raise", "rank 1 has another collection than rank 0"),
        ("1 begin raise", "rank 1: ArithmeticError: planted"),
    ],
)
def test_rank_that_raises_before_anything_is_measured_ends_all_in_one_line(ranks, fault, said, repeat):
    run = ranks(fault=fault)
    assert run.text.count(said) == 1
    assert "exit codes of the ranks: 2" in run.text


@pytest.mark.parametrize("repeat", REPEATS)
@pytest.mark.parametrize(
    ("fault", "count", "said"),
    [
        ("1 call SIGKILL", 2, "rank 1 of 2 gave no verdict"),
        ("1 call python", 2, "rank 1 of 2 has said nothing for"),
        ("1 check c", 2, "rank 1 of 2 has said nothing for"),
        ("0 call SIGKILL", 2, "rank 0 of 2 gave no verdict"),
        ("0 call c", 2, "rank 0 of 2 has said nothing for"),
        ("2 call SIGKILL", 4, "rank 2 of 4 gave no verdict"),
    ],
)
def test_rank_that_is_lost_ends_the_run(ranks, fault, count, said, repeat):
    run = ranks(fault=fault, count=count)
    assert run.code == 1
    assert said in run.text
    if "call" in fault:
        assert run.kept.records()
    write(run.folder)
    assert (run.folder / "report.md").exists()
    assert run.kept.unfinished


@pytest.mark.parametrize("repeat", REPEATS)
@pytest.mark.parametrize("fault", ["0 report SIGTERM", "1 report SIGKILL"])
def test_what_torchrun_sends_at_the_end_cuts_no_writing(ranks, fault, repeat):
    run = ranks(fault=fault)
    assert run.code == 0
    assert {"report.md", "benchmark.json"} <= {path.name for path in run.folder.iterdir()}


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("1 seed 7", "rank 1 has another option seed than rank 0: 7 and not 0"),
        ("1 commit abc1234", "rank 1 has another commit than rank 0: abc1234 and not"),
        ("1 Python 3.10.0", "rank 1 has another Python than rank 0: 3.10.0 and not"),
        ("1 select less", "rank 1 has another selection than rank 0: it lacks"),
        ("0 select less", "rank 1 has another selection than rank 0: it has"),
    ],
)
def test_ranks_that_differ_are_refused_by_name(ranks, fault, said):
    run = ranks(fault=fault)
    assert run.text.count(said) == 1
    assert "exit codes of the ranks: 2 2" in run.text
    assert run.folder is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-n", "2"], "with pytest-xdist"),
        (["--ffn-resume=nowhere"], "nowhere is no run folder"),
        (["--ffn-ranks=3"], "--ffn-ranks 3: torchrun started 2"),
    ],
)
def test_what_ranks_cannot_do_is_one_line(ranks, arguments, said):
    run = ranks(*arguments, given=["--ffn-device=cpu"])
    assert run.text.count(said) == 1
    assert "exit codes of the ranks: 2 2" in run.text
    assert len(run.text.strip().splitlines()) == 2


@pytest.mark.parametrize("fault", ["0 call SIGKILL", "1 call SIGSTOP"])
def test_run_that_lost_a_rank_is_gone_on_with_by_as_many(ranks, fault):
    run = ranks(fault=fault)
    assert "it is of 2 ranks, and these are 3; start as many" in run.go_on(count=3).text
    assert not run.go_on().kept.unfinished


def test_plain_tests_check_what_gathers_on_all_ranks_and_the_rest_on_one(ranks):
    run = ranks("tests/benchmarks/test_matmul.py", "-k", "gather or prefetch or torch", timed=False)
    assert run.code == 0
    assert " passed" in run.text
    failed = ranks("tests/benchmarks/test_matmul.py", "-k", "gather or torch", timed=False, fault="1 check raise")
    assert "rank 1: ArithmeticError: planted" in failed.text
    assert "exit codes of the ranks: 1 0" in failed.text


def test_torchrun_itself(tmp_path, environment):
    """Its own agent, and a restart that it is asked for."""

    def torchrun(*words: str, fault: str) -> subprocess.CompletedProcess:
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", *words, "-m", "pytest"]
        command += ["-p", "no:cacheprovider", "-p", "planted", "--benchmark-only", *SMALL, f"--ffn-results={tmp_path}"]
        env = environment(**BOUNDS, FAULT=fault)
        return subprocess.run([*command, *CASES], cwd=ROOT, env=env, capture_output=True, text=True, timeout=BOUND_S)

    assert "torchrun --max-restarts 1: a run begins once" in torchrun("--max-restarts=1", fault="").stderr
    done = torchrun(fault="1 call SIGKILL")
    assert done.returncode == 1
    assert "rank 1 of 2 gave no verdict" in done.stdout
    assert "saved in" in done.stdout
