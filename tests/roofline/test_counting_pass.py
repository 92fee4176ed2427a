"""The pass that counts, against a tool that is made up call by call: who is to blame, who is counted again."""

from dataclasses import make_dataclass
from pathlib import Path

import pytest
from made_up_run import LINES, save
from ncu_sample import DENIED, MARKER, page

from roofline.measure.request import Step
from roofline.measure.supervisor import HUNG, Supervisor
from roofline.profile import collect
from roofline.store import journal


@pytest.fixture
def pass_of(tmp_path, monkeypatch):
    """`pass_of(act)` counts a run of four cases. `act(batch)` stands for a share under Nsight Compute: who was called,
    {who was lost: why}, what the tool printed, and how the share ended, at the case behind those that were called.
    Returns the job, its note and its batches."""
    session = Supervisor.__new__(Supervisor)
    session.run, session.folder = journal.load(save(tmp_path / "run", LINES)), tmp_path / "run"
    session.options = make_dataclass("Asked", ["counters", "device"])(0, "cuda")
    session.entries, session.chosen, session.over = {}, {}, ""
    session.add, session.say, session.progress, session.epochs = session.run.take, str, str, None
    session.hello = {"machine": {"datasheet": None}}
    session.reference_s, session.signals = {}, []
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
                batches.append(batch)
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

        jobs_run, batches, notes = [], [], []
        session.supervise, session.note = supervise, lambda about, text: notes.append(text)
        try:
            collect.count(session)
        except KeyboardInterrupt:
            notes[-1] += " (interrupted)"
        (note,) = notes
        assert len(note.splitlines()) == 1
        return jobs_run[0], note, batches

    return pass_of


def counts_all(batch, cell="5"):
    """Where all goes well."""
    return batch, {}, page(*[(MARKER, *["5"] * 6), ("k", cell, *["5"] * 5)] * len(batch)), ""


def counted(job) -> list[tuple[str, str]]:
    return [(shape, name) for shape, about in job.supervisor.run.shapes.items() for name in about.counters]


def test_case_that_the_end_of_the_time_cut_short_is_not_blamed(pass_of, fake_time):
    time = fake_time(collect)
    job, note, _ = pass_of(lambda batch: time.sleep(collect.BOX_S) or ([], {}, "", HUNG))
    assert job.rejections == {}
    assert note == (
        "Counters: Nsight Compute of unknown version counted 0 of 4 cases; the 480 s that this may take were over."
    )


def test_case_at_which_the_tool_hangs_is_given_up_and_those_before_it_are_counted_again(pass_of):
    job, note, batches = pass_of(lambda batch: (batch[:1], {}, "", HUNG) if len(batch) == 3 else counts_all(batch))
    assert [len(batch) for batch in batches] == [1, 3, 2]
    assert job.rejections == {batches[1][1]: "it hung"}
    assert batches[2] == [batches[1][0], batches[1][2]]
    assert len(counted(job)) == 3
    assert "counted 3 of 4 cases" in note
    assert note.endswith(f"; {'-'.join(batches[1][1])}: it hung.")


def test_kernels_of_a_call_that_raised_are_no_count_of_it(pass_of):
    job, *_ = pass_of(lambda batch: (batch[:1], dict.fromkeys(batch[1:2], "it raised"), counts_all(batch)[2], ""))
    assert list(job.rejections.values()) == ["it raised"]
    assert set(job.rejections).isdisjoint(counted(job))


def test_output_that_nobody_can_read_is_given_up_and_kept(pass_of):
    def of_another_age(batch):
        called, lost, printed, how = counts_all(batch, cell="5 potatoes")
        return called, lost, f"==PROF== Connected to process 1 (/home/me/python)\n{printed}", how

    job, note, _ = pass_of(of_another_age)
    assert len(job.rejections) == 1
    assert "'5 potatoes', which is no number" in note
    log = (job.supervisor.folder / collect.LOG).read_text()
    assert "5 potatoes" in log
    assert "/home/me" not in log


def interrupted_at_the_second(batch):
    if len(batch) > 1:
        raise KeyboardInterrupt
    return counts_all(batch)


@pytest.mark.parametrize(
    ("act", "count", "batches", "end"),
    [
        (lambda batch: (batch, {}, DENIED, ""), 0, 1, "may not read the GPU's counters (ERR_NVGPUCTRPERM)"),
        (lambda batch: ([], {}, "", HUNG), 0, 1, "it hung; so no other was tried."),
        (lambda batch: (batch, {}, bytes(range(256)).decode("latin1"), ""), 0, 1, ""),
        (lambda batch: Path("/nowhere/ncu").read_text(), 0, 1, "cases; FileNotFoundError: "),
        (interrupted_at_the_second, 1, 2, "; it was interrupted. (interrupted)"),
    ],
    ids=["denied", "hangs", "garbage", "cannot be started", "interrupted"],
)
def test_tool_that_cannot_go_on_is_told_in_one_line_and_not_asked_again(pass_of, act, count, batches, end):
    job, note, asked = pass_of(act)
    assert f"counted {count} of 4 cases" in note
    assert end in note
    assert (len(counted(job)), len(asked)) == (count, batches)
