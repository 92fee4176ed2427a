"""The benchmarks' own checks: a wrong, partial, crashing, cheating or interpreted contender never gets to be timed, or
loses its samples afterwards."""

import dataclasses
import math
from collections import Counter
from pathlib import Path

import pytest
import torch

from kernels import tiled, vendor
from kernels.bench import checks, matmul, roof
from kernels.contract import KernelLaunch
from kernels.registry import CONTENDERS
from roofline.host import device_errors
from roofline.operations.matmul import Matmul, sweep
from roofline.operations.options import Options, resolve
from roofline.protocol.messages import Broken
from roofline.theory import chips
from roofline.worker.clocks import CpuClock
from roofline.worker.prepared import PreparedCase, verdict

CASE = Matmul("100,300", "up", 1, 300, "fp32")
OPTIONS = Options(
    device="cpu", timed=True, model="100x300", layers=("up",), tokens=(300,), tp=(1,), dtypes=("fp32",), max_seconds=1.0
)


@pytest.fixture
def contender(monkeypatch):
    """`contender(run)` stands in for NumPy's."""
    numpy = vendor.numpy_cpu
    return lambda run, **more: monkeypatch.setattr(vendor, "numpy_cpu", dataclasses.replace(numpy, run=run, **more))


def prepare(names=("numpy",), case=CASE, options=OPTIONS, **more) -> PreparedCase:
    return matmul.Runner(options).prepare(case, list(names), **more)


def right(x, w, out):
    return torch.mm(x, w.T, out=out)


def test_a_tiny_shape_has_a_bounded_number_of_sets_and_says_that_they_stay_in_the_cache(monkeypatch):
    monkeypatch.setattr(matmul, "MOST_SETS", 7)
    prepared = prepare(case=Matmul("4,4", "up", 1, 1, "fp32"))
    assert [*prepared.entrants] == ["torch", "numpy"]
    assert len(prepared.inputs.sets) == 7
    assert prepared.cache.startswith("warm: 7 sets of operands in rotation")


def test_in_turns_too_each_contender_has_tensors_of_its_own():
    rotation = checks.Rotation([tuple(torch.ones(2, 2, 3).unbind(0)), tuple(torch.ones(2, 2, 3).unbind(0))], seed=0)
    turned, other = (rotation.rotated(run) for run in (lambda x, w: w.t_(), lambda x, w: [*w.shape]))
    for _ in rotation.sets:
        assert [*turned().shape] == [3, 2]
    assert [other() for _ in rotation.sets] == [[2, 3]] * 2


def wrong_in_one_tile(x, w, out):
    right(x, w, out)[64:96, 128:160] += 1
    return out


def crashes(x, w, out):
    raise RuntimeError("no such instruction\nat line 3")


def runs_out_of_memory(x, w, out):
    raise torch.OutOfMemoryError("tried to allocate 3 TiB")


def stale():
    """What it computed first."""
    last = []

    def returns_the_first_result(x, w, out):
        last.append(x @ w.T)
        return out.copy_(last[0])

    return returns_the_first_result


def lazy(calls_that_work):
    calls = []

    def stops_working(x, w, out):
        calls.append(1)
        return right(x, w, out) if len(calls) <= calls_that_work else out

    return stops_working


def writes_into_inputs(x, w, out):
    right(x, w, out)
    x.zero_()
    w.zero_()
    return out


def writes_beside(name, at):
    """As a kernel without a mask does: so many elements behind the end of x or out, or before it."""

    def writes(x, w, out):
        matrix = {"x": x, "out": out}[name]
        memory = matrix.new_empty(0).set_(matrix.untyped_storage())
        memory[matrix.storage_offset() + at] = math.nan
        return right(x, w, out)

    return writes


