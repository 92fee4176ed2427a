"""Ranks that fail, are killed, stop or hang: each ends the run, named, within a bound, and nothing is lost.

Most runs are of zygote's stand-in for torchrun, whose ranks are forks.
"""

import re
import socket
import subprocess
import sys
from functools import partial

import pytest
from features import unfilled
from outcome import Outcome
from zygote import environment

from conftest import ROOT
from roofline.store import journal
from roofline.theory.arms import arms_of

slow = pytest.mark.slow
CASES = ["tests/benchmarks/test_all_gather_matmul.py", "tests/benchmarks/test_weight_prefetch.py"]
SMALL = ["--ffn-model=96,384", "--ffn-tp=1", "--ffn-tokens=1024", "--ffn-max-seconds=0.05", "--ffn-device=cpu"]
GATHERS, PREFETCHES = (arms_of(op, gpu=False) for op in ("all_gather_matmul", "weight_prefetch"))
"""The arms of CASES, of which each has one shape."""
BOUNDS = {"ROOFLINE_PATIENCE_S": "60", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "60"}
OF_ONE_THAT_STOPS = {"ROOFLINE_PATIENCE_S": "24", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "1"}
BOUND_S = 240.0


@pytest.fixture(scope="module")
def ranks(zygote, tmp_path_factory):
    """`ranks(*arguments, fault=...)`: the end of two ranks, or `count`, that measure in a new folder. `more` goes into
    their environment. CASES come first: a share is forked, which it cannot be once its process computed with torch."""

    def run(*arguments, fault="", count=2, into=None, timed=True, **more) -> Outcome:
        words = ["-p", "planted", *["--benchmark-only"] * timed, *CASES, *arguments]
        bounds = OF_ONE_THAT_STOPS if fault.endswith("turns SIGSTOP") else BOUNDS
        variables = bounds | {"fault": fault, "tmpdir": into, "shares": "new"} | more
        code, text = zygote.run(*words, timeout_s=BOUND_S, ranks=count, **variables)
        folder = max(into.glob("results/*-*"), default=None)
        return Outcome(code, text, folder, partial(run, f"--ffn-resume={folder}", into=into))

    def begin(*arguments, given=SMALL, **about) -> Outcome:
        into = tmp_path_factory.mktemp("ranks")
        return run(*given, f"--ffn-results={into / 'results'}", *arguments, into=into, **about)

    return begin


ARM, BLOCKS = ["chunk_launches"], ["row_block_launches"]
RAISED, KILLED = r"ArithmeticError: planted \(planted\.py", r"signal 9 \(SIGKILL\), at its turns"
HUNG = r"hung at its {}: it was not over in 15 s, the limit.*; rank 0: {}; rank 1: {}"
STOOD, SILENT = r"it stood at {}\.py:\d+", "it does not tell where it stood"
WAITS = STOOD.format("(?:ranks|paced)")
STRUCK = [
    ("1 call SIGKILL", 2, ARM, f"rank 1: {KILLED}"),
]
STRUCK_SLOWLY = [
    ("1 matmul python", 2, BLOCKS, HUNG.format("turns", WAITS, STOOD.format("planted"))),
    ("1 call raise", 2, ARM, f"rank 1: {RAISED}"),
    ("0 check raise", 2, ARM, f"rank 0: {RAISED}"),
    ("1 prepare raise", 2, PREFETCHES, f"rank 1: {RAISED}"),
    ("0 plan raise", 2, GATHERS, f"rank 0: {RAISED}"),
    ("0 call SIGKILL", 2, ARM, f"rank 0: {KILLED}"),
    ("2 call SIGKILL", 4, ARM, f"rank 2: {KILLED}"),
    ("1 call SIGSTOP", 2, ARM, HUNG.format("turns", WAITS, SILENT)),
    ("0 call c", 2, ARM, HUNG.format("turns", STOOD.format("forked"), WAITS)),
    ("1 check c", 2, ARM, HUNG.format("first call", WAITS, STOOD.format("forked"))),
]


@pytest.mark.parametrize(
    ("fault", "count", "out", "why"), [*STRUCK, *(pytest.param(*row, marks=slow) for row in STRUCK_SLOWLY)]
)
def test_what_strikes_the_share_of_a_rank_ends_the_run_and_what_goes_on_with_it_has_all_but_its_case(
    ranks, fault, count, out, why
):
    run = ranks(fault=fault, count=count)
    assert re.search(f"the run ends at .*, by {why}", run.text)
    assert f"go on with it: torchrun --nproc-per-node={count} -m pytest --benchmark-only" in run.text
    on = run.go_on(count=count)
    assert f"exit codes of the ranks: 1{' 0' * (count - 1)}" in on.text
    failed = [missing for missing in on.kept.missing if missing.outcome == "failed"]
    assert [missing.reason for missing in failed if not re.search(why, missing.reason)] == []
    assert sorted(missing.case.rpartition("-")[2] for missing in failed) == sorted(out)
    assert len(on.kept.rows) == len(GATHERS + PREFETCHES) - len(out)
    assert not on.kept.unfinished
    assert "Traceback" not in run.text + on.text


@slow
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("1 hello raise", "ArithmeticError: planted"),
        ("1 hello SIGKILL", ""),
        ("1 start SIGKILL", "rank 1: signal 9 (SIGKILL), at its start"),
    ],
)
def test_rank_that_ends_before_anything_is_measured_ends_all(ranks, fault, message):
    run = ranks(fault=fault)
    assert message in run.text
    assert (run.code, run.folder) == (1, None)


