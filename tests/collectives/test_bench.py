"""Cases that gather or scatter, prepared: arms are checked before they are timed, one that fails leaves the others, and
the wire is asked for what the case says."""

import gc
import itertools
import json
import os
import weakref
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from arm_cases import ARMS, OPTIONS, Products, all_gather

from collectives import device, on_device
from collectives.all_gather_matmul import serial
from collectives.bench import (
    all_gather_matmul,
    ffn,
    links,
    matmul_reduce_scatter,
    operands,
    pace,
    runner,
    setting,
    weight_prefetch,
)
from collectives.paced import PacedThread
from collectives.transfers import Transfer, Transfers
from kernels.registry import CONTENDERS
from roofline.operations import find
from roofline.operations.ffn import Ffn
from roofline.operations.matmul_reduce_scatter import MatmulReduceScatter
from roofline.operations.weight_prefetch import WeightPrefetch
from roofline.store.run import REQUESTED
from roofline.theory import wires
from roofline.theory.arms import ALL_CORES
from roofline.theory.arms import ARMS as ARM_SPECS
from roofline.worker import clocks

PREFETCH = WeightPrefetch("128x512", "up", 1, 256, "fp32", 4, "0.02GBps")
LAYER = Ffn("128x512", "up_down", 1, 1024, "fp32", 4, "0.05GBps")
SCATTER = MatmulReduceScatter("128x512", "down", 1, 1024, "fp32", 4, "0.05GBps")
each_operation = pytest.mark.parametrize(
    ("module", "case"),
    [(all_gather_matmul, all_gather()), (weight_prefetch, PREFETCH), (matmul_reduce_scatter, SCATTER), (ffn, LAYER)],
)


def prepare(case, names=ARMS, module=all_gather_matmul):
    """A case as its runner prepares it."""
    return module.Runner(OPTIONS).prepare(case, names)


def roles_of(prepared):
    """Of what takes turns for comparison."""
    return {name: entrant.role for name, entrant in prepared.entrants.items() if entrant.role}


@each_operation
def test_arms_are_ready_beside_what_they_are_compared_with_and_looked_at(module, case):
    names = [*module.Runner.own_arms]
    transfers = 6 if case is LAYER else 3
    prepared = prepare(case, names, module)
    entrants = prepared.entrants
    assert (prepared.contenders, prepared.baseline) == (names, "serial")
    assert max(entrants[name].relative_error for name in names) < 1e-6
    assert roles_of(prepared) == {"gemm torch": "gemm", "link": "link", "gemm beside link": "contended"}
    for run in entrants["gemm torch"].call.run.runs:  # what links bring is there
        assert not run().isnan().any()
    for entrant in entrants.values():
        entrant.call()
    for name in ("link", "gemm beside link", *names):
        notes = entrants[name].call.notes()
        timeline = notes["timeline"]
        assert 0 < notes["last_arrival_s"] <= timeline["end_s"] + 1e-9  # which is rounded
        blocks = prepared.facts["row_blocks"] if name in names and ARM_SPECS[name].by_block else 1
        assert len(timeline["transfers"]) == len(timeline["arrivals_s"]) == transfers * blocks
        assert ("ready_s" in timeline) == (case in (SCATTER, LAYER) and name in names)
        if name in ("gemm beside link", "overlapped"):
            assert notes["first_wait_s"] < notes["last_arrival_s"]
        if case is SCATTER and name == "serial":
            assert timeline["ready_s"] == 3 * timeline["ready_s"][:1]
    for name in 2 * names:  # each looks at what it has computed, since inputs change
        prepared.inputs.change()
        before = entrants[name].call().clone()
        assert entrants[name].look(before)() == ""
        prepared.inputs.change()
        assert "times a typical value" in entrants[name].look(before)()  # nothing was computed since


def tensors() -> list[torch.Tensor]:
    return [each for each in gc.get_objects() if type(each) is torch.Tensor]


