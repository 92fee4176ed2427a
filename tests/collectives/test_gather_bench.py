"""Cases that gather, prepared: arms are checked before they are timed, and one that fails leaves the others."""

import itertools

import pytest
import torch
from gather_cases import ARMS, all_gather, options_of

from collectives.all_gather_matmul import serial
from collectives.bench import all_gather_matmul, ffn, matmul_reduce_scatter, weight_prefetch
from collectives.bench import runner as runners
from collectives.bench.setting import SETS
from roofline.operations import find
from roofline.operations.ffn import Ffn
from roofline.operations.matmul_reduce_scatter import MatmulReduceScatter
from roofline.operations.weight_prefetch import WeightPrefetch
from roofline.store.run import REQUESTED
from roofline.theory.arms import ALL_CORES

PREFETCH = WeightPrefetch("128x512", "up", 1, 256, "fp32", 4, "0.02GBps")
LAYER = Ffn("128x512", "up_down", 1, 1024, "fp32", 4, "0.05GBps")
SCATTER = MatmulReduceScatter("128x512", "down", 1, 1024, "fp32", 4, "0.05GBps")


@pytest.mark.parametrize(
    ("runner", "case", "names", "transfers"),
    [
        (all_gather_matmul.Runner, all_gather(), ARMS, 3),
        (weight_prefetch.Runner, PREFETCH, ["serial", "overlapped"], 3),
        (matmul_reduce_scatter.Runner, SCATTER, ["serial", "block_launches"], 3),
        (ffn.Runner, LAYER, [*ffn.Runner.own_arms], 6),
    ],
)
def test_arms_are_ready_beside_what_they_are_compared_with(options, runner, case, names, transfers):
    prepared = runner(options).prepare(case, names)
    entrants = prepared.entrants
    assert (prepared.contenders, prepared.baseline) == (names, "serial")
    assert max(entrants[name].relative_error for name in names) < 1e-6
    roles = {name: entrants[name].role for name in prepared.references}
    assert roles == {"gemm torch": "gemm", "link": "link", "gemm beside link": "contended"}
    for run in entrants["gemm torch"].call.runs:  # what links bring is there
        assert not run().isnan().any()
    for entrant in entrants.values():
        entrant.call()
    for name in ("link", "gemm beside link", *names):
        notes = entrants[name].call.notes()
        timeline = notes["timeline"]
        assert 0 < notes["last_arrival_s"] <= timeline["end_s"] + 1e-9  # which is rounded
        blocks = prepared.facts["row_blocks"] if name == "row_block_launches" else 1
        assert len(timeline["transfers"]) == len(timeline["arrivals_s"]) == transfers * blocks
        assert ("ready_s" in timeline) == (case in (SCATTER, LAYER) and name in names)
        if name in ("gemm beside link", "overlapped"):
            assert notes["first_wait_s"] < notes["last_arrival_s"]
        if case is SCATTER and name == "serial":
            assert timeline["ready_s"] == 3 * timeline["ready_s"][:1]


def does_not_wait(operands, link):
    link.start(operands.by_chunk)
    operands.matmul(operands.gathered, operands.w, operands.out)
    link.finish()


def forgets_a_chunk(operands, link):
    link.start(operands.by_chunk[:2])
    link.wait(2)
    operands.gathered.nan_to_num_()
    operands.matmul(operands.gathered, operands.w, operands.out)
    link.finish()


def forgets_weights(operands, link):
    link.start(operands.next[:1])
    operands.matmul(operands.x, operands.now, operands.out)
    link.finish()
    operands.step += 1


def over_a_dead_link(operands, link):
    link.copy = lambda index, source, target: 1 / 0
    return serial(operands, link)


def raises(operands, link):
    raise ArithmeticError("planted")


def later(wrong):
    """What is right in its first call, and `wrong(operands, link)` from then on."""

    def of(right):
        calls = itertools.count()
        return lambda operands, link: (wrong if next(calls) else right)(operands, link)

    return of


def instead(wrong):
    return lambda right: wrong


def behind(spoil):
    """What is right until `spoil(operands)`."""
    return lambda right: lambda operands, link: (right(operands, link), spoil(operands))


def multiplies_nothing(operands, link):
    operands.matmul = lambda x, w, out: out
    return matmul_reduce_scatter.Runner.own_arms["serial"](operands, link)


