"""Runs of real ranks: what their journals say of wire, skew and machines, that loopback gives no number, and, without a
GPU, which one a rank takes and which links it can."""

import ctypes
import os
import re
import subprocess
import threading
import time
import types
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from chosen_options import options
from fake_devices import Gated
from made_up_gathers import HERE, gathering, prefetch
from made_up_run import save
from torch.distributed import HashStore

from roofline.analysis.records import frame, records_of
from roofline.host import machine
from roofline.operations.gathering import notes
from roofline.operations.options import refuse_conflicts
from roofline.protocol.messages import Kind, Request, Step, StepBegan
from roofline.report.write import write
from roofline.store.conditions import conditions
from roofline.store.journal import load
from roofline.supervise.child import HUNG, WorkerEnd
from roofline.supervise.epochs import Epochs
from roofline.worker import clocks, device_ranks, ranks
from roofline.worker.clocks import Call, CoreTimes

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


def test_an_interface_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth9")
    with pytest.raises(RuntimeError, match="GLOO_SOCKET_IFNAME=eth9: "):
        _ = ranks.Ranks(HashStore(), 0, 1).group


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
    assert run.rows
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
    ("waited_s", "loopback", "kept"),
    [(0.0, False, True), (0.4, False, False), (0.4, True, True)],
)
def test_a_sample_whose_threads_lacked_a_core_is_dropped(monkeypatch, fake_time, waited_s, loopback, kept):
    """Over loopback no sample is a time, and none is dropped."""
    time = fake_time(clocks)
    waits = iter([0.0, waited_s])
    monkeypatch.setattr(clocks, "core_times_s", lambda: {1: CoreTimes(0.0, next(waits), frozenset({0}))})
    (time_s,) = clock_of_one(loopback).turn([Call(lambda: time.sleep(1.0), is_long=True)])
    assert time_s == (pytest.approx(1.0, abs=1e-4) if kept else None)


def test_all_ranks_are_asked_for_a_worker_of_the_same_epoch():
    epochs = Epochs(HashStore(), rank=0, size=2)
    request = epochs.begin(Request(Kind.MEASURE, options={}, cases={}))
    epochs.store_set("left 1")
    assert epochs.close() == ""
    assert request.world == epochs.store_get("epoch 1")["world"] == {"size": 2, "epoch": 1}


def hung(marked: int, stands: str) -> WorkerEnd:
    return WorkerEnd(StepBegan(Step.TURNS, "up"), HUNG, marked, stands=stands)


def test_ranks_leave_together_and_where_all_hang_it_is_told_where_each_stands():
    """Who ended its worker sooner would break those of others, which raise then. A rank in a call says whose."""
    store, waits, calls = HashStore(), hung(0, "it stood at a.py:20"), hung(2, "it stood at b.py:7")
    leaves = threading.Thread(target=Epochs(store, rank=1, size=3).leave, args=[calls])
    leaves.start()
    leaves.join(0.2)
    assert leaves.is_alive()
    Epochs(store, rank=2, size=3).leave()  # it has no worker
    leaves.join()
    end = Epochs(store, rank=0, size=3).end(waits)
    assert (end.marked, end.stands, end.rank) == (2, "rank 0: it stood at a.py:20; rank 1: it stood at b.py:7", "")


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


def waited_s() -> float:
    return clocks.lost_to_others_s({}, clocks.core_times_s())


def test_a_thread_that_shares_its_core_is_seen_to_wait_for_it():
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


SHARED = {"gpus": 1, "here": 2, "world": 2}


@pytest.fixture
def make_rank(monkeypatch):
    """`make_rank(gpus, here, world)` makes rank 1 of a world, `here` of which share a machine with `gpus` GPUs."""

    def make(gpus=8, here=8, world=8, apart=(), over_pcie=()):
        chosen = []

        def atomics(answer, attribute, gpu, peer):
            answer._obj.value = {gpu, peer} != {*over_pcie}
            return attribute != machine.NATIVE_ATOMIC

        for name, value in (("LOCAL_RANK", "1"), ("LOCAL_WORLD_SIZE", str(here))):
            monkeypatch.setenv(name, value)
        monkeypatch.delenv(device_ranks.OVERLAPPING, raising=False)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: chosen[-1])
        monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda gpu, peer: {gpu, peer} != {*apart})
        monkeypatch.setattr(ctypes, "CDLL", lambda name: types.SimpleNamespace(cuDeviceGetP2PAttribute=atomics))
        rank = ranks.Ranks(dist.HashStore(), 1, world)
        monkeypatch.setattr(rank, "gather", lambda value, about="": [value] * world)
        rank.world = device_ranks.World(rank)
        return rank

    return make


