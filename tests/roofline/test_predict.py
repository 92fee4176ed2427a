"""`roofline predict`: times between and beyond the M of a run, of a datasheet, of arms; its words and bad input."""

import re
from dataclasses import replace
from pathlib import Path
from statistics import median
from types import SimpleNamespace

import pytest
from made_up_gathers import HERE, SWEEP
from made_up_run import HEAD, LINES, ceiling, save, shape

from roofline.analysis.records import records_of
from roofline.operations.matmul import Matmul
from roofline.predict.command import predictions
from roofline.predict.times import RunTimes
from roofline.report.format import error_text
from roofline.store.journal import load

ROOT = Path(__file__).parents[2]
CASE = Matmul("1024x1024", "up", 1, 16, "bf16")
TIMES = {16: 2e-6, 64: 4e-6, 256: 10e-6}
CEILINGS = [ceiling("matmul", 700e12, dtype="bf16"), ceiling("read", 4e12)]
SHAPES = [line for m, time_s in TIMES.items() for line in shape(m, {"cublas": time_s, "tiled": 2 * time_s})]
GATHERS = {"ranks": (8,), "wire": "0.5GBps"}


@pytest.fixture(scope="module")
def gpu(tmp_path_factory):
    return save(tmp_path_factory.mktemp("gpu") / "run", [HEAD, *CEILINGS, *SHAPES])


@pytest.fixture(scope="module")
def cpu(tmp_path_factory):
    two_threads = HERE | {"machine": HERE["machine"] | {"threads": 2}}
    here = [two_threads, ceiling("matmul", 0.2e12, dtype="fp32"), ceiling("read", 30e9)]
    return save(tmp_path_factory.mktemp("cpu") / "run", [*here, *SWEEP])


def predicted(folder=None, **options):
    """Return {case: row} of what the command prints by `options`."""
    usual = {"chip": None, "case": None, "model": None, "tokens": (4096,), "tp": None, "ranks": None, "wire": None}
    return {row["case"]: row for row in predictions(SimpleNamespace(folder=folder, **usual | options))[1]}


def roofline_s(m):
    work = replace(CASE, m=m).work
    return max(work.flop / 700e12, work.device_bytes / 4e12)


def test_time_is_a_straight_line_between_measured_m_and_grows_as_the_roofline_beyond(gpu):
    rows = predicted(gpu, tokens=(1, 16, 160, 8192))
    low_s, high_s = 2e-6 + roofline_s(1) - roofline_s(16), 10e-6 + roofline_s(8192) - roofline_s(256)
    expected = {
        1: (low_s, "extrapolated from M=16"),
        16: (2e-6, "measured"),
        160: (7e-6, "interpolated, M=64 to 256"),
        8192: (high_s, "extrapolated from M=256"),
    }
    for m, (time_s, origin) in expected.items():
        row = rows[f"{replace(CASE, m=m).id}-cublas"]
        assert (row["time_s"], row["origin"]) == (pytest.approx(time_s), origin)
        assert row["tflops"] == pytest.approx(2 * m * 1024**2 / time_s / 1e12)
    assert len(rows) == 8


def test_arms_take_what_the_simulator_says_of_t_gemm_and_t_comm(cpu):
    case = "all_gather_matmul-xxl/16-up-p8-tp16-m4096-fp32-{}-{}"
    rows = predicted(cpu, **GATHERS, tp=(16,))
    measured = next(r for r in records_of(load(cpu)) if r["op"] == "all_gather_matmul" and r["tp"] == 16)
    serial, chunks = (rows[case.format("0.5GBps", arm)] for arm in ("serial", "chunk_launches"))
    assert serial["t_gemm_s"] == pytest.approx(measured["t_gemm_s"])
    assert serial["t_comm_s"] == pytest.approx(4096 * 1024 * 4 * 7 / 8 / 0.5e9)
    assert (serial["gain"], serial["hidden_fraction"]) == (pytest.approx(1), pytest.approx(0))
    ends_s = serial["t_gemm_s"], chunks["t_comm_s"] + chunks["t_gemm_s"] / 8  # as of one worker
    assert chunks["time_s"] == pytest.approx(max(ends_s))
    assert chunks["gain"] == pytest.approx(serial["time_s"] / chunks["time_s"])