@pytest.mark.parametrize(
    ("fault", "count", "message"),
    [
        pytest.param("1 turns SIGKILL", 2, "rank 1 of 2 has said nothing for", marks=slow),
        pytest.param("1 turns SIGSTOP", 2, "rank 1 of 2 has said nothing for", marks=slow),
        pytest.param("0 turns SIGKILL", 2, "rank 0 of 2 has said nothing for", marks=slow),
        pytest.param("2 turns SIGKILL", 4, "rank 2 of 4 has said nothing for", marks=slow),
    ],
)
def test_rank_that_is_lost_ends_the_run_blames_no_case_and_as_many_go_on_with_it(ranks, fault, count, message):
    run = ranks(fault=fault, count=count)
    assert run.code == 1
    assert message in run.text
    assert "Traceback" not in run.text
    assert run.kept.unfinished
    assert "failed" not in {missing.outcome for missing in run.kept.missing}
    if fault[0] != "0":
        assert (run.folder / "report.md").exists()
    if count == 2:
        assert "it is of 2 ranks, and these are 3; start as many" in run.go_on(count=3).text
        assert not run.go_on().kept.unfinished


@pytest.mark.parametrize(
    ("fault", "codes", "files"),
    [
        ("", "0 0", {"report.md", "benchmark.json"}),
        pytest.param("0 report SIGTERM", "0 0", {"report.md", "benchmark.json"}, marks=slow),
        pytest.param("1 end SIGKILL", "0 -9", {"report.md", "benchmark.json"}, marks=slow),
        pytest.param("0 report SIGKILL", "-9 0", {"benchmark.json"}, marks=slow),
    ],
)
def test_what_is_sent_at_the_end_cuts_no_saving(ranks, fault, codes, files):
    run = ranks(fault=fault)
    assert f"exit codes of the ranks: {codes}" in run.text
    assert files <= {path.name for path in run.folder.iterdir()}
    assert run.kept.end["cut_short"] is None
    assert not run.kept.unfinished
    assert "rank 0's node is gone" not in run.text
    assert "Traceback" not in run.text
    of_ranks = run.kept
    of_ranks.metadata["ranks"]["loopback"] = False  # as on a node for each
    assert unfilled(of_ranks, "real ranks") == []


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("1 words --ffn-seed=7", " --ffn-seed=7 and not "),
        ("1 commit abc1234", "rank 1 has another commit than rank 0: abc1234 and not"),
    ],
)
def test_ranks_that_differ_are_refused_by_name(ranks, fault, message):
    run = ranks(fault=fault)
    assert run.text.count(message) == 1
    assert "exit codes of the ranks: 2 0" in run.text
    assert run.folder is None


@pytest.mark.parametrize(
    ("argument", "restarts", "message"),
    [
        ("-n2", 0, "with pytest-xdist"),
        ("--ffn-resume=nowhere", 0, "nowhere is no run folder"),
        ("--ffn-ranks=3", 0, "--ffn-ranks under torchrun: it is of a run of one process; leave it out"),
        ("--ffn-seed=1", 1, "torchrun --max-restarts 1: a run begins once"),
    ],
)
def test_what_ranks_cannot_do_is_one_line(ranks, argument, restarts, message):
    run = ranks(argument, given=["--ffn-device=cpu"], RESTARTS=str(restarts))
    assert run.text.count(message) == 1
    assert "exit codes of the ranks: 2 0" in run.text
    assert len(run.text.strip().splitlines()) == 2


@slow
def test_plain_tests_check_what_gathers_on_all_ranks_and_the_rest_on_one(ranks):
    run = ranks("tests/benchmarks/test_matmul.py", "-k", "gather or prefetch or torch", timed=False)
    assert run.code == 0
    assert " passed" in run.text
    failed = ranks("-k", "gather", timed=False, fault="1 check raise")
    assert "rank 1: ArithmeticError: planted" in failed.text
    assert "exit codes of the ranks: 1 0" in failed.text


@slow
@pytest.mark.parametrize(
    ("fault", "codes", "message"),
    [
        ("1 turns SIGKILL", [1, 1], "rank 1 of 3 has said nothing for"),
        ("0 turns SIGKILL", [1, 1], "rank 0's node is gone"),
        ("", [0, 0], ""),
    ],
)
def test_torchrun_itself(tmp_path, fault, codes, message):
    """An agent for each of two nodes. That of a rank which is killed ends the others of its node, and the store; where
    nothing is, rank 0's node may be the first that has finished, and its store goes with it."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    words = [*SMALL, f"--ffn-results={tmp_path}", "-p", "planted", "--benchmark-only", *CASES]
    env = environment(**BOUNDS, FAULT=fault, TORCH_CPP_LOG_LEVEL="ERROR", OMP_NUM_THREADS="1")
    agents = []
    for node, count in enumerate((1, 2)):
        nodes = f"--nnodes=2 --node-rank={node} --nproc-per-node={count} --master-addr=localhost --master-port={port}"
        command = [sys.executable, "-m", "torch.distributed.run", *nodes.split(), "-m", "pytest", *words]
        with (tmp_path / f"said-{node}").open("w") as said:
            agents.append(subprocess.Popen(command, cwd=ROOT, env=env, stdout=said, stderr=subprocess.STDOUT))
    assert [agent.wait(BOUND_S) for agent in agents] == codes
    text = "".join((tmp_path / f"said-{node}").read_text() for node in range(2))
    assert message in text
    assert ("rank 0's node is gone" in text) == fault.startswith("0")
    assert "Exception raised from" not in text  # torch's own
    (folder,) = tmp_path.glob("*-*/")
    if not fault.startswith("0"):
        assert journal.load(folder).end  # whether rank 0 had been told of a pass by then is chance
        assert (folder / "report.md").exists()
