"""The example of docs/examples, an operation between ranks in a user's file: two ranks of gloo under torchrun."""

import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
from made_up_run import HEAD, lines_of
from zygote import environment

import roofline
from conftest import ROOT
from roofline import operations
from roofline.operations import contenders
from roofline.pytest_plugin.command_line import refuse_selection

FILE = ROOT / "docs" / "examples" / "gradient_all_reduce.py"
SMALL = ["--ffn-device=cpu", "--ffn-model=96,96", "--ffn-tokens=20", "--ffn-max-seconds=0.1"]
OVERLAPPED = ["overlapped", "bucketed_36KiB"]
ARMS = ["flat", "per_parameter", *OVERLAPPED]
LIMIT_S = 300


@pytest.fixture(scope="module")
def example():
    """The module of the example, which registers its operation for nobody else."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operations.base, "OPERATIONS", {})
        return contenders.module_of(FILE)


@pytest.mark.slow
def test_two_ranks_measure_it_and_its_table_and_figure_are_made_of_the_run(tmp_path, example, capsys):
    words = f"--ffn-operations={FILE}", f"--ffn-contenders={','.join(ARMS)}", f"--ffn-results={tmp_path / 'runs'}"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "-m", "pytest", "--benchmark-only"]
    env = environment(OMP_NUM_THREADS="1", TORCH_CPP_LOG_LEVEL="ERROR")
    about = {"cwd": tmp_path, "env": env, "capture_output": True, "text": True, "timeout": LIMIT_S}
    done = subprocess.run([*torchrun, *SMALL, *words], **about)
    assert done.returncode == 0, done.stdout + done.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    run = roofline.load(folder)
    (shape,) = run.shapes.values()
    assert shape.id == "gradient_all_reduce-d12-l128-m20-fp32-p2"
    assert shape.measured == ARMS
    assert {shape.entrants[name]["relative_error"] for name in ARMS} == {0.0}
    assert [shape.entrants[name]["all_reduces"] for name in ARMS] == [1, 128, 128, 2]
    assert run.metadata["ranks"]["world"] == 2
    example.main(folder)
    text = capsys.readouterr().out
    assert text.startswith(run.void)
    assert [line.split()[0] for line in text.splitlines() if line.startswith(tuple(ARMS))] == ARMS
    assert "best bucket: " in text
    assert (folder / f"{shape.id}.png").stat().st_size > 10_000


@pytest.mark.slow
def test_wrong_arms_of_a_file_in_a_users_folder_fail_and_the_right_one_passes(zygote, tmp_path):
    text = FILE.read_text()
    for right, wrong in (
        ("    reduce(operands.buffer).wait()\n", ""),  # of `flat`: gradients are not summed
        ("        reduce(gradient).wait()\n", "        gradient.fill_(float('nan'))\n"),  # of `per_parameter`
    ):
        assert text.count(right) == 1
        text = text.replace(right, wrong)
    (tmp_path / "mine.py").write_text(text)
    words = ["--ffn-operations=mine.py", "-k=flat or per_parameter or bucketed_36KiB", *SMALL]
    code, text = zygote.run(*words, cwd=tmp_path, ranks=2, shares="new", timeout_s=LIMIT_S)
    assert code == 1
    assert "rank 0: flat: relative error" in text
    assert "rank 0: per_parameter: the output holds NaN" in text
    assert "2 failed, 1 passed" in text
    assert "exit codes of the ranks: 1 0" in text


@pytest.mark.parametrize("world", [1, 2])
def test_who_starts_it_otherwise_is_told_the_way_out(example, monkeypatch, world):
    """In one process; and under torchrun, where its file does not say that it is between ranks."""
    declared = replace(
        operations.find("matmul"), case=example.GradientAllReduce, planner=example.Planner, between_ranks=world == 1,
        why_not=example.why_not,
    )  # fmt: skip
    monkeypatch.setitem(operations.OPERATIONS, declared.name, declared)
    options = SimpleNamespace(world=world, timed=True, operations=("mine.py",), model="96,96", dtypes=("fp32",))
    runners = operations.Runners(options)
    runners.planner(declared)
    way_out = {1: "start torchrun --nproc-per-node N", 2: "leave torchrun out"}[world]
    with pytest.raises(ValueError, match=f"--ffn-operations: gradient_all_reduce has no case: .*{way_out}"):
        refuse_selection(options, runners, [])


OVERHEAD_S, BYTES_PER_S, BACKWARD_S = 1.5e-3, 128e6, 0.05


def test_overhead_and_bandwidth_are_found_again_and_the_table_says_what_was_hidden(example, loaded):
    """All-reduces take OVERHEAD_S, and their bytes."""
    case = example.GradientAllReduce(128, 128, 256, "fp32", 2)
    size = case.gradient_bytes
    whole_s, part_s = OVERHEAD_S + size / BYTES_PER_S, size / 4 / BYTES_PER_S
    times = {
        "flat": BACKWARD_S + whole_s,
        "overlapped": BACKWARD_S + 2 * whole_s,
        "bucketed_1MiB": max(BACKWARD_S, whole_s),
        "backward": BACKWARD_S,
        "all_reduce": whole_s,
        "quarter in 1": OVERHEAD_S + part_s,
        "quarter in 16": 16 * OVERHEAD_S + part_s,
    }
    about = {name: {"role": "link"} for name in times}
    about |= {
        "flat": {"bucket_bytes": size},
        "overlapped": {"bucket_bytes": size // 128},
        "bucketed_1MiB": {"bucket_bytes": 2**20},
    }
    lines = lines_of(case, times, baseline="flat", about=about, wobble=1.1)
    shape = loaded([HEAD, *lines]).shapes[case.id]
    assert example.overhead_and_bandwidth(shape) == pytest.approx((OVERHEAD_S, BYTES_PER_S))
    assert example.best_bucket_bytes(shape) == pytest.approx((2**23 * OVERHEAD_S * BYTES_PER_S) ** 0.5)
    rows = example.table(shape)
    assert list(rows["hidden"]) == pytest.approx([0, -(OVERHEAD_S + 2**23 / BYTES_PER_S) / BACKWARD_S, 1], abs=1e-6)
    assert example.finding(shape) == (
        "best bucket: 1024 KiB measured, sqrt(s o w) = 1239 KiB by o = 1500 us, w = 0.128 GB/s"
    )
