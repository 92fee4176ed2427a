"""Cases that gather, prepared: arms are checked before they are timed, and one that fails leaves the others."""

from types import SimpleNamespace

import pytest
import torch
from gather_cases import ARMS, all_gather, options_of

from collectives import links
from collectives.all_gather_matmul import serial
from collectives.bench import all_gather_matmul, arms, ffn, matmul_reduce_scatter, operands, setting, weight_prefetch
from roofline.measure.prepared import PreparedCase
from roofline.operations.ffn import Ffn
from roofline.operations.matmul_reduce_scatter import MatmulReduceScatter
from roofline.operations.weight_prefetch import WeightPrefetch
from roofline.store.run import REQUESTED
from roofline.theory.arms import ALL_CORES

PREFETCH = WeightPrefetch("128x512", "up", 1, 256, "fp32", 4, "0.02GBps")
LAYER = Ffn("128x512", "up_down", 1, 1024, "fp32", 4, "0.05GBps")
SCATTER = MatmulReduceScatter("128x512", "down", 1, 1024, "fp32", 4, "0.05GBps")


def roles(found):
    return {name: found.entrants[name].role for name in found.references}


@pytest.fixture
def arm(monkeypatch):
    """`arm(name, run)` stands in for an arm of the all-gather matmul."""
    return lambda name, run: monkeypatch.setitem(all_gather_matmul.Runner.own_arms, name, run)


def test_an_arm_of_a_gpu_is_called_without_its_link_and_again_where_that_gave_up(options):
    """A kernel is compiled and loaded then, and a link that waits for what it computes gives up."""
    errors, over = iter([0.5, links.LinkError("it was not computed for 2 s"), 0.0, 1e-7]), []

    def relative_error(arm, link, operands, **about):
        over.append(type(link))
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
    assert over == [links.WarmUp, *[type(None)] * 3]


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


def test_arm_whose_link_dies_is_not_ready_and_the_others_are(options, arm):
    def over_a_dead_link(operands, link):
        link._move = lambda index, source, target: 1 / 0
        return serial(operands, link)

    arm("row_block_launches", over_a_dead_link)
    found = all_gather_matmul.Runner(options).prepare(all_gather(), ARMS)
    assert found.contenders == ["serial", "chunk_launches"]
    assert "chunk 1 (row block 0), which rank 1 sends to rank 0" in found.rejected["row_block_launches"].reason


def test_other_dtypes_than_fp32_are_skipped_on_a_cpu(options):
    found = all_gather_matmul.Runner(options).prepare(all_gather(dtype="bf16"), ARMS)
    assert found.rejected["serial"].outcome == "skipped"
    assert "fp32, not bf16" in found.rejected["serial"].reason


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


@pytest.mark.parametrize("wire", ["balance50", "ridge"])
def test_a_later_process_takes_what_the_first_one_chose(options, wire):
    case = all_gather(wire)
    first = all_gather_matmul.Runner(options).prepare(case, ARMS)
    later = all_gather_matmul.Runner(options)
    facts = first.facts | {"t_gemm_planned_s": 1e-3, REQUESTED: 12345678.0}
    measured = {f"gemm {first.facts['unsplit']}": dict(enumerate([0.02, 0.04, 0.05, 0.09]))}
    later.earlier[case.id] = SimpleNamespace(facts=facts, times_s=measured.get)
    found = later.prepare(case, ARMS)
    measured = {"t_gemm_planned_s": 0.045, REQUESTED: case.work.wire_bytes / 0.045}
    assert found.facts == (facts if wire == "balance50" else facts | measured)
    assert found.contenders == ARMS


def test_what_is_kept_for_other_shapes_is_let_go_of(options):
    runner = all_gather_matmul.Runner(options)
    runner.prepare(all_gather(), ARMS)
    kept = operands.normal, operands.shards_of, operands.buffer
    assert all(cache.cache_info().currsize for cache in kept)
    runner.release()
    assert not any(cache.cache_info().currsize for cache in kept)
