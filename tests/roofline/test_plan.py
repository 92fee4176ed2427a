"""How long a run takes: the estimates against the runs that set them, and the time left on a clock that is told."""

import random
from datetime import datetime
from itertools import accumulate
from pathlib import Path

import pytest

from roofline import load
from roofline.measure import plan
from roofline.measure.plan import Plan, Step, estimate
from roofline.operations import OPERATIONS, parse
from roofline.options import of_values, resolve

REFERENCE = Path(__file__).parents[2] / "results" / "reference"
EPYC, H100 = (135e9, 67e9), (0.5e15, 0.5e15)


def planned(device="cpu", flops=EPYC, passes=16, processes=6, names=2, **given):
    """(shapes, the seconds of their steps)."""
    options = resolve({f"ffn_{name}": text for name, text in given.items()}.get, device=device, timed=True, root=Path())
    cases = [case for one in OPERATIONS.values() if one.sweep for case in one.sweep(options)]
    shapes = {case.id: (case, ["a"] * names) for case in cases}
    return shapes, estimate(shapes, options, passes, options.processes or processes, flops)


def steps(*about, **more):
    return planned(*about, **more)[1]


def of_kind(seconds, *kinds):
    return sum(own for step, own in seconds.items() if step.kind in kinds)


@pytest.mark.parametrize("name", sorted(run.name for run in REFERENCE.iterdir()))
def test_the_estimate_of_a_committed_run_is_what_it_took(name):
    run = load(REFERENCE / name)
    took_s = datetime.fromisoformat(run.end["finished"]) - datetime.fromisoformat(run.metadata["started"])
    shapes = {one.id: (parse(one.id)[0], one.measured) for one in run.shapes.values()}
    found = estimate(shapes, of_values(run.metadata["options"]), 16, 6, EPYC)
    assert sum(found.values()) - of_kind(found, plan.REPORT) == pytest.approx(took_s.total_seconds(), rel=0.2)


def test_the_steps_are_those_of_a_session_in_their_order():
    found = list(steps(tokens="1,1024", tp="8", layers="up", ranks="2", link_bandwidth="1e9", passes=2, processes=2))
    shapes = list(dict.fromkeys(step.shape for step in found if step.shape))
    assert [step.kind for step in found if not step.shape] == [plan.PREPARING, plan.CEILINGS, plan.BEGIN, plan.REPORT]
    for process in range(2):
        first = [Step(kind, process, one, i) for one in shapes for kind, i in ((plan.PREPARE, 0), (plan.MEASURE, 1))]
        again = [Step(plan.MEASURE, process, one, 2) for one in shapes]
        assert [step for step in found if step.shape and step.process == process] == first + again


def test_a_default_run_of_a_gpu_is_as_contributing_reckons():
    found = steps("cuda", H100, passes=1, processes=3, names=4)
    assert 240 < sum(found.values()) < 480
    assert 60 < of_kind(found, plan.STEADY) < 120


def test_a_quick_run_is_a_fifth_of_a_whole_one():
    assert sum(steps(quick=True).values()) < 60 < sum(steps().values()) / 4


def test_more_rounds_than_their_cap_are_counted_by_the_fewest_that_are_run():
    slow = steps(flops=(1e9, 1e9), tokens="4096", tp="1", layers="up", processes=1)
    case = next(step.shape for step in slow if step.shape.startswith("matmul"))
    round_s = slow[Step(plan.MEASURE, 0, case, 1)]
    rounds = sum(own for step, own in slow.items() if step.kind == plan.MEASURE and step.shape == case) / round_s
    assert rounds == 1  # one takes above three times the cap
    assert round_s > 3 * 3.2


class Told:
    """A clock that is set."""

    now = 0.0

    def __call__(self):
        return self.now


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("slower", [(1.8, 1.0, 1.0), (0.6, 1.5, 0.5), (1.0, 0.6, 2.0), (3.0, 2.0, 2.0)])
def test_from_the_second_minute_on_the_time_left_is_right_within_20_percent(slower, seed):
    """However far off the estimates were of preparing, measuring and starting, and whatever single steps take, until
    the report of some 17 s is nearly all that is left."""
    random.seed(seed)
    seconds, clock = steps(), Told()
    of = {plan.PREPARE: slower[0], plan.MEASURE: slower[1], plan.BEGIN: slower[2]}
    took = [own * of.get(step.kind, 1.0) * random.uniform(0.6, 1.4) for step, own in seconds.items()]
    run, ends, off = Plan(seconds, clock), list(accumulate(took)), []
    for index, (step, end, took_s) in enumerate(zip(seconds, ends, took, strict=True)):
        clock.now = end - took_s
        run.begin(step)
        if clock.now > 120 and ends[-1] - clock.now > 40 and index % 50 == 0:
            off.append(abs(run.left_s() / (ends[-1] - clock.now) - 1))
    assert len(off) > 20
    assert max(off) < 0.2


def test_steps_that_are_left_out_or_not_planned_change_no_more_than_they_save():
    seconds = {Step(plan.MEASURE, 0, name, 1): 10.0 for name in "abc"} | {Step(plan.REPORT): 5.0}
    clock = Told()
    run = Plan(seconds, clock)
    assert run.left_s() == 35
    clock.now = 10.0
    run.begin(Step(plan.MEASURE, 0, "unplanned", 1))
    assert run.left_s() == 25
    run.begin(Step(plan.MEASURE, 0, "c", 1))
    assert run.at.shape == "c"
    assert run.left_s() == pytest.approx(5 + 10 * (10 + plan.PRIOR_S) / (20 + plan.PRIOR_S))  # two took the time of one
    clock.now = 100.0
    assert run.left_s() == pytest.approx(5)  # and no less, however long the last one takes


def test_what_is_said_of_the_whole_and_of_a_step():
    run = Plan(steps(), Told())
    assert str(run).startswith("about 6 min: ")
    assert ": preparing under 5 s, ceilings 10 s, 6 processes of 55 s, report 15 s" in str(run)
    run.begin(Step(plan.BEGIN, 1))
    assert run.line().startswith("process 2 of 6, its start: ")
    run.begin(Step(plan.MEASURE, 1, "matmul-xxl/16-up-tp1-m1-fp32", 3))
    assert run.line().startswith("process 2 of 6, pass 3 of 16, matmul-xxl/16-up-tp1-m1-fp32: ")
    run.begin(Step(plan.REPORT))
    assert run.line() == "report: 15 s left"
