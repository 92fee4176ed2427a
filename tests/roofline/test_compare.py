"""Verdicts: right on planted differences, seldom wrong on equal runs, refused where two runs cannot be compared."""

import itertools
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from made_up_gathers import gather_matmul, gathering
from made_up_run import END, HEAD, ceiling, save, shape

from conftest import ROOT
from roofline.analysis import changes
from roofline.analysis.changes import change
from roofline.analysis.comparison import compare
from roofline.analysis.verdicts import FASTER, SAME, SLOWER, UNDECIDED, VERDICTS, Change, holm, verdicts
from roofline.commands.cli import main
from roofline.report.compare import terminal
from roofline.store import journal


def change_of_speed(speed, error=0.001):
    return Change(math.log(speed), error, 20)


@pytest.mark.parametrize(
    ("speed", "error", "of_no_change", "of_the_margin"),
    [
        (1.031, 0.0, FASTER, FASTER),
        (1.06, 0.02, FASTER, UNDECIDED),  # surely faster, and not surely by so much
        (0.94, 0.001, SLOWER, SLOWER),
        (0.97, 0.0, SLOWER, SLOWER),
        (0.972, 0.0, SAME, SAME),  # above 1 / 1.03
        (1.02, 0.001, SAME, SAME),  # surely faster, and by less than counts
        (1.029, 0.01, UNDECIDED, UNDECIDED),
        (1.06, 0.04, UNDECIDED, UNDECIDED),
    ],
)
def test_verdict_is_by_a_test_the_margin_and_the_interval(speed, error, of_no_change, of_the_margin):
    changes = [change_of_speed(speed, error)]
    assert verdicts(changes) == [of_no_change]
    assert verdicts(changes, beyond_margin=True) == [of_the_margin]


def test_words_are_explained_where_readers_look():
    page = (ROOT / "docs" / "trust.md").read_text()
    assert all(f"| {word} | {meaning} |" in page for word, meaning in VERDICTS.items())


def test_holm_by_hand_and_many_tests_ask_more_of_each():
    # Holm's steps of 5 % for four tests: 0.0125, 0.0167, 0.025, 0.05; the third fails, and the fourth with it.
    assert holm([0.03, 0.012, 0.04, 0.016]) == [False, True, False, True]
    barely, same = change_of_speed(1.05, 0.02), change_of_speed(1.0)
    assert barely.chance() == pytest.approx(0.0240, abs=2e-4)
    assert verdicts([barely, same]) == [FASTER, SAME]
    assert verdicts([barely, same, same]) == [UNDECIDED, SAME, SAME]


def test_change_of_the_mean_is_of_the_processes_that_have_all_cases():
    new = [{0: 0.1, 2: 0.5}]
    cases = [[{0: 0.1, 1: 0.6, 2: 0.3}], new], [[{0: 0.1, 2: 0.3}], new]
    assert changes.change_of_runs(cases).value == pytest.approx(0.3 - 0.2)


def test_what_no_case_tells_alone_the_mean_over_all_does(saved, capsys):
    rng = np.random.default_rng(6)
    folders = []
    for factor in (1.0, 1.06):
        times = [draw_times(rng, factor * 1e-4, 30, spread=0.15) for _ in range(28)]
        folders.append(saved(str(factor), {m: {"cublas": 1e-4, "tiled": tiled} for m, tiled in enumerate(times, 1)}))
    assert main(["compare", *folders]) == 1
    out = capsys.readouterr().out
    assert "0 SLOWER, 0 FASTER" in out
    assert "SLOWER tiled in the mean over 28 cases, speed 0.9" in out


CASES, PROCESSES, PASSES = 28, 5, 6


