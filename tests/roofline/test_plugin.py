"""The harness from end to end: known durations in, exactly those statistics out; and its silent failures, made loud."""

import json
import re
import statistics
import types
from types import SimpleNamespace

import pytest

from roofline.pytest_plugin import hooks, narrator

TORCH = [0.002, 0.0021, 0.0019, 0.0025]
NUMPY = [0.001, 0.0011, 0.0009, 0.0010]
SHAPE = "matmul-xxl/16-up-tp8-m64-fp32"
FLOP = 2 * 64 * 416 * 1024

OWN = """
import time
import pytest


@pytest.mark.benchmark(group="ffn", timer=time.perf_counter)
@pytest.mark.parametrize("shape, contender", [("matmul-xxl/16-up-tp8-m64-fp32", "torch")])
def test_matmul(request, {fixture}shape, contender):
    {first}(shape, contender)
"""
SHADOWED = OWN.format(fixture="ffn_benchmark, ", first="ffn_benchmark")
ROGUE = (
    SHADOWED
    + """
from pytest_benchmark.fixture import BenchmarkFixture

BenchmarkFixture._timer = property(lambda self: time.perf_counter, lambda self, timer: None)
"""
)
HIDDEN = OWN.format(fixture="", first="request.getfixturevalue('ffn_benchmark')")


@pytest.fixture(scope="module")
def timed(run_project):
    return run_project("--benchmark-only", draw=1)


def samples(outcome, name):
    return list(outcome.kept.shapes[SHAPE].times_s(name).values())


def test_saved_statistics_are_those_of_the_known_durations(timed):
    assert timed.rows.keys() == {"torch", "numpy"}
    for name, durations in (("torch", TORCH), ("numpy", NUMPY)):
        row = timed.rows[name]
        assert "data" not in row["stats"]
        data = samples(timed, name)
        assert data == [durations[i % 4] for i in range(len(data))]
        assert len(data) >= 30
        assert (row["stats"]["median"], row["stats"]["min"]) == (statistics.median(data), min(durations))
        assert (row["options"]["timer"], row["group"]) == ("fake_clock_replay", "ffn")
        assert all(isinstance(value, str | int | float | None) for value in row["extra_info"].values())


def test_cases_without_a_number_are_named_with_their_reason(timed):
    assert timed.code == 1  # the wrong one fails
    reasons = {entry["case"]: (entry["outcome"], entry["reason"]) for entry in timed.saved["not_measured"]}
    assert reasons == {
        f"{SHAPE}-wrong": ("failed", "wrong: relative error 1 is above 1e-05"),
        f"{SHAPE}-unable": ("skipped", "unable: needs a Hopper GPU"),
    }
    assert f"skipped: {SHAPE}-unable: unable: needs a Hopper GPU" in timed.text
    assert "fixture was not used at all" not in timed.text


def test_json_has_the_ceilings_and_no_host_name(timed):
    info, ceilings = timed.saved["machine_info"], timed.saved["ceilings"]
    assert "node" not in info
    assert info["chip"]
    assert {(c["ceiling"], c["when"]) for c in ceilings} == {(kind, "start") for kind in ("matmul", "read", "copy")}


def test_run_folder_is_complete_and_the_terminal_says_what_was_measured(timed):
    files = "benchmark.json memory_roofline.png memory_roofline.svg report.html report.md samples.jsonl"
    assert sorted(path.name for path in timed.folder.iterdir()) == files.split()
    assert f"{SHAPE}-numpy" not in timed.text  # its row is in the table
    assert timed.text.count("of roof") == 1  # in the head of the table, whose ceilings are the final ones
    assert "Triton kernels were not timed" in timed.text


def test_pytest_benchmark_reads_the_file_and_compares_where_that_is_asked_for(run_project):
    first = run_project("--benchmark-only", "-k", "torch", "--benchmark-autosave")
    assert "Legend:" not in first.text
    again = run_project("--benchmark-only", "-k", "torch", "--benchmark-compare", root=first.root, slower=2)
    assert "(NOW)" in again.text
    assert "machine_info is different" not in again.text
    assert "Wrote benchmark data in: the run's folder" in again.text


def test_k_measures_the_vendor_beside_the_one_selected(run_project, tmp_path):
    mine = tmp_path / "mine.json"
    outcome = run_project("--benchmark-only", "-k", "numpy", "--benchmark-json", str(mine))
    assert outcome.code == 0
    assert outcome.rows.keys() == {"numpy"}
    assert outcome.rows["numpy"]["extra_info"]["ratio_to_baseline"] == pytest.approx(2, rel=0.1)
    assert [*outcome.kept.rows] == [(SHAPE, "torch"), (SHAPE, "numpy")]
    assert json.loads(mine.read_text()) == outcome.saved  # the run folder is whole, too


def test_marker_with_a_timer_does_not_shadow_ours(run_project):
    outcome = run_project("--benchmark-only", tests=SHADOWED)
    assert outcome.code == 0
    assert outcome.rows["torch"]["options"]["timer"] == "fake_clock_replay"
    assert samples(outcome, "torch")[:4] == TORCH


@pytest.mark.parametrize(
    ("tests", "message"),
    [(ROGUE, "took another timer than the one that replays"), (HIDDEN, "make ffn_benchmark an argument of the test")],
    ids=["timer swapped", "fixture unseen"],
)
def test_what_would_save_another_number_fails_and_gets_none(run_project, tests, message):
    outcome = run_project("--benchmark-only", tests=tests)
    assert outcome.code != 0
    assert message in outcome.text
    assert outcome.folder is None or outcome.rows == {}