def test_t_gemm_grows_by_what_the_cores_do_that_a_cpus_link_leaves(cpu):
    row = predicted(cpu, **GATHERS, tp=(16,), tokens=(8192,)).popitem()[1]
    assert row["t_gemm_s"] == pytest.approx(20e-3 + 2 * 4096 * 1024 * 208 / (0.2e12 / 2))
    assert row["origin"] == "extrapolated from M=4096"


def test_layer_of_a_datasheet_is_both_matmuls_over_all_links():
    rows = predicted(chip="H100 SXM", tokens=(8192,), ranks=(8,))
    up, down, both = (
        rows[f"{name}-p8-tp8-m8192-bf16-450GBps-serial"]
        for name in ("all_gather_matmul-xxl-up", "matmul_reduce_scatter-xxl-down", "ffn-xxl-up_down")
    )
    for name in ("t_gemm_s", "t_comm_s", "time_s"):
        assert both[name] == pytest.approx(up[name] + down[name])
    assert up["t_comm_s"] == pytest.approx(2 * 8192 * 16384 * 7 / 8 / 450e9)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("--chip exercise", "gives no memory bandwidth"),
        ("--chip H200 --ranks 7", "ranks=7 does not divide"),
        ("--chip H200 --ranks 8 --wire preset", "nothing says how fast the wire preset is: give it in figures"),
        ("--chip H200 --wire ridge", "--wire goes with --ranks"),
        ("--run GPU --ranks 8", "give it, as in --wire 50GBps"),
        ("--run GPU --tp 8", "has not measured what these need: choose of 1024x1024 up tp=1 bf16"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, text, gpu, refused):
    assert text in refused("predict", *arguments.replace("GPU", str(gpu)).split())


def test_runs_without_ceilings_matmuls_or_the_tp_say_so(tmp_path, refused):
    bare = save(tmp_path / "bare", [HEAD, *SHAPES])
    error = refused("predict", "--run", str(bare), "--tokens", "300")
    assert "M=300 of matmul-1024x1024-up-tp1-m300-bf16 is beyond 16 to 256" in error
    error = refused("predict", "--run", str(save(tmp_path / "empty", LINES[:5])))
    assert "measured no matmuls, which predictions go by" in error


def test_attention_and_steps_take_the_longer_of_flop_and_bytes():
    case = "attention-b1-h128-d128-m16384-causal-forward-bf16"
    (row,) = predicted(chip="H200", case=case).values()
    assert (row["case"], row["origin"]) == (case, "datasheet, compute-bound")
    assert row["time_s"] == pytest.approx(2 * 128 * 128 * 16384**2 / (0.72 * 989e12), rel=1e-3)
    with pytest.raises(ValueError, match="gives no FLOP/s of tf32: choose bf16"):
        predicted(chip="TPU v4", case="transformer_step-l12-d768-b16-t256-step-tf32")
    with pytest.raises(ValueError, match="--case goes with --chip"):
        predicted(case=case)


def test_answer_in_half_a_second_without_packages(in_a_blink):
    assert "chunk_launches" in in_a_blink("predict", "--chip", "H100 SXM", "--tokens", "8192", "--ranks", "8")


def test_page_has_the_errors_of_the_run_that_it_names():
    page = (ROOT / "docs/exercise.md").read_text()
    (name,) = {*re.findall(r"results/reference/(amd[\w-]+)", page)}
    assert name == max(path.name for path in (ROOT / "results/reference").glob("amd-epyc-*"))
    errors = RunTimes(load(ROOT / "results/reference" / name), name).errors()
    groups = {str(m): [row for row in errors if row[0] == m] for m, *_ in errors}
    groups |= {"all": errors, "from 4": [row for row in errors if row[0] >= 4]}
    table = re.findall(r"^\| (\w+|from 4) \| (\d+) \| ([\d.]+ %) \| ([\d.]+ %) \|$", page, re.MULTILINE)
    assert table == [
        (m, str(len(rows)), *(error_text(median(row[i] for row in rows)) for i in (1, 2))) for m, rows in groups.items()
    ]
