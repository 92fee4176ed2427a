"""Runs of real ranks: what their journals say of wire, skew and machines, and that loopback gives no number."""

import os
import re
import subprocess
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from made_up_gathers import HERE, gathering, prefetch
from made_up_run import save
from torch.distributed import HashStore

from roofline.analysis.records import frame, records_of
from roofline.protocol.messages import Kind, Request, Step, StepBegan
from roofline.report.write import write
from roofline.store.conditions import conditions
from roofline.store.journal import load
from roofline.supervise.child import WAITS, WorkerEnd
from roofline.supervise.epochs import Epochs
from roofline.worker import clocks, ranks

RANKS = {"backend": "gloo", "world": 2, "nodes": 2, "ranks_a_node": 1, "loopback": False}


def made_up(folder, **ranks):
    """A run of two ranks; the second is done earlier, by a tenth of each arm's time and a twentieth of the matmul's."""
    case = prefetch(64, "gloo", ranks=2)
    lines = gathering(case, link="gloo")
    for line in lines:
        for name, time_s in line["time_s"].items() if line["kind"] == "round" else ():
            early = 0.05 if name == "gemm torch" else 0.1
            line["values"].setdefault(name, {}).update(rank0_s=time_s, rank1_s=(1 - early) * time_s)
    return load(save(folder, [HERE | {"ranks": RANKS | ranks}, *lines]))


@pytest.mark.parametrize(("gather", "note"), [("nccl_all_gather", "serial by NCCL's all-gather"), ("gloo", "")])
def test_records_have_the_spread_over_ranks_and_name_another_gather_than_the_links(tmp_path, gather, note):
    run = made_up(tmp_path)
    for shape in run.shapes.values():
        shape.facts["gather"] = gather
    for record in records_of(run):
        assert (record["rank_spread"], record["gemm_rank_spread"]) == pytest.approx((0.1, 0.05))
        assert record["notes"] == note
    write(tmp_path)
    assert "spread over ranks" in (tmp_path / "report.md").read_text()


def test_no_time_over_loopback_becomes_a_number(tmp_path):
    run = made_up(tmp_path, loopback=True)
    assert run.measured(next(iter(run.shapes)))
    assert len(records_of(run)) == len(frame(run)) == 0
    assert not run.unfinished
    assert {missing.reason for missing in run.missing} == {run.void}
    assert {path.suffix for path in write(tmp_path)} == {".md", ".html"}
    text = (tmp_path / "report.md").read_text()
    page = re.sub(r"<(style|script).*?</\1>", "", (tmp_path / "report.html").read_text(), flags=re.S)
    assert "void, loopback" in text
    assert not [unit for unit in (" ms", " us", "GB/s", "TFLOP/s") if unit in text + page]


def test_runs_of_other_worlds_are_under_other_conditions(tmp_path):
    two_ranks, four_ranks = made_up(tmp_path / "two").metadata, made_up(tmp_path / "four", world=4, nodes=4).metadata
    assert conditions(two_ranks)["chip"].endswith("2 ranks on 2 nodes over gloo")
    assert conditions(two_ranks)["chip"] != conditions(four_ranks)["chip"]


def clock_of_one(loopback: bool):
    """The clock of a rank that waits for no other."""
    about = {"barrier": lambda: None, "slowest": lambda *of_calls: of_calls, "loopback": loopback}
    return ranks.RanksCpuClock(SimpleNamespace(**about))


@pytest.mark.parametrize(
    ("waited_s", "others_s", "loopback", "kept"),
    [(0.0, 0.0, False, True), (0.4, 0.0, False, False), (0.4, 0.39, False, True), (0.4, 0.0, True, True)],
)
def test_a_sample_whose_thread_lacked_its_core_is_dropped(monkeypatch, fake_time, waited_s, others_s, loopback, kept):
    """Unless other threads of its own process were on it; over loopback no sample is a time, and none is dropped."""
    time, read = fake_time(clocks), {"waited": 0.0, "others": 0.0}
    monkeypatch.setattr(ranks, "waited_s", lambda: read["waited"])
    monkeypatch.setattr(ranks, "others_s", lambda: read["others"])
    clock = clock_of_one(loopback)

    def call():
        time.sleep(1.0)
        read["waited"] += waited_s
        read["others"] += others_s

    (time_s,) = clock.turn([clocks.Call(call)])
    assert time_s == (pytest.approx(1.0, abs=1e-4) if kept else None)


def test_all_ranks_are_told_whether_they_share_a_machine():
    epochs = Epochs(HashStore(), rank=0, size=2)
    epochs.loopback = False  # which rank 0 has learnt
    request = epochs.begin(Request(Kind.MEASURE, options={}, cases={}))
    epochs.store_set("left 1")
    assert epochs.close() == ""
    assert request.world == epochs.store_get("epoch 1")["world"] == {"size": 2, "epoch": 1, "loopback": False}


def test_ranks_leave_together_and_all_that_wait_may_have_ended_the_run():
    """Who ended its worker sooner would break those of others, which raise then."""
    store, end = HashStore(), WorkerEnd(StepBegan(Step.TURNS, "up"), WAITS)
    leaves = threading.Thread(target=Epochs(store, rank=1, size=3).leave, args=[end])
    leaves.start()
    leaves.join(0.2)
    assert leaves.is_alive()
    Epochs(store, rank=2, size=3).leave()  # it has no worker
    leaves.join()
    assert Epochs(store, rank=0, size=3).end(end) == replace(end, rank="0 or 1")


def test_ranks_make_as_many_calls_whatever_one_of_them_took(fake_time):
    """A call is woken by its kind, not by its time: ranks that differ there would wait for one another for ever."""
    time, counts = fake_time(clocks), []
    for took_s in (0.9 * ranks.RanksCpuClock.WAKE_S, 2 * clocks.CpuClock.LONG_S):
        clock, calls = clock_of_one(loopback=True), []

        def call(took_s=took_s, calls=calls):
            calls.append(took_s)
            time.sleep(took_s)

        for _ in range(3):
            clock.turn([clocks.Call(call)])
        counts.append(len(calls))
    assert counts == [6, 6]


@pytest.mark.parametrize("waited_s", [ranks.waited_s, lambda: clocks.lost_to_others_s({}, clocks.core_times_s())])
def test_a_thread_that_shares_its_core_is_seen_to_wait_for_it(waited_s):
    if waited_s() == 0.0:
        pytest.skip("Linux does not count here for how long a thread waits for a core")
    cores = os.sched_getaffinity(0)
    busy = subprocess.Popen(["yes"], stdout=subprocess.DEVNULL)
    try:
        for process in (0, busy.pid):
            os.sched_setaffinity(process, {min(cores)})
        before, until = waited_s(), time.monotonic() + 0.5
        while time.monotonic() < until:
            pass
        assert waited_s() - before > 0.1
    finally:
        os.sched_setaffinity(0, cores)
        busy.kill()
        busy.wait()
