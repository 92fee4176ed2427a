"""A run on disk and in memory: what is written is read back, packed too, and as a table; what is damaged is named."""

import json
import lzma
import math
import re
from pathlib import Path

import pytest
from made_up_run import HEAD, LINES, ceiling, round_line, save, shape_line

import roofline
from results import references
from roofline.analysis.memory_roof import ceilings_of
from roofline.analysis.records import records_of
from roofline.store import journal
from roofline.store.run import KINDS, Round, Shape
from roofline.theory.work import Work

REFERENCE = Path(__file__).parents[2] / "results" / "reference"
SHAPE = Shape(
    "toy-a-fp32", "toy", "throughput", {"a": 1}, "fp32", Work(6, 4, 2), "torch", "cold",
    {"torch": {"config": "known"}, "link": {"config": "", "role": "link"}},
    seed=3, facts={"b": 2}, stopped_by="interrupt", round_count=2, late={"torch": 1, "link": 0},
)  # fmt: skip
ROUNDS = [
    Round(0, ["link", "torch"], {"link": 2e-3}, {"link": {"last_arrival_s": 1e-3}}),
    Round(1, ["torch", "link"], {"torch": 1e-3, "link": 3e-3}, {}, 2, 1),
]
PASS = {"kind": "pass", "shape": SHAPE.id, "passes": 2, "processes": 1, "stopped_by": "width", "round_count": 2}
WRITTEN = [
    HEAD, shape_line(SHAPE), round_line(SHAPE.id, ROUNDS[0]),
    PASS | {"telemetry": {"throttled": False}, "late": {"torch": 1, "link": 0}}, round_line(SHAPE.id, ROUNDS[1]),
]  # fmt: skip


def test_line_that_nobody_could_read_is_not_written(tmp_path):
    written = journal.Journal(tmp_path)
    for line, problem in (
        ({"kind": "resident", "bytes": 7}, "it is of unknown kind 'resident'"),
        ({"kind": "note", "about": "x"}, "Object missing required field `text`"),
        (WRITTEN[2] | {"time_s": {"torch": math.nan}}, "Out of range float values"),
    ):
        with pytest.raises(ValueError, match=problem):
            written.write(line)
    assert (tmp_path / journal.NAME).read_bytes() == b""


def test_kinds_of_lines_are_documented():
    text = (REFERENCE.parent / "README.md").read_text()
    assert [kind for kind in KINDS if f"\n| `{kind}` | " not in text] == []


def test_ceilings_that_come_later_are_seen_and_records_derived_anew(loaded):
    run = loaded(LINES)
    first = records_of(run)
    assert records_of(run) is first
    assert [roof.value for roof in ceilings_of(run) if roof.kind == "read"] == [4.0e12]
    run.apply(ceiling("read", 5.0e12))
    assert [roof.value for roof in ceilings_of(run) if roof.kind == "read"] == [5.0e12]
    assert records_of(run) is not first


@pytest.mark.parametrize(
    "damage",
    [
        lambda lines: [*lines[:2], lines[2].replace("0.002", "0.001"), *lines[3:]],
        lambda lines: [*lines[:3], lines[2], *lines[3:]],
        lambda lines: [*lines[:2], *lines[3:]],
    ],
    ids=["changed", "twice", "lost"],
)
def test_line_that_was_changed_or_is_lost_or_there_twice_is_an_error(tmp_path, damage):
    path = tmp_path / journal.NAME
    for lines, end in ((WRITTEN[:3], b"\r\n"), (WRITTEN[3:], b"\n")):  # gone on with, on another system
        writer = journal.Journal(tmp_path)
        writer.write(*lines)
        writer.close()
        path.write_bytes(path.read_bytes().replace(b"\n", end))
    whole = path.read_text().splitlines(keepends=True)
    assert len(roofline.load(tmp_path).shapes[SHAPE.id].rounds) == 2
    path.write_text("".join(damage(whole)))
    with pytest.raises(
        ValueError, match=r"samples\.jsonl:[34] was changed, or a line before it is lost or there twice"
    ):
        roofline.load(tmp_path)


