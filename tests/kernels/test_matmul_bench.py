"""The benchmarks' own checks: a wrong, partial, crashing or interpreted contender never gets to be timed."""

import dataclasses
from pathlib import Path

import pytest
import torch

from kernels import CONTENDERS
from kernels.bench import checks, matmul
from kernels.registry import Contender
from roofline.measure import device_errors
from roofline.measure.prepared import verdict
from roofline.operations.matmul import Matmul, sweep
from roofline.options import Options

CASE = Matmul("100,300", "up", 1, 300, "fp32")


@pytest.fixture
def timed():
    return Options("cpu", True, "100x300", ("up",), (300,), (1,), ("fp32",), None, 0, 1.0, Path("unused"))


@pytest.fixture
def contender(monkeypatch):
    """`contender(run)` stands in for NumPy's."""
    numpy = CONTENDERS["numpy"]
    return lambda run: monkeypatch.setitem(CONTENDERS, "numpy", dataclasses.replace(numpy, run=run))


def right(x, w, out):
    return torch.mm(x, w.T, out=out)


def test_right_contender_is_ready_beside_the_vendor(timed):
    found = matmul.Runner(timed).prepare(CASE, ["numpy"])
    assert found.contenders == ["torch", "numpy"]
    assert found.entrants["numpy"].relative_error < 1e-6
    found.entrants["numpy"].call()


def skips_a_row(x, w, out):
    torch.mm(x[:-1], w.T, out=out[:-1])
    return out


def wrong_in_one_tile(x, w, out):
    right(x, w, out)
    out[64:96, 128:160] += 1
    return out


def crashes(x, w, out):
    raise RuntimeError("no such instruction\nat line 3")


def runs_out_of_memory(x, w, out):
    raise torch.OutOfMemoryError("tried to allocate 3 TiB")


@pytest.mark.parametrize(
    ("run", "said"),
    [
        (skips_a_row, "left unwritten"),
        (wrong_in_one_tile, "is above 1e-05, the limit for fp32"),
        (crashes, "numpy: RuntimeError: no such instruction"),
    ],
)
def test_wrong_contender_is_not_ready_and_the_vendor_still_is(timed, contender, run, said):
    contender(run)
    found = matmul.Runner(timed).prepare(CASE, ["numpy"])
    assert found.contenders == ["torch"]
    assert found.rejected["numpy"].outcome == "failed"
    assert said in found.rejected["numpy"].reason
    assert "\n" not in found.rejected["numpy"].reason


@pytest.mark.parametrize(("error", "ready"), [(2e-3, ["torch", "numpy"]), (6e-3, ["torch"]), (0.02, [])])
def test_a_vendor_may_round_parts_of_k_and_is_measured_all_the_same(timed, monkeypatch, error, ready):
    def rounds(x, w, out):
        exact = x.float() @ w.float().T
        return out.copy_(exact * (1 + error * torch.randn(exact.shape, generator=torch.Generator().manual_seed(0))))

    torch_mm = CONTENDERS["torch"]
    for name, kind in (("torch", "vendor"), ("numpy", "library")):
        monkeypatch.setitem(CONTENDERS, name, dataclasses.replace(torch_mm, name=name, kind=kind, run=rounds))
    options = dataclasses.replace(timed, dtypes=("bf16",))
    found = matmul.Runner(options).prepare(dataclasses.replace(CASE, dtype="bf16"), ["numpy"])
    assert found.contenders == ready
    assert all(0.9 * error <= found.entrants[name].relative_error <= 0.01 for name in ready)


def test_each_first_call_is_told_before_it_begins(timed, contender):
    told = []
    contender(lambda x, w, out: told.append("called") or right(x, w, out))
    matmul.Runner(timed).prepare(CASE, ["numpy"], lambda *told_of: told.append(told_of))
    assert told[:3] == [("torch", None), ("numpy", None), "called"]
    assert CONTENDERS["inductor"].first_call_s == 1800


def test_contender_that_is_refused_before_its_first_call_is_not_called(timed, contender):
    called = []
    contender(lambda x, w, out: called.append(x) or right(x, w, out))

    def first_call(name, within_s):
        if name == "numpy":
            raise RuntimeError("hung in its first call")

    found = matmul.Runner(timed).prepare(CASE, ["numpy"], first_call)
    assert found.contenders == ["torch"]
    assert "hung in its first call" in found.rejected["numpy"].reason
    assert not called


def test_lost_device_leaves_nobody_ready(timed, contender, monkeypatch):
    contender(crashes)
    monkeypatch.setattr(device_errors, "device_lost", lambda device: True)
    found = matmul.Runner(timed).prepare(CASE, ["numpy", "torch"])
    assert not found.entrants
    assert found.device_lost == found.rejected["numpy"].reason
    assert "torch" not in found.rejected


def test_out_of_memory_is_no_failure(timed, contender):
    contender(runs_out_of_memory)
    found = matmul.Runner(timed).prepare(CASE, ["numpy"])
    assert found.rejected["numpy"].outcome == "skipped"
    assert "out of memory: tried to allocate 3 TiB" in found.rejected["numpy"].reason


