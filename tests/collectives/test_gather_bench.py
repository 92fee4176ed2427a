"""Cases that gather, prepared: arms are checked before they are timed, and one that fails leaves the others."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy
import pytest
import torch

from collectives import flagged_arms, links
from collectives.all_gather_matmul import serial
from collectives.bench import all_gather_matmul, arms, ffn, matmul_reduce_scatter, operands, setting, weight_prefetch
from roofline.analysis.overlap import metrics
from roofline.analysis.overlap.arms import ALL_CORES
from roofline.measure.prepared import PreparedCase
from roofline.operations import gathering
from roofline.operations.all_gather_matmul import AllGatherMatmul
from roofline.operations.ffn import Ffn
from roofline.operations.matmul_reduce_scatter import MatmulReduceScatter
from roofline.operations.weight_prefetch import WeightPrefetch
from roofline.pytest_plugin.options import Options

DELAYS = {"link_latency_s", "skew_s"}
ARMS = ["serial", "chunk_launches", "row_block_launches"]
PREFETCH = WeightPrefetch("128x512", "up", 1, 256, "fp32", 4, "0.02GBps")
LAYER = Ffn("128x512", "up_down", 1, 1024, "fp32", 4, "0.05GBps")
SCATTER = MatmulReduceScatter("128x512", "down", 1, 1024, "fp32", 4, "0.05GBps")


def options_of(contenders=None):
    gather = gathering.make("cpu", "128x512", (4,), tokens=(1024,), tp=(1,))
    return Options(
        "cpu", True, "128x512", ("up",), (1024,), (1,), ("fp32",), contenders, 0, 1.0, Path("x"), False, gather
    )


@pytest.fixture
def options():
    return options_of()


def all_gather(wire="0.05GBps", dtype="fp32"):
    return AllGatherMatmul("128x512", "up", 1, 1024, dtype, 4, wire)


def roles(found):
    return {name: found.entrants[name].role for name in found.references}


@pytest.fixture
def arm(monkeypatch):
    """`arm(name, run)` stands in for an arm of the all-gather matmul."""
    return lambda name, run: monkeypatch.setitem(all_gather_matmul.Runner.own_arms, name, run)


def test_an_arm_of_a_gpu_whose_first_call_took_too_long_for_its_link_is_called_again(options):
    """A kernel is compiled and loaded then, and a link that waits for what it computes gives up."""
    errors = iter([links.LinkError("it was not computed for 2 s"), 0.0, 1e-7])

    def relative_error(arm, link, operands, **about):
        if isinstance(error := next(errors), links.LinkError):
            raise error
        return error

    nothing = dict.fromkeys(("why_not", "link", "facts_of", "config", "trace"), lambda *given: None)
    stand_in = SimpleNamespace(
        device="cuda", sets=[None], gather=None, relative_error=relative_error, limit=1e-6, **nothing
    )
    prepared = PreparedCase(all_gather(), "serial")
    all_gather_matmul.Runner(options).enter(prepared, stand_in, "chunk_launches")
    assert prepared.entrants["chunk_launches"].relative_error == 1e-7
    assert next(errors, None) is None


def test_each_first_call_is_told_before_it_begins(options, monkeypatch):
    told = []
    monkeypatch.setattr(arms, "off_pace", lambda setting: None)
    monkeypatch.setattr(setting.Setting, "why_not", lambda self, arm: told.append(f"{arm} is looked at"))
    monkeypatch.setattr(all_gather_matmul.AllGather, "why_not", setting.Setting.why_not)
    all_gather_matmul.Runner(options).prepare(all_gather(), ARMS[:2], lambda name, within_s: told.append(name))
    assert told[:4] == ["serial", "serial is looked at", "chunk_launches", "chunk_launches is looked at"]


def ready(runner, case, names):
    """`names` prepared beside what they are compared with, right, and each of all called once."""
    found = runner.prepare(case, names)
    assert found.contenders == names
    assert max(found.entrants[name].relative_error for name in names) < 1e-6
    assert roles(found) == {"gemm torch": "gemm", "link": "link", "gemm beside link": "contended"}
    for entrant in found.entrants.values():
        entrant.call()
    return found


def test_arms_are_ready_beside_what_they_are_compared_with(options):
    found = ready(all_gather_matmul.Runner(options), all_gather(), ARMS)
    assert found.baseline == "serial"
    notes = found.entrants["row_block_launches"].call.notes()
    assert 0 < notes["last_arrival_s"] <= notes["timeline"]["end_s"] + 1e-9  # which is rounded
    assert len(notes["timeline"]["transfers"]) == 3 * found.facts["row_blocks"]
    notes = found.entrants["gemm beside link"].call.notes()
    assert notes["first_wait_s"] < notes["last_arrival_s"]


def test_arms_that_scatter_are_ready_beside_what_they_are_compared_with(options):
    found = ready(matmul_reduce_scatter.Runner(options), SCATTER, ["serial", "block_launches"])
    notes = {name: found.entrants[name].call.notes()["timeline"] for name in found.contenders}
    assert notes["serial"]["ready_s"] == 3 * [notes["serial"]["ready_s"][0]]
    assert len(notes["block_launches"]["ready_s"]) == 3
    assert "ready_s" not in found.entrants["link"].call.notes()["timeline"]


@pytest.mark.parametrize("fault", ["left out", "of the call before"])
def test_arm_that_scatters_wrongly_fails(options, monkeypatch, fault):
    plain, calls = matmul_reduce_scatter.Runner.own_arms["block_launches"], []

    def wrong(operands, link):
        if fault == "left out":
            return plain(operands, link).sub_(operands.arrived[1])
        calls.append(operands)
        if len(calls) > 1:  # multiplies no more
            operands.matmul = lambda x, w, out: out
        return plain(operands, link)

    monkeypatch.setitem(matmul_reduce_scatter.Runner.own_arms, "block_launches", wrong)
    found = matmul_reduce_scatter.Runner(options).prepare(SCATTER, ["serial", "block_launches"])
    assert found.contenders == ["serial"]
    assert found.rejected["block_launches"].outcome == "failed"


def test_arms_of_a_layer_are_ready_beside_both_its_matmuls(options):
    found = ready(ffn.Runner(options), LAYER, [*ffn.Runner.own_arms])
    for name in ("link", "gemm beside link", *found.contenders):
        line = found.entrants[name].call.notes()["timeline"]
        assert len(line["arrivals_s"]) == 6
        assert ("ready_s" in line) == (name in found.contenders)
    for run in found.entrants["gemm torch"].call._runs:  # what links bring is there
        operands = run.args[0]
        torch.testing.assert_close(run(), operands.x @ operands.up.T @ operands.down.T)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("layer_launches", lambda operands: operands.out.sub_(operands.scatter.arrived[1])),
        ("chained_launches", lambda operands: operands.out.mul_(1.001)),
        ("all_reduce", lambda operands: operands.scatter.block(operands.whole, 2).mul_(1.001)),  # another rank's rows
    ],
)
def test_wrong_arm_of_a_layer_fails(options, monkeypatch, name, wrong):
    plain = ffn.Runner.own_arms[name]
    monkeypatch.setitem(ffn.Runner.own_arms, name, lambda operands, link: plain(operands, link) is wrong(operands))
    found = ffn.Runner(options).prepare(LAYER, [name])
    assert found.contenders == ["serial"]
    assert found.rejected[name].outcome == "failed"
    assert "relative error" in found.rejected[name].reason


def test_serial_is_measured_beside_any_choice(options):
    one = ["row_block_launches"]
    assert all_gather_matmul.Runner(options).prepare(all_gather(), one).contenders == ["serial", *one]
    assert all_gather_matmul.Runner(options_of((*one, "numpy"))).names(all_gather()) == one


def test_ridge_asks_for_a_link_as_fast_as_the_matmul(options):
    setting = all_gather_matmul.AllGather(options, all_gather("ridge1.4"))
    assert setting.bytes_per_s == pytest.approx(1.4 * setting.case.work.wire_bytes / setting.t_gemm_s)
    fixed = all_gather_matmul.AllGather(options, all_gather("0.25GBps"))
    assert fixed.link().bytes_per_s == fixed.facts["link_bytes_per_s_requested"] == 0.25e9


def test_ridge_keeps_step_with_the_matmul_of_the_rounds(options):
    found = all_gather_matmul.Runner(options).prepare(case := all_gather("ridge1.4"), ARMS)
    gemm = found.entrants[f"gemm {found.facts['unsplit']}"].call
    asked = gemm.notes()[metrics.REQUESTED]
    assert asked == found.facts[metrics.REQUESTED]
    for times in (2, 4):
        gemm.told(times * found.facts["t_gemm_planned_s"])
    assert gemm.notes()[metrics.REQUESTED] == pytest.approx(asked / 2)  # the median's, with the planned one
    found.entrants["link"].call()
    assert found.entrants["link"].call.notes()["last_arrival_s"] >= 0.99 * case.work.wire_bytes / (asked / 2)
    fixed = all_gather_matmul.Runner(options).prepare(all_gather(), ARMS)
    assert not hasattr(fixed.entrants[f"gemm {fixed.facts['unsplit']}"].call, "told")


def test_the_matmul_that_a_link_is_made_for_is_called_by_turns_as_in_a_run(options):
    called = []
    made = all_gather_matmul.Runner.setting(options, all_gather("ridge"))
    made._gemm_seconds(SimpleNamespace(run=lambda x, w, out: called.append(out.data_ptr())))
    assert called[:4] == 2 * [out.data_ptr() for _, _, out in made.gemms]


def test_link_of_a_case_is_as_late_as_was_asked_for_and_keeps_its_pace(options):
    late = replace(options, link_latency_s=0.01, skew_s=0.02)
    found = all_gather_matmul.Runner(late).prepare(all_gather(), ARMS)
    assert found.contenders == ARMS, found.rejected  # its bytes alone take 31 ms
    assert {name: found.facts[name] for name in DELAYS} == {"link_latency_s": 0.01, "skew_s": 0.02}
    assert not DELAYS & all_gather_matmul.Runner(options).prepare(all_gather(), ARMS).facts.keys()
    notes = []
    for _ in range(2):
        found.entrants["link"].call()
        notes.append(found.entrants["link"].call.notes())
    assert all(0.01 <= one["late_s"] <= 0.03 for one in notes)
    assert notes[0]["late_s"] != notes[1]["late_s"]
    bytes_s = found.case.work.wire_bytes / 0.05e9
    assert [one["last_arrival_s"] - one["late_s"] for one in notes] == pytest.approx(2 * [bytes_s])


def test_balance_asks_for_the_chips_flops_over_it(options, monkeypatch):
    monkeypatch.setattr(setting, "chip_flops", lambda *case: 86e9)
    assert all_gather_matmul.AllGather(options, all_gather("balance86")).bytes_per_s == pytest.approx(1e9)


def test_weight_prefetch_is_ready(options):
    found = weight_prefetch.Runner(options).prepare(PREFETCH, ["overlapped"])
    assert found.contenders == ["serial", "overlapped"]
    assert roles(found) == {"gemm torch": "gemm", "link": "link", "gemm beside link": "contended"}
    for entrant in found.entrants.values():
        entrant.call()
    for call in (found.entrants["overlapped"].call, found.entrants["gemm beside link"].call):
        notes = call.notes()
        assert notes["first_wait_s"] < notes["last_arrival_s"]


def does_not_wait(operands, link):
    link.start(operands.by_chunk)
    operands.matmul(operands.gathered, operands.w, operands.out)
    link.finish()
    return operands.out


def sums_wrongly(operands, link):
    link.start(operands.by_chunk)
    link.wait(3)
    operands.matmul(operands.gathered, operands.w, operands.out).mul_(1.001)
    link.finish()


def forgets_a_chunk(operands, link):
    link.start(operands.by_chunk[:2])
    link.wait(2)
    operands.gathered.nan_to_num_()
    operands.matmul(operands.gathered, operands.w, operands.out)
    link.finish()


@pytest.mark.parametrize(
    ("run", "said"),
    [
        (does_not_wait, "holds NaN"),
        (forgets_a_chunk, "holds NaN"),
        (sums_wrongly, "relative error 1.00e-03 is above 1e-05"),
        (lambda operands, link: 1 / 0, "ZeroDivisionError"),
    ],
)
def test_wrong_arm_is_not_ready_and_the_others_are(options, arm, run, said):
    arm("chunk_launches", run)
    found = all_gather_matmul.Runner(options).prepare(all_gather("0.05GBps"), ARMS)
    assert found.contenders == ["serial", "row_block_launches"]
    assert said in found.rejected["chunk_launches"].reason


def test_arm_that_is_right_only_at_first_is_not_ready(options, arm):
    calls = []

    def waits_once(operands, link):
        calls.append(operands)
        return (serial if len(calls) == 1 else does_not_wait)(operands, link)

    arm("row_block_launches", waits_once)
    found = all_gather_matmul.Runner(options).prepare(all_gather(), ARMS)
    assert "holds NaN" in found.rejected["row_block_launches"].reason
    assert found.contenders == ["serial", "chunk_launches"]


@pytest.mark.parametrize(("wrong", "right"), [("serial", "overlapped"), ("overlapped", "serial")])
def test_arm_that_leaves_weights_out_spoils_nothing_for_the_others(wrong, right, options, monkeypatch):
    def forgets_the_rest(operands, link):
        link.start(operands.next[:1])
        operands.matmul(operands.x, operands.now, operands.out)
        link.finish()
        operands.step += 1

    monkeypatch.setitem(weight_prefetch.Runner.own_arms, wrong, forgets_the_rest)
    found = weight_prefetch.Runner(options).prepare(PREFETCH, ["serial", "overlapped"])
    assert found.contenders == [right]
    assert wrong in found.rejected
    for run in found.entrants["gemm torch"].call._runs:
        assert not run().isnan().any()


def test_gather_that_would_take_for_ever_is_skipped(options, monkeypatch):
    monkeypatch.setattr(arms, "LONGEST_GATHER_S", 0.3)
    found = all_gather_matmul.Runner(options).prepare(all_gather("0.001GBps"), ARMS)
    assert "one gather at 0.001 GB/s takes 0.393 s, and 0.3 s is the limit" in found.rejected["serial"].reason


def test_arm_whose_link_dies_is_not_ready_and_the_others_are(options, arm):
    def over_a_dead_link(operands, link):
        link._move = lambda index, source, target: 1 / 0
        return serial(operands, link)

    arm("row_block_launches", over_a_dead_link)
    found = all_gather_matmul.Runner(options).prepare(all_gather(), ARMS)
    assert found.contenders == ["serial", "chunk_launches"]
    assert "chunk 1 (row block 0), which rank 1 sends to rank 0" in found.rejected["row_block_launches"].reason


@pytest.mark.parametrize(("slower", "ready"), [(1.04, ARMS), (1.06, [])])
def test_link_that_cannot_keep_its_pace_voids_the_case(options, monkeypatch, slower, ready):
    def move(link, index, source, target):
        numpy.copyto(target, source)
        link.clock.sleep(slower * source.nbytes / link.bytes_per_s)

    monkeypatch.setattr(links.PacedThread, "_move", move)
    found = all_gather_matmul.Runner(options).prepare(all_gather("0.05GBps"), ARMS)
    assert found.contenders == ready
    if not ready:
        said = "reaches 0.0472 GB/s alone, asked for are 0.05, and 5 % is the limit: choose another with"
        assert f"{said} --ffn-link-bandwidth" in found.rejected["serial"].reason


class Link:
    """Tells `order` when it is started, and that all arrives in a second."""

    kind = "paced"

    def __init__(self, order):
        self.start, self.wait, self.finish = (lambda transfers: order.append("start")), (lambda count: count), lambda: 0

    @staticmethod
    def timeline():
        return SimpleNamespace(arrivals_s=[1.0], late_s=0.0)


def test_time_of_a_gpus_link_begins_when_the_host_is_ahead(monkeypatch):
    order, work = [], SimpleNamespace(wire_bytes=1e9)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: order.append("held"))
    monkeypatch.setattr(flagged_arms, "trace", lambda operands, link, arm: order.append("start"))
    about = dict(case=SimpleNamespace(work=work), bytes_per_s=1e9, sets=[None], options=SimpleNamespace(timed=True))
    gpu = SimpleNamespace(device="cuda", link=lambda kind: Link(order), transfers=lambda operands: [], **about)
    gpu.gathers_s = lambda count: setting.Setting.gathers_s(gpu, count)
    assert arms.off_pace(gpu) is None
    assert order == ["held", "start"] * operands.CALIBRATIONS
    order.clear()
    all_gather_matmul.AllGather.trace(gpu, "row_block", Link(order))
    assert order == ["held", "start"] * all_gather_matmul.TRACES


def test_other_dtypes_than_fp32_are_skipped_on_a_cpu(options):
    found = all_gather_matmul.Runner(options).prepare(all_gather(dtype="bf16"), ARMS)
    assert found.rejected["serial"].outcome == "skipped"
    assert "fp32, not bf16" in found.rejected["serial"].reason


def test_preset_link_has_no_time_of_its_own(options):
    found = all_gather_matmul.Runner(options).prepare(all_gather("preset"), ARMS)
    assert found.contenders == ARMS
    assert found.references == ["gemm torch"]
    assert not hasattr(found.entrants["serial"].call, "notes")
    assert found.facts["link_bytes_per_s_requested"] is None


def test_a_memory_wire_takes_its_share_of_what_a_copy_moves(options, monkeypatch):
    monkeypatch.setattr(setting, "copy_bytes_per_s", lambda device: 20e9)
    assert all_gather_matmul.AllGather(options, all_gather("memory0.01")).bytes_per_s == pytest.approx(0.1e9)


def test_bytes_of_a_copy_count_both_ways_on_every_core(monkeypatch):
    monkeypatch.setattr(operands, "cache_bytes", lambda device: 1000)
    monkeypatch.setattr(operands, "seconds", lambda call, device, all_cores: call() is not None and all_cores and 2e-6)
    assert operands.copy_bytes_per_s.__wrapped__("cpu") == pytest.approx(2 * 8 * 1000 / 2e-6)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(
    ("runner", "case"),
    [
        (all_gather_matmul.Runner, all_gather()),
        (weight_prefetch.Runner, PREFETCH),
        (matmul_reduce_scatter.Runner, SCATTER),
        (ffn.Runner, LAYER),
    ],
)
def test_serial_all_cores_alone_multiplies_on_the_core_of_the_link_too(runner, case, threads, options, monkeypatch):
    used, serial, before = [], runner.own_arms["serial"], torch.get_num_threads()

    def watched(operands, link):
        plain, operands.matmul = operands.matmul, lambda *given: used.append(torch.get_num_threads()) or plain(*given)
        try:
            return serial(operands, link)
        finally:
            operands.matmul = plain

    monkeypatch.setitem(runner.own_arms, "serial", watched)
    monkeypatch.setattr(arms, "off_pace", lambda setting: None)
    torch.set_num_threads(threads)
    try:
        found = runner(options).prepare(case, runner(options).names(case))
        for name in found.contenders:
            found.entrants[name].call()
    finally:
        torch.set_num_threads(before)
    assert not found.rejected
    assert (ALL_CORES in found.contenders) == (threads > 1)
    if case is LAYER:  # which multiplies twice
        assert used[::2] == used[1::2]
        used = used[::2]
    alone, checks = max(1, threads - 1), len(used) // (1 + (threads > 1)) - 1
    assert checks >= 2
    assert used == [n for n in (alone, threads)[:threads] for _ in range(checks)] + [alone, threads][:threads]
    assert torch.get_num_threads() == before


def test_one_core_is_left_to_the_link():
    threads = torch.get_num_threads()
    with operands.computing("cpu"):
        assert torch.get_num_threads() == max(1, threads - 1)
    assert torch.get_num_threads() == threads


COLLECT = """
import contextlib, io, json, pytest
with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
    code = pytest.main(["tests/benchmarks", "--ffn-contenders={}", "--collect-only"])
