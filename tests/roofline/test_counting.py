"""--ffn-counters from end to end, under a stand-in for Nsight Compute: counts reach records, trouble costs nothing."""

import json
import os
import time
import types
from pathlib import Path

import pytest
from made_up_run import LINES, save
from ncu_sample import FAKE, HEADER, MARKER, UNITS, row

from roofline import counting
from roofline.report import journal

SMALL = (Path(__file__).parent / "small_project.py").read_text()

# The CPU stands in for a GPU: there is nothing to switch on in the process that is counted.
CONFTEST = f"""{SMALL}
import sys
from pathlib import Path

from roofline import counting
from roofline.measure import ncu

counting.STALL_S = float(os.environ.get("STALL_S", "60"))
ncu.PLACES, ncu.PARAMETERS = (), Path("/nowhere")
ncu.why_not = lambda device, asked=ncu.why_not: asked("cuda")
"""
DIES = CONFTEST.replace(
    "    index = next(calls)\n",
    "    index = next(calls)\n"
    "    if any('--ffn-counted' in a for a in sys.argv) and (name, case.m) == ('numpy', 128):\n"
    "        os.kill(os.getpid(), signal.SIGKILL)\n",
)
RAISES = DIES.replace("os.kill(os.getpid(), signal.SIGKILL)", "raise RuntimeError('an illegal memory access')")


@pytest.fixture
def count(three_shapes, tmp_path):
    """`count(*arguments, ncu=...)` is `three_shapes` with a stand-in for ncu on PATH that does what `ncu` says."""

    def run(*arguments, ncu="counts", conftest=CONFTEST, env=None, **more):
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        if ncu != "absent":
            (folder / "ncu").write_text(FAKE)
            (folder / "ncu").chmod(0o755)
        path = os.pathsep.join([str(folder), "/usr/bin", "/bin"])
        found = {"PATH": path, "FAKE_NCU": ncu, "FAKE_NCU_LOG": str(tmp_path / "asked")} | (env or {})
        return three_shapes(*arguments, conftest=conftest, env=found, **more)

    return run


def counted(outcome) -> list[str]:
    run = journal.load(outcome.folder)
    return sorted(f"m{run.shapes[shape]['m']}-{name}" for shape, name in counted_cases(run))


def counted_cases(run) -> list[tuple[str, str]]:
    return [(shape, name) for shape, about in run.shapes.items() for name in about["counters"]]


ALL = sorted(f"m{m}-{name}" for m in (64, 128, 256) for name in ("torch", "numpy"))


def told(outcome) -> str:
    """What the report says of counters: one line."""
    (line,) = [text for text in (outcome.folder / "report.md").read_text().splitlines() if text.startswith("Counters:")]
    assert line in outcome.text
    return line


def asked(tmp_path) -> list[list[str]]:
    return [json.loads(line) for line in (tmp_path / "asked").read_text().splitlines()]


def test_counts_of_all_cases_reach_journal_record_and_report(count, tmp_path):
    outcome = count("--ffn-counters")
    assert outcome.code == 0
    assert counted(outcome) == ALL
    assert "counted 6 of 6 cases, one call each" in told(outcome)
    record = outcome.rows["numpy"]["extra_info"]
    assert (record["dram_bytes"], record["l2_bytes"], record["tensor_ops"]) == (120_000, 400_000, None)
    assert record["counted_intensity"] == record["flop"] / 120_000
    assert record["counter_source"] == "ncu 2025.1.1.0; dram__bytes_read.sum + dram__bytes_write.sum; lts__t_bytes.sum"
    report = (outcome.folder / "report.md").read_text()
    assert "## Counted" in report
    assert "| FLOP/byte counted |" in report
    assert "tensor operations were not counted" in report
    first, *_, last = asked(tmp_path)
    for flag in ("--csv", "--clock-control", "--profile-from-start", "off", "application-only", "LC_ALL=C"):
        assert flag in first
    assert len(asked(tmp_path)) == 2  # the first case alone, then the rest
    assert any(argument.endswith("test_small.py") for argument in last)
    assert len(list((outcome.root / "results" / "local").iterdir())) == 1
    lines = [json.loads(line) for line in (outcome.folder / "samples.jsonl").read_text().splitlines()]
    kinds = [line["kind"] for line in lines]
    assert kinds.index("counters") > max(index for index, kind in enumerate(kinds) if kind in ("sample", "ceiling"))


def test_without_the_option_nothing_is_counted(count, tmp_path):
    outcome = count()
    assert outcome.code == 0
    assert not (tmp_path / "asked").exists()
    assert outcome.rows["numpy"]["extra_info"]["dram_bytes"] is None
    report = (outcome.folder / "report.md").read_text()
    assert "ounter" not in report
    assert "counted" not in report