def test_share_whose_rounds_a_kill_cut_off_is_measured_anew(loaded):
    last = WRITTEN[3] | {"processes": 2, "round_count": 3}
    share = [last, round_line(SHAPE.id, ROUNDS[1])]
    resumed = {"kind": "resumed", "started": "2026-11-24T00:00:00+00:00"}
    third = Round(2, ["torch", "link"], {"torch": 1e-3, "link": 3e-3}, {}, 2, 1)
    run = loaded([*WRITTEN[:3], *share, resumed, *share, round_line(SHAPE.id, third)])
    assert run.shapes[SHAPE.id].rounds == [*ROUNDS, third]


def test_table_of_samples_has_the_documented_columns(loaded):
    samples = loaded(WRITTEN).samples()
    readme = (REFERENCE.parent / "README.md").read_text()
    table = readme.partition("one of every timed call:\n\n")[2].partition("\n\n")[0]
    assert list(samples.columns) == re.findall(r"^\| `(\w+)`", table, re.MULTILINE)
    assert samples.iloc[0, :-1].tolist() == ["toy-a-fp32-link", SHAPE.id, "link", "link", 0, 0, 1, 0, "", 2e-3]
    assert samples["last_arrival_s"].isna().tolist() == [False, True, True]


def test_packed_journal_is_the_same_and_always_the_same_bytes(tmp_path):
    plain, folder = save(tmp_path / "plain", LINES), tmp_path / "packed"
    folder.mkdir()
    (folder / journal.PACKED).write_bytes(lzma.compress((plain / journal.NAME).read_bytes()))
    (folder / "benchmark.json").write_text("{}")  # of a run before that day
    assert roofline.load(folder) == roofline.load(plain)
    with pytest.raises(OSError, match=f"its {journal.PACKED} is packed; unpack it with unxz to go on"):
        journal.Journal(folder)
    packed = []
    for place in (plain, folder):
        target = tmp_path / f"reference-{place.name}"
        target.mkdir()
        references.pack(place, target)
        packed.append((target / journal.PACKED).read_bytes())
    assert packed[0] == packed[1]
    assert lzma.decompress(packed[0]) == (plain / journal.NAME).read_bytes()


@pytest.mark.parametrize("damage", [lambda b: b[:-20], lambda b: b"no" + b, lambda b: b[:50] + bytes(60) + b[110:]])
def test_damaged_packed_journal_is_named(tmp_path, refused, damage):
    whole = "".join(json.dumps(line) + "\n" for line in LINES).encode()
    (tmp_path / journal.PACKED).write_bytes(damage(lzma.compress(whole)))
    assert f"{journal.PACKED} is no journal: it is damaged, or not packed as its name says" in refused(
        "report", str(tmp_path)
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (WRITTEN[2], "round 0 is there already; two processes"),
        (WRITTEN[2] | {"shape": "other"}, "it is of 'other', a shape that no line before it describes"),
        ({"kind": "sample", "shape": SHAPE.id}, "it is of unknown kind 'sample'"),
        (HEAD, "it is a second first line"),
        (
            WRITTEN[2] | {"values": {"link": {"a": [1]}}},
            r"Expected `float`, got `array` - at `\$.values",
        ),
        (WRITTEN[2] | {"time_s": {"link": math.inf}}, "JSON is malformed: invalid character"),
    ],
)
def test_lines_that_cannot_be_read_are_named(loaded, line, message):
    with pytest.raises(ValueError, match=f"samples.jsonl:4 cannot be read: {message}"):
        loaded([*WRITTEN[:3], line])


def test_a_line_sets_nothing_but_its_fields(loaded):
    """Not a method, nor what other lines tell."""
    more = {"apply": None, "__dict__": {}, "id": "other", "rounds": [], "of_a_later_version": 1}
    run = loaded([*WRITTEN[:3], WRITTEN[3] | more, WRITTEN[4]])
    assert run == loaded(WRITTEN, "plain")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ('{"kind": "run", "schema": 7}\n', "one of another schema is redrawn by the version that wrote"),
    ],
)
def test_foreign_journals_are_refused_in_one_line(tmp_path, text, message, refused):
    (tmp_path / "samples.jsonl").write_text(text)
    assert message in refused("report", str(tmp_path))
