"""Decisions by --ffn-decide: how often they are false, how many are made, and what a run does for them."""

import math
from collections import Counter

import numpy as np
import pytest
from features import unfilled

from roofline.analysis.decision import LEAST, LOOKS, MOST_TIMES, SURE, decide, levels
from roofline.analysis.records import records_of
from roofline.analysis.verdicts import MARGIN, SAME, SLOWER, UNDECIDED
from roofline.store.stats import grouped

PLANNED = 6
SPREADS = (
    *(0.0047, 0.0057, 0.0077, 0.0091, 0.0093, 0.0096, 0.0104, 0.0118, 0.0122, 0.0127, 0.0135, 0.0157, 0.0174, 0.0180),
    *(0.0191, 0.0201, 0.0202, 0.0218, 0.0220, 0.0231, 0.0232, 0.0233, 0.0239, 0.0252, 0.0264, 0.0275, 0.0295, 0.0341),
)
"""Standard deviations of a ratio's logarithm from process to process: numpy's beside torch, in 28 matmuls of the
committed runs of 2026-11-24."""
WITHIN = 0.8
"""Of their variance, what rounds of the same process differ by: it falls with the time of a visit. An assumption."""
BEGIN_S, VISIT_S = 4.0, 0.8
"""What a process takes before it measures, and for a shape."""


SLOWDOWN = -math.log(1.05)


def is_open(decision):
    return decision.verdict == UNDECIDED and decision.looks < len(LOOKS)


def made_up_run(rng, spreads, slowdowns, times=MOST_TIMES):
    """Return the decisions of a run: processes go on until all is decided, or for so many times the plan."""
    most = max(levels(PLANNED))
    values = np.exp(np.array(slowdowns)[:, None] + np.array(spreads)[:, None] * rng.normal(size=(len(spreads), most)))
    decisions, left_s, cost_s = [], (times - 1) * PLANNED * (BEGIN_S + VISIT_S * len(spreads)), 0.0
    for processes in range(PLANNED, most + 1):
        if processes > PLANNED:
            cost_s = BEGIN_S + VISIT_S * sum(map(is_open, decisions))
            left_s -= cost_s
        decisions = [decide(list(of_shape[:processes]), MARGIN, PLANNED) for of_shape in values]
        if left_s < cost_s / 2 or not any(map(is_open, decisions)):
            break
    return decisions


@pytest.mark.parametrize(("times", "at_least"), [(2, 0.75), (MOST_TIMES, 0.95)])
def test_equal_contenders_get_no_false_verdict_and_most_are_decided(times, at_least):
    rng, equal = np.random.default_rng(0), [0.0] * len(SPREADS)
    verdicts = Counter(d.verdict for _ in range(6) for d in made_up_run(rng, SPREADS, equal, times))
    decided = verdicts.total() - verdicts[UNDECIDED]
    assert decided >= at_least * verdicts.total()
    assert decided - verdicts[SAME] <= 0.01 * decided


@pytest.mark.parametrize(("seconds", "at_least"), [(1, 0.8), (2, 0.9)])
def test_a_slowdown_of_one_shape_is_seen(seconds, at_least):
    """At the default --ffn-max-seconds in most shapes, at twice as much in nearly all: of every fourth one."""
    rng = np.random.default_rng(0)
    spreads = [spread * math.sqrt(1 - WITHIN + WITHIN / seconds) for spread in SPREADS]
    verdicts = Counter()
    for place in range(1, len(spreads), 4):
        slowdowns = [SLOWDOWN * (place == other) for other in range(len(spreads))]
        verdicts[made_up_run(rng, spreads, slowdowns)[place].verdict] += 1
    assert verdicts[SLOWER] >= at_least * verdicts.total()


@pytest.mark.parametrize("planned", [LEAST, PLANNED, 11])
def test_looks_spend_no_more_than_what_may_be_wrong(planned):
    counts = list(levels(planned))
    assert counts == sorted({*counts})
    assert (counts[0], len(counts)) == (planned, len(LOOKS))
    assert sum(levels(planned).values()) == pytest.approx(1 - SURE)
    rng, margin = np.random.default_rng(0), math.log1p(MARGIN)
    values = np.exp(rng.normal(-margin, 0.02, size=(400, counts[-1])))  # as slow as may still be the same, and slower
    wrong = sum(decide(list(of_case), MARGIN, planned).verdict == SLOWER for of_case in values)
    assert wrong <= 400 * (1 - SURE)


