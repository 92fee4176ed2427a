"""`roofline counters` by a stand-in for ncu: counts reach journal, tables and figure, or one line says why not."""

import json
from importlib.metadata import version

import pytest
import stand_in
from chosen_options import options
from made_up_run import HEAD, LINES, lines_of, save, shape

from conftest import ROOT
from roofline.analysis.records import frame
from roofline.commands import counters
from roofline.commands.cli import main
from roofline.host.checkout import commit_of
from roofline.operations.all_gather_matmul import AllGatherMatmul
from roofline.operations.matmul import Matmul
from roofline.operations.options import as_values
from roofline.report import throughput
from roofline.store import journal

CHOSEN = {"model": "128x256", "layers": "up", "tp": "1", "tokens": "16,1024", "dtype": "fp16", "ranks": "2"}
CASE = "matmul-128x256-up-tp1-m{}-fp16-{}"
COPY = [{"call": "copy"}] * 3
TOLD = [*COPY, *[{"call": CASE.format(16, "decode")}] * 3]
DENIED = "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters"
BUSY = (
    "==ERROR== An error was reported by the driver\n\n==ERROR== Profiling failed because a driver resource was taken."
)


@pytest.fixture
def run(tmp_path):
    """The folder of a run of two matmuls and a gather, on what `stand_in` stands for."""
    machine = {"source": "gpu", "chip": "rehearsal of H100", "datasheet": None, "driver": "made up"}
    machine["versions"] = {name: version(name) for name in ("torch", "triton")}
    (tmp_path / "mine.py").write_text("raise SystemExit('it was executed')")
    values = as_values(options("cuda", **CHOSEN))
    values |= {"users": [[f"{tmp_path / 'mine.py'}::f", ""]], "baseline": "f"}
    head = HEAD | {"machine": machine, "commit": commit_of(ROOT), "options": values}
    few, many = (Matmul("128x256", "up", 1, m, "fp16") for m in (16, 1024))
    gather = AllGatherMatmul("128x256", "up", 1, 1024, "fp16", 2, "ridge")
    lines = [head, *lines_of(gather, {"serial": 1e-6}, baseline="serial")]
    lines += lines_of(few, {"decode": 1e-6, "tiled": 3e-6, "cublas": 2e-6, "f": 4e-6}, baseline="cublas")
    lines += lines_of(many, {"decode": 1e-6, "cublas": 2e-6}, baseline="cublas")
    return save(tmp_path / "run", lines)


@pytest.fixture
def count(run, ncu, monkeypatch, capsys):
    """`count(*cases, **does)`: exit code and both outputs of the command, with the stand-in on PATH, which `does`."""

    def call(*cases, **does):
        monkeypatch.setenv("FAKE_NCU", json.dumps(does))
        monkeypatch.setattr(counters, "COPY_BYTES", 2000)
        code = main(["counters", str(run), *cases])
        return code, *capsys.readouterr()

    return call


def lines_in(run) -> list[dict]:
    return [json.loads(line) for line in (run / "samples.jsonl").read_text().splitlines()]


def test_counts_of_the_launcher_reach_journal_and_tables_and_a_case_that_fails_is_named(count, run):
    """Of them `decode` takes no 1024 rows, and `f` is from a file that the journal names."""
    before = lines_in(run)
    case, failing, users = CASE.format(16, "cublas"), CASE.format(1024, "decode"), CASE.format(16, "f")
    code, out, error = count(case, failing, users)
    assert (code, error) == (1, "")
    line, note = lines_in(run)[len(before) :]
    assert f"{line['shape']}-{line['contender']}" == case
    fields = ("dram_bytes", "l2_bytes", "tensor_cycles", "sm_cycles")
    assert [line[field] for field in fields] == [1_020_042, 400_010, 2400, 1200]
    assert line["counter_source"]["metrics"]["dram_bytes"] == ["dram__bytes_read.sum", "dram__bytes_write.sum"]
    assert "Nsight Compute 2025.1.1.0 counted 1 of 3 cases, each the median of 3 calls" in note["text"]
    assert "Of a copy's bytes it counted 100.0 %." in note["text"]
    assert f"{failing}: x has M=1024 rows, decode takes up to 64" in note["text"]
    assert f"{users}: f is from a file that the journal names, and nothing of it is executed" in note["text"]
    assert note["text"] in out
    counted = throughput.counted(frame(journal.load(run)))
    assert counted.table.to_numpy().tolist() == [
        [line["shape"], "cublas", "1.02 MB", "13.1", "1.03", "13.5", "0.4 MB", "50 %"]
    ]


def test_by_default_it_is_the_baseline_and_the_fastest_other_of_four_shapes(loaded):
    lines = [line for m in range(1, 9) for line in shape(m, {"cublas": 2e-6, "a": 3e-6, "b": 1e-6})]
    cases = counters.chosen(loaded([HEAD, *lines], "many"), [])
    assert [(shape.get("m"), name) for shape, name in cases.values()] == [
        (m, name) for m in (1, 3, 5, 7) for name in ("cublas", "b")
    ]


def test_a_case_whose_kernels_are_not_seen_fails(count, run):
    case, before = CASE.format(16, "decode"), lines_in(run)
    code, _, _ = count(case, told=TOLD, unseen=[case])
    (note,) = lines_in(run)[len(before) :]
    assert code == 1
    assert "counted 0 of 1 cases" in note["text"]
    assert note["text"].endswith(f"; {case}: not all of its calls were counted, ncu.log has what ncu printed.")


@pytest.mark.parametrize(
    ("words", "does", "message"),
    [
        ((), {"told": TOLD, "copied": 0.94}, "of a copy's bytes 94.0 % were counted, which is off by more than 5 %"),
        ((), {"told": TOLD, "error": DENIED}, "it takes root, in a container --cap-add=SYS_ADMIN, or the"),
        ((), {"told": TOLD, "error": BUSY}, "nothing was counted: ==ERROR== Profiling failed"),
        ((CASE.format(16, "absent"),), {}, "-absent' is not measured, or is an arm: name cases as"),
    ],
)  # fmt: skip
def test_what_cannot_be_counted_is_one_line_and_nothing_is_journalled(count, run, words, does, message):
    before = lines_in(run)
    code, _, error = count(*words, **does)
    assert code == 2
    assert message in error
    assert error.count("\n") == 1
    assert lines_in(run) == before


def test_a_run_of_another_machine_is_not_counted(count, monkeypatch):
    monkeypatch.setenv(stand_in.NAMED, "H200")
    code, _, error = count()
    assert code == 2
    assert "nothing was counted: " in error
    assert error.endswith("go back to what it was, or measure a new run\n")
    assert "ValueError: chip was rehearsal of H100, " in error


def test_without_ncu_or_a_run_of_a_gpu_nothing_is_begun(count, run, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", "/nowhere")
    code, _, error = count()
    assert (code, error.count("\n")) == (2, 1)
    assert "ncu is not on PATH: install Nsight Compute, or add its folder" in error
    machine = HEAD["machine"] | {"source": "cpu"}
    save(run, [HEAD | {"machine": machine}, *LINES[1:]])
    assert "this run measured the CPU: take a run of a GPU" in count()[2]


# Counts as a run of a GPU has them.
