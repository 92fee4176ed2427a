"""How long a run takes by its plan, and how long a step may."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from chosen_options import options

from roofline.protocol.messages import Step, StepBegan
from roofline.supervise import plan
from roofline.supervise.limits import limit_s

SHAPES = {f"matmul-xxl/16-up-tp8-m{m}-fp32": ["torch", "numpy"] for m in (64, 256)}
HELLO = {"passes": 4, "processes": 3, "machine": {"source": "cpu", "cores": 20, "cache_bytes": 0}}
OPTIONS = options(max_seconds=1.0)

BEGIN_S = plan.START_S + 4 * plan.ENTER_S["throughput"]
TURNS_S = len(SHAPES) * (1.0 + 12 * plan.PASS_S)


def planned(done=None, **changed):
    return plan.plan(SHAPES, replace(OPTIONS, **changed), HELLO, done=done or {})


def test_the_plan_counts_processes_checks_ceilings_turns_and_the_report():
    made = planned()
    check_s = plan.START_S + 4 * plan.CHECK_S["throughput"] + plan.CEILINGS_S + 3 * 1.0
    assert made.measure_s == pytest.approx(check_s + 3 * BEGIN_S + TURNS_S)
    assert made.seconds == pytest.approx(made.measure_s + plan.REPORT_S["throughput"])
    more_s = 2 * BEGIN_S + 2 * 2 * 4 * plan.PASS_S
    assert planned(processes=5).seconds == pytest.approx(made.seconds + more_s)
    assert planned(no_report=True).seconds == pytest.approx(made.seconds - plan.REPORT_S["throughput"])


def test_a_run_that_goes_on_plans_what_is_left():
    made, left = planned(), planned(done=dict.fromkeys(SHAPES, 8))
    assert made.seconds - left.seconds == pytest.approx(2 * BEGIN_S + TURNS_S * 2 / 3)


def test_calls_that_are_long_take_what_the_fewest_rounds_do():
    """Three take turns, of 54.5 MFLOP and of 218 at 1 TFLOP/s."""
    made, long, short = planned(max_seconds=0.1), planned(max_seconds=0.01), planned(max_seconds=0.002)
    least_s = 30 * 3 * 54.5e-6, 30 * 3 * 218e-6
    assert made.seconds - long.seconds == pytest.approx(0.2 - 0.01 - least_s[1] + 3 * 0.09, rel=1e-3)
    assert long.seconds - short.seconds == pytest.approx(
        0.01 + least_s[1] - least_s[0] - 3 * 0.002 + 3 * 0.008, rel=1e-3
    )
    assert [each.short_shapes for each in (made, long, short)] == [0, 0, 1]


def test_a_step_may_take_a_hundred_calls_of_the_baseline_for_each_that_it_calls():
    """As docs/how.md has it: 10 s, and 20 s on a GPU, beside these; turns also three times what their own rule has."""
    turns = StepBegan(Step.TURNS, "shape", entrants=["torch", "numpy"], seconds=4.0)
    cpu, cuda = SimpleNamespace(device="cpu", first_call_seconds=None), SimpleNamespace(device="cuda")
    assert limit_s(turns, cpu, 0.25) == 10 + 100 * 2 * 0.25 + 3 * 4
    assert limit_s(turns, cuda, 0.0) == 20 + 3 * 4
    assert limit_s(StepBegan(Step.CALL, "shape"), cpu, 0.25) == 120 + 100 * 0.25
    assert limit_s(StepBegan(Step.CALL, "shape", seconds=900.0), cpu, 0.25) == 900
    assert limit_s(StepBegan(Step.START), cpu, 0.25) == 120


@pytest.mark.slow
def test_a_first_call_hangs_when_its_seconds_are_over(by_forks):
    run = by_forks("-k", "m64", "--ffn-first-call-seconds=2", fault="first-numpy 64 hang")
    assert (run.code, [*run.reasons]) == (1, ["m64-numpy"])
    reason = "hung at its first call: it was not over in 2 s, the limit; --ffn-first-call-seconds sets another"
    assert f"{reason}; it stood at " in run.text
