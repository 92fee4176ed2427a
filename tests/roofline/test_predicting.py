"""The command `roofline predict`: its table and JSON, where the numbers come from, bad input, and how quick it is."""

import json
import re
from pathlib import Path

import made_up_gpu
import pytest
from made_up_gathers import HERE, SWEEP, gather_matmul, gathering
from made_up_run import HEAD, ceiling, save, shape

from roofline.analysis.overlap import arms
from roofline.analysis.prediction import figure, score
from roofline.analysis.prediction import text as prediction_text
from roofline.cli import main
from roofline.report.format import error_text
from roofline.store.journal import load

README = Path(__file__).parents[2] / "results" / "README.md"
MATMUL = "matmul-xxl-up-tp8-m4096-bf16"
GATHER = "all_gather_matmul-xxl/16-up-p8-tp16-m4096-fp32-balance86"
H100 = ["--chip", "H100 SXM"]
CEILINGS = [ceiling("matmul", 0.17e12, dtype="fp32"), ceiling("read", 30e9)]


def predicted_run(folder, lines):
    run = load(save(folder, lines))
    prediction_text.write(run, score.predict_run(run, run.records()), folder)
    return folder


@pytest.fixture(scope="module")
def gpu(tmp_path_factory):
    return predicted_run(tmp_path_factory.mktemp("gpu") / "run", made_up_gpu.lines())


@pytest.fixture(scope="module")
def cpu(tmp_path_factory):
    return predicted_run(tmp_path_factory.mktemp("cpu") / "run", [HERE, *CEILINGS, *SWEEP])


