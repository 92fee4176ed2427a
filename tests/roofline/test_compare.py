"""Verdicts: right on planted differences, seldom wrong on equal runs, refused where two runs cannot be compared."""

import itertools
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from made_up_run import HEAD, ceiling, save, shape

from roofline.cli import main
from roofline.report.compare import FASTER, SAME, SLOWER, UNCLEAR, compare, quotient, verdict
from roofline.stats import Interval, block_length, paired_ratio
from roofline.store import journal

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "results" / "reference"
NEWEST = REFERENCE / "amd-epyc-2026-11-21-3"


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (1.04, 1.10, FASTER),
        (0.90, 0.96, SLOWER),
        (0.98, 1.02, SAME),
        (0.98, 1.04, UNCLEAR),
        (1.01, 1.10, UNCLEAR),
        (0.50, 2.00, UNCLEAR),
    ],
)
def test_verdict_takes_the_whole_interval(low, high, said):
    assert verdict(Interval((low * high) ** 0.5, low, high), 0.03) == said


def test_quotient_of_intervals_by_hand():
    found = quotient(Interval(2.0, 2.0, 2.0), Interval(1.0, 0.9, 1.1))
    assert found.median == 2
    assert (found.low, found.high) == pytest.approx((2 / 1.1, 2 / 0.9))
    both = quotient(Interval(1.0, 1 / 1.03, 1.03), Interval(1.0, 1 / 1.04, 1.04))
    assert np.log(both.high) == pytest.approx(np.hypot(np.log(1.03), np.log(1.04)))


def noisy(rng, seconds, rounds=100, spread=0.02):
    return (seconds * rng.lognormal(sigma=spread, size=rounds)).tolist()


def run(folder, *cases, **head):
    about = HEAD | head
    return save(
        folder, [about, ceiling("matmul", 700e12, dtype="bf16"), ceiling("read", 4e12), *itertools.chain(*cases)]
    )


@pytest.fixture
def pair(tmp_path):
    """BASE and NEW: `tiled` 10 % slower at m=16, equal at m=64, 10 % faster at m=256; all 20 % slower in NEW."""
    rng = np.random.default_rng(0)
    change = {16: 1.1, 64: 1.0, 256: 1 / 1.1}
    base = [shape(m, {"cublas": noisy(rng, 1e-4), "tiled": noisy(rng, 2e-4)}) for m in change]
    new = [shape(m, {"cublas": noisy(rng, 1.2e-4), "tiled": noisy(rng, 2.4e-4 * f)}) for m, f in change.items()]
    return run(tmp_path / "base", *base), run(tmp_path / "new", *new)


def verdicts(found):
    return {int(case.case.split("-m")[1].split("-")[0]): case.verdict for case in found.cases}


def test_planted_contenders_are_told_apart_on_a_machine_that_changed(pair):
    found = compare(*map(journal.load, pair))
    assert verdicts(found) == {16: SLOWER, 64: SAME, 256: FASTER}
    assert found.vendor_speed == pytest.approx(1 / 1.2, rel=0.01)
    assert found.cases[0].speed == pytest.approx(1 / 1.1, rel=0.02)
    assert (found.exit_code(), found.exit_code(strict=True)) == (1, 1)


def test_by_time_the_machine_counts_too_and_the_vendor_is_judged(pair):
    found = compare(*map(journal.load, pair), by="time")
    assert len(found.cases) == 6
    assert {case.verdict for case in found.cases if case.case.endswith("cublas")} == {SLOWER}


