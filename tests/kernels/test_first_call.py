"""The first calls of a visit: right here, and where one fails, a last line with the way out."""

import pytest
import torch

import kernels
from results import first_call
from roofline.operations.matmul import Matmul


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setattr(first_call, "CASE", Matmul("128x48", "shape", 1, 16, "fp16"))
    monkeypatch.setattr(torch, "compile", lambda function: function)


@pytest.mark.parametrize("call", first_call.WAYS_OUT)
def test_what_runs_is_said_with_its_versions(call, capsys):
    assert first_call.main([call], device="cpu") == 0
    assert f"{call}: right, under Triton 3." in capsys.readouterr().out


def fails(*arguments):
    raise RuntimeError("device kernel image is invalid")


@pytest.mark.parametrize(
    ("call", "place", "stand_in", "words"),
    [
        ("kernel", (kernels, "matmul"), fails, "RuntimeError: device kernel image is invalid"),
        ("kernel", (kernels, "matmul"), lambda x, w: 1.02 * (x @ w.T), "has a relative error of 0.02, limit 3e-3"),
        ("compile", (torch, "compile"), lambda function: torch.sin, "is another than that of torch"),
    ],
)
def test_what_fails_ends_with_the_way_out(monkeypatch, capsys, call, place, stand_in, words):
    monkeypatch.setattr(*place, stand_in)
    assert first_call.main([call], device="cpu") == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert words in line
    assert first_call.WAYS_OUT[call] in line
