"""Shapes of a file, layers of the gate and the attention, and the models that have them."""

import json
from pathlib import Path

import pytest
from chosen_options import options
from made_up_run import END, HEAD, lines_of

import roofline
from roofline import operations
from roofline.analysis.records import frame
from roofline.commands.cli import main
from roofline.operations import matmul
from roofline.operations.options import as_values, options_of
from roofline.report.findings import case_words
from roofline.report.plots.memory_roofline import MANY, memory_roofline
from roofline.theory.models import MODELS, parse

ROWS = "# attention\nn, m, k, label, dtype\n\n6656, 4096, 16384, qkv_proj, bf16\n6656,1,16384,,\n"
IDS = ("matmul-qkv_proj@16384x6656-shape-tp1-m4096-bf16", "matmul-16384x6656-shape-tp1-m1-fp32")
OTHERS = [other for name, other in operations.OPERATIONS.items() if other.default and name != "matmul"]


def of_rows(folder: Path, text: str, **given):
    path = folder / "my.csv"
    path.write_text(text, encoding="utf-8")
    return options(shapes=str(path), **given)


@pytest.mark.parametrize(
    ("name", "billions"),
    [("llama-3-70b", 70.6), ("llama-3-405b", 405.9), ("qwen3-8b", 8.19)],
)
def test_parameters_are_as_many_as_published(name, billions):
    model, vocabulary = MODELS[name], 128256 if name.startswith("llama") else 151936
    layers = sum(model.layers[layer][0] * model.layers[layer][1] for layer in ("gate_up", "down", "qkv", "o"))
    total = model.blocks * layers + 2 * vocabulary * model.d_model
    assert total / 1e9 == pytest.approx(billions, rel=2e-3)


def test_heads_of_a_divided_model_stay_whole():
    assert parse("llama-3-70b/8").layers["qkv"] == (1024, (8 + 2) * 128)
    assert list(parse("llama-3-70b/16").layers) == ["up", "down", "gate_up"]  # 8 kv heads
    chosen = options(model="llama-3-8b/4", layers="up,gate_up,qkv,o", tp="2", tokens="4096")
    assert {case.layer for case in matmul.sweep(chosen)} == {"up", "gate_up", "qkv", "o"}
    assert {case.layer for operation in OTHERS for case in operation.sweep(chosen)} == {"up", "down", "up_down"}


def test_a_file_stands_in_place_of_the_sweep(tmp_path):
    chosen = of_rows(tmp_path, ROWS)
    assert chosen.shapes == IDS
    assert (chosen.dtypes, chosen.layers, chosen.tokens, chosen.tp) == (("bf16", "fp32"), (), (), ())
    assert [(case.m, case.n, case.k) for case in matmul.sweep(chosen)] == [(4096, 6656, 16384), (1, 6656, 16384)]
    assert [operation.sweep(chosen) for operation in OTHERS] == [[]] * len(OTHERS)
    resumed = options_of(json.loads(json.dumps(as_values(chosen))))
    assert matmul.sweep(resumed) == matmul.sweep(chosen)
    several = of_rows(tmp_path, "\ufeffm,n,k\r\n2,3,4\r\n2,3,4\r\n", dtype="fp16,fp32")
    assert [case.dtype for case in matmul.sweep(several)] == ["fp16", "fp32"]


@pytest.mark.parametrize(
    ("name", "count", "m", "n", "gflop"),
    [
        ("deepseek-v3", 14, {1, 2, 16, 32, 64, 96, 128, 1024, 4096}, {1024, 2112, 4096, 7168, 24576}, 1773.6),
        # 8 heads of 128 for q at tp 1 are 128 * 128 columns; k and v have 8 heads each; gate and up 53,248 each
        ("llama-3-405b", 4, {4096}, {(128 + 2 * 8) * 128 // 8, 16384, 2 * 53248 // 8}, 3_264.2),
        ("ragged", 14, {7, 15, 35, 70, 300, 972, 2053}, {53248, 53248 // 8}, 6_776.0),
    ],
)
def test_known_shapes_are_asked_for_by_name(name, count, m, n, gflop, capsys):
    cases = matmul.sweep(options(shapes=name, dtype="bf16"))
    assert (len(cases), {case.m for case in cases}, {case.n for case in cases}) == (count, m, n)
    assert sum(2 * case.m * case.n * case.k for case in cases) / 1e9 == pytest.approx(gflop, abs=0.05)
    assert main(["shapes"]) == 0
    assert f"{name}: " in capsys.readouterr().out


@pytest.mark.parametrize("count", [2, 20])
def test_shapes_are_shown_by_their_label_and_look_alike_where_they_are_many(loaded, count):
    more = [f"matmul-{64 * n}x512-shape-tp1-m16-bf16" for n in range(1, count)]
    cases = [operations.parse(text)[0] for text in (IDS[0], *more)]
    lines = [line for case in cases for line in lines_of(case, {"cublas": 2e-5, "tiled": 1e-5}, baseline="cublas")]
    run = loaded([HEAD, *lines, END])
    rows = frame(run)
    assert roofline.by_tokens(run)[["least", "least_shape"]].round(9).to_numpy().tolist()[1:] == [[2, "qkv_proj"]]
    assert case_words(rows.iloc[2]) == "cublas on N=512 K=64, M 16, bf16"
    _, *legend = [text.get_text() for text in memory_roofline(rows).axes[0].get_legend().get_texts()]  # behind the roof
    named = ["qkv_proj", "N=512 K=64"] if count == 2 else [MANY]
    assert legend == ["contender", "cublas", "tiled", "weights", *named]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("m,n,k,tp\n1,2,3,4\n", "line '1,2,3,4': column 'tp' is unknown; it begins with the line m,n,k or m,n,k"),
        ("m,n,k\n", "it has no shape; it begins with the line m,n,k"),
        ("\n1,2,3\n4,5,6\n", "line '4,5,6': column '1' is unknown; it begins with the line m,n,k"),
        ("m,n,k\n1,2\n", "line '1,2': '' is not a whole number from 1 on; it begins with the line m,n,k"),
        ("m,n,k\n1,2,3,4\n", "line '1,2,3,4': column 'behind the last' is unknown"),
        ("m,n,k\n# two\n1,0,3\n", "line '1,0,3': '0' is not a whole number from 1 on"),
        ("m,n,k,dtype\n1,2,3,fp9\n", "line '1,2,3,fp9': unknown dtype 'fp9': it is one of bf16, fp16, fp32, fp8"),
    ],
)
def test_bad_files_are_named(tmp_path, text, problem):
    with pytest.raises(ValueError, match=r"^--ffn-shapes '.*my\.csv': .*$") as error:
        of_rows(tmp_path, text)
    assert problem in str(error.value)
    with pytest.raises(ValueError, match=r"--ffn-shapes: .*deepseek.* or a name of deepseek-v3, llama-3-405b"):
        options(shapes="deepseek")


def test_what_does_not_go_together_is_named(tmp_path):
    with pytest.raises(ValueError, match="tp=16 does not divide kv_heads=8 of llama-3-8b"):
        matmul.sweep(options(layers="o", model="llama-3-8b", tp="16"))
    with pytest.raises(ValueError, match=r"--ffn-shapes alone says what is measured; leave out --ffn-layers, --ffn-to"):
        of_rows(tmp_path, ROWS, tokens="4", layers="up")