@pytest.mark.parametrize(
    ("runner", "case", "name", "wrong", "reason"),
    [
        (all_gather_matmul.Runner, all_gather(), name, wrong, reason)
        for name, wrong, reason in (
            ("row_block_launches", later(does_not_wait), "holds NaN"),
            ("chunk_launches", instead(forgets_a_chunk), "holds NaN"),
            (
                "chunk_launches",
                behind(lambda operands: operands.out.mul_(1.001)),
                "relative error 1.00e-03 is above 1e-05",
            ),
            ("chunk_launches", instead(raises), "ArithmeticError: planted"),
            ("row_block_launches", instead(over_a_dead_link), "chunk 1 (row block 0), which rank 1 sends to rank 0"),
        )
    ]
    + [(weight_prefetch.Runner, PREFETCH, name, instead(forgets_weights), "NaN") for name in ("serial", "overlapped")]
    + [
        (matmul_reduce_scatter.Runner, SCATTER, "block_launches", wrong, reason)
        for wrong, reason in (
            (behind(lambda operands: operands.out.sub_(operands.arrived[1])), "relative error"),
            (later(multiplies_nothing), "holds NaN"),
        )
    ]
    + [
        (ffn.Runner, LAYER, name, behind(spoil), "relative error")
        for name, spoil in (
            ("layer_launches", lambda operands: operands.out.sub_(operands.scatter.arrived[1])),
            ("chained_launches", lambda operands: operands.out.mul_(1.001)),
            (
                "all_reduce",
                lambda operands: operands.scatter.block(operands.whole, 2).mul_(1.001),
            ),  # another rank's rows
        )
    ],
)
def test_wrong_arm_is_not_ready_and_spoils_nothing_for_the_others(
    runner, case, name, wrong, reason, options, monkeypatch
):
    names = list(dict.fromkeys([*list(runner.own_arms)[:2], name]))
    monkeypatch.setitem(runner.own_arms, name, wrong(runner.own_arms[name]))
    prepared = runner(options).prepare(case, names)
    assert prepared.contenders == [other for other in names if other != name]
    assert prepared.rejected[name].outcome == "failed"
    assert reason in prepared.rejected[name].reason
    for run in prepared.entrants["gemm torch"].call.runs:
        assert not run().isnan().any()


def test_other_dtypes_than_fp32_are_skipped_on_a_cpu(options):
    prepared = all_gather_matmul.Runner(options).prepare(all_gather(dtype="bf16"), ARMS)
    assert prepared.rejected["serial"].outcome == "skipped"
    assert "fp32, not bf16" in prepared.rejected["serial"].reason


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_serial_all_cores_alone_multiplies_on_the_core_of_the_link_too(threads, options, monkeypatch):
    used, before = [], torch.get_num_threads()

    def watched(operands, link):
        plain, operands.matmul = operands.matmul, lambda *given: used.append(torch.get_num_threads()) or plain(*given)
        try:
            return serial(operands, link)
        finally:
            operands.matmul = plain

    monkeypatch.setitem(all_gather_matmul.Runner.own_arms, "serial", watched)
    monkeypatch.setattr(runners, "off_pace", lambda setting: None)
    torch.set_num_threads(threads)
    try:
        prepared = all_gather_matmul.Runner(options).prepare(all_gather(), ["serial", ALL_CORES][:threads])
        for name in prepared.contenders:
            prepared.entrants[name].call()
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert not prepared.rejected
    alone, checks = max(1, threads - 1), 2 * SETS
    assert used == [n for n in (alone, threads)[:threads] for _ in range(checks)] + [alone, threads][:threads]


@pytest.mark.parametrize(("wire", "median_s"), [("balance50", 0.045), ("ridge", 0.045), ("ridge", None)])
def test_a_later_share_takes_what_the_first_one_chose(options, wire, median_s):
    case = all_gather(wire)
    first = all_gather_matmul.Runner(options).prepare(case, ARMS)
    later = all_gather_matmul.Runner(options)
    facts = first.facts | {"t_gemm_planned_s": 1e-3, REQUESTED: 12345678.0}
    medians_s = {f"gemm {first.facts['unsplit']}": median_s} if median_s else {}  # where a first pass was cut off
    later.earlier[case.id] = {"facts": facts, "medians_s": medians_s}
    prepared = later.prepare(case, ARMS)
    t_gemm_s = median_s or facts["t_gemm_planned_s"]
    kept_in_step = {"t_gemm_planned_s": t_gemm_s, REQUESTED: case.work.wire_bytes / t_gemm_s}
    assert prepared.facts == (facts if wire == "balance50" else facts | kept_in_step)
    assert prepared.contenders == ARMS


@pytest.mark.parametrize("module", [all_gather_matmul, matmul_reduce_scatter, ffn, weight_prefetch])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_is_listed_is_what_runs(module, device):
    runner = module.Runner(options_of())
    listed = find(module.__name__.rpartition(".")[2]).planner(options_of()).arms(device)
    assert [name for name in runner.arms(device) if name != ALL_CORES] == [name for name in listed if name != ALL_CORES]
