"""Shares of another checkout that take turns with these, and the verdict over their pairs."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest

import roofline
from roofline.analysis.changes import change_of_pairs, change_of_runs
from roofline.analysis.comparison import compare
from roofline.analysis.verdicts import FASTER, SLOWER, verdicts
from roofline.commands.cli import main
from roofline.supervise.supervisor import Supervisor

ROOT = Path(__file__).parents[2]
DIFFERS = """
if Path.cwd().name == "base":
    NUMPY[:] = [time_s / 1.06 for time_s in NUMPY]
"""
"""The other checkout's contender is faster: this one's is SLOWER."""


@pytest.fixture
def base(tmp_path):
    """Another checkout, of the same code."""
    folder = tmp_path / "base"
    folder.mkdir()
    for name in ("roofline", "tests"):
        (folder / name).symlink_to(ROOT / name)
    return folder


@pytest.fixture
def against(three_shapes, base):
    about = {"shares": "new", "processes": 3, "more": DIFFERS}
    return lambda *words, **more: three_shapes(f"--ffn-against={base}", *words, **about | more)


def turns(run):
    """Return whose each pass was, in the order of the journal: n of this checkout, b of the other."""
    passes = [line for line in run.lines if line["kind"] in ("shape", "pass")]
    return "".join("b" if "checkout" in line else "n" for line in passes)


def test_they_take_turns_in_one_journal_and_are_compared_by_pairs(against, capsys):
    run = against("--ffn-fail-slower")
    assert run.code == 1
    assert turns(run) == "nnnbbbbbbnnnbbbnnn"  # A B B A, and by the seed B A
    assert "SLOWER: matmul-xxl/16-up-tp8-m64-fp32-numpy: speed 0.943 [0.943, 0.943] x" in run.text
    assert "SLOWER numpy in the mean over 3 cases, speed 0.943 [0.943, 0.943] x" in run.text
    assert "## Against commit unknown" in run.report
    assert main(["compare", str(run.folder)]) == 1
    assert "3 SLOWER, 0 FASTER, 0 SAME, 0 UNDECIDED of 3 cases" in capsys.readouterr().out
    kept = roofline.load(run.folder)
    assert {record["processes"] for record in kept.frame().to_dict("records")} == {3}  # none of the other checkout's
    assert len(compare([kept.base], [kept]).cases) == 3


def test_a_run_that_was_interrupted_goes_on_on_both_sides(against, base):
    cut = against(fault="later-numpy 128 SIGTERM")
    assert cut.code == 2
    cut.go_on(fault="").assert_refused(f" --ffn-against={base}")
    whole = cut.go_on(f"--ffn-against={base}", fault="")
    assert whole.code == 0, whole.text
    kept = roofline.load(whole.folder)
    assert min(shape.passes for run in (kept, kept.base) for shape in run.shapes.values()) == 3
    assert len(compare([kept.base], [kept]).cases) == 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--ffn-against={tmp}", "it is no checkout of roofline-ffn"),
        (f"--ffn-against={ROOT}", "it is this checkout itself, or pytest began in it"),
        (
            "--ffn-against={base} --ffn-decide=3%",
            "the checkouts are compared, by all processes; leave out --ffn-against",
        ),
        ("--ffn-fail-slower", "nothing is called slower without a margin"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(three_shapes, base, words, message):
    refused = three_shapes(*words.format(tmp=base.parent, base=base).split())
    assert refused.code == 2
    assert message in refused.text


def test_shares_look_for_modules_in_the_checkout_that_is_theirs(base, monkeypatch):
    monkeypatch.setattr("sys.path", [str(ROOT), str(ROOT / "tests" / "machine"), "/elsewhere"])
    mine, other = (Supervisor(None, {}, None, base, is_base=is_base).path for is_base in (False, True))
    assert mine == sys.path
    assert other == [str(base), str(base / "tests" / "machine"), "/elsewhere"]


def test_another_method_is_refused(against, base):
    (base / "roofline").unlink()
    (base / "roofline").mkdir()
    for path in (ROOT / "roofline").iterdir():
        (base / "roofline" / path.name).symlink_to(path)
    (base / "roofline" / "worker").unlink()
    (base / "roofline" / "worker").mkdir()
    for path in (ROOT / "roofline" / "worker").iterdir():
        (base / "roofline" / "worker" / path.name).symlink_to(path)
    (base / "roofline" / "worker" / "__init__.py").unlink()
    (base / "roofline" / "worker" / "__init__.py").write_text("METHOD_VERSION = 1\n")
    refused = against()
    assert refused.code == 2
    assert "it measures by method 1, and this checkout by" in refused.text


def test_what_drifts_from_pair_to_pair_hides_no_change_of_neighbours():
    rng = np.random.default_rng(0)
    drift, noise = rng.normal(0, 0.2, size=12), rng.normal(0, 0.01, size=(2, 12))
    base = {process: drift[process] + noise[0][process] for process in range(12)}
    new = {process: drift[process] + noise[1][process] + math.log(1.06) for process in range(12)}
    assert verdicts([change_of_pairs([[[base], [new]]])]) == [FASTER]
    assert verdicts([change_of_pairs([[[new], [base]]])]) == [SLOWER]
    assert verdicts([change_of_runs([[[base], [new]]])]) != [FASTER]
    assert change_of_pairs([[[{0: 1.0}], [{0: 1.0}]]]) is None
    first, second = [[{0: 0.0, 1: 0.0, 2: 9.0}], [{0: 0.1, 1: 0.2}]], [[{0: 0.0, 1: 0.0}], [{0: 0.3, 1: 0.4}]]
    lost = [[{0: 0.0, 1: 5.0}], [{0: 0.1, 2: 5.1}]]  # a share of one side was begun again: its number is another
    assert change_of_pairs([lost]).value == pytest.approx(0.1)
    both = change_of_pairs([first, second])
    assert (both.value, both.freedom) == (pytest.approx(0.25), 1)