def test_cpu_has_none_and_says_so(three_shapes):
    outcome = three_shapes("--ffn-counters", "-k", "m64")
    assert outcome.code == 0
    assert told(outcome) == "Counters: none were read: they are a GPU's, and this run measured the CPU."


def test_number_of_cases_is_a_choice_and_the_vendor_is_counted_beside_them(count):
    # The child has options of its own: it would refuse this one.
    outcome = count("--ffn-counters=2", "-k", "numpy", env={"PYTEST_ADDOPTS": "--ffn-seed=0"})
    assert counted(outcome) == ["m64-numpy", "m64-torch"]
    assert "counted 2 of 2 cases" in told(outcome)


@pytest.mark.parametrize(
    ("ncu", "said"),
    [
        ("absent", "none were read: ncu is not on PATH"),
        ("denied", "counted 0 of 6 cases; this user may not read the GPU's counters (ERR_NVGPUCTRPERM)"),
        ("garbage", "counted 0 of 6 cases; "),
        ("hangs", "counted 0 of 6 cases; it hung: nothing happened for 2 s"),
        ("cut", "it was cut off"),
    ],
)
def test_tool_that_cannot_count_is_told_in_one_line_and_costs_the_run_nothing(count, ncu, said, tmp_path):
    outcome = count("--ffn-counters", ncu=ncu, env={"STALL_S": "2" if ncu == "hangs" else "60"})
    assert outcome.code == 0
    assert said in told(outcome)
    assert sorted(outcome.cases) == ALL
    assert "Traceback" not in outcome.text
    assert ncu in ("absent", "cut") or len(asked(tmp_path)) == 1


def test_finished_run_can_be_counted_later(count):
    outcome = count("-k", "m64", ncu="absent")
    again = count("--ffn-counters", f"--ffn-resume={outcome.folder}", root=outcome.root)
    assert again.code == 0
    assert counted(again) == ["m64-numpy", "m64-torch"]
    assert "counted 2 of 2 cases" in told(again)
    samples = [journal.load(one.folder).shapes for one in (outcome, again)]
    assert samples[0].keys() == samples[1].keys()


def test_tool_that_cannot_be_started_is_told(count):
    broken = CONFTEST + "\nncu.find = lambda: '/nowhere/ncu'\nncu.why_not = lambda device: None\n"
    outcome = count("--ffn-counters", conftest=broken)
    assert outcome.code == 0
    assert "FileNotFoundError" in told(outcome)


def test_metric_that_the_tool_refuses_is_not_asked_for_again(count, tmp_path):
    outcome = count("--ffn-counters", ncu="refuses")
    assert counted(outcome) == ALL
    assert outcome.rows["numpy"]["extra_info"]["l2_bytes"] is None
    assert outcome.rows["numpy"]["extra_info"]["dram_bytes"] == 120_000
    metrics = [arguments[arguments.index("--metrics") + 1] for arguments in asked(tmp_path)]
    assert ["lts__t_bytes.sum" in names for names in metrics] == [True, False, False]


@pytest.mark.parametrize(
    ("conftest", "said"), [(DIES, "-m128-fp32-numpy: "), (RAISES, "-m128-fp32-numpy: RuntimeError: an illegal memory")]
)
def test_lost_case_loses_no_other(count, conftest, said):
    outcome = count("--ffn-counters", conftest=conftest)
    assert outcome.code == 0
    assert counted(outcome) == sorted(set(ALL) - {"m128-numpy"})
    assert "counted 5 of 6 cases" in told(outcome)
    assert said in told(outcome)


def test_time_that_is_over_keeps_what_was_counted(count):
    outcome = count("--ffn-counters", conftest=CONFTEST + "\ncounting.BOX_S, counting.BATCH = 0.001, 1\n")
    assert outcome.code == 0
    assert counted(outcome) == []
    assert "counted 0 of 6 cases; the 0.001 s that this may take were over" in told(outcome)


def test_interrupted_pass_keeps_what_it_had_and_is_gone_on_with(count):
    strikes = CONFTEST + (
        "\ncounting.BATCH = 1\nfrom roofline.measure import counters as c\n"
        "def counts(*arguments, made=iter(range(9)), counts=c.counts):\n"
        "    if next(made) == 2: os.kill(os.getpid(), signal.SIGTERM)\n"
        "    return counts(*arguments)\nc.counts = counts\n"
    )
    outcome = count("--ffn-counters", conftest=strikes)
    assert outcome.code == 2
    assert len(counted(outcome)) == 2
    assert "interrupted by SIGTERM: not all of the counters were read" in outcome.text
    assert "it was interrupted" in told(outcome)
    assert sorted(outcome.cases) == ALL
    again = count(f"--ffn-resume={outcome.folder}", root=outcome.root)
    assert again.code == 0
    assert counted(again) == ALL


