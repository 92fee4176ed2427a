"""Each fault is injected into a run of its own, and the data is there afterwards, with a reason for all that is not."""

import subprocess
import sys
from pathlib import Path

import pytest

from roofline.measure import device_errors
from roofline.store import journal

CONFTEST = (Path(__file__).parent / "small_project.py").read_text()

ALL = ["m64-torch", "m64-numpy", "m128-torch", "m128-numpy", "m256-torch", "m256-numpy"]


def test_run_without_a_fault_measures_all(three_shapes):
    outcome = three_shapes()
    assert outcome.code == 0
    assert sorted(outcome.cases) == sorted(ALL)
    assert "not_measured" in outcome.saved
    assert not outcome.saved["not_measured"]
    assert "go on with it" not in outcome.text


def test_contender_that_was_left_out_without_a_word_is_a_failure(three_shapes):
    forgets = CONFTEST.replace('        strike("prepared", case)', '        found.entrants.pop("numpy", None)')
    outcome = three_shapes("-k", "m64", conftest=forgets)
    assert outcome.code == 1
    assert "ffn_prepare left out numpy" in outcome.text
    assert outcome.cases == ["m64-torch"]
    plain = three_shapes("-k", "m64 and numpy", conftest=forgets, timed=False)
    assert plain.code == 1
    assert "ffn_prepare left out numpy" in plain.text


def test_operands_that_do_not_fit_skip_their_shape(three_shapes):
    outcome = three_shapes(fault="prepare 128 MemoryError")
    assert outcome.code == 0
    assert sorted(outcome.cases) == sorted(set(ALL) - {"m128-torch", "m128-numpy"})
    assert outcome.reasons["m128-numpy"] == ("skipped", "numpy: out of memory: 12 GiB asked for")


@pytest.mark.parametrize(
    ("fault", "code", "outcome", "said"),
    [
        ("crash", 1, "failed", "numpy: RuntimeError: no such instruction (small_project.py:"),
        ("MemoryError", 0, "skipped", "numpy: out of memory: 12 GiB asked for"),
    ],
)
def test_contender_that_dies_while_it_is_timed_leaves_the_others_theirs(three_shapes, fault, code, outcome, said):
    run = three_shapes(fault=f"numpy 128 {fault}")
    assert run.code == code
    assert sorted(run.cases) == sorted(set(ALL) - {"m128-numpy"})
    assert run.reasons.keys() == {"m128-numpy"}
    assert run.reasons["m128-numpy"][0] == outcome
    assert run.reasons["m128-numpy"][1].startswith(said.replace("small_project.py", "conftest.py"))
    assert not journal.load(run.folder).interrupted


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [(["-k", "m128"], "prepare 128 MemoryError"), (["-k", "m128 and numpy"], "numpy 128 MemoryError")],
)
def test_run_that_could_measure_nothing_that_was_asked_for_is_a_failure(three_shapes, arguments, fault):
    outcome = three_shapes(*arguments, fault=fault)
    assert outcome.code == 1
    assert outcome.cases == []
    assert outcome.reasons["m128-numpy"] == ("skipped", "numpy: out of memory: 12 GiB asked for")
    assert "nothing that was asked for could be measured, for the reasons above" in outcome.text


def test_own_json_is_written_where_no_case_has_a_number(three_shapes, tmp_path):
    run = three_shapes(f"--benchmark-json={tmp_path / 'mine.json'}", fault="prepared 64 SIGTERM")
    assert run.code == 2
    assert len(run.saved["not_measured"]) == 6
    assert (run.folder / "report.md").exists()


def test_disk_that_fills_up_keeps_what_was_written_and_says_so(three_shapes):
    conftest = CONFTEST + "\nimport roofline.store.journal as journal\njournal.ROOM_BYTES = 0\n"
    outcome = three_shapes(conftest=conftest, file_bytes=100_000)
    assert outcome.code == 1
    assert "the journal could not be written: File too large" in outcome.text
    assert outcome.measured == ["m64-torch", "m64-numpy"]
    assert outcome.reasons["m256-torch"] == ("not_run", "the journal could not be written: File too large")
    assert outcome.reasons["m128-torch"] == outcome.reasons["m256-torch"]
    again = three_shapes(f"--ffn-resume={outcome.folder}", root=outcome.root)
    assert again.code == 0
    assert sorted(again.cases) == sorted(ALL)


def test_full_disk_is_told_before_anything_is_measured(three_shapes):
    outcome = three_shapes(file_bytes=1_000_000)
    assert outcome.code == 2
    assert "cannot write the run folder" in outcome.text
    assert "File too large; choose another with --ffn-results=DIR" in outcome.text
    assert outcome.folder is None


def test_json_that_cannot_be_saved_costs_neither_journal_nor_report(three_shapes):
    blocked = CONFTEST.replace(
        'strike("prepared", case)',
        "import pathlib\n"
        '        for folder in pathlib.Path("results/local").iterdir():\n'
        '            folder.joinpath("benchmark.json").mkdir(exist_ok=True)',
    )
    outcome = three_shapes(conftest=blocked)
    assert outcome.code == 1
    assert "benchmark.json could not be written" in outcome.text
    assert sorted(outcome.measured) == sorted(ALL)
    assert "m256-fp32 | numpy |" in (outcome.folder / "report.md").read_text()


def test_ceilings_that_fail_at_the_end_cost_no_row(three_shapes):
    once = CONFTEST.replace(
        'Probe("copy", "known", 2e9, lambda: 1e-3)',
        'Probe("copy", "known", 2e9, lambda left=iter([1e-3] * 200): next(left))',
    )
    outcome = three_shapes(conftest=once)
    assert sorted(outcome.cases) == sorted(ALL)
    entries = {entry["case"]: entry for entry in outcome.saved["not_measured"]}
    assert entries["ceilings-end"]["outcome"] == "failed"
    assert outcome.code == 1