@each_operation
def test_operands_go_with_their_shape(module, case):
    before = {id(tensor): tensor for tensor in tensors()}
    prepared = prepare(case, ["serial"], module)
    made = [weakref.ref(tensor) for tensor in tensors() if id(tensor) not in before]
    assert len(made) > 3
    prepared.let_go()
    prepare(replace(case, model="64x256"), ["serial"], module)  # the link's thread has another run
    assert [ref().shape for ref in made if ref() is not None] == []


def does_not_wait(operands, link):
    link.start(operands.by_chunk)
    operands.matmul(operands.gathered, operands.w, operands.out)
    link.finish()


def multiplies_nothing(operands, link):
    operands.matmul = lambda x, w, out: out
    return matmul_reduce_scatter.Runner.own_arms["serial"](operands, link)


def later(wrong):
    """What is right in its first call, and `wrong(operands, link)` from then on."""

    def of(right):
        calls = itertools.count()
        return lambda operands, link, **_: (wrong if next(calls) else right)(operands, link)

    return of


def behind(spoil):
    """What is right until `spoil(operands)`."""
    return lambda right: lambda operands, link, **cut: (right(operands, link, **cut), spoil(operands))


@pytest.mark.parametrize(
    ("module", "case", "name", "wrong", "reason"),
    [
        (all_gather_matmul, all_gather(), "row_block_launches", later(does_not_wait), "is in row 0 of out"),
        (matmul_reduce_scatter, SCATTER, "block_launches", later(multiplies_nothing), "is in row 0 of out"),
        (ffn, LAYER, "layer_launches", behind(lambda mine: mine.out.sub_(mine.scatter.arrived[1])), "relative error"),
        # Another rank's rows.
        (ffn, LAYER, "all_reduce", behind(lambda mine: mine.scatter.block(mine.whole, 2).mul_(1.001)), "relative"),
    ],
)
def test_wrong_arm_is_not_ready_and_spoils_nothing_for_the_others(module, case, name, wrong, reason, monkeypatch):
    arms = module.Runner.own_arms
    names = list(dict.fromkeys([*list(arms)[:2], name]))
    monkeypatch.setitem(arms, name, wrong(arms[name]))
    prepared = prepare(case, names, module)
    assert prepared.contenders == [other for other in names if other != name]
    assert prepared.rejected[name].outcome == "failed"
    assert reason in prepared.rejected[name].reason
    for run in prepared.entrants["gemm torch"].call.run.runs:
        assert not run().isnan().any()


def test_other_dtypes_than_fp32_are_skipped_on_a_cpu():
    rejected = prepare(all_gather(dtype="bf16")).rejected["serial"]
    assert rejected.outcome == "skipped"
    assert "fp32, not bf16" in rejected.reason


def test_serial_all_cores_alone_multiplies_on_the_core_of_the_link_too(monkeypatch):
    used, before = [], torch.get_num_threads()

    def watched(operands, link):
        used.append(torch.get_num_threads())
        return serial(operands, link)

    monkeypatch.setitem(all_gather_matmul.Runner.own_arms, "serial", watched)
    monkeypatch.setattr(runner, "off_pace", lambda setting: None)
    torch.set_num_threads(2)
    try:
        prepared = prepare(all_gather(), ["serial", ALL_CORES])
        for name in prepared.contenders:
            prepared.entrants[name].call()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    checks = 2 * setting.SETS
    assert used == [1] * checks + [2] * checks + [1, 2]


@pytest.mark.parametrize(("wire", "median_s"), [("balance50", 0.045), ("ridge", 0.045), ("ridge", None)])
def test_a_later_share_takes_what_the_first_one_chose(wire, median_s):
    case = all_gather(wire)
    first = prepare(case)
    later = all_gather_matmul.Runner(OPTIONS)
    facts = first.facts | {"t_gemm_planned_s": 1e-3, REQUESTED: 12345678.0}
    medians_s = {f"gemm {first.facts['unsplit']}": median_s} if median_s else {}  # where a first pass was cut off
    later.earlier[case.id] = {"facts": facts, "medians_s": medians_s}
    prepared = later.prepare(case, ARMS)
    t_gemm_s = median_s or facts["t_gemm_planned_s"]
    kept_in_step = {"t_gemm_planned_s": t_gemm_s, REQUESTED: case.work.wire_bytes / t_gemm_s}
    assert prepared.facts == (facts if wire == "balance50" else facts | kept_in_step)
    assert prepared.contenders == ARMS


