"""The pass that counts, against a tool that is made up call by call: who is to blame, who is counted again."""

import json
import types
from pathlib import Path

import pytest
from made_up_run import LINES, save
from ncu_sample import HEADER, MARKER, UNITS, row

from roofline.profile import collect
from roofline.store import journal


@pytest.fixture
def pass_of(tmp_path, monkeypatch):
    """`pass_of(act)` counts a run of four cases, with `act(batch)` in the place of Nsight Compute."""
    run = journal.load(save(tmp_path / "run", LINES))
    session = types.SimpleNamespace(run=run, folder=tmp_path / "run", add=run.take, notes=[], asked=[])
    session.options = types.SimpleNamespace(counters=0, device="cuda")
    session.note = lambda about, text: session.notes.append(text)
    monkeypatch.setattr(collect.ncu, "why_not", lambda device: None)
    monkeypatch.setattr(collect.ncu, "find", lambda: "ncu")
    monkeypatch.setattr(collect.ncu, "ask", lambda *question: "")

    def pass_of(act):
        def run(ncu, metrics, command, *, folder, progress, seconds, **more):
            cases = json.loads((folder / "request.json").read_text())["cases"]
            session.asked.append(metrics)
            said, printed, why = act([tuple(case) for case in cases])
            progress.write_text("".join(json.dumps(line) + "\n" for line in said))
            return collect.ncu.Ended(printed, "", 1, why)

        monkeypatch.setattr(collect.ncu, "run", run)
        found = collect.Counting(session, tmp_path, lambda text: None)
        found.finished()
        return found

    return pass_of


def step(name, case, reason=""):
    return {"step": name, "case": case, "reason": reason}


def counts_all(batch, cell="5"):
    """What the worker says where all goes well, what the tool prints, and that nobody stopped it."""
    rows = [row(i, kernel, cell, *["5"] * 5) for i, kernel in enumerate([MARKER, "k"] * len(batch))]
    done = [step(name, case) for case in batch for name in ("call", "done")]
    return done, "\n".join([HEADER, UNITS, *rows]), None


def counted(count) -> list[tuple[str, str]]:
    return [(shape, name) for shape, about in count.session.run.shapes.items() for name in about.counters]


def test_case_that_the_end_of_the_time_cut_short_is_not_blamed(pass_of, fake_time):
    time = fake_time(collect)

    def slow(batch):
        time.sleep(collect.BOX_S)
        return [step("call", batch[0])], "", collect.ncu.OVER

    count = pass_of(slow)
    assert count.lost == {}
    assert count.session.notes == [
        "Counters: Nsight Compute of unknown version counted 0 of 4 cases; the 480 s that this may take were over."
    ]


def test_case_at_which_the_tool_hangs_is_given_up_and_those_before_it_are_counted_again(pass_of):
    asked = []

    def hangs_at_second(batch):
        asked.append(batch)
        if len(batch) == 3:
            return [step("call", case) for case in batch[:2]], "", "it hung"
        return counts_all(batch)

    count = pass_of(hangs_at_second)
    assert [len(batch) for batch in asked] == [1, 3, 2]
    assert count.lost == {asked[1][1]: "it hung"}
    assert asked[2] == [asked[1][0], asked[1][2]]
    assert len(counted(count)) == 3
    (note,) = count.session.notes
    assert "counted 3 of 4 cases" in note
    assert note.endswith(f"; {'-'.join(asked[1][1])}: it hung.")


def test_kernels_of_a_call_that_raised_are_no_count_of_it(pass_of):
    def second_raises(batch):
        said, *others = counts_all(batch)
        return [*said, *(step("lost", case, "it raised") for case in batch[1:2])], *others

    count = pass_of(second_raises)
    assert list(count.lost.values()) == ["it raised"]
    assert set(count.lost).isdisjoint(counted(count))


def test_tool_that_hangs_before_it_counted_anything_is_not_waited_for_again(pass_of):
    asked = []

    def hangs(batch):
        asked.append(batch)
        return [step("call", batch[0])], "", "it hung"

    count = pass_of(hangs)
    assert len(asked) == 1
    (note,) = count.session.notes
    assert note.endswith(f"counted 0 of 4 cases; {'-'.join(asked[0][0])}: it hung; so no other was tried.")


def test_output_that_nobody_can_read_is_given_up_after_two_processes_and_kept(pass_of, monkeypatch):
    def of_another_age(batch):
        done, printed, ended = counts_all(batch, cell="5 potatoes")
        return done, f"==PROF== Connected to process 1 (/home/me/python)\n{printed}", ended

    monkeypatch.setattr(collect, "BATCH", 1)
    count = pass_of(of_another_age)
    assert len(count.lost) == 2
    assert "'5 potatoes', which is no number" in count.session.notes[0]
    log = (count.session.folder / collect.LOG).read_text()
    assert log.count("5 potatoes") == 4
    assert "/home/me" not in log


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (lambda batch: (counts_all(batch)[0], bytes(range(256)).decode("latin1"), None), "counted 0 of 4 cases; "),
        (lambda batch: (counts_all(batch)[0], counts_all(batch)[1][:-30] + '"', None), "it was cut off"),
        (lambda batch: Path("/nowhere/ncu").read_text(), "counted 0 of 4 cases; FileNotFoundError: "),
    ],
    ids=["garbage", "cut off", "cannot be started"],
)
def test_tool_that_counts_nothing_is_told_in_one_line(pass_of, end, said):
    count = pass_of(end)
    (note,) = count.session.notes
    assert said in note
    assert len(note.splitlines()) == 1
    assert counted(count) == []


def test_metric_that_is_refused_is_asked_for_no_more_and_no_case_is_blamed(pass_of):
    before = []

    def refuses_once(batch):
        before.append(batch)
        refusal = [step("call", case) for case in batch], "==ERROR== Failed to find metric lts__t_bytes.sum", None
        return refusal if len(before) == 1 else counts_all(batch)

    count = pass_of(refuses_once)
    assert ["lts__t_bytes.sum" in metrics for metrics in count.session.asked] == [True, False, False]
    assert count.lost == {}
    assert len(counted(count)) == 4


@pytest.mark.parametrize("count", [1, 2, 3, 12, 28])
def test_every_beginning_is_spread_over_all(count):
    order = collect.spread(list(range(count)))
    assert sorted(order) == list(range(count))
    for length in range(1, count + 1):
        chosen = sorted(order[:length])
        gaps = [b - a for a, b in zip([-1, *chosen], [*chosen, count], strict=True)]
        assert max(gaps) <= 2.7 * (count + 1) / (length + 1) + 1