def test_triton_is_not_timed_on_a_cpu_nor_interpreted(timed):
    assert "timed on cuda only" in matmul.Runner(timed).prepare(CASE, ["tiled"]).rejected["tiled"].reason
    interpreted = dataclasses.replace(CONTENDERS["tiled"], jit=object())
    on_a_gpu = dataclasses.replace(timed, device="cuda")
    assert "interpreted, which is never timed" in matmul.why_not(interpreted, on_a_gpu, None, None)


def test_operands_rotate_beyond_the_cache(timed):
    case = Matmul("512,512", "up", 1, 64, "fp32")
    sets = matmul.operands(case, timed)
    assert len(sets) * case.work.device_bytes >= 2 * matmul.cache_bytes("cpu")
    assert len({tensor.data_ptr() for one in sets for tensor in one}) == 3 * len(sets)
    assert all(tensor.is_contiguous() and tensor.data_ptr() % 64 == 0 for one in sets for tensor in one)
    assert all(abs(x.std() - 1) < 0.05 and x.mean().abs() < 0.05 for x, _, _ in sets)


def test_shape_that_cannot_fit_leaves_the_others_theirs(timed):
    options = dataclasses.replace(timed, tokens=(300, 10**12))
    assert matmul.Runner(options).prepare(sweep(options)[0], ["numpy"]).contenders == ["torch", "numpy"]
    with pytest.raises(RuntimeError, match="memory"):
        matmul.operands(sweep(options)[-1], options)


def test_machine_is_described_once_and_not_for_each_shape(timed, monkeypatch):
    asked, describe = [], matmul.describe
    monkeypatch.setattr(matmul, "describe", lambda device: asked.append(device) or describe(device))
    matmul.machine.cache_clear()
    options = dataclasses.replace(timed, tokens=(1, 2, 3))
    for case in sweep(options):
        matmul.Runner(options).prepare(case, ["numpy"])
    assert asked == ["cpu"]


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_each_dtype_has_its_probes_and_a_library_that_cannot_take_it_says_so(timed, dtype):
    probes = matmul.probes(dataclasses.replace(timed, dtypes=(dtype, "fp32")))
    reasons = {probe.name: probe.why_not() for probe in probes if probe.dtype == dtype}
    assert reasons["torch 1024x1024x1024"] is None
    wrong = reasons["numpy 1024x1024x1024"]
    assert wrong is None if dtype == "fp32" else "NumPy's BLAS takes float32" in wrong
    assert {probe.why_not() for probe in probes if probe.kind in ("read", "copy")} == {None}


def test_probes_fit_into_the_memory_where_a_virtual_machine_names_the_cache_of_its_host(timed, monkeypatch):
    monkeypatch.setattr(matmul, "machine", lambda device: {"cache_bytes": 2**40, "memory_bytes": 24 * 2**22})
    (copy,) = [probe for probe in matmul.probes(timed) if probe.kind == "copy"]
    assert 2**22 < copy.amount <= 2 * 2**22


def test_a_library_that_computes_nothing_sets_no_ceiling(timed, contender):
    contender(lambda x, w, out: out)
    reasons = {probe.name: probe.why_not() for probe in matmul.probes(timed)}
    lazy = [reason for name, reason in reasons.items() if name.startswith("numpy")]
    assert len(lazy) == 5
    assert all("an element was left unwritten" in reason for reason in lazy)


def test_a_contender_that_names_no_jit_or_cannot_be_asked_fails_alone(timed, monkeypatch):
    def cannot_say(x, w, out=None):
        raise AttributeError("no attribute 'shape'")

    plain = dict(kind="triton", device="cpu", run=right, config=lambda x, w: "")
    monkeypatch.setitem(CONTENDERS, "plain", Contender(name="plain", why_not=lambda x, w, out=None: None, **plain))
    monkeypatch.setitem(CONTENDERS, "mute", Contender(name="mute", why_not=cannot_say, **plain))
    prepared = matmul.Runner(timed).prepare(CASE, ["plain", "mute", "numpy"])
    assert prepared.contenders == ["torch", "plain", "numpy"]
    assert prepared.rejected["mute"].reason.startswith("mute: AttributeError: no attribute 'shape'")


@pytest.mark.parametrize(
    "damage",
    [
        lambda out: out[-33:-3].mul_(1.1),
        lambda out: out[170, 17].add_(0.2),
        lambda out: out[-1, -1].add_(0.2),
        lambda out: out[157:159].copy_(out[157:159].flip(0)),
        lambda out: out[:, 32:34].copy_(out[:, 32:34].flip(1)),
        lambda out: out[64:80, 128:144].copy_(out[64:80, 144:160]),
    ],
    ids=["rows off by a tenth", "an element", "the last element", "rows exchanged", "columns exchanged", "a tile"],
)
@pytest.mark.parametrize("m", [200, 1000])
def test_any_wrong_element_is_refused_and_rounding_is_not(m, damage):
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn(rows, 256, generator=generator) / 4 for rows in (m, 301))
    reference, out = checks.reference_sums(x, w), (x @ w.T).bfloat16()
    assert verdict("rounded", checks.error_of(out, reference), "bf16") is None
    damage(out)
    assert "is above 3e-03" in verdict("damaged", checks.error_of(out, reference), "bf16").reason