def draw_spreads(rng, runs, between_runs):
    """Return the spreads of `CASES` cases in `runs` runs of equal machines.

    The standard deviation is 1.3 % between processes, and 0.9 % between passes.
    """
    logs = between_runs * rng.standard_normal((CASES, runs, 1))
    logs = logs + 0.013 * rng.standard_normal((CASES, runs, PROCESSES))
    logs += 0.009 * rng.standard_normal((CASES, runs, PROCESSES, PASSES)).mean(axis=-1)
    return [[Change.of_logarithms(log.tolist()) for log in case] for case in logs]


@pytest.mark.parametrize(
    ("runs", "between_runs", "planted", "at_least"),
    [
        (1, 0.014, 0.1, 0.95),
        (5, 0.014, 0.05, 0.9),
        (5, 0.028, 0.1, 0.95),  # a machine twice as restless as is known: then several runs tell
    ],
)
def test_coverage_power_and_false_verdicts_on_made_up_runs(runs, between_runs, planted, at_least):
    """A change hits all cases: intervals hold the truth, equal runs seldom differ, and a planted change is seen."""
    rng = np.random.default_rng(3)
    equal, held, seen = [], [], []
    for _ in range(60):
        pair = zip(draw_spreads(rng, runs, between_runs), draw_spreads(rng, runs, between_runs), strict=True)
        changes = [change(*sides) for sides in pair]
        equal += verdicts(changes)
        held += [c.interval().low <= 1 <= c.interval().high for c in changes]
        slower = [replace(c, value=c.value - math.log1p(planted)) for c in changes]
        seen += [verdict == SLOWER for verdict in verdicts(slower)]
    false, covered, share = 1 - (equal.count(SAME) + equal.count(UNDECIDED)) / len(equal), np.mean(held), np.mean(seen)
    print(
        f"{runs} a side, {between_runs:.1%}: covered {covered:.3f}, false {false:.4f}, {planted:.0%} seen {share:.3f}"
    )
    assert covered >= (0.93 if between_runs <= 0.014 else 0.9)
    assert false <= 0.01
    assert share >= at_least


def draw_times(rng, seconds, rounds=100, spread=0.02):
    return (seconds * rng.lognormal(sigma=spread, size=rounds)).tolist()


@pytest.fixture
def saved(tmp_path):
    """`saved(name, {m: {contender: seconds}}, more)` returns the folder of a run, with `more` lines at its end."""

    def make(name, times, more=(), **head):
        lines = [HEAD | head, ceiling("matmul", 700e12, dtype="bf16"), ceiling("read", 4e12)]
        for m, of_contenders in times.items():
            lines += shape(m, of_contenders)
        return str(save(tmp_path / name, [*lines, *more]))

    return make


SIDES = {
    "base": (1e-4, {16: 2e-4, 64: 2e-4, 256: 2e-4}),
    "new": (1.2e-4, {16: 2.64e-4, 64: 2.4e-4, 256: 2.18e-4}),
}
"""Seconds of `cublas`, and of `tiled` by m: where all are 20 % slower it is 10 % slower, equal, and 10 % faster."""


@pytest.fixture
def sides(saved):
    """`sides(runs)` returns folders of `SIDES`."""

    def make(runs=1):
        rng = np.random.default_rng(0)
        folders = {name: [] for name in SIDES}
        for number in range(runs):
            for name, (cublas_s, tiled_s) in SIDES.items():
                times = {
                    m: {"cublas": draw_times(rng, cublas_s), "tiled": draw_times(rng, time_s)}
                    for m, time_s in tiled_s.items()
                }
                folders[name].append(saved(f"{name}-{number}", times))
        return folders.values()

    return make


def load_runs(folders):
    return [[journal.load(folder) for folder in side] for side in folders]


def verdicts_by_m(comparison):
    return {int(case.case.split("-m")[1].split("-")[0]): case.verdict for case in comparison.cases}