def rows_multiplied(entrant) -> list[int]:
    """Of the matmuls of one call."""
    with Products() as products:
        entrant.call()
    return [x[0] for x, _ in products.shapes]


@pytest.mark.parametrize(
    ("module", "case", "arm"),
    [(matmul_reduce_scatter, SCATTER, "block_launches"), (ffn, LAYER, "chained_launches")],
)
def test_an_arm_takes_as_many_ranks_at_a_time_as_its_matmul_is_fast_with(module, case, arm, monkeypatch):
    def turns_of(calls, device, count):
        return [[1.0, 0.1, 1.3, 1.2], [2.0, 0.2, 9.9, 2.4], [4.0, 0.4, 5.2, 4.8], [None, 0.1, 0.1, 9.9]]

    monkeypatch.setattr(matmul_reduce_scatter, "turns_of", turns_of)  # unsplit, sums, one and two ranks at a time
    monkeypatch.setattr(setting.Setting, "t_comm_s", 0.0)
    first = prepare(case, ["serial", arm], module)
    split = {"ranks_per_launch": 2, "slowdowns": pytest.approx({"1": 1.2, "2": 1.1})}
    assert first.facts["splits"] == {arm: split}
    assert "ranks a launch: 2" in first.entrants[arm].config
    assert max(rows_multiplied(first.entrants[arm])) == 2 * case.m // case.ranks

    monkeypatch.setattr(matmul_reduce_scatter, "turns_of", None)  # no later share measures it
    later = module.Runner(OPTIONS)
    later.earlier[case.id] = {"facts": json.loads(json.dumps(first.facts)), "medians_s": {}}
    again = later.prepare(case, ["serial", arm])
    assert again.facts["splits"] == {arm: split}
    del later.earlier[case.id]["facts"]["splits"]
    assert later.prepare(case, [arm]).facts["splits"] == {arm: {"ranks_per_launch": 1}}


@pytest.mark.parametrize(("t_gemm_s", "turns", "ranks_per_launch"), [(1e-3, 15, 2), (0.25, 8, 2), (0.6, None, 1)])
def test_what_splitting_costs_is_measured_within_ten_seconds_and_all_ranks_take_what_the_first_found(
    t_gemm_s, turns, ranks_per_launch, monkeypatch
):
    counts = []
    monkeypatch.setattr(
        matmul_reduce_scatter, "turns_of", lambda calls, device, count: counts.append(count) or [[1.0] * len(calls)]
    )
    made = matmul_reduce_scatter.ReduceScatter(OPTIONS, SCATTER)
    made.pace.t_gemm_s, made.t_comm_s = t_gemm_s, 0.0
    made.ranks = SimpleNamespace(broadcast=lambda mine: mine and {"1": 1.2, "2": 1.1})
    arm = made.split("block_launches", matmul_reduce_scatter.Runner.own_arms["block_launches"])
    assert counts == [turns] * (turns is not None)
    assert ("slowdowns" in made.facts["splits"]["block_launches"]) == (turns is not None)
    assert arm.keywords == {"ranks_per_launch": ranks_per_launch}


@each_operation
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_is_listed_is_what_runs(module, case, device):
    runs = module.Runner(OPTIONS).arms(case.op, device)
    listed = find(case.op).planner(replace(OPTIONS, device=device)).timed_names()
    assert [*runs] == listed + [ALL_CORES] * (device == "cpu" and len(os.sched_getaffinity(0)) == 1)
    ours = CONTENDERS["persistent"].load()
    assert all(arm.keywords["matmul"] is ours for name, arm in runs.items() if name.endswith("_persistent"))


