"""The rule by which a tuning takes a candidate: how often equal ones are taken for faster, how small a gain is seen."""

from dataclasses import replace

import numpy as np
import pytest

from roofline.report import tuning as tuned
from roofline.stats import ratio_of
from roofline.store.run import Round, Run, Shape
from roofline.theory.work import Work

CASE = "tune_fake-xxl-up-tp8-m2048-bf16"
RUNS, ROUNDS, CANDIDATES, NOISE, CORRELATION = 200, 40, 16, 0.01, 0.3


def made_up(rng, *, rounds=ROUNDS, gain=0.0, late=()) -> Run:
    """A run in which all take 1 ms, on a clock that drifts by 5 %, with correlated noise; candidate 3 is `gain` faster.
    Rounds in `late` lack the candidates."""
    names = [tuned.INCUMBENT, *(f"c{index}" for index in range(CANDIDATES))]
    drift = 1 + 0.05 * np.sin(np.linspace(0, 6, rounds))
    times = {}
    for name in names:
        noise = rng.normal(0, NOISE, rounds)
        for index in range(1, rounds):
            noise[index] = CORRELATION * noise[index - 1] + (1 - CORRELATION**2) ** 0.5 * noise[index]
        series = 1e-3 * drift * (1 + noise) / (1 + gain * (name == "c3"))
        times[name] = {index: series[index] for index in range(rounds) if name == tuned.INCUMBENT or index not in late}
    entrants = {name: {"config": name} for name in names}
    shape = Shape(CASE, "tune_fake", "throughput", {}, "bf16", Work(1, 1), tuned.INCUMBENT, "cold", entrants)
    shape.stopped_by, shape.round_count, shape.late = "width", rounds, dict.fromkeys(names, 0)
    for index in range(rounds):
        shape.rounds.append(Round(index, names, {name: own[index] for name, own in times.items() if index in own}))
    return Run({"cases": []}, shapes={CASE: shape})


def naive(run: Run) -> bool:
    """Whether the best over all rounds has an interval above 1, over the same rounds."""
    shape = run.shapes[CASE]
    incumbent, *others = map(shape.times_s, shape.measured)
    best = max(others, key=lambda own: np.median([incumbent[i] / own[i] for i in own]))
    return ratio_of(incumbent, best).low > 1


def test_equal_candidates_are_seldom_taken_for_faster():
    rng = np.random.default_rng(1)
    runs = [made_up(rng) for _ in range(RUNS)]
    wrongly = sum(not tuned.verdict(run, CASE).stays for run in runs) / RUNS
    at_face_value = sum(map(naive, runs)) / RUNS
    print(f"taken for faster: {wrongly:.3f}; by the best interval of all rounds: {at_face_value:.3f}")
    assert wrongly <= 0.06
    assert at_face_value > 0.1  # what the halves are there for


def test_a_gain_of_two_percent_is_taken_and_its_ratio_is_not_flattered():
    rng = np.random.default_rng(2)
    found = [tuned.verdict(made_up(rng, gain=0.02), CASE) for _ in range(RUNS)]
    taken = [verdict for verdict in found if verdict.winner == "c3"]
    print(f"taken: {len(taken) / RUNS:.3f}")
    assert len(taken) >= 0.9 * RUNS
    assert np.mean([verdict.ratio.value for verdict in taken]) == pytest.approx(1.02, abs=0.002)


@pytest.mark.parametrize(("rounds", "stays"), [(10, True), (11, False)])
def test_few_rounds_are_no_evidence(rounds, stays):
    assert tuned.verdict(made_up(np.random.default_rng(3), rounds=rounds, gain=0.5), CASE).stays == stays


def test_without_samples_nobody_is_best():
    run = made_up(np.random.default_rng(4), gain=0.5, late=range(ROUNDS // 2, ROUNDS))
    found = tuned.verdict(run, CASE)
    assert (found.stays, found.best, found.ratio) == (True, None, None)
    assert tuned.ratio_text(found) == "-"
    run.shapes[CASE].rounds.clear()
    run.shapes[CASE] = replace(run.shapes[CASE])
    assert tuned.verdict(run, CASE) is None


def test_a_shape_that_was_cut_short_has_no_verdict():
    run = made_up(np.random.default_rng(5), gain=0.5)
    run.shapes[CASE].stopped_by = "interrupt"
    assert tuned.verdicts(run) == []


def test_what_was_not_timed_is_counted_by_its_kind():
    run = made_up(np.random.default_rng(6))
    run.shapes[CASE].facts["pruned"] = {"a": "shared memory: 240000 bytes, limit 232448", "b": "shared memory: more"}
    reasons = ("pruned, spills: 8 bytes of stack", "out of memory: 12 GiB asked for")
    run.not_measured = [{"case": f"{CASE}-c{i}", "outcome": "skipped", "reason": r} for i, r in enumerate(reasons)]
    run.not_measured.append({"case": f"{CASE}0-c1", "outcome": "skipped", "reason": reasons[0]})
    assert tuned.verdict(run, CASE).pruned == {"shared memory": 2, "spills": 1}
    run.shapes[CASE].facts["not_compiled"] = "does not compile: no nvdisasm"
    told = tuned.COLUMNS[-1].cell(tuned.verdict(run, CASE))
    assert told == "shared memory: 2, spills: 1, none compiled ahead (does not compile: no nvdisasm)"