@pytest.mark.parametrize(
    ("run", "outcome", "message"),
    [
        (wrong_in_one_tile, "failed", "is above 1e-05, the limit for fp32"),
        (crashes, "failed", "numpy: RuntimeError: no such instruction"),
        (runs_out_of_memory, "skipped", "out of memory: tried to allocate 3 TiB"),
        (stale(), "failed", "of inputs that it had not seen"),
        (lazy(1), "failed", "holds NaN: unwritten, read out of bounds, or computed"),
        (lambda x, w, out: right(x, w, out).clone(), "failed", "another tensor, torch.float32 [300, 300], and not"),
        (writes_into_inputs, "failed", "it wrote into its input x and its input w,"),
        (writes_beside("out", 300 * 300 + 7), "failed", "it wrote into what lies behind out,"),
        (writes_beside("out", -7), "failed", "it wrote into what lies before out,"),
        (writes_beside("x", 100 * 300 + 7), "failed", "it wrote into what lies behind x,"),
    ],
)
def test_wrong_contender_is_refused_and_the_next_is_not(contender, run, outcome, message):
    contender(run)
    prepared = prepare(["numpy", "torch"], options=dataclasses.replace(OPTIONS, timed=False))
    assert prepared.contenders == ["torch"]
    assert prepared.rejected["numpy"].outcome == outcome
    assert message in prepared.rejected["numpy"].reason
    assert "\n" not in prepared.rejected["numpy"].reason


def test_cheat_that_begins_once_it_was_checked_is_found_out_afterwards(contender):
    contender(lazy(4))
    entrant = prepare().entrants["numpy"]
    assert entrant.recheck() is None
    rejection = entrant.recheck()
    assert rejection.outcome == "failed"
    assert "holds NaN: unwritten" in rejection.reason


def test_a_library_is_checked_and_called_by_its_fastest_candidate_which_the_first_share_chooses(contender, monkeypatch):
    taken = []

    def turn(clock, calls):
        times = []
        for call in calls:
            call()
            times.append(0.5 if taken[-1] == 1 else 1.0)
        return times

    def run(x, w, out, candidate=0):
        taken.append(candidate)
        if candidate == 2:
            raise RuntimeError("cublasLtMatmul ended with the cuBLAS status 15")
        return right(x, w, out)

    contender(run, candidates=lambda *operands: 4, describe=lambda *operands, candidate=0: f"candidate {candidate}")
    monkeypatch.setattr(CpuClock, "turn", turn)
    prepared = prepare()
    assert prepared.facts == {"numpy_candidate": 1}
    assert prepared.entrants["numpy"].config == "candidate 1"
    assert {*taken} == {0, 1, 2, 3}
    taken.clear()
    prepared.entrants["numpy"].call()
    assert prepared.entrants["numpy"].recheck() is None
    assert {*taken} == {1}
    later = matmul.Runner(OPTIONS)
    for medians_s, candidate in (({}, 1), ({"torch": 1.0}, 3)):  # a share that checked chose it, beside others
        later.earlier = {CASE.id: {"facts": {"numpy_candidate": 3}, "medians_s": medians_s}}
        assert later.prepare(CASE, ["numpy"]).facts == {"numpy_candidate": candidate}


def test_inputs_are_as_they_were_after_the_checks(contender):
    seen = []
    contender(lambda x, w, out: seen.append(x.clone()) or right(x, w, out))
    prepare().entrants["numpy"].call()
    assert torch.equal(seen[0], -seen[1])
    assert any(torch.equal(seen[-1], x) for x, _, _ in matmul.operands(CASE, OPTIONS))


@pytest.mark.parametrize(("error", "ready"), [(6e-3, ["torch", "numpy"]), (0.02, [])])
def test_libraries_may_round_parts_of_k_and_are_measured_all_the_same(monkeypatch, error, ready):
    def rounds(x, w, out):
        exact = x.float() @ w.float().T
        return out.copy_(exact * (1 + error * torch.randn(exact.shape, generator=torch.Generator().manual_seed(0))))

    rounding = dataclasses.replace(vendor.torch_cpu, run=rounds)
    for path in ("torch_cpu", "numpy_cpu"):
        monkeypatch.setattr(vendor, path, rounding)
    options, case = dataclasses.replace(OPTIONS, dtypes=("bf16",)), dataclasses.replace(CASE, dtype="bf16")
    prepared = prepare(case=case, options=options)
    assert prepared.contenders == ready
    assert all(0.9 * error <= prepared.entrants[name].relative_error <= 0.01 for name in ready)


