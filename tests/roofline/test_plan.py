"""How long a run takes by its plan, and how long a step may."""

from types import SimpleNamespace

import pytest

from roofline.supervise import plan
from roofline.supervise.limits import limit_s
from roofline.worker.messages import Step, StepBegan

SHAPES = {f"matmul-xxl/16-up-tp8-m{m}-fp32": ["torch", "numpy"] for m in (64, 256)}
HELLO = {"passes": 4, "processes": 3, "machine": {"cache_bytes": 0}}
OPTIONS = SimpleNamespace(device="cpu", max_seconds=1.0, processes=None, no_report=False)


def planned(shapes=SHAPES, start_s=2.0, done=None, **changed):
    options = SimpleNamespace(**vars(OPTIONS) | changed)
    return plan.plan(shapes, options, HELLO, done=done or {}, start_s=start_s, flops_per_s=1e12)


def test_the_plan_counts_processes_checks_ceilings_turns_and_the_report():
    made = planned()
    turns_s = len(SHAPES) * (1.0 + 12 * plan.PASS_S)
    assert made.turns_s == pytest.approx(turns_s)
    assert made.begin_s == pytest.approx(3 * (2.0 + 4 * plan.ENTER_S["throughput"]))
    parts_s = 2.0 + 4 * plan.CHECK_S["throughput"], made.begin_s, plan.CEILINGS_S + 3 * 1.0, turns_s
    assert made.seconds == pytest.approx(sum(parts_s) + plan.REPORT_S["throughput"])
    more_s = made.begin_s * 2 / 3 + 2 * 2 * 4 * plan.PASS_S
    assert planned(processes=5).seconds == pytest.approx(made.seconds + more_s)
    assert planned(no_report=True).seconds == pytest.approx(made.seconds - plan.REPORT_S["throughput"])


def test_a_run_that_goes_on_plans_what_is_left():
    made, left = planned(), planned(done=dict.fromkeys(SHAPES, 8))
    assert (left.begin_s, left.turns_s) == (pytest.approx(made.begin_s / 3), pytest.approx(made.turns_s / 3))


def test_calls_that_are_long_take_what_the_fewest_rounds_do():
    assert plan.turns_of_shape_s(0.001, 2, OPTIONS) == 1.0
    assert plan.turns_of_shape_s(0.02, 2, OPTIONS) == pytest.approx(30 * 3 * 0.02)
    assert plan.turns_of_shape_s(9.0, 2, OPTIONS) == 3.0


def test_a_step_may_take_a_hundred_calls_of_the_baseline_for_each_that_it_calls():
    """As docs/how.md has it: 10 s, and 20 s on a GPU, beside these; turns also three times what their own rule has."""
    turns = StepBegan(Step.TURNS, "shape", entrants=["torch", "numpy"], seconds=4.0)
    assert limit_s(turns, "cpu", 0.25) == 10 + 100 * 2 * 0.25 + 3 * 4
    assert limit_s(turns, "cuda", 0.0) == 20 + 3 * 4
    assert limit_s(StepBegan(Step.CALL, "shape", seconds=900.0), "cpu", 0.25) == 60 + 100 * 0.25
    assert limit_s(StepBegan(Step.START), "cpu", 0.25) == 120