def test_arms_by_ours_are_skipped_where_ours_is_the_fastest_and_else_where_it_cannot_run():
    made = all_gather_matmul.AllGather(OPTIONS, all_gather())
    base, by_ours = "row_block_launches", "row_block_launches_persistent"
    assert (made.matmul_of(base), made.matmul_of(by_ours)) == (made.best, CONTENDERS["persistent"])
    assert made.why_not(by_ours) == CONTENDERS["persistent"].why_not(*made.gemms[0][:2])
    made.best = CONTENDERS["persistent"]
    assert f"so that {base} has it already" in made.why_not(by_ours)


def test_arms_that_wait_are_prepared_once_for_what_matmul_and_link_take(monkeypatch):
    times = []

    def prepare(operands, arm, *about):
        times.append(about)
        operands.prepared[arm] = SimpleNamespace(config="2 row blocks", facts={"row_blocks": 2})

    monkeypatch.setattr(on_device, "prepare", prepare)
    made = all_gather_matmul.AllGather(OPTIONS, all_gather("0.002GBps"))
    for _ in range(2):
        assert made.why_not("row_block") is None
    assert made.t_comm_s == pytest.approx(made.case.work.wire_bytes / 2e6)
    assert times == 2 * [("paced", made.pace.t_gemm_s, made.t_comm_s)]
    assert made.describe("row_block") == ("2 row blocks", {"row_blocks": 2})
    monkeypatch.setattr(on_device, "prepare", lambda *about: int("chunks of a multiple of 64"))
    assert "chunks of a multiple of 64" in made.why_not("chunk_outer")


def test_over_a_preset_link_nothing_has_a_timeline():
    prepared = prepare(all_gather("preset"), ["chunk_launches"])
    assert prepared.contenders == ["serial", "chunk_launches"]
    assert roles_of(prepared) == {"gemm torch": "gemm"}
    assert prepared.entrants["serial"].call.notes is None


@pytest.mark.parametrize(
    ("wire", "bytes_per_s"), [("0.25GBps", 0.25e9), ("balance86", 1e9), ("memory0.01", 0.1e9), ("preset", None)]
)
def test_a_wire_asks_for_its_bandwidth(wire, bytes_per_s, monkeypatch):
    monkeypatch.setattr(pace, "chip_flops", lambda *case: 86e9)
    monkeypatch.setattr(pace, "copy_bytes_per_s", lambda device: 20e9)
    made = all_gather_matmul.AllGather(OPTIONS, all_gather(wire))
    assert made.link().bytes_per_s == made.facts[REQUESTED] == bytes_per_s


def test_ridge_keeps_step_with_the_matmul_of_the_rounds():
    prepared = prepare(case := all_gather("ridge1.4"))
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


@pytest.mark.parametrize(("wire", "pinned"), [("0.05GBps", None), ("ridge1.4", 0.2e9)])
def test_a_wire_that_is_given_or_of_another_run_keeps_its_pace(wire, pinned):
    case = all_gather(wire)
    options = replace(OPTIONS, wires_of=((case.id, pinned),) if pinned else ())
    prepared = all_gather_matmul.Runner(options).prepare(case, ARMS)
    assert prepared.facts[REQUESTED] == (pinned or 0.05e9)
    assert prepared.entrants[f"gemm {prepared.facts['unsplit']}"].call.listen is None


def test_a_matmul_takes_the_median_of_turns_as_in_a_run(monkeypatch):
    turns = iter([[9, 9], [9, 9], [2, 3], [None, None], [2, 1], [4, None], [9, 5]])  # some are late
    monkeypatch.setattr(clocks.CpuClock, "turn", lambda clock, calls: next(turns))
    monkeypatch.setattr(clocks.CpuClock, "burst", lambda clock, call, calls: call() * calls)
    assert operands.seconds_by_turns([lambda: 2, lambda: 3], "cpu") == [3, 3]


def test_gather_that_would_take_for_ever_is_skipped(monkeypatch):
    monkeypatch.setattr(runner, "LONGEST_GATHER_S", 0.3)
    prepared = prepare(all_gather("0.001GBps"))
    assert "one gather at 0.001 GB/s takes 0.393 s, and 0.3 s is the limit" in prepared.rejected["serial"].reason