def test_ceilings_that_fail_at_the_start_end_the_run_with_their_reason(three_shapes):
    broken = CONFTEST.replace('Probe("copy", "known", 2e9, lambda: 1e-3)', 'Probe("copy", "known", 2e9, lambda: 1 / 0)')
    outcome = three_shapes(conftest=broken)
    assert outcome.code == 1
    assert {reason for _, reason in outcome.reasons.values()} == {
        "the ceilings could not be measured: ZeroDivisionError: division by zero (conftest.py:%s)"
        % (broken[: broken.index("1 / 0")].count("\n") + 1)
    }
    assert "6 skipped" in outcome.text
    assert {entry["case"] for entry in outcome.saved["not_measured"]} >= {"matmul-xxl/16-up-tp8-m64-fp32-numpy"}


def test_x_stops_at_the_first_failure_and_the_rest_has_a_reason(three_shapes):
    outcome = three_shapes("-x", fault="numpy 128 crash")
    assert outcome.code == 1
    assert outcome.reasons["m256-torch"] == ("not_run", "stopping after 1 failures")
    assert sorted(outcome.cases) == ["m128-torch", "m64-numpy", "m64-torch"]
    again = three_shapes(f"--ffn-resume={outcome.folder}", root=outcome.root)
    assert sorted(again.cases) == sorted(set(ALL) - {"m128-numpy"})


@pytest.mark.parametrize(
    ("error", "outcome", "said"),
    [
        (MemoryError("12 GiB"), "out of memory", "out of memory: 12 GiB"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: 9"), "out of memory", "out of memory: Default"),
        (NotImplementedError("no fp8 here"), "not supported", "not supported: no fp8 here"),
        (type("OutOfResources", (Exception,), {})("shared memory, Required: 3"), "not supported", "not supported: sha"),
        (ValueError("K\nis odd"), None, "ValueError: K"),
    ],
)
def test_what_an_exception_means(error, outcome, said):
    assert device_errors.lack(error) == outcome
    assert device_errors.reason(error).startswith(said)
    assert "\n" not in device_errors.reason(error)


@pytest.mark.parametrize("lacks", ["compiler", "Python.h"])
def test_triton_without_what_it_compiles_its_loader_with_is_no_crash(lacks, monkeypatch, tmp_path):
    build = pytest.importorskip("triton.runtime.build")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    if lacks == "compiler":
        monkeypatch.delenv("CC", raising=False)
        monkeypatch.setattr(build.shutil, "which", lambda name: None)
    else:
        monkeypatch.setattr(build.sysconfig, "get_paths", lambda scheme: {"include": str(tmp_path)})
    with pytest.raises((RuntimeError, subprocess.CalledProcessError)) as error:
        build.compile_module_from_src("#include <Python.h>", "loader")
    assert device_errors.lack(error.value) == "not supported"


def test_torch_out_of_memory_is_no_crash():
    import torch

    assert device_errors.lack(torch.OutOfMemoryError("CUDA out of memory")) == "out of memory"
    with pytest.raises(RuntimeError) as error:
        torch.empty(2**60)
    assert device_errors.lack(error.value) == "out of memory"


def test_device_is_lost_when_it_answers_no_more(monkeypatch):
    import torch

    assert not device_errors.device_lost("cpu")
    monkeypatch.setattr(torch, "ones", lambda *a, **k: (_ for _ in ()).throw(RuntimeError("CUDA error: illegal")))
    assert device_errors.device_lost("cuda")
    monkeypatch.setattr(torch, "ones", lambda *a, **k: (_ for _ in ()).throw(torch.OutOfMemoryError("full")))
    assert not device_errors.device_lost("cuda")


LOSES_THE_CONTEXT = """
import torch
from roofline.measure import faults

assert not faults.device_lost("cuda")
try:
    torch.zeros(4, device="cuda")[torch.tensor([10**6], device="cuda")].sum().item()
except Exception as error:
    print(faults.lack(error), faults.device_lost("cuda"))
"""


@pytest.mark.skipif("not __import__('torch').cuda.is_available()", reason="loses a real CUDA context: needs a GPU")
def test_real_cuda_context_is_seen_to_be_lost(environment):
    done = subprocess.run([sys.executable, "-c", LOSES_THE_CONTEXT], capture_output=True, text=True, env=environment())
    assert done.stdout.splitlines()[-1] == "None True"


def test_journal_takes_a_failed_write_back(tmp_path, monkeypatch):
    writer = journal.Journal(tmp_path / "run")
    writer.write({"kind": "run", "x": 1})
    before = (tmp_path / "run" / "samples.jsonl").read_bytes()

    class Full:
        """A disk that takes ten bytes and no more."""

        def __init__(self, file):
            self._file = file

        def __getattr__(self, name):
            return getattr(self._file, name)

        def write(self, data):
            if len(data) < 40:
                raise OSError(28, "No space left on device")
            return self._file.write(data[:10])

    writer._file = Full(writer._file)
    with pytest.raises(OSError, match="No space left"):
        writer.write({"kind": "end", "y": "long enough to be cut in pieces"})
    assert (tmp_path / "run" / "samples.jsonl").read_bytes() == before


def test_folder_that_cannot_hold_a_run_is_left_as_it_was(tmp_path, monkeypatch):
    def full(self, data):
        self.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        journal.Journal(tmp_path / "run")
    assert not (tmp_path / "run").exists()
