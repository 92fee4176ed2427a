"""--ffn-counters from end to end, under a stand-in for Nsight Compute: counts reach records, and later ones too."""

import json
from pathlib import Path

import pytest
from ncu_sample import FAKE

# The CPU stands in for a GPU: there is nothing to switch on in the process that is counted.
CONFTEST = f"""{(Path(__file__).parent / "small_project.py").read_text()}
from roofline.profile import ncu

ncu.PLACES, ncu.PARAMETERS = (), Path("/nowhere")
ncu.why_not = lambda device, asked=ncu.why_not: asked("cuda")
"""


@pytest.fixture
def count(three_shapes, tmp_path):
    """`count(*arguments)` is `three_shapes` with a stand-in for ncu on PATH, unless that is absent."""

    def run(*arguments, absent=False, **more):
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        if not absent:
            (folder / "ncu").write_text(FAKE)
            (folder / "ncu").chmod(0o755)
        env = {"PATH": f"{folder}:/usr/bin:/bin", "FAKE_NCU_LOG": str(tmp_path / "asked")}
        return three_shapes(*arguments, conftest=CONFTEST, env=env, shares=True, **more)

    return run


def counted(outcome) -> list[str]:
    return sorted(f"m{s.params['m']}-{name}" for s in outcome.kept.shapes.values() for name in s.counters)


def test_counts_of_all_cases_reach_journal_record_and_report(count, tmp_path):
    outcome = count("--ffn-counters")
    assert outcome.code == 0
    assert counted(outcome) == sorted(f"m{m}-{name}" for m in (64, 128, 256) for name in ("torch", "numpy"))
    assert "counted 6 of 6 cases, one call each" in outcome.text
    record = outcome.rows["numpy"]["extra_info"]
    assert (record["dram_bytes"], record["l2_bytes"], record["tensor_ops"]) == (120_000, 400_000, None)
    assert record["counted_intensity"] == record["flop"] / 120_000
    assert record["counter_source"] == "ncu 2025.1.1.0; dram__bytes_read.sum + dram__bytes_write.sum; lts__t_bytes.sum"
    assert "## Counted" in outcome.report
    assert "tensor operations were not counted" in outcome.report
    assert outcome.report.count("- Counters: ") == 1
    first, _ = map(json.loads, (tmp_path / "asked").read_text().splitlines())  # the first case alone, then the rest
    about = " ".join(first)
    for words in ("--print-units base", "--clock-control none", "--cache-control all", "--profile-from-start off"):
        assert words in about
    assert about.endswith("LC_ALL=C")
    kinds = [line["kind"] for line in outcome.lines]
    assert kinds.index("counters") > max(index for index, kind in enumerate(kinds) if kind in ("round", "ceiling"))


def test_a_run_that_was_to_count_is_refused_without_the_tool_and_counted_later(count, tmp_path):
    """As many cases as asked for, and the vendor beside them."""
    refused = count("--ffn-counters", absent=True)
    refused.assert_refused("--ffn-counters: ncu is not on PATH: install Nsight Compute")
    outcome = count("-k", "numpy")
    assert outcome.code == 0
    assert not (tmp_path / "asked").exists()
    again = count("--ffn-counters=2", f"--ffn-resume={outcome.folder}", root=outcome.root)
    assert again.code == 0
    assert counted(again) == ["m64-numpy", "m64-torch"]
    assert "counted 2 of 2 cases" in again.text
    assert outcome.kept.shapes.keys() == again.kept.shapes.keys()