def test_each_first_call_is_told_before_it_begins_and_may_be_refused(contender):
    events = []
    contender(lambda x, w, out: events.append("called") or right(x, w, out))

    def first_call(name, within_s):
        events.append((name, within_s))
        if "called" in events:
            raise RuntimeError("hung in its first call")

    prepare(first_call=first_call)
    assert events[:3] == [("torch", None), ("numpy", None), "called"]
    assert "hung in its first call" in prepare(["inductor"], first_call=first_call).rejected["torch"].reason
    assert events[-1] == ("inductor", 1800)


def test_lost_device_ends_the_share(contender, monkeypatch):
    contender(crashes)
    monkeypatch.setattr(device_errors, "device_lost", lambda device: True)
    with pytest.raises(Broken) as broken:
        prepare(["numpy", "torch"])
    assert broken.value.args[0] == "numpy"


def test_triton_is_not_timed_on_a_cpu_nor_interpreted(monkeypatch):
    assert "timed on cuda only" in prepare(["tiled"]).rejected["tiled"].reason
    monkeypatch.setattr(matmul, "interpreted", lambda: True)
    monkeypatch.setattr(tiled, "matmul", dataclasses.replace(tiled.matmul, require=lambda *operands: None))
    on_a_gpu = dataclasses.replace(OPTIONS, device="cuda")
    with pytest.raises(ValueError, match="interpreted, which is never timed"):
        matmul.require(CONTENDERS["tiled"], on_a_gpu, (None, None, None))


def test_operands_rotate_beyond_the_cache():
    case = Matmul("128,128", "up", 1, 64, "fp32")
    sets = matmul.operands(case, OPTIONS)
    assert len(sets) * case.work.device_bytes >= 2 * roof.cache_bytes("cpu")
    assert len({tensor.data_ptr() for tensors in sets for tensor in tensors}) == 3 * len(sets)
    assert all(tensor.is_contiguous() and tensor.data_ptr() % 64 == 0 for tensors in sets for tensor in tensors)


@pytest.mark.parametrize(("m", "memory_sets", "expected"), [(64, 9.5, 6), (64, 4.5, 4), (65, 9.5, 2)])
def test_few_rows_get_more_sets_of_operands_as_far_as_they_fit(machine_of, m, memory_sets, expected):
    case, options = Matmul("64,64", "up", 1, m, "fp32"), dataclasses.replace(OPTIONS, tokens=(m,))
    machine_of(cache_bytes=1, memory_bytes=memory_sets * case.work.device_bytes / matmul.POOL)
    assert len(matmul.operands(case, options)) == expected


def test_the_rotation_of_all_shapes_fits_into_the_share_and_a_shorter_one_is_told(machine_of, monkeypatch):
    options = dataclasses.replace(OPTIONS, model="256,1024", layers=("up", "down"), tokens=(1, 2048))
    machine_of(cache_bytes=2**24, memory_bytes=2**40)
    whole, pool, taken = {case.id: len(matmul.operands(case, options)) for case in sweep(options)}, matmul._pool, {}
    monkeypatch.setattr(matmul, "worker_bytes", lambda device: 10**8)
    monkeypatch.setattr(matmul, "_pool", lambda *about: taken.setdefault(about, pool(*about)))
    for case in sweep(options):
        assert 2 <= len(matmul.operands(case, options)) < whole[case.id]
    assert sum(tensor.nbytes for tensor in taken.values()) <= 0.65 * 10**8  # with what checks look at
    assert ", not the 128 that leave none in the cache" in matmul.Runner(options).prepare(case, []).cache


@pytest.fixture
def small_probes(machine_of):
    """Probes of a machine with little cache and memory: `small_probes(dtypes)`."""
    machine_of(cache_bytes=2**40, memory_bytes=24 * 2**18)
    return lambda *dtypes: roof.probes(dataclasses.replace(OPTIONS, dtypes=dtypes or ("fp32",)))