@pytest.fixture
def session(tmp_path, monkeypatch):
    """A run of four cases, and what is noted of them; `tool(run)` has `run(batch)` in the place of Nsight Compute."""
    run = journal.load(save(tmp_path / "run", LINES))

    class Session:
        folder, options, notes = tmp_path / "run", types.SimpleNamespace(counters=0, device="cuda"), []

        def add(self, line):
            run.take(line)

        def note(self, about, text):
            self.notes.append(text)

    Session.run = run
    monkeypatch.setattr(counting.ncu, "why_not", lambda device: None)
    monkeypatch.setattr(counting.ncu, "find", lambda: "ncu")
    monkeypatch.setattr(counting.ncu, "ask", lambda *question: "")

    def tool(act):
        def run(ncu, metrics, command, *, folder, progress, seconds, **more):
            cases = json.loads((folder / "cases.json").read_text())
            said, printed, ended = act([tuple(case) for case in cases])
            progress.write_text("".join(json.dumps(line) + "\n" for line in said))
            return counting.ncu.Ended(printed, "", 1, *ended)

        monkeypatch.setattr(counting.ncu, "run", run)
        return counting.Counting(Session(), [], tmp_path, lambda text: None)

    return tool


def called(*cases):
    return [{"step": "call", "case": case, "reason": ""} for case in cases]


def test_case_that_the_end_of_the_time_cut_short_is_not_blamed(session, monkeypatch):
    monkeypatch.setattr(counting, "BOX_S", 0.2)

    def slow(batch):
        time.sleep(0.3)
        return called(batch[0]), "", (counting.ncu.OVER, True)

    count = session(slow)
    count()
    assert count.lost == {}
    assert count.session.notes == [
        "Counters: Nsight Compute of unknown version counted 0 of 4 cases; the 0.2 s that this may take were over."
    ]


def test_case_at_which_the_tool_hangs_is_given_up_and_those_before_it_are_counted_again(session):
    asked = []

    def hangs_at_second(batch):
        asked.append(batch)
        if len(batch) == 3:
            return called(*batch[:2]), "", ("it hung", False)
        rows = [row(i, kernel, *["5"] * 6) for i, kernel in enumerate([MARKER, "k"] * len(batch))]
        done = [line for case in batch for line in (*called(case), {"step": "done", "case": case, "reason": ""})]
        return done, "\n".join([HEADER, UNITS, *rows]), (None, False)

    count = session(hangs_at_second)
    count()
    assert [len(batch) for batch in asked] == [1, 3, 2]
    assert count.lost == {asked[1][1]: "it hung"}
    assert asked[2] == [asked[1][0], asked[1][2]]
    assert len(counted_cases(count.session.run)) == 3
    (note,) = count.session.notes
    assert "counted 3 of 4 cases" in note
    assert note.endswith(f"; {'-'.join(asked[1][1])}: it hung.")


def test_case_that_died_of_a_refused_metric_is_counted_without_it(session):
    def refuses_once(batch, before=[]):  # noqa: B006
        before.append(batch)
        if len(before) == 1:
            return called(*batch), "==ERROR== Failed to find metric lts__t_bytes.sum", (None, False)
        rows = [row(i, kernel, *["5"] * 6) for i, kernel in enumerate([MARKER, "k"] * len(batch))]
        done = [line for case in batch for line in (*called(case), {"step": "done", "case": case, "reason": ""})]
        return done, "\n".join([HEADER, UNITS, *rows]), (None, False)

    count = session(refuses_once)
    count()
    assert count.lost == {}
    assert len(counted_cases(count.session.run)) == 4


def test_without_timing_and_with_a_path_for_a_number_the_option_is_refused(run_project):
    plain = run_project("--ffn-counters")
    assert plain.code == 2
    assert "--ffn-counters measures: it needs --benchmark-only" in plain.text
    path = run_project("--benchmark-only", "--ffn-counters", "tests")
    assert path.code == 2
    assert "--ffn-counters 'tests': it must be a whole number, as in --ffn-counters=12" in path.text
    assert len(path.text.strip().splitlines()) == 1
    assert "--ffn-counted" not in run_project("--help").text


@pytest.mark.parametrize("count", [1, 2, 3, 12, 28])
def test_every_beginning_is_spread_over_all(count):
    order = counting.spread(list(range(count)))
    assert sorted(order) == list(range(count))
    for length in range(1, count + 1):
        chosen = sorted(order[:length])
        gaps = [b - a for a, b in zip([-1, *chosen], [*chosen, count], strict=True)]
        assert max(gaps) <= 2.7 * (count + 1) / (length + 1) + 1
