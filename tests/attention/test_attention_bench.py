"""The operation `attention`: who is refused, what is noted beside a time, and what its figure says."""

import re
from dataclasses import replace

import pandas
import pytest
import torch
import torch.nn.functional as F
from test_matmul_bench import OPTIONS

from kernels.attention import bench
from kernels.attention.figure import PANELS, over_lengths
from kernels.attention.operation import CONTENDERS, OPERATION, sweep
from roofline import operations
from roofline.account.cases import Attention
from roofline.worker.prepared import PreparedCase

EAGER = bench.eager


def case(mask="causal", part="forward", m=70) -> Attention:
    return Attention(2, 3, 16, m, mask, part, "fp32")


def stand_in(monkeypatch, run) -> None:
    """`run` in the place of the contender `eager`: the reference is by the function itself."""
    declared = tuple(replace(each, path=run) if each.name == "eager" else each for each in CONTENDERS)
    monkeypatch.setitem(operations.OPERATIONS, "attention", replace(OPERATION, contenders=declared))


def prepare(*names, of=None) -> PreparedCase:
    return bench.Runner(OPTIONS).prepare(of or case(), list(names))


@pytest.mark.parametrize("part", ["forward", "backward"])
@pytest.mark.parametrize("mask", ["full", "causal"])
def test_eager_and_numpy_agree_with_the_baseline_and_keep_what_the_formula_says(mask, part):
    prepared = prepare("eager", "numpy", of=case(mask, part))
    assert prepared.contenders == ["sdpa", "eager", "numpy"]
    for entrant in prepared.entrants.values():
        assert entrant.relative_error < 1e-5
        assert entrant.recheck() is None
        assert entrant.facts["peak_bytes"] > 0
        if part == "forward":
            assert entrant.facts["saved_bytes"] == entrant.facts["saved_formula_bytes"]
        entrant.call(), entrant.call()  # a backward pass can be repeated


def test_a_later_process_takes_who_was_checked_before():
    runner = bench.Runner(OPTIONS)
    runner.earlier = {case().id: {"medians_s": {"sdpa": 1e-3}}}
    assert runner.prepare(case(), ["eager"]).contenders == ["sdpa", "eager"]


def off_by_one(q, k, v, causal):
    """Each row sees one more."""
    later = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool).triu(2)
    return torch.softmax((q @ k.mT * q.shape[-1] ** -0.5).masked_fill(later, -torch.inf), -1) @ v


@pytest.mark.parametrize("part", ["forward", "backward"])
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (off_by_one, "eager: relative error .* is above 1e-05, the limit for fp32"),
        (lambda q, k, v, causal: EAGER(q, k, v, False), "eager: relative error .* is above 1e-05"),
        (
            lambda q, k, v, causal: EAGER(q, k, v, causal) * torch.nan,
            "NaN: .*; the first is in row 0, 0, 0 of (out|dq)$",
        ),
    ],
    ids=["a mask that is off by one", "no mask", "nan"],
)
def test_wrong_results_are_refused(monkeypatch, wrong, message, part):
    stand_in(monkeypatch, wrong)
    prepared = prepare("eager", of=case(part=part))
    assert prepared.contenders == ["sdpa"]
    assert re.search(message, prepared.rejected["eager"].reason)


def test_who_recalls_an_earlier_result_loses_its_samples(monkeypatch):
    kept = {}

    def recalls(q, k, v, causal):
        return kept.setdefault(0, F.scaled_dot_product_attention(q, k, v, is_causal=causal))

    stand_in(monkeypatch, recalls)
    prepared = prepare("eager")
    assert "relative error 2.00e+00" in prepared.entrants["eager"].recheck().reason


def test_scores_that_do_not_fit_are_told_with_both_sizes(machine_of):
    machine_of(memory_bytes=24e9)
    long = Attention(8, 1, 16, 16384, "full", "forward", "fp32")
    reasons = {each.name: each.why_not(long, OPTIONS, []) for each in CONTENDERS}
    assert {name for name, reason in reasons.items() if reason} == {*bench.SCORED}
    assert reasons["eager"] == "needs 34.5 GB for its scores, 24.0 GB there"


@pytest.mark.parametrize(("timed", "device"), [(True, "cpu"), (True, "cuda"), (False, "cpu")])
def test_every_id_of_a_sweep_is_read_again(timed, device):
    cases = sweep(replace(OPTIONS, device=device, timed=timed, dtypes=("bf16",)))
    assert [operations.parse(f"{case.id}-flash") for case in cases] == [(case, "flash") for case in cases]
    assert {case.mask for case in cases} == {"full", "causal"}


def test_tokens_that_are_asked_for_are_lengths():
    cases = sweep(replace(OPTIONS, tokens=(64,), lengths=(64,)))
    assert {case.m for case in cases} == {64}


def figure_of(*lengths: int):
    """Of two contenders: all times grow as the square of the length, and what only one of them saves."""
    rows = [
        dict(op="attention", contender=name, batch=8, heads=1, width=64, m=m, mask="causal", part=part)
        | dict(time_s=1e-9 * m**2, saved_bytes=float(m**power) if part == "forward" else float("nan"))
        for name, power in (("eager", 2), ("sdpa", 1))
        for m in lengths
        for part in ("forward", "backward")
    ]
    return over_lengths(pandas.DataFrame(rows))


def test_the_figure_has_a_slope_beside_each_line():
    figure = figure_of(256, 1024, 4096)
    powers = [[text.get_text() for text in axes.get_legend().get_texts()] for axes in figure.axes]
    assert powers == [["eager: 2.0", "sdpa: 2.0"]] * 2 + [["eager: 2.0", "sdpa: 1.0"]]
    titles = [(axes.get_title("left"), axes.get_ylabel()) for axes in figure.axes]
    assert titles == [("causal, batch 8, heads 1, width 64", label) for *_, label in PANELS]


def test_attention_of_one_length_has_no_slope_and_no_nan():
    figure = figure_of(256)
    assert not [text for axes in figure.axes for text in axes.texts if text.get_text()]
