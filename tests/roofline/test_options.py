"""The --ffn-* options: defaults by device and mode, and one clear error for each bad value."""

from pathlib import Path

import pytest

from roofline.options import resolve


def options(device="cpu", timed=True, **given):
    values = {f"ffn_{name}": value for name, value in given.items()}
    return resolve(values.get, device=device, timed=timed, root=Path("/checkout"))


def test_defaults_of_a_gpu():
    gpu = options("cuda")
    assert gpu.model == "xxl"
    assert gpu.tokens == (1, 16, 64, 256, 1024, 4096, 8192)
    assert gpu.tp == (1, 8)
    assert gpu.dtypes == ("bf16",)
    assert len(gpu.matmuls) == 28
    assert "matmul-xxl-up-tp8-m4096-bf16" in {case.id for case in gpu.matmuls}
    assert gpu.results == Path("/checkout/results/local")


def test_defaults_of_a_cpu():
    cpu = options()
    assert (cpu.model, cpu.tokens, cpu.dtypes) == ("xxl/16", (1, 2, 4, 16, 64, 256, 1024), ("fp32",))


def test_plain_tests_are_small():
    assert max(case.work.flop for case in options(timed=False).matmuls) < 1e8


def test_lists_and_models_by_hand():
    chosen = options(model="64,128", tokens="4, 4,2", tp="2", dtype="fp16,fp32", layers="down", contenders="torch")
    assert [case.id for case in chosen.matmuls] == [
        f"matmul-64x128-down-tp2-m{m}-{dtype}" for dtype in ("fp16", "fp32") for m in (4, 2)
    ]
    assert chosen.contenders == ("torch",)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"tokens": "1,x"}, "--ffn-tokens 'x'"),
        ({"tokens": ""}, "--ffn-tokens '': give at least one value"),
        ({"tokens": "0"}, "--ffn-tokens 0: it must be 1 or more"),
        ({"tp": "3"}, "--ffn-tp: tp=3 does not divide d_ff=3328"),
        ({"dtype": "fp8"}, "--ffn-dtype 'fp8': it is one of bf16, fp16, fp32"),
        ({"layers": "left"}, "--ffn-layers 'left': it is one of up, down"),
        ({"model": "xxm"}, "--ffn-model 'xxm': unknown model 'xxm': did you mean xxl"),
        ({"seed": "x"}, "--ffn-seed 'x': it must be a whole number"),
        ({"max_seconds": "0"}, "--ffn-max-seconds '0': it must be a number of seconds above 0"),
    ],
)
def test_bad_values_are_named(given, said):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        options(**given)
    assert said in str(error.value)
    assert "\n" not in str(error.value)