def test_terminal_json_and_markdown_say_the_same(pair, capsys):
    base, new = map(str, pair)
    assert main(["compare", base, new]) == 1
    table = capsys.readouterr().out
    assert "1 SLOWER, 1 FASTER, 1 SAME, 0 UNCLEAR of 3 cases" in table
    assert "the vendor's own speed moved by -16" in table
    assert main(["compare", base, new, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["counts"] == {SLOWER: 1, FASTER: 1, SAME: 1, UNCLEAR: 0}
    assert found["exit_code"] == 1
    assert found["schema"] == 1
    assert found["cases"][0].keys() >= {"case", "speed", "speed_low", "speed_high", "verdict"}
    for case in found["cases"]:
        assert f"{case['speed']:.3f} [{case['speed_low']:.3f}, {case['speed_high']:.3f}]" in table
    assert main(["compare", base, new, "--markdown"]) == 1
    text = capsys.readouterr().out
    assert text.startswith("- 1 SLOWER, 1 FASTER")
    assert "<details><summary>all 3 cases</summary>" in text
    assert text.count("| SLOWER |") == 2


@pytest.fixture
def compared(tmp_path, capsys):
    """`compared(base, new, options...)`: exit code and all that is printed. Runs are {m: {contender: seconds}}."""

    def call(base, new, *options, more=(), **head):
        base, new = ([shape(m, times) for m, times in one.items()] for one in (base, new))
        folders = run(tmp_path / "base", *base), run(tmp_path / "new", *new, more, **head)
        code = main(["compare", *map(str, folders), *options])
        return code, "".join(capsys.readouterr())

    return call


BOTH = {"cublas": 1e-4, "tiled": 2e-4}
CASE = "matmul-1024x1024-up-tp1-m{}-bf16-{}"


def test_missing_cases_are_named_with_what_is_known_of_them(compared):
    why = {"kind": "not_measured", "case": CASE.format(64, "tiled"), "outcome": "failed", "reason": "NaN"}
    runs = {16: BOTH, 64: BOTH}, {16: BOTH, 64: {"cublas": 1e-4}, 99: {"cublas": 1e-4}}
    code, out = compared(*runs, more=[why])
    assert code == 0
    assert f"missing in NEW: {CASE.format(64, 'tiled')}: failed: NaN" in out
    assert f"missing in BASE: {CASE.format(99, 'cublas')}: not asked for" in out
    assert compared(*runs, "--strict")[0] == 1


def test_unclear_is_an_error_only_if_strict(compared):
    rng = np.random.default_rng(1)
    wild = [{16: {name: noisy(rng, 1e-4, 30, 0.3) for name in BOTH}} for _ in range(2)]
    code, out = compared(*wild)
    assert (code, "1 UNCLEAR" in out, compared(*wild, "--strict")[0]) == (0, True, 1)


OTHERS = [
    ({"machine": HEAD["machine"] | {"chip": "another"}}, "chip"),
    ({"machine": HEAD["machine"] | {"driver": "600.1"}}, "driver"),
    ({"method_version": 9}, "method"),
]


@pytest.mark.parametrize(("head", "name"), OTHERS)
def test_other_conditions_are_refused_unless_told(compared, head, name):
    code, error = compared({16: BOTH}, {16: BOTH}, **head)
    assert (code, error.count("\n")) == (2, 1)
    assert f"another {name}: BASE has" in error
    assert f"--allow {name}" in error
    code, out = compared({16: BOTH}, {16: BOTH}, "--allow", name, **head)
    assert (code, f"{name}: BASE has" in out) == (0, True)


@pytest.mark.parametrize(
    ("base", "new", "said", "by_time"),
    [
        ({16: {"cublas": 1e-4}}, {16: {"cublas": 9e-4}}, "say --by time", 1),  # vendors alone
        ({16: BOTH}, {16: {"tiled": 2e-4}}, "say --by time", 0),
        ({16: BOTH}, {64: BOTH}, "no case in common", 2),
    ],
)
def test_runs_without_a_common_case_or_vendor_are_refused(compared, base, new, said, by_time):
    code, error = compared(base, new)
    assert (code, said in error) == (2, True)
    assert compared(base, new, "--by", "time")[0] == by_time


def test_case_without_its_vendor_is_missing_and_the_others_are_judged(compared):
    code, out = compared({16: BOTH, 64: BOTH}, {16: BOTH, 64: {"tiled": 2e-4}})
    assert (code, "1 SAME" in out) == (0, True)
    assert f"missing in BASE or NEW: {CASE.format(64, 'tiled')}: no vendor was timed beside it" in out


def resampled(rng, pairs, passes):
    """The ratio of rounds [(vendor, contender)] drawn anew, by whole passes or by blocks as long as they correlate."""
    length = -(-len(pairs) // passes) if passes > 1 else block_length(pairs[:, 0] / pairs[:, 1])
    starts = rng.integers(0, len(pairs), size=-(-len(pairs) // length))
    picks = (starts[:, None] + np.arange(length)).ravel()[: len(pairs)] % len(pairs)
    return paired_ratio(dict(enumerate(pairs[picks, 0])), dict(enumerate(pairs[picks, 1])), passes=passes)


def false_alarms(margin, draws=10):
    """The share of cases called FASTER or SLOWER where both runs are drawn from the same committed rounds."""
    rng = np.random.default_rng(5)
    run = journal.load(NEWEST)
    verdicts = []
    for own, name in run.cases():
        vendor, times = own.times_s(own.baseline), own.times_s(name)
        if name != own.baseline:
            pairs = np.array([(vendor[r], times[r]) for r in sorted(vendor.keys() & times.keys())])
            for _ in range(draws):
                base, new = (resampled(rng, pairs, own.passes) for _ in range(2))
                verdicts.append(verdict(quotient(new, base), margin))
    assert len(verdicts) >= 200
    return sum(said in (FASTER, SLOWER) for said in verdicts) / len(verdicts)


@pytest.mark.parametrize(("margin", "at_most"), [(0.03, 0.005), (0.0, 0.07)])
def test_false_alarm_rate_on_the_same_data_resampled(margin, at_most):
    # 280 comparisons of run 3 with itself give 0 with the margin of 3 %, and 0.064 with none, nominally 0.05.
    rate = false_alarms(margin)
    print(f"margin {margin}: {rate:.3f} false alarms")
    assert rate <= at_most


@pytest.fixture(scope="module")
def all_pairs():
    """The matmuls of every two of the five committed runs of this method, compared: a list of `Case` for each pair."""
    runs = [journal.load(REFERENCE / f"amd-epyc-2026-11-21-{number}") for number in range(2, 7)]
    found = [compare(*pair).cases for pair in itertools.combinations(runs, 2)]
    return [[case for case in cases if case.case.startswith("matmul-")] for cases in found]


def test_readme_tells_how_all_pairs_of_committed_runs_agree(all_pairs):
    within = [sum(1 / 1.03 <= case.speed <= 1.03 for case in cases) for cases in all_pairs]
    held = [sum(case.speed_low <= 1 <= case.speed_high for case in cases) / len(cases) for cases in all_pairs]
    said = [case.verdict for cases in all_pairs for case in cases]
    print(f"within 3 %: {within}; change of 1 in the interval: {held}; {len(said)} verdicts: {Counter(said)}")
    assert {len(cases) for cases in all_pairs} == {28}
    readme = (ROOT / "README.md").read_text()
    assert f"{min(within)} to {max(within)} of 28 ratios within 3 %" in readme
    mean = sum(held) / len(held)
    assert f"in {mean:.2f} of cases ({min(held):.2f} to {max(held):.2f} from pair to pair)" in readme
    wrong = f"of {len(said)} verdicts {said.count(SLOWER)} are SLOWER and {said.count(FASTER)} FASTER"
    assert f"{wrong}, falsely, and {said.count(UNCLEAR)} UNCLEAR" in readme