@pytest.mark.parametrize(("slower", "ready"), [(1.04, ARMS), (1.06, [])])
def test_link_that_cannot_keep_its_pace_voids_the_case(monkeypatch, slower, ready):
    def move(link, index, source, target):
        target.copy_(source)
        link.clock.sleep(slower * source.nbytes / link.bytes_per_s)

    monkeypatch.setattr(PacedThread, "copy", move)
    prepared = prepare(all_gather("0.05GBps"))
    assert prepared.contenders == ready
    if not ready:
        message = "reaches 0.0472 GB/s alone, asked for are 0.05, and 5 % is the limit: choose another with"
        assert f"{message} --ffn-link-bandwidth" in prepared.rejected["serial"].reason


def test_link_off_its_pace_is_looked_at_three_times():
    times_s, case = iter([2.0, 2.0, 1.0]), SimpleNamespace(work=SimpleNamespace(wire_bytes=100))
    slow = SimpleNamespace(pace=pace.Pace(case, 1.0, 100.0), case=case, gather_s=lambda: next(times_s))
    assert runner.off_pace(slow) is None


def test_a_gather_is_held_until_the_host_has_enqueued_each_slice(monkeypatch):
    """Of 8 ranks, 16 slices of a copy engine from each: a host that takes 4 ms has as much again, and more."""
    held = []
    monkeypatch.setattr(torch.cuda, "_sleep", held.append)
    shard = torch.empty(8192, 2048, dtype=torch.bfloat16, device="meta")
    timeline = SimpleNamespace(arrivals_s=[1.0])
    link = SimpleNamespace(start=list, wait=int, finish=list, timeline=lambda: timeline)
    assert links.seconds_alone(link, [Transfer(1, 0, shard, shard)] * 7, "cuda") == 1.0
    assert held[0] / clocks.SM_HZ > 7e-3


@pytest.mark.parametrize(("times_s", "gather"), [((2.0, 1.0), "nccl_all_gather"), ((1.0, 2.0), "symmetric")])
def test_serial_gathers_by_the_faster_of_the_link_and_nccls_all_gather(times_s, gather):
    each = dict(zip(("symmetric", "nccl_all_gather"), times_s, strict=True))
    ranks = SimpleNamespace(world=SimpleNamespace(why_not=lambda kind: None), broadcast=lambda times: times)
    gpu = SimpleNamespace(
        ranks=ranks, link_kind="symmetric", options=SimpleNamespace(timed=True), gathers=[Transfers()],
        gather_s=each.get,
    )  # fmt: skip
    assert setting.Setting.fastest_gather(gpu) == gather
    ranks.world.why_not = lambda kind: "they share a GPU"
    assert setting.Setting.fastest_gather(gpu) == "symmetric"


@pytest.mark.parametrize(("best", "arms"), [("cublas", []), ("persistent", ["serial", "row_block_launches"])])
def test_copier_has_room_beside_all_arms_by_our_kernels_and_no_others(best, arms):
    made = object.__new__(setting.Setting)
    made.best = CONTENDERS[best]
    ours = [*on_device.ARMS, "row_block_launches_persistent"]
    asked = ["serial", "row_block_launches", *ours]
    assert [arm for arm in asked if made.leaves_room(arm)] == [*arms, *ours]


@pytest.mark.parametrize(
    ("wire", "programs"),
    [("50GBps", [32, 132]), ("450GBps", [48, 132]), ("1GBpscopier32", [32, 32])],
)
def test_copier_has_the_programs_that_its_bandwidth_needs_and_one_on_each_sm_beside_arms_that_leave_it_room(
    monkeypatch, wire, programs
):
    asked = []
    monkeypatch.setattr(device, "PacedCopier", lambda speed, rank, programs: asked.append(programs))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda of: SimpleNamespace(multi_processor_count=132))
    made = object.__new__(setting.Setting)
    made.wire = wires.parse(wire)
    made.pace = pace.Pace(None, 1.0, made.wire.value)
    made.device, made.link_kind, made.ranks = "cuda", "paced", SimpleNamespace(rank=0)
    made.link(), made.link(is_spread=True)
    assert asked == programs