def test_the_matmul_ceiling_is_that_of_the_fastest_of_all_contenders_and_probes(run_project):
    outcome = run_project("--benchmark-only", "-k", "torch or numpy", slower=0.01)
    record = outcome.rows["numpy"]["extra_info"]
    assert record["of_roof"] > 1  # of the probe beside it
    assert re.search(
        rf"matmul: {record['tflops']:.2f} \[[\d., ]+\] TFLOP/s fp32 measured \({SHAPE}-numpy\)", outcome.text
    )


def test_a_time_that_no_kernel_of_this_machine_can_have_fails_its_case_alone(run_project):
    outcome = run_project("--benchmark-only", "-k", "torch or numpy", slower=0.004)
    assert (outcome.code, [*outcome.rows]) == (1, ["torch"])
    ((kind, reason),) = outcome.reasons.values()
    assert kind == "failed"
    limit = "0.0545 GFLOP at 12.29 TFLOP/s (32 cores at 6 GHz, 64 a cycle by avx512f) take 4.44 us; have"
    assert reason.startswith(f"numpy: faster than the chip can be: 4.00 us, where {limit}")


def test_a_cpu_of_unknown_instructions_has_no_floor_and_the_report_says_so(run_project):
    more = "\nINSTRUCTION_SETS.clear()\n"
    outcome = run_project("--benchmark-only", "-k", "torch or numpy", slower=0.004, more=more)
    assert (outcome.code, [*outcome.rows]) == (0, ["torch", "numpy"])
    assert "No floor under times of fp32: /proc/cpuinfo names no instruction set" in outcome.report


def test_plain_pytest_checks_and_times_nothing(run_project):
    outcome = run_project()
    assert "1 failed, 2 passed, 1 skipped" in outcome.text
    assert outcome.folder is None
    pytest.importorskip("xdist")
    assert "1 failed, 2 passed, 1 skipped" in run_project("-n", "1").text


@pytest.mark.parametrize(("argument", "code"), [("--collect-only", 0), ("-knothing_of_that_name", 5)])
def test_run_of_nothing_makes_no_folder(run_project, argument, code):
    outcome = run_project("--benchmark-only", argument)
    assert (outcome.code, outcome.folder) == (code, None)


def test_other_folders_work_and_runs_that_begin_within_a_second_have_each_its_own(run_project, tmp_path):
    name = "20261121T080910Z-chip-2"
    at_once = f"\nfrom roofline.pytest_plugin import metadata\nmetadata.folder_name = lambda device: {name!r}\n"
    first = run_project("--benchmark-only", "-n", "0", "-k", "torch", more=at_once)
    before = (first.folder / "samples.jsonl").read_bytes()
    about = {"root": first.root, "cwd": tmp_path, "more": at_once}
    second = run_project("--benchmark-only", "-k", "numpy", str(first.root), **about)
    assert (first.folder.name, second.folder.name) == (name, f"{name}-2")
    assert second.folder.parent == first.root / "results" / "local"
    assert (first.folder / "samples.jsonl").read_bytes() == before
    assert second.rows.keys() == {"numpy"}
    assert f"saved in {second.folder}: benchmark.json, " in second.text


def test_report_that_fails_costs_no_data(run_project):
    broken = "\nfrom roofline.report import tables\ntables.markdown = lambda *a: [].pop()\n"
    outcome = run_project("--benchmark-only", "-k", "numpy or torch", more=broken)
    assert outcome.code == 1
    assert "IndexError: pop from empty list" in outcome.text
    assert ": benchmark.json, samples.jsonl\n" in outcome.text
    assert outcome.rows.keys() == {"torch", "numpy"}


@pytest.mark.parametrize("option", ["usepdb", "trace"])
def test_shares_run_in_this_process_where_somebody_looks_around_in_it(option):
    options = types.SimpleNamespace(**dict.fromkeys(("usepdb", "trace"), False) | {option: True})
    assert hooks.runs_here(types.SimpleNamespace(option=options))


NO_COMPILER = """
from roofline.host.telemetry import CpuTelemetry


def make():
    raise RuntimeError("Failed to find C compiler. Please specify via CC environment variable")


Runner.instruments = lambda self: make
CpuTelemetry.lacking = "No clock and power: NVML is not there."
"""


def test_without_a_c_compiler_or_telemetry_the_run_goes_on_and_says_so(run_project):
    outcome = run_project("--benchmark-only", "-k", "torch or numpy", more=NO_COMPILER)
    assert outcome.code == 0, outcome.text
    assert outcome.rows.keys() == {"torch", "numpy"}
    assert "install them (gcc, python3-dev): not supported: Failed to find C compiler" in outcome.text
    assert "No clock and power: NVML is not there." in outcome.text


def test_the_summary_names_who_failed(run_project):
    assert "\nFAILED test_small.py::test_matmul[" in run_project("--benchmark-only", "-k", "wrong").text


def test_a_log_has_a_line_of_progress_every_ten_seconds(fake_time):
    clock, lines = fake_time(narrator), []
    clock.seconds = 100.0
    reporter = SimpleNamespace(write_line=lines.append, flush=lambda: None)
    config = SimpleNamespace(pluginmanager=SimpleNamespace(get_plugin={"terminalreporter": reporter}.get))
    made = narrator.Narrator(config, SimpleNamespace())
    for text in "first", "too soon", "third":
        made.progress(text)
        clock.sleep(6)
    assert lines == ["first", "third"]