def test_what_one_look_says():
    assert decide([1.0] * 5, MARGIN, PLANNED) == (UNDECIDED, None, None, None, 0)
    assert decide([0.97] * 6, MARGIN, PLANNED) == (SLOWER, *[pytest.approx(0.97)] * 3, 1)
    early, late = (decide([0.8, 1.25] * pairs, MARGIN, PLANNED) for pairs in (3, 14))
    assert (early.verdict, early.looks, is_open(early)) == (UNDECIDED, 1, True)
    assert (late.verdict, late.looks, is_open(late)) == (UNDECIDED, len(LOOKS), False)


NOISY = """
import itertools, math, random, types
from roofline.supervise import child, measuring, session

noise, ticks = random.Random(1), itertools.count()
TORCH[:], NUMPY[:] = [SLOWER * 0.002] * 4, [SLOWER * 0.001] * 4
now = [0.0]
session.Session.show_progress = lambda *about: now.append(float(next(ticks)))  # each step takes as long
measuring.time = child.time = types.SimpleNamespace(monotonic=lambda: now[-1])

def check(case, name, later, check=check):
    entrant = check(case, name, later)
    if name == "numpy":
        with open("prepared", "a") as file:
            file.write("x")
        if os.environ.get("CUT") == str(os.stat("prepared").st_size):
            os.kill(os.getpid(), signal.SIGINT)
        factor = 2 * math.exp({64: 0.0, 128: 0.05, 256: 0.5}[case.m] * noise.gauss(0, 1))
        entrant.call.run = lambda call=entrant.call.run: factor * float(os.environ.get("TIMES", "1")) * call()
    return entrant
"""
"""Contenders that are equal, but for what the processes of each shape differ by."""


@pytest.fixture(scope="module")
def noisy(three_shapes):
    return lambda *more, **about: three_shapes("--ffn-decide=3%", *more, passes=2, more=NOISY, **about)


def by_tokens(run, name):
    return {shape.params["m"]: getattr(shape, name) for shape in run.kept.shapes.values()}


def test_what_is_undecided_goes_on_until_the_time_is_up(noisy):
    run = noisy()
    assert run.code == 0
    assert by_tokens(run, "stopped_by") == {64: "decision", 128: "time", 256: "time"}
    processes = by_tokens(run, "processes")
    assert by_tokens(run, "round_count")[64] == 600  # all: no process ended early, though intervals were narrow
    assert processes[64] == LEAST < processes[128] == processes[256]
    seconds = grouped((line["planned"], line["seconds"]) for line in run.kept.processes)
    assert sum(seconds[False]) == pytest.approx((MOST_TIMES - 1) * sum(seconds[True]), abs=seconds[False][-1] / 2)
    assert unfilled(run.kept, "decisions") == []
    assert Counter(record["verdict"] for record in records_of(run.kept)) == {None: 3, SAME: 1, UNDECIDED: 2}
    assert "1 SAME, 2 UNDECIDED of 3 at +-3 %, 99 % sure (alpha spent over 6 looks)" in run.text
    assert "| numpy | 1.000 [1.000, 1.000] | SAME | 1 |" in run.report


@pytest.mark.slow
def test_a_run_that_is_cut_off_goes_on_deciding(noisy):
    run = noisy(cut=3 * LEAST + 4)  # shapes were prepared by then: in the second further process its second one
    assert run.code == 2
    assert by_tokens(run, "stopped_by") == {64: "decision", 128: "interrupt", 256: "interrupt"}
    assert "go on with it" in run.text
    again = run.go_on(more=NOISY)
    assert again.code == 0
    assert by_tokens(again, "stopped_by") == {64: "decision", 128: "time", 256: "time"}
    assert by_tokens(again, "passes")[128] > by_tokens(run, "passes")[128] > by_tokens(again, "passes")[64] == 2 * LEAST


def test_a_contender_that_is_slower_fails_the_run_where_that_is_asked_for(noisy):
    run = noisy("-k", "m64", "--ffn-fail-slower", times=1.1)
    assert run.code == 1
    assert "1 SLOWER of 1 at +-3 %" in run.text
    assert "SLOWER: matmul-xxl/16-up-tp8-m64-fp32-numpy: 0.909 [0.909, 0.909] of torch's speed" in run.text
    assert noisy("-k", "m64", "--ffn-fail-slower").code == 0