print(json.dumps([code, out.getvalue()]))
"""


@pytest.mark.parametrize(
    ("contenders", "said"), [("tilde", "did you mean tiled?"), ("row_block_launch", "did you mean row_block_launches?")]
)
def test_unknown_contender_or_arm_suggests_a_near_one(contenders, said, printed_elsewhere):
    code, text = printed_elsewhere(COLLECT.format(contenders))
    assert code == 2
    assert said in text


def test_a_later_process_takes_what_the_first_one_chose(options):
    case = all_gather("ridge")
    first = all_gather_matmul.Runner(options).prepare(case, ARMS)
    later = all_gather_matmul.Runner(options)
    planned = {"t_gemm_planned_s": 1e-3, metrics.REQUESTED: 12345678.0}
    measured = {f"gemm {first.facts['unsplit']}": dict(enumerate([2e-3, 4e-3, 5e-3, 9e-3]))}
    later.earlier[case.id] = SimpleNamespace(facts=first.facts | planned, times_s=measured.get)
    found = later.prepare(case, ARMS)
    assert found.facts == first.facts | planned | {metrics.REQUESTED: pytest.approx(12345678.0 / 4)}
    assert found.contenders == ARMS


@pytest.mark.parametrize(("times_s", "reached"), [([2, 2, 1], None), ([2, 2, 2], "reaches 5e-08 GB/s alone")])
def test_link_off_its_pace_is_looked_at_three_times(times_s, reached):
    left = iter(times_s)
    work = SimpleNamespace(wire_bytes=100)
    slow = SimpleNamespace(bytes_per_s=100.0, case=SimpleNamespace(work=work), gathers_s=lambda count: [next(left)])
    said = arms.off_pace(slow)
    assert said is reached or reached in said


def test_what_is_kept_for_other_shapes_is_let_go_of(options):
    runner = all_gather_matmul.Runner(options)
    runner.prepare(all_gather(), ARMS)
    kept = operands.normal, operands.shards_of, operands.buffer
    assert all(cache.cache_info().currsize for cache in kept)
    runner.release()
    assert not any(cache.cache_info().currsize for cache in kept)
