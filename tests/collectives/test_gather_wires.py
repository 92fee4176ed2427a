"""The wire of a case that gathers: which bandwidth its link is asked for, whether it keeps it, and who waits for it."""

from dataclasses import replace
from types import SimpleNamespace

import numpy
import pytest
import torch
from gather_cases import ARMS, all_gather

from collectives.bench import all_gather_matmul, operands, runner, setting
from collectives.paced import PacedThread
from collectives.transfers import Transfers
from roofline.measure import clocks
from roofline.store.run import REQUESTED


@pytest.mark.parametrize(
    ("wire", "bytes_per_s"), [("0.25GBps", 0.25e9), ("balance86", 1e9), ("memory0.01", 0.1e9), ("preset", None)]
)
def test_a_wire_asks_for_its_bandwidth(wire, bytes_per_s, options, monkeypatch):
    monkeypatch.setattr(setting, "chip_flops", lambda *case: 86e9)
    monkeypatch.setattr(setting, "copy_bytes_per_s", lambda device: 20e9)
    made = all_gather_matmul.AllGather(options, all_gather(wire))
    assert made.link().bytes_per_s == made.facts[REQUESTED] == bytes_per_s


def test_ridge_keeps_step_with_the_matmul_of_the_rounds(options):
    prepared = all_gather_matmul.Runner(options).prepare(case := all_gather("ridge1.4"), ARMS)
    gemm = prepared.entrants[f"gemm {prepared.facts['unsplit']}"].call
    asked = gemm.notes()[REQUESTED]
    assert asked == prepared.facts[REQUESTED] == 1.4 * case.work.wire_bytes / prepared.facts["t_gemm_planned_s"]
    for times in (2, 4):
        gemm.listen(times * prepared.facts["t_gemm_planned_s"])
    assert gemm.notes()[REQUESTED] == pytest.approx(asked / 2)  # the median's, with the planned one
    for name in (*ARMS, "link", "gemm beside link"):
        prepared.entrants[name].call()
        waits = prepared.entrants[name].call.notes()["last_arrival_s"] * (asked / 2) / case.work.wire_bytes
        assert 0.99 < waits < 1.4, name
    fixed = all_gather_matmul.Runner(options).prepare(all_gather(), ARMS)
    assert not hasattr(fixed.entrants[f"gemm {fixed.facts['unsplit']}"].call, "listen")


def test_a_wire_of_another_run_is_taken_and_keeps_its_pace(options):
    case = all_gather("ridge1.4")
    pinned = replace(options, wires_of=((case.id, 0.2e9),))
    prepared = all_gather_matmul.Runner(pinned).prepare(case, ARMS)
    assert prepared.facts[REQUESTED] == 0.2e9
    assert not hasattr(prepared.entrants[f"gemm {prepared.facts['unsplit']}"].call, "listen")


@pytest.mark.parametrize(
    ("turns", "times_s"),
    [
        ([[9, 9], [9, 9], [2, 3], [None, None], [2, 1], [4, None], [9, 5]], [3, 3]),
        ([[None, None]] * 7, [2, 3]),  # all late
    ],
)
def test_a_matmul_takes_the_median_of_turns_as_in_a_run_beside_the_core_of_the_link(turns, times_s, monkeypatch):
    threads, left = torch.get_num_threads(), iter(turns)

    def turn(clock, calls):
        assert torch.get_num_threads() == max(1, threads - 1)
        return next(left)

    monkeypatch.setattr(clocks.CpuClock, "turn", turn)
    monkeypatch.setattr(clocks.CpuClock, "burst", lambda clock, call, calls: call() * calls)
    assert operands.seconds_by_turns([lambda: 2, lambda: 3], "cpu") == times_s


def test_gather_that_would_take_for_ever_is_skipped(options, monkeypatch):
    monkeypatch.setattr(runner, "LONGEST_GATHER_S", 0.3)
    prepared = all_gather_matmul.Runner(options).prepare(all_gather("0.001GBps"), ARMS)
    assert "one gather at 0.001 GB/s takes 0.393 s, and 0.3 s is the limit" in prepared.rejected["serial"].reason


@pytest.mark.parametrize(("slower", "ready"), [(1.04, ARMS), (1.06, [])])
def test_link_that_cannot_keep_its_pace_voids_the_case(options, monkeypatch, slower, ready):
    def move(link, index, source, target):
        numpy.copyto(target, source)
        link.clock.sleep(slower * source.nbytes / link.bytes_per_s)

    monkeypatch.setattr(PacedThread, "copy", move)
    prepared = all_gather_matmul.Runner(options).prepare(all_gather("0.05GBps"), ARMS)
    assert prepared.contenders == ready
    if not ready:
        message = "reaches 0.0472 GB/s alone, asked for are 0.05, and 5 % is the limit: choose another with"
        assert f"{message} --ffn-link-bandwidth" in prepared.rejected["serial"].reason


def test_a_link_is_timed_alone_once_the_host_is_ahead(options, monkeypatch):
    order, alone = [], setting.alone
    monkeypatch.setattr(setting, "host_ahead", lambda device, transfers: order.append(transfers))
    monkeypatch.setattr(setting, "alone", lambda link, transfers: order.append("gather") or alone(link, transfers))
    made = all_gather_matmul.AllGather(options, all_gather())
    assert made.gathers_s(2) == pytest.approx([made.t_comm_s] * 2)
    assert order == [3, "gather"] * 2


def test_link_off_its_pace_is_looked_at_three_times():
    times_s, case = iter([2.0, 2.0, 1.0]), SimpleNamespace(work=SimpleNamespace(wire_bytes=100))
    slow = SimpleNamespace(bytes_per_s=100.0, case=case, gathers_s=lambda count: [next(times_s)])
    assert runner.off_pace(slow) is None


def test_a_chip_and_a_copy_are_as_fast_as_turns_of_the_clock_say(monkeypatch):
    monkeypatch.setattr(operands, "seconds_by_turns", lambda calls, device, all_cores=False: [0.5] * len(calls))
    monkeypatch.setattr(operands, "beyond_cache_bytes", lambda device: 1000)
    assert operands.chip_flops.__wrapped__("cpu", "fp32", 2, 3, 5) == 2 * 2 * 3 * 5 / 0.5
    assert operands.copy_bytes_per_s.__wrapped__("cpu") == 2 * 1000 / 0.5


@pytest.mark.parametrize(("times_s", "gather"), [((2.0, 1.0), "nccl_all_gather"), ((1.0, 2.0), "symmetric")])
def test_serial_gathers_by_the_faster_of_the_link_and_nccls_all_gather(times_s, gather):
    each = dict(zip(("symmetric", "nccl_all_gather"), times_s, strict=True))
    ranks = SimpleNamespace(world=SimpleNamespace(why_not=lambda kind: None), share=lambda times: times)
    gpu = SimpleNamespace(
        ranks=ranks, link_kind="symmetric", options=SimpleNamespace(timed=True), gathers=[Transfers()],
        gathers_s=lambda count, kind: count * [each[kind]],
    )  # fmt: skip
    assert setting.Setting.fastest_gather(gpu) == gather
    ranks.world.why_not = lambda kind: "they share a GPU"
    assert setting.Setting.fastest_gather(gpu) == "symmetric"
