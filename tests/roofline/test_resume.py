"""Which runs are gone on with, and with what of them: test_faults.py has what cuts a run off."""

import functools
import json

import pytest

from roofline.store import journal

ALL = [f"m{m}-{name}" for m in (64, 128, 256) for name in ("torch", "numpy")]


@pytest.fixture(scope="module")
def cut_off(three_shapes):
    return three_shapes(fault="prepare 128 SIGKILL")


def test_resume_of_a_selection_leaves_the_rest_for_later(cut_off):
    again = cut_off.go_on("-k", "m128")
    assert again.code == 0
    assert again.reasons == dict.fromkeys(["m256-torch", "m256-numpy"], ("not_run", "not selected"))
    assert sorted(again.go_on().cases) == sorted(ALL)


def test_resume_of_the_selected_cases_only(three_shapes):
    again = three_shapes("-k", "numpy", fault="prepare 128 SIGKILL").go_on()
    assert again.code == 0
    assert sorted(again.cases) == ["m128-numpy", "m256-numpy", "m64-numpy"]


@pytest.mark.parametrize("cuts", [2, pytest.param(40, marks=pytest.mark.slow)])
def test_write_that_a_kill_cut_anywhere_is_made_again(three_shapes, cuts):
    run = three_shapes("-k", "m64", "--ffn-max-seconds=0.3", passes=3)
    path = run.folder / "samples.jsonl"
    text = path.read_bytes()
    first = text.index(b'{"kind": "shape"') + 1
    for cut in range(first, len(text) - 100, (len(text) - first) // cuts):
        path.write_bytes(text[:cut])
        again = run.go_on()
        assert again.code == 0
        whole, _, _ = text[:cut].rpartition(b"\n")
        assert (again.folder / "samples.jsonl").read_bytes().startswith(whole + b'\n{"kind": "resumed"')
        (shape,) = again.kept.shapes.values()
        assert shape.passes == 3
        assert {round_.pass_index for round_ in shape.rounds} == {1, 2, 3}


def test_resume_goes_on_under_the_same_conditions_only(cut_off):
    run = cut_off.go_on("--collect-only")  # a copy
    path = run.folder / "samples.jsonl"
    head, *lines = run.lines
    changed = "".join(json.dumps(line) + "\n" for line in (head | {"commit": "fedcba9", "method_version": 0}, *lines))
    path.write_text(changed)
    again = run.go_on()
    assert again.code == 2
    assert "method was 0, is " in again.text
    assert "commit was fedcba9, is " in again.text
    assert (again.folder / "samples.jsonl").read_text() == changed


FASTER_MATMUL = """
def probes(before=probes()):
    return [dataclasses.replace(before[0], amount=1e4 * before[0].amount), *before[1:]]
"""
"""Below it lie all shapes."""


@pytest.mark.parametrize(("head", "probe"), [("", "probe matmul"), (FASTER_MATMUL, "probe read")])
def test_a_resumed_run_keeps_the_probe_of_its_first_ceilings(three_shapes, head, probe):
    run = three_shapes(fault="numpy 128 SIGINT", processes=2, more=head)
    again = run.go_on(more="" if head else FASTER_MATMUL)
    assert {line["when"] for line in again.kept.ceilings} == {"start", "resume"}
    shapes = again.kept.shapes.values()
    assert [(shape.processes, shape.of_role("probe")) for shape in shapes] == [(2, [probe])] * 3


def test_run_is_held_by_one_process_at_a_time(three_shapes, cut_off):
    run = cut_off.go_on("--collect-only")
    again = functools.partial(three_shapes, f"--ffn-resume={run.folder}", root=run.root)
    with journal.hold(run.folder):
        refused = again()
    assert (refused.code, again().code) == (2, 0)
    assert f"{run.folder} is being measured by another process: wait for its end" in refused.text
    more = """
def strike(place, number, strike_before=strike):
    if (place, number) == ("prepare", 128):
        from roofline.store import journal
        journal.hold(next(Path("results/local").iterdir()))
    strike_before(place, number)
"""
    assert "another process" in three_shapes(more=more).reasons["m128-torch"][1]  # from its beginning