def test_planted_contenders_are_told_apart_on_a_machine_that_changed_and_several_runs_tell_what_is_the_same(sides):
    folders = sides(runs=4)
    first_runs = load_runs(side[:1] for side in folders)
    single, several = compare(*first_runs), compare(*load_runs(folders))
    assert verdicts_by_m(single) == {16: SLOWER, 64: UNDECIDED, 256: FASTER}
    assert single.baseline_speed == pytest.approx(1 / 1.2, rel=0.01)
    assert single.cases[0].change.interval().value == pytest.approx(1 / 1.1, rel=0.02)
    assert (single.exit_code(), single.exit_code(strict=True)) == (1, 1)
    assert verdicts_by_m(several) == {16: SLOWER, 64: SAME, 256: FASTER}


def test_terminal_and_markdown_say_the_same(sides, capsys):
    folders = sides()
    (base,), (new,) = folders
    (first, *_) = compare(*load_runs(folders)).cases
    assert re.fullmatch(r"baseline 1[67]\.\d % slower", first.notes)
    value, low, high = first.change.interval()
    for options in ([], ["--markdown"]):
        assert main(["compare", base, new, *options]) == 1
        shown, *folded = capsys.readouterr().out.split("<details>")
        assert "1 SLOWER, 1 FASTER, 0 SAME, 1 UNDECIDED of 3 cases" in "".join([shown, *folded])
        line = next(line for line in shown.splitlines() if first.case in line)
        assert f"{value:.3f} [{low:.3f}, {high:.3f}]" in line
        assert line.rstrip(" |").endswith(first.notes)
        assert ("-m64-" in shown) == (not options)


@pytest.fixture
def compared(saved, capsys):
    """`compared(base, new, options...)` returns exit code and output. Runs are as of `saved`."""

    def call(base, new, *options, more=(), **head):
        code = main(["compare", saved("base", base), saved("new", new, more, **head), *options])
        return code, "".join(capsys.readouterr())

    return call


BOTH = {"cublas": 1e-4, "tiled": 2e-4}
CASE = "matmul-1024x1024-up-tp1-m{}-bf16-{}"


def wild_times():
    rng = np.random.default_rng(1)
    return [{16: {name: draw_times(rng, 1e-4, 30, 0.3) for name in BOTH}} for _ in range(2)]


@pytest.mark.parametrize(
    ("base", "new", "code", "strict", "texts"),
    [
        (*wild_times(), 0, 1, ["1 UNDECIDED"]),
        (
            {16: BOTH, 64: BOTH}, {16: BOTH, 64: {"cublas": 1e-4}, 99: {"cublas": 1e-4}}, 0, 1,
            [f"missing in NEW: {CASE.format(64, 'tiled')}: failed: NaN",
             f"missing in BASE: {CASE.format(99, 'cublas')}: not asked for"],
        ),
        ({16: BOTH, 64: BOTH}, {16: BOTH, 64: {"tiled": 2e-4}}, 0, 1,
         ["1 UNDECIDED", f"missing in BASE or NEW: {CASE.format(64, 'tiled')}: no baseline was timed beside it"]),
        ({16: BOTH}, {16: {"tiled": 2e-4}}, 2, 2, ["no case has a ratio"]),
        ({16: BOTH}, {64: BOTH}, 2, 2, ["no case in common"]),
    ],
)  # fmt: skip
def test_what_is_undecided_missing_or_has_no_baseline_is_told_and_ends_with_its_code(
    compared, base, new, code, strict, texts
):
    more = [{"kind": "not_measured", "case": CASE.format(64, "tiled"), "outcome": "failed", "reason": "NaN"}]
    result, out = compared(base, new, more=more)
    assert (result, [text for text in texts if text not in out]) == (code, [])
    assert compared(base, new, "--strict", more=more)[0] == strict


def test_another_chip_is_refused_unless_told(compared):
    machine = HEAD["machine"] | {"chip": "another"}
    code, error = compared({16: BOTH}, {16: BOTH}, machine=machine)
    assert (code, error.count("\n")) == (2, 1)
    assert "another chip: BASE has" in error
    assert compared({16: BOTH}, {16: BOTH}, "--allow", "chip", machine=machine)[0] == 0


