"""--ffn-counters from end to end, under a stand-in for Nsight Compute: counts reach records, trouble costs nothing."""

import json
from pathlib import Path

import pytest
from ncu_sample import FAKE

ALL = sorted(f"m{m}-{name}" for m in (64, 128, 256) for name in ("torch", "numpy"))
SMALL = (Path(__file__).parent / "small_project.py").read_text()

# The CPU stands in for a GPU: there is nothing to switch on in the process that is counted.
CONFTEST = f"""{SMALL}
from roofline.profile import collect, ncu

ncu.PLACES, ncu.PARAMETERS = (), Path("/nowhere")
ncu.why_not = lambda device, asked=ncu.why_not: asked("cuda")
"""
STRIKES = f"""{CONFTEST}
collect.BATCH = 1
from roofline.profile import parse as c
def counts(*arguments, made=iter(range(9)), counts=c.counts):
    if next(made) == 2: os.kill(os.getpid(), signal.SIGTERM)
    return counts(*arguments)
c.counts = counts
"""


@pytest.fixture
def count(three_shapes, tmp_path):
    """`count(*arguments)` is `three_shapes` with a stand-in for ncu on PATH, unless that is absent."""

    def run(*arguments, absent=False, conftest=CONFTEST, **more):
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        if not absent:
            (folder / "ncu").write_text(FAKE)
            (folder / "ncu").chmod(0o755)
        env = {"PATH": f"{folder}:/usr/bin:/bin", "FAKE_NCU_LOG": str(tmp_path / "asked")}
        return three_shapes(*arguments, conftest=conftest, env=env, shares=True, **more)

    return run


def counted(outcome) -> list[str]:
    return sorted(f"m{s.params['m']}-{name}" for s in outcome.kept.shapes.values() for name in s.counters)


def note_of(outcome) -> str:
    """What the report says of counters: one line."""
    (line,) = [text for text in outcome.report.splitlines() if text.startswith("- Counters:")]
    note = line.removeprefix("- ")
    assert note in outcome.text
    return note


def asked(tmp_path) -> list[list[str]]:
    return [json.loads(line) for line in (tmp_path / "asked").read_text().splitlines()]


def test_counts_of_all_cases_reach_journal_record_and_report(count, tmp_path):
    outcome = count("--ffn-counters")
    assert outcome.code == 0
    assert counted(outcome) == ALL
    assert "counted 6 of 6 cases, one call each" in note_of(outcome)
    record = outcome.rows["numpy"]["extra_info"]
    assert (record["dram_bytes"], record["l2_bytes"], record["tensor_ops"]) == (120_000, 400_000, None)
    assert record["counted_intensity"] == record["flop"] / 120_000
    assert record["counter_source"] == "ncu 2025.1.1.0; dram__bytes_read.sum + dram__bytes_write.sum; lts__t_bytes.sum"
    assert "## Counted" in outcome.report
    assert "tensor operations were not counted" in outcome.report
    first, last = asked(tmp_path)  # the first case alone, then the rest
    assert "LC_ALL=C" in first
    assert (tmp_path / "asked.codes").read_text().split() == ["0", "0"]  # the tool tells of a program that failed
    assert last[last.index("-m") + 1] == "roofline.measure.child"
    assert len(list((outcome.root / "results" / "local").iterdir())) == 1
    kinds = [line["kind"] for line in outcome.lines]
    assert kinds.index("counters") > max(index for index, kind in enumerate(kinds) if kind in ("round", "ceiling"))


def test_a_run_that_was_to_count_is_refused_without_the_tool_and_counted_later(count, tmp_path):
    """As many cases as asked for, and the vendor beside them."""
    refused = count("--ffn-counters", absent=True)
    refused.assert_refused("--ffn-counters: ncu is not on PATH: install Nsight Compute")
    outcome = count("-k", "numpy")
    assert outcome.code == 0
    assert not (tmp_path / "asked").exists()
    assert "ounte" not in outcome.report
    again = count("--ffn-counters=2", f"--ffn-resume={outcome.folder}", root=outcome.root)
    assert again.code == 0
    assert counted(again) == ["m64-numpy", "m64-torch"]
    assert "counted 2 of 2 cases" in note_of(again)
    assert outcome.kept.shapes.keys() == again.kept.shapes.keys()


@pytest.mark.slow
def test_interrupted_pass_keeps_what_it_had_and_is_gone_on_with(count):
    outcome = count("--ffn-counters", conftest=STRIKES)
    assert outcome.code == 2
    assert len(counted(outcome)) == 3
    assert "interrupted by SIGTERM: not all of the counters were read" in outcome.text
    assert "it was interrupted" in note_of(outcome)
    assert sorted(outcome.cases) == ALL
    again = count(f"--ffn-resume={outcome.folder}", root=outcome.root)
    assert again.code == 0
    assert counted(again) == ALL