def test_each_dtype_has_its_probes_and_a_library_that_cannot_take_it_says_so(small_probes):
    reasons = {(probe.kind, probe.name, probe.dtype): probe.why_not() for probe in small_probes("bf16", "fp32")}
    wrong = {about: reason for about, reason in reasons.items() if reason}
    assert {(kind, name.split()[0], dtype) for kind, name, dtype in wrong} == {("matmul", "numpy", "bf16")}
    assert all("NumPy's BLAS takes float32" in reason for reason in wrong.values())
    assert Counter(kind for kind, *_ in reasons) == {"matmul": 3 * 2 * 2, "read": 6, "copy": 1}


@pytest.mark.parametrize(
    ("cache_bytes", "memory_bytes", "expected_bytes"),
    [(7 * 2**20, 10 * 10**9, 416_666_666), (72 * 2**20, 24 * 10**9, 10**9), (50 * 2**20, 80 * 10**9, 2**31)],
    ids=["a slice of an H100", "RTX 4090", "H100"],
)
def test_probes_of_a_gpu_fit_beside_its_operands(machine_of, cache_bytes, memory_bytes, expected_bytes):
    machine_of(cache_bytes=cache_bytes, memory_bytes=memory_bytes)
    probe_bytes = roof.beyond_cache_bytes("cuda")
    assert probe_bytes == expected_bytes
    assert 4 * probe_bytes + matmul.POOL * memory_bytes < memory_bytes
    assert probe_bytes >= roof.ROTATION * cache_bytes


def on_an_absent_h100() -> list:
    """Of three shapes of a default run: what is noted of them, where Triton compiles for an H100 that is not there."""
    from kernels.bench import absent_gpu

    absent_gpu.install(chips.find("H100 SXM"), absent_gpu.Launches())
    KernelLaunch.run = lambda launch, on: None
    plan = {"tokens": (64, 128, 8192), "tp": (8,), "layers": ("up",)}
    options = resolve(plan, device="cuda", timed=True, root=Path())
    facts = []
    for case in sweep(options):
        prepared = prepare(["decode", "persistent", "warpgroup"], case, options)
        tuned = [name for name, entrant in prepared.entrants.items() if entrant.facts.get("tuned")]
        facts.append(
            [
                case.m,
                prepared.facts["dispatched"],
                tuned,
                prepared.entrants["cublas"].facts,
            ]
        )
    matmul.kernels.contender_for = lambda *operands: 1 / 0
    prepared = prepare(["persistent"], case, options)
    return [*facts, [[*prepared.entrants], prepared.facts["dispatched"]]]


def test_on_a_gpu_a_shape_says_what_kernels_matmul_takes_and_what_a_trial_chose_for_it(elsewhere):
    assert elsewhere(on_an_absent_h100) == [
        [64, "decode", ["decode"], {}],
        [128, "persistent", [], {}],
        [8192, "warpgroup", ["warpgroup"], {}],
        [["cublas", "persistent"], None],
    ]
    assert "dispatched" not in prepare().facts  # a CPU times none of ours


def test_a_library_that_computes_nothing_sets_no_ceiling(contender, small_probes):
    contender(lambda x, w, out: out)
    reasons = [probe.why_not() for probe in small_probes() if probe.name.startswith("numpy")]
    assert all("holds NaN: unwritten" in reason for reason in reasons)


@pytest.mark.parametrize(
    "damage",
    [
        lambda out: out[170, 17].add_(0.2),
        lambda out: out[-1, -1].add_(0.2),
        lambda out: out[157:159].copy_(out[157:159].flip(0)),
        lambda out: out[:, 33:43:9].copy_(out[:, 33:43:9].flip(1)),  # of one group, with weights of one sign
        lambda out: out[64:80, 128:144].copy_(out[64:80, 144:160]),
    ],
    ids=["an element", "the last element", "rows exchanged", "columns exchanged", "a tile"],
)
@pytest.mark.parametrize("m", [200, 1000])
def test_any_wrong_element_is_refused_and_rounding_is_not(m, damage):
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn(rows, 256, generator=generator) / 4 for rows in (m, checks.SLICE + 301))
    reference, out = checks.reference_sums(x, w), (x @ w.T).bfloat16()
    assert verdict("rounded", checks.error_of(out, reference), "bf16") is None
    damage(out)
    assert "is above 3e-03" in verdict("damaged", checks.error_of(out, reference), "bf16").reason