def test_a_quick_run_is_compared_where_a_side_has_several(saved, capsys):
    quick = [saved(name, {16: BOTH}, options={"quick": True}) for name in "abcd"]
    assert main(["compare", quick[0], "--new", *quick[1:]]) == 2
    assert "a single quick run is too short to be compared: take several a side" in capsys.readouterr().err
    assert main(["compare", *quick[:2], "--new", *quick[2:]]) == 0


def test_runs_of_a_side_share_their_conditions_and_each_says_what_it_lacks(saved, capsys):
    times = {16: BOTH, 64: BOTH}
    old, other = saved("old", times), saved("other", times, method_version=9)
    alike = saved("alike", {16: BOTH})
    assert main(["compare", old, other, "--new", alike]) == 2
    assert "another method: BASE has 1 and 9, NEW has 1; --allow method" in capsys.readouterr().err
    assert main(["compare", old, other, "--new", alike, "--allow", "method"]) == 0
    assert "method: BASE has 1 and 9, NEW has 1" in capsys.readouterr().out
    whole = saved("whole", {16: BOTH}, [END])
    assert main(["compare", old, whole, "--new", saved("new", times)]) == 0
    out = capsys.readouterr().out
    assert re.search(rf"missing in BASE 2: .*{CASE.format(64, 'tiled')}: not asked for", out)
    assert "runs: 2 BASE, 1 NEW" in out


@pytest.mark.slow
def test_committed_runs_of_one_commit_do_not_differ():
    runs = [journal.load(path.parent) for path in (ROOT / "results" / "reference").glob(f"*/{journal.NAME}*")]
    cases = []
    for base, new in itertools.combinations(runs, 2):
        if base.metadata["commit"] == new.metadata["commit"] and base.shapes.keys() & new.shapes.keys():
            cases += compare([base], [new]).cases
    assert len(cases) >= 300
    assert {FASTER, SLOWER}.isdisjoint(case.verdict for case in cases)


def test_a_void_case_is_not_compared(loaded):
    runs = []
    for pace in (1.0, 0.7):
        lines = [*gathering(gather_matmul(16), comm_s=16e-3 / pace, pace=pace), *gathering(gather_matmul(64))]
        runs.append(loaded([HEAD, *lines], str(pace)))
    comparison = compare(runs[:1], runs[1:])
    assert [case.case for case in comparison.cases if "-tp16-" in case.case] == []
    assert {(where, reason) for where, reason, _ in comparison.missing} == {
        ("not compared", "void: its link was off its pace in one of the runs")
    }
    assert comparison.cases


def test_an_arm_is_judged_by_what_it_hides_whatever_the_wire(loaded):
    def three(comm_s, lost):
        """Runs whose arm hides all but `lost` of a gather that takes `comm_s`."""
        lost = {"serial": 1.0, "chunk_launches": lost, "serial_all_cores": 0.4}
        lines = [HEAD, *gathering(gather_matmul(), 20e-3, comm_s, lost=lost)]
        return [loaded(lines, str(number)) for number in range(3)]

    base, faster_wire = three(16e-3, 0.2), three(12e-3, 0.2)
    judged_by = {case.case.rpartition("-")[2]: case.change.of for case in compare(base, base).cases}
    assert judged_by == {"chunk_launches": "hidden", "serial_all_cores": "speed"}  # which hides nothing
    same = compare(base, faster_wire)
    (arm,) = same.cases
    assert (arm.change.of, arm.verdict) == ("hidden", SAME)
    ((_, reason, case),) = same.missing
    assert case.endswith("-serial_all_cores")
    assert "--ffn-wires-of" in reason
    assert same.exit_code(strict=True) == 0  # `serial_all_cores` cannot be compared, and no run lacks it
    assert same.baseline_speed is None  # `serial` goes over another wire
    worse = compare(base, three(12e-3, 0.4))
    assert (worse.cases[0].verdict, worse.exit_code()) == (SLOWER, 1)
    assert "hidden -0.20 [" in terminal(worse)
