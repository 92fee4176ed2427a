"""The pass that counts, against a tool that is made up call by call: who is to blame, who is counted again."""

from dataclasses import make_dataclass
from pathlib import Path

import pytest
from made_up_run import LINES, save
from ncu_sample import DENIED, HEADER, MARKER, UNITS, row

from roofline.measure.request import Step
from roofline.measure.supervisor import HUNG, Supervisor
from roofline.profile import collect
from roofline.store import journal


@pytest.fixture
def pass_of(tmp_path, monkeypatch):
    """`pass_of(act)` counts a run of four cases. `act(batch)` stands for a share under Nsight Compute: who was called,
    {who was lost: why}, what the tool printed, and how the share ended, at the case behind those that were called."""
    session = Supervisor.__new__(Supervisor)
    session.run, session.folder = journal.load(save(tmp_path / "run", LINES)), tmp_path / "run"
    session.options = make_dataclass("Asked", ["counters", "device"])(0, "cuda")
    session.notes, session.entries, session.chosen, session.over = [], {}, {}, ""
    session.add, session.say, session.progress, session.epochs = session.run.take, str, str, None
    session.hello = {"machine": {"datasheet": None}}
    session.reference_s, session.signals = {}, []
    session.note = lambda about, text: session.notes.append(text)
    monkeypatch.setattr(collect.ncu, "why_not", lambda device: None)
    monkeypatch.setattr(collect.ncu, "find", lambda: "ncu")
    monkeypatch.setattr(collect.ncu, "ask", lambda *question: "")

    def pass_of(act):
        def supervise(jobs):
            jobs_run.extend(jobs)
            (job,) = jobs
            while asked := job.next_request():
                job.begin(asked)
                batch = [(shape, name) for shape, names in asked.cases.items() for name in names]
                called, lost, printed, how = act(batch)
                Path(job.under[-1]).write_text(printed)
                for shape, name in called:
                    job.take({"tell": "called", "shape": shape, "name": name})
                for (shape, name), reason in lost.items():
                    job.take({"tell": "rejected", "shape": shape, "name": name, "reason": reason})
                if how:
                    shape, name = batch[len(called)]
                    job.at = {"step": Step.CALL, "shape": shape, "name": name}
                job.end(how)

        jobs_run = []
        session.supervise = supervise
        collect.count(session)
        return jobs_run[0]

    return pass_of


def counts_all(batch, cell="5"):
    """Where all goes well."""
    rows = [row(i, kernel, cell, *["5"] * 5) for i, kernel in enumerate([MARKER, "k"] * len(batch))]
    return batch, {}, "\n".join([HEADER, UNITS, *rows]), ""


def counted(count) -> list[tuple[str, str]]:
    return [(shape, name) for shape, about in count.supervisor.run.shapes.items() for name in about.counters]


def test_case_that_the_end_of_the_time_cut_short_is_not_blamed(pass_of, fake_time):
    time = fake_time(collect)
    count = pass_of(lambda batch: time.sleep(collect.BOX_S) or ([], {}, "", HUNG))
    assert count.rejections == {}
    assert count.supervisor.notes == [
        "Counters: Nsight Compute of unknown version counted 0 of 4 cases; the 480 s that this may take were over."
    ]


def test_case_at_which_the_tool_hangs_is_given_up_and_those_before_it_are_counted_again(pass_of):
    asked = []

    def hangs_at_second(batch):
        asked.append(batch)
        return (batch[:1], {}, "", HUNG) if len(batch) == 3 else counts_all(batch)

    count = pass_of(hangs_at_second)
    assert [len(batch) for batch in asked] == [1, 3, 2]
    assert count.rejections == {asked[1][1]: "it hung"}
    assert asked[2] == [asked[1][0], asked[1][2]]
    assert len(counted(count)) == 3
    (note,) = count.supervisor.notes
    assert "counted 3 of 4 cases" in note
    assert note.endswith(f"; {'-'.join(asked[1][1])}: it hung.")


def test_tool_that_may_not_count_is_told_in_one_line_and_not_asked_again(pass_of):
    asked = []
    count = pass_of(lambda batch: asked.append(batch) or (batch, {}, DENIED, ""))
    (note,) = count.supervisor.notes
    assert "counted 0 of 4 cases; this user may not read the GPU's counters (ERR_NVGPUCTRPERM)" in note
    assert (len(asked), len(note.splitlines())) == (1, 1)


def test_kernels_of_a_call_that_raised_are_no_count_of_it(pass_of):
    count = pass_of(lambda batch: (batch[:1], dict.fromkeys(batch[1:2], "it raised"), counts_all(batch)[2], ""))
    assert list(count.rejections.values()) == ["it raised"]
    assert set(count.rejections).isdisjoint(counted(count))


def test_tool_that_hangs_before_it_counted_anything_is_not_waited_for_again(pass_of):
    asked = []
    count = pass_of(lambda batch: asked.append(batch) or ([], {}, "", HUNG))
    assert len(asked) == 1
    (note,) = count.supervisor.notes
    assert note.endswith(f"counted 0 of 4 cases; {'-'.join(asked[0][0])}: it hung; so no other was tried.")


def test_output_that_nobody_can_read_is_given_up_and_kept(pass_of):
    def of_another_age(batch):
        called, lost, printed, how = counts_all(batch, cell="5 potatoes")
        return called, lost, f"==PROF== Connected to process 1 (/home/me/python)\n{printed}", how

    count = pass_of(of_another_age)
    assert len(count.rejections) == 1
    assert "'5 potatoes', which is no number" in count.supervisor.notes[0]
    log = (count.supervisor.folder / collect.LOG).read_text()
    assert log.count("5 potatoes") == 2
    assert "/home/me" not in log


@pytest.mark.parametrize(
    ("end", "message"),
    [
        (lambda batch: (batch, {}, bytes(range(256)).decode("latin1"), ""), "counted 0 of 4 cases; "),
        (lambda batch: Path("/nowhere/ncu").read_text(), "counted 0 of 4 cases; FileNotFoundError: "),
    ],
    ids=["garbage", "cannot be started"],
)
def test_tool_that_counts_nothing_is_told_in_one_line(pass_of, end, message):
    count = pass_of(end)
    (note,) = count.supervisor.notes
    assert message in note
    assert len(note.splitlines()) == 1
    assert counted(count) == []


@pytest.mark.parametrize("count", [1, 2, 12])
def test_every_beginning_is_spread_over_all(count):
    order = collect.spread(list(range(count)))
    assert sorted(order) == list(range(count))
    for length in range(1, count + 1):
        chosen = sorted(order[:length])
        gaps = [b - a for a, b in zip([-1, *chosen], [*chosen, count], strict=True)]
        assert max(gaps) <= 2.7 * (count + 1) / (length + 1) + 1
