"""The pass that counts, against a tool that is made up call by call: who is to blame, who is counted again."""

import json
import types

import pytest
from made_up_run import LINES, save
from ncu_sample import HEADER, MARKER, UNITS, row

from roofline.profile import collect
from roofline.store import journal


def counted_cases(run) -> list[tuple[str, str]]:
    return [(shape, name) for shape, about in run.shapes.items() for name in about.counters]


@pytest.fixture
def session(tmp_path, monkeypatch):
    """A run of four cases, and what is noted of them; `tool(run)` has `run(batch)` in the place of Nsight Compute."""
    run = journal.load(save(tmp_path / "run", LINES))

    class Session:
        folder, options, notes = tmp_path / "run", types.SimpleNamespace(counters=0, device="cuda"), []

        def add(self, line):
            run.take(line)

        def note(self, about, text):
            self.notes.append(text)

    Session.run = run
    monkeypatch.setattr(collect.ncu, "why_not", lambda device: None)
    monkeypatch.setattr(collect.ncu, "find", lambda: "ncu")
    monkeypatch.setattr(collect.ncu, "ask", lambda *question: "")

    def tool(act):
        def run(ncu, metrics, command, *, folder, progress, seconds, **more):
            cases = json.loads((folder / "request.json").read_text())["cases"]
            said, printed, ended = act([tuple(case) for case in cases])
            progress.write_text("".join(json.dumps(line) + "\n" for line in said))
            return collect.ncu.Ended(printed, "", 1, *ended)

        monkeypatch.setattr(collect.ncu, "run", run)
        return collect.Counting(Session(), tmp_path, lambda text: None)

    return tool


def called(*cases):
    return [{"step": "call", "case": case, "reason": ""} for case in cases]


def test_case_that_the_end_of_the_time_cut_short_is_not_blamed(session, fake_time):
    time = fake_time(collect)

    def slow(batch):
        time.sleep(collect.BOX_S)
        return called(batch[0]), "", (collect.ncu.OVER, True)

    count = session(slow)
    count.finished()
    assert count.lost == {}
    assert count.session.notes == [
        "Counters: Nsight Compute of unknown version counted 0 of 4 cases; the 480 s that this may take were over."
    ]


def test_case_at_which_the_tool_hangs_is_given_up_and_those_before_it_are_counted_again(session):
    asked = []

    def hangs_at_second(batch):
        asked.append(batch)
        if len(batch) == 3:
            return called(*batch[:2]), "", ("it hung", False)
        rows = [row(i, kernel, *["5"] * 6) for i, kernel in enumerate([MARKER, "k"] * len(batch))]
        done = [line for case in batch for line in (*called(case), {"step": "done", "case": case, "reason": ""})]
        return done, "\n".join([HEADER, UNITS, *rows]), (None, False)

    count = session(hangs_at_second)
    count.finished()
    assert [len(batch) for batch in asked] == [1, 3, 2]
    assert count.lost == {asked[1][1]: "it hung"}
    assert asked[2] == [asked[1][0], asked[1][2]]
    assert len(counted_cases(count.session.run)) == 3
    (note,) = count.session.notes
    assert "counted 3 of 4 cases" in note
    assert note.endswith(f"; {'-'.join(asked[1][1])}: it hung.")


def test_kernels_of_a_call_that_raised_are_no_count_of_it(session):
    def second_raises(batch):
        rows = [row(i, kernel, *["5"] * 6) for i, kernel in enumerate([MARKER, "k"] * len(batch))]
        lines = [line for case in batch for line in called(case)]
        lines += [{"step": "lost", "case": case, "reason": "it raised"} for case in batch[1:2]]
        lines.append({"step": "done", "case": batch[0], "reason": ""})
        return lines, "\n".join([HEADER, UNITS, *rows]), (None, False)

    count = session(second_raises)
    count.finished()
    assert list(count.lost.values()) == ["it raised"]
    assert set(count.lost).isdisjoint(counted_cases(count.session.run))


def test_tool_that_hangs_before_it_counted_anything_is_not_waited_for_again(session):
    asked = []

    def hangs(batch):
        asked.append(batch)
        return called(batch[0]), "", ("it hung", False)

    count = session(hangs)
    count.finished()
    assert len(asked) == 1
    (note,) = count.session.notes
    assert note.endswith(f"counted 0 of 4 cases; {'-'.join(asked[0][0])}: it hung; so no other was tried.")


def test_output_that_nobody_can_read_is_given_up_after_two_processes_and_kept(session, monkeypatch):
    def of_another_age(batch):
        rows = [row(i, kernel, "5 potatoes", *["5"] * 5) for i, kernel in enumerate([MARKER, "k"] * len(batch))]
        done = [line for case in batch for line in (*called(case), {"step": "done", "case": case, "reason": ""})]
        printed = "\n".join(["==PROF== Connected to process 1 (/home/me/python)", HEADER, UNITS, *rows])
        return done, printed, (None, False)

    monkeypatch.setattr(collect, "BATCH", 1)
    count = session(of_another_age)
    count.finished()
    assert len(count.lost) == 2
    assert "'5 potatoes', which is no number" in count.session.notes[0]
    log = (count.session.folder / collect.LOG).read_text()
    assert log.count("5 potatoes") == 4
    assert "/home/me" not in log


def test_case_that_died_of_a_refused_metric_is_counted_without_it(session):
    before = []

    def refuses_once(batch):
        before.append(batch)
        if len(before) == 1:
            return called(*batch), "==ERROR== Failed to find metric lts__t_bytes.sum", (None, False)
        rows = [row(i, kernel, *["5"] * 6) for i, kernel in enumerate([MARKER, "k"] * len(batch))]
        done = [line for case in batch for line in (*called(case), {"step": "done", "case": case, "reason": ""})]
        return done, "\n".join([HEADER, UNITS, *rows]), (None, False)

    count = session(refuses_once)
    count.finished()
    assert count.lost == {}
    assert len(counted_cases(count.session.run)) == 4


@pytest.mark.parametrize("count", [1, 2, 3, 12, 28])
def test_every_beginning_is_spread_over_all(count):
    order = collect.spread(list(range(count)))
    assert sorted(order) == list(range(count))
    for length in range(1, count + 1):
        chosen = sorted(order[:length])
        gaps = [b - a for a, b in zip([-1, *chosen], [*chosen, count], strict=True)]
        assert max(gaps) <= 2.7 * (count + 1) / (length + 1) + 1