def as_json(capsys, *arguments):
    assert main(["predict", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_shape_lists_the_contenders_of_the_run_with_their_terms(gpu, capsys):
    assert main(["predict", MATMUL, "matmul-llama-3-70b-down-tp1-m300-bf16-tiled", "--run", str(gpu)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:5]] == [
        *(f"{MATMUL}-{name}" for name in ("cublas", "persistent", "tiled")),
        "matmul-llama-3-70b-down-tp1-m300-bf16-tiled",
    ]
    assert re.split("  +", lines[0])[:6] == ["case", "time", "80 % interval", "TFLOP/s", "compute", "memory"]
    assert "7 of 256x128" in lines[2]
    assert re.search(r"of run .*, made-up GPU \(GPU\); its error on cases left out: median \d.* %, 95th", lines[-1])


def test_saved_constants_predict_what_was_measured_and_terms_make_the_time(gpu, cpu, capsys):
    case = next(case for case in made_up_gpu.cases() if case.id == MATMUL)
    for row in as_json(capsys, MATMUL, "--run", gpu)["cases"]:
        assert row["time_s"] == pytest.approx(made_up_gpu.exact_s(row["contender"], case), rel=0.1)
        terms = row["terms"]
        both = (terms["compute_s"] ** terms["p"] + terms["memory_s"] ** terms["p"]) ** (1 / terms["p"])
        assert row["time_s"] == pytest.approx(terms["correction"] * (terms["start_s"] + both))
        assert row["time_low_s"] < row["time_s"] < row["time_high_s"] < 1.3 * row["time_low_s"]
        assert row["tflops"] == pytest.approx(row["flop"] / row["time_s"] / 1e12)
    (row,) = as_json(capsys, GATHER + "-serial", "--run", cpu)["cases"]
    terms = row["terms"]
    assert terms["ideal_s"] == pytest.approx(terms["t_gemm_s"] + terms["t_comm_s"])
    assert row["time_s"] == pytest.approx(terms["loss"] * terms["ideal_s"])


def test_another_runs_ceilings_scale_an_answer(gpu, cpu, tmp_path, capsys):
    half = [
        line | {name: line[name] / 2 for name in ("value", "low", "high")} if line["kind"] == "ceiling" else line
        for line in made_up_gpu.lines()
    ]
    slow = predicted_run(tmp_path / "run", half)
    (own,), (other,) = (
        as_json(capsys, f"{MATMUL}-cublas", "--run", gpu, *more)["cases"] for more in ((), ("--on", slow))
    )
    assert other["terms"]["compute_s"] == pytest.approx(2 * own["terms"]["compute_s"])
    assert other["time_s"] == pytest.approx(2 * own["time_s"], rel=0.03)  # but for the start
    assert main(["predict", MATMUL, "--run", str(gpu), "--on", str(slow)]) == 0
    assert f"at the ceilings of {slow}" in capsys.readouterr().out
    assert main(["predict", MATMUL, "--run", str(gpu), "--on", str(cpu)]) == 2
    assert "is of a gpu, and" in capsys.readouterr().err


def test_datasheet_answers_have_wider_intervals_than_fitted_ones(gpu, capsys):
    def width(*source):
        row = as_json(capsys, f"{MATMUL}-cublas", *source)["cases"][0]
        return row["time_high_s"] / row["time_low_s"]

    assert width("--run", gpu) < 1.3 < width(*H100)


def test_wires_by_their_words(cpu, capsys):
    def terms(wire):
        case = GATHER.replace("balance86", wire)
        return as_json(capsys, f"{case}-chunk_launches", "--run", cpu)["cases"][0]["terms"]

    wire_bytes = 4096 * 1024 * 4 * 7 // 8
    assert terms("balance86")["t_comm_s"] == pytest.approx(16e-3)  # as in the run
    assert terms("balance43")["t_comm_s"] == pytest.approx(8e-3)
    assert terms("2GBps")["t_comm_s"] == pytest.approx(wire_bytes / 2e9)
    assert terms("ridge2")["t_comm_s"] == pytest.approx(terms("ridge2")["t_gemm_s"] / 2)
    assert terms("preset") | {"t_comm_s": 0.0, "link_bytes_per_s": None} == terms("preset")


def test_a_layer_is_both_of_its_matmuls_and_bytes_of_both_on_one_link(cpu, capsys):
    def terms(op, layer, arm):
        case = f"{op}-xxl/16-{layer}-p8-tp16-m4096-fp32-2GBps-{arm}"
        return as_json(capsys, case, "--run", cpu)["cases"][0]["terms"]

    whole = terms("ffn", "up_down", "layer_launches")
    up, down = terms("all_gather_matmul", "up", "serial"), terms("matmul_reduce_scatter", "down", "serial")
    assert whole["t_gemm_s"] == pytest.approx(up["t_gemm_s"] + down["t_gemm_s"])
    both_s = up["t_comm_s"] + down["t_comm_s"]
    latency_s = up["t_comm_s"] - 4096 * 1024 * 4 * 7 // 8 / 2e9
    assert whole["t_comm_s"] == pytest.approx(both_s - latency_s)
    assert (whole["up_compute_s"], whole["down_memory_s"]) == (up["compute_s"], down["memory_s"])
    assert max(whole["t_gemm_s"], whole["t_comm_s"]) <= whole["ideal_s"] < whole["t_gemm_s"] + whole["t_comm_s"]


def test_datasheet_says_that_nothing_was_fitted(capsys):
    assert main(["predict", MATMUL, f"{MATMUL}-persistent", *H100]) == 0
    lines = capsys.readouterr().out.splitlines()
    first, second = (line.split(maxsplit=1) for line in lines[1:3])
    assert (first[0], second[0]) == (MATMUL, f"{MATMUL}-persistent")
    assert first[1].split() == second[1].split()
    assert lines[-1].startswith("datasheet of H100 SXM (NVIDIA")
    assert "constants not fitted: 72 % of its FLOP/s" in lines[-1]


def test_datasheet_takes_every_arm_of_its_operation(capsys):
    found = as_json(capsys, "all_gather_matmul-xxl-up-p8-tp8-m8192-bf16-balance2750", *H100)
    times = {row["contender"]: row["time_s"] for row in found["cases"]}
    assert list(times) == arms.of_operation("all_gather_matmul", gpu=True)
    terms = found["cases"][0]["terms"]
    assert times["serial"] == pytest.approx(terms["t_gemm_s"] + terms["t_comm_s"])
    assert max(terms["t_gemm_s"], terms["t_comm_s"]) <= times["row_block"] < times["serial"]
    assert found["source"]["scores"] is None


def test_arm_by_the_persistent_matmul_is_predicted_by_its_schedule(tmp_path, capsys):
    lost = {"serial": 1.0, "row_block_launches": 0.2, "row_block_launches_persistent": 0.2}
    lines = [HERE | {"schema": 4}, *CEILINGS, *gathering(gather_matmul(16), lost=lost)]
    found = as_json(capsys, GATHER, "--run", predicted_run(tmp_path / "run", lines))["cases"]
    assert [row["contender"] for row in found] == [*lost]
    assert found[1]["time_s"] == pytest.approx(found[2]["time_s"])


def test_priors_of_a_run_are_called_so(tmp_path, capsys):
    lines = [HEAD, ceiling("matmul", 7e14, dtype="bf16"), ceiling("read", 4e12), *shape(16, {"cublas": 2e-6})]
    folder = predicted_run(tmp_path / "run", lines)
    gather = "weight_prefetch-xxl-up-p8-tp1-m2048-bf16-50GBps-overlapped"
    assert main(["predict", gather, "--run", str(folder)]) == 0
    assert "fitted on 0 cases: its constants are priors" in capsys.readouterr().out
    assert main(["predict", MATMUL, "--run", str(folder)]) == 0
    assert "its constants are priors" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([MATMUL], "one of the arguments --run --chip is required"),
        (H100, "required: CASE"),
        ([MATMUL, "--chip", "H10 SXM"], "did you mean 'H100 SXM'"),
        ([MATMUL, "--chip", "exercise"], "gives no memory bandwidth"),
        ([MATMUL, "--run", "nowhere"], "nowhere is no run folder"),
        ([MATMUL, "--run", "a", *H100], "not allowed with"),
        ([MATMUL, "--on", "a", *H100], "--on goes with --run"),
        (["weight_prefetch-xxl-up-p8-tp1-m64-bf16-ridge-overlaped", *H100], "did you mean overlapped?"),
        (["weight_prefetch-xxl-up-p8-tp1-m64-bf16-pcie", *H100], "nothing says how fast pcie is"),
        (["weight_prefetch-xxl-up-p8-tp1-m64-bf16-memory0.18", *H100], "nothing says how fast memory0.18 is: give it"),
        ([MATMUL.replace("m4096", "m0"), *H100], "m=0: it must be 1 or more"),
        (["matmul-xxl-up", *H100], "is not written as cases are"),
        ([MATMUL, "--chip", "TPU v4", "--jsno"], "did you mean --json?"),
        ([MATMUL.replace("bf16", "fp32"), "--chip", "TPU v4"], "TPU v4 has no FLOP/s of fp32, but of bf16"),
        ([MATMUL + "-torch", "--run", "GPU"], "unknown contender 'torch'"),
        ([MATMUL.replace("bf16", "fp32"), "--run", "GPU"], "has no FLOP/s of fp32, but of bf16"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, said, gpu, capsys):
    try:
        code = main(["predict", *(str(gpu) if word == "GPU" else word for word in arguments)])
    except SystemExit as stop:
        code = stop.code
    assert code == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_runs_that_keep_no_prediction_are_named(tmp_path, capsys):
    folder = save(tmp_path / "run", [HEAD, *shape(16, {"cublas": 2e-6})])
    for text, said in (
        (None, "has no prediction.json: roofline report"),
        ("{", "is not of schema 2"),
        ('{"schema": 1}', "is not of schema 2"),
        ('{"schema": 2, "model": {}}', "is not of schema 2"),
        ("[]", "is not of schema 2"),
    ):
        if text:
            (folder / "prediction.json").write_text(text)
        assert main(["predict", MATMUL, "--run", str(folder)]) == 2
        assert said in capsys.readouterr().err
    predicted_run(folder, [HEAD, *shape(16, {"cublas": 2e-6})])
    assert main(["predict", MATMUL, "--run", str(folder)]) == 2
    assert "measured no ceilings" in capsys.readouterr().err


def test_answer_in_half_a_second_without_packages(gpu, in_a_blink):
    gather = "all_gather_matmul-xxl-up-p8-tp4-m8192-bf16-balance2750"
    assert MATMUL in in_a_blink("predict", MATMUL, "--run", str(gpu))
    assert "own ideal" in in_a_blink("predict", gather, *H100)


def test_json_is_documented(gpu, cpu, capsys):
    text = README.read_text().partition("## `roofline predict --json`, schema 2")[2].partition("\n## ")[0]
    for found in (as_json(capsys, MATMUL, "--run", gpu), as_json(capsys, GATHER, "--run", cpu)):
        names = {*found, *found["source"], *found["cases"][0], *found["cases"][0]["terms"]}
        assert found["schema"] == 2
        assert [name for name in sorted(names) if f"`{name}`" not in text] == []


def test_figure_says_by_how_much_times_are_off_and_has_three_numbers_on_each_axis(tmp_path):
    run = load(save(tmp_path / "run", [HERE, *CEILINGS, *SWEEP]))
    found = score.predict_run(run, run.records())
    drawn, errors = figure.draw(run, found.scored), prediction_text.scores(found.scored)["all"]
    ours, plain = (error_text(errors[name]) for name in ("median", "roofline_median"))
    assert drawn.get_suptitle() == f"Predicted times are off by {ours} in the median, a plain roofline's by {plain}\n"
    drawn.draw_without_rendering()
    for axis in (drawn.axes[0].xaxis, drawn.axes[0].yaxis):
        ticks = [tick for tick in axis.get_major_ticks() if tick.label1.get_text().endswith(("us", "ms"))]
        assert (
            sum(min(axis.get_view_interval()) <= tick.get_loc() <= max(axis.get_view_interval()) for tick in ticks) >= 3
        )
