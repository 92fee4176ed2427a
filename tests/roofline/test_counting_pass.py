"""The pass that counts, against a tool that is made up call by call: who is to blame, who is counted again."""

import json
import types

import pytest
from made_up_run import LINES, save
from ncu_sample import HEADER, MARKER, UNITS, row

from roofline.profile import collect
from roofline.store import journal


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
            said, printed, why = act([tuple(case) for case in cases])
            progress.write_text("".join(json.dumps(line) + "\n" for line in said))
            return collect.ncu.Ended(printed, "", 1, why)

        monkeypatch.setattr(collect.ncu, "run", run)
        return collect.Counting(Session(), tmp_path, lambda text: None)

    return tool


def step(name, case, reason=""):
    return {"step": name, "case": case, "reason": reason}


def counts_all(batch, cell="5"):
    """What the worker says where all goes well, what the tool prints, and that nobody stopped it."""
    rows = [row(i, kernel, cell, *["5"] * 5) for i, kernel in enumerate([MARKER, "k"] * len(batch))]
    done = [step(name, case) for case in batch for name in ("call", "done")]
    return done, "\n".join([HEADER, UNITS, *rows]), None


def counted(count) -> list[tuple[str, str]]:
    return [(shape, name) for shape, about in count.session.run.shapes.items() for name in about.counters]


def test_case_that_the_end_of_the_time_cut_short_is_not_blamed(session, fake_time):
    time = fake_time(collect)

    def slow(batch):
        time.sleep(collect.BOX_S)
        return [step("call", batch[0])], "", collect.ncu.OVER

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
            return [step("call", case) for case in batch[:2]], "", "it hung"
        return counts_all(batch)

    count = session(hangs_at_second)
    count.finished()
    assert [len(batch) for batch in asked] == [1, 3, 2]
    assert count.lost == {asked[1][1]: "it hung"}
    assert asked[2] == [asked[1][0], asked[1][2]]
    assert len(counted(count)) == 3
    (note,) = count.session.notes
    assert "counted 3 of 4 cases" in note
    assert note.endswith(f"; {'-'.join(asked[1][1])}: it hung.")


def test_kernels_of_a_call_that_raised_are_no_count_of_it(session):
    def second_raises(batch):
        said, *others = counts_all(batch)
        return [*said, *(step("lost", case, "it raised") for case in batch[1:2])], *others

    count = session(second_raises)
    count.finished()
    assert list(count.lost.values()) == ["it raised"]
    assert set(count.lost).isdisjoint(counted(count))


def test_tool_that_hangs_before_it_counted_anything_is_not_waited_for_again(session):
    asked = []

    def hangs(batch):
        asked.append(batch)
        return [step("call", batch[0])], "", "it hung"

    count = session(hangs)
    count.finished()
    assert len(asked) == 1
    (note,) = count.session.notes
    assert note.endswith(f"counted 0 of 4 cases; {'-'.join(asked[0][0])}: it hung; so no other was tried.")


def test_output_that_nobody_can_read_is_given_up_after_two_processes_and_kept(session, monkeypatch):
    def of_another_age(batch):
        done, printed, ended = counts_all(batch, cell="5 potatoes")
        return done, f"==PROF== Connected to process 1 (/home/me/python)\n{printed}", ended

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
        refusal = [step("call", case) for case in batch], "==ERROR== Failed to find metric lts__t_bytes.sum"
        return (*refusal, None) if len(before) == 1 else counts_all(batch)

    count = session(refuses_once)
    count.finished()
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