@pytest.mark.parametrize(
    ("about", "nccl", "symmetric"),
    [
        ({}, "", ""),
        ({"here": 8, "world": 16}, "", "the ranks are on several: take nccl"),
        ({"apart": (1, 0)}, "", "GPU 1 cannot read GPU 0's memory: take nccl"),
        ({"over_pcie": (2, 5)}, "", "GPU 5 has no atomics in GPU 2's memory: take "),
        (
            SHARED,
            "2 ranks share 1 GPUs, and NCCL takes one for each: start torchrun",
            "2 ranks share 1 GPUs: for tests",
        ),
    ],
)
def test_a_rank_takes_the_gpu_of_its_number_and_says_why_not_which_link(make_rank, about, nccl, symmetric):
    rank = make_rank(**about)
    assert (rank.clock, rank.world.shared) == (device_ranks.RanksCudaClock, about == SHARED)
    assert torch.cuda.current_device() == (0 if about == SHARED else 1)
    for kind, reason in (("nccl", nccl), ("symmetric", symmetric)):
        assert reason in (rank.world.why_not(kind) or "")
        assert bool(rank.world.why_not(kind)) == bool(reason)


def test_a_link_gives_up_before_nccl_ends_the_process(make_rank, monkeypatch):
    asked = {}
    monkeypatch.setattr(dist, "init_process_group", lambda backend, **about: asked.update(about))
    monkeypatch.setattr(dist, "is_initialized", lambda: False)
    rank = make_rank(world=2, here=2)
    assert rank.world.group is dist.group.WORLD
    assert asked["timeout"].total_seconds() == 4 * rank.late_s


def test_a_run_says_what_lies_between_the_gpus_of_its_ranks(make_rank, monkeypatch):
    nvml = types.SimpleNamespace(NVML_NVLINK_MAX_LINKS=18, nvmlDeviceGetNvLinkState=lambda handle, link: link < 4)
    monkeypatch.setattr(device_ranks, "nvml_handle", lambda: (nvml, "one"))
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 28, 9))
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    about = make_rank(world=2, here=2).metadata()["ranks"]
    assert (about["backend"], about["nccl"], about["loopback"], about["world"]) == ("nccl", "2.28.9", False, 2)
    assert (about["gpus"], about["fabric"]) == ([1, 1], {"peer_access": True, "nvlinks": [4, 4]})


def test_streams_of_ranks_are_aligned_behind_the_gate_and_the_slowest_rank_is_the_sample(make_rank, monkeypatch):
    of_ranks, device = make_rank(world=2), Gated()
    of_ranks.world, of_ranks.barrier = device, device.barrier
    monkeypatch.setattr(of_ranks, "gather", lambda times: [times, [7e-5, None][: len(times)]])
    clock = of_ranks.clock(of_ranks)
    clock._cuda = clock.instruments = device
    call = Call(lambda: device.events.append("call"))
    assert clock.turn([call, call]) == [7e-5, None]
    samples = [["close", "align", "event", "call", "event", "query", f"clock {slot}", "open"] for slot in (0, 1)]
    assert device.events == ["barrier", "align", *samples[0], *samples[1], "synchronize"]
    times = [{"rank0_s": 5e-5, "sm_clock_hz": 1.7e9 + slot} for slot in (0, 1)]
    assert clock.readings == [times[0] | {"rank1_s": 7e-5}, times[1] | {"rank1_s": None}]


def test_wires_of_ranks_are_those_of_their_device_and_of_no_other_run():
    assert options(world=2).gather.wires == ("gloo",)
    chosen = options("cuda", world=2)
    assert (chosen.gather.ranks, chosen.gather.wires) == ((2,), ("nccl", "symmetric"))
    assert "NCCL" in notes(chosen, ["one"])[0]
    assert options("cuda", world=2, link_bandwidth="symmetric").gather.wires == ("symmetric",)
    with pytest.raises(ValueError, match="'nccl': between the ranks that torchrun started the wire is real, as gloo"):
        options(world=2, link_bandwidth="nccl")
    with pytest.raises(ValueError, match="--ffn-wires-of under torchrun: it is of a run of one process"):
        refuse_conflicts(["wires_of"], timed=True, is_one_process=False)
