"""How long a run takes: by its plan, and by what was timed of it, on a clock of its own."""

from types import SimpleNamespace

import pytest

from roofline.supervise import plan
from roofline.supervise.limits import limit_s
from roofline.supervise.plan import Timed
from roofline.worker.messages import Step, StepBegan

SHAPES = {f"matmul-xxl/16-up-tp8-m{m}-fp32": ["torch", "numpy"] for m in (64, 256)}
HELLO = {"passes": 4, "processes": 3, "machine": {"cache_bytes": 0, "memory_bytes": 2**30}}
OPTIONS = SimpleNamespace(device="cpu", max_seconds=1.0, processes=None, no_report=False)
BEGIN_S, CEILINGS_S, PASS_S = 3.0, 40.0, {"a": 0.5, "b": 2.0}
"""Of a process, once, and of a pass over each shape."""


def planned(shapes=SHAPES, start_s=2.0, done=None, **changed):
    options = SimpleNamespace(**vars(OPTIONS) | changed)
    return plan.plan(shapes, options, HELLO, done=done or {}, start_s=start_s, flops_per_s=1e12)


def test_the_plan_counts_processes_checks_ceilings_turns_and_the_report():
    made = planned()
    turns_s = len(SHAPES) * (1.0 + 12 * plan.PASS_S)
    assert made.turns_s == pytest.approx(turns_s)
    assert made.begin_s == pytest.approx(2.0 + 4 * plan.ENTER_S["throughput"])
    parts_s = 2.0 + 4 * plan.CHECK_S["throughput"], 3 * made.begin_s, plan.CEILINGS_S + 3 * 1.0, turns_s
    assert made.seconds == pytest.approx(sum(parts_s) + plan.REPORT_S["throughput"])
    assert made.first_estimate_s == pytest.approx(made.begin_s + made.ceilings_s + turns_s / 12)
    assert planned(processes=5).seconds == pytest.approx(made.seconds + 2 * made.begin_s + 2 * 2 * 4 * plan.PASS_S)
    assert planned(no_report=True).seconds == pytest.approx(made.seconds - plan.REPORT_S["throughput"])


def test_a_run_that_goes_on_plans_what_is_left():
    made, left = planned(), planned(done=dict.fromkeys(SHAPES, 8))
    assert (left.processes, left.turns_s) == (1, pytest.approx(made.turns_s / 3))


def test_calls_that_are_long_take_what_the_fewest_rounds_do():
    assert plan.turns_of_shape_s(0.001, 2, OPTIONS) == 1.0
    assert plan.turns_of_shape_s(0.02, 2, OPTIONS) == pytest.approx(30 * 3 * 0.02)
    assert plan.turns_of_shape_s(9.0, 2, OPTIONS) == 3.0


def test_what_is_left_is_exact_once_each_shape_had_a_pass():
    """Of two shapes in two passes of three processes, the first of which measures the ceilings."""
    timed, now, estimates = Timed(), 0.0, []
    passes_left = dict.fromkeys(PASS_S, 6)

    def step(seconds, step, shape="", **about):
        nonlocal now
        timed.begin_step(StepBegan(step, shape, **about), now)
        estimates.append((now, timed.left_s(passes_left, 2)))
        now += seconds

    for process in range(3):
        timed.begin_process(now)
        step(BEGIN_S - 1, Step.START)
        if process == 0:
            step(CEILINGS_S, Step.CEILINGS, once=True)
        step(1, Step.PREPARE, "a")
        for _ in range(2):
            for shape, seconds in PASS_S.items():
                step(seconds, Step.TURNS, shape)
                passes_left[shape] -= 1
        passes_left = {shape: count for shape, count in passes_left.items() if count}
    assert [left_s for _, left_s in estimates[:5]] == [None] * 5
    for when, left_s in estimates[5:]:
        assert left_s == pytest.approx(now - when)


def test_a_step_may_take_a_hundred_calls_of_the_baseline_for_each_that_it_calls():
    """As docs/how.md has it: 10 s, and 20 s on a GPU, beside these; turns also three times what their own rule has."""
    turns = StepBegan(Step.TURNS, "shape", entrants=["torch", "numpy"], seconds=4.0)
    assert limit_s(turns, "cpu", 0.25) == 10 + 100 * 2 * 0.25 + 3 * 4
    assert limit_s(turns, "cuda", 0.0) == 20 + 3 * 4
    assert limit_s(StepBegan(Step.CALL, "shape", seconds=900.0), "cpu", 0.25) == 60 + 100 * 0.25
    assert limit_s(StepBegan(Step.START), "cpu", 0.25) == 120
